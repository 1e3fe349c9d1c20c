//! A job in text, for people who watch it.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::client::{ClientError, HubClient};
use crate::view::{AgentProgress, JobState, JobView, Progress};

/// How often a terminal is redrawn.
const REDRAW_EVERY: Duration = Duration::from_millis(500);

/// How often a log gets a line.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How long a hub may be out of reach before following ends.
const HUB_LOST_AFTER: Duration = Duration::from_secs(30);

fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// The job and its progress on one line, for logs.
pub fn line(view: &JobView) -> String {
    let mut line = format!("job {} {}: {}", view.id, view.name, view.state.as_str());
    if let Some(progress) = &view.progress {
        if view.state == JobState::Running {
            write!(line, ", {}", progress.phase).expect("text takes everything");
        }
        write!(
            line,
            ", epoch {:.2}, step {}, loss {}, accuracy {}, {} samples/s",
            progress.epoch,
            progress.version,
            or_dash(progress.loss, |loss| format!("{loss:.4}")),
            or_dash(progress.accuracy, |accuracy| format!("{:.2} %", accuracy * 100.0)),
            or_dash(progress.samples_per_s, |rate| format!("{rate:.0}")),
        )
        .expect("text takes everything");
    }
    if !view.message.is_empty() {
        write!(line, " ({})", view.message).expect("text takes everything");
    }
    line
}

/// How many parameters are trained, where it is not all.
pub fn frozen(view: &JobView) -> Option<String> {
    let trained = view.parameters.saturating_sub(view.parameters_frozen);
    (view.parameters_frozen > 0).then(|| {
        format!("trains {trained} of {} parameters, the other {} are frozen", view.parameters, view.parameters_frozen)
    })
}

/// The job, its progress, its agents and what it waits for, on several lines.
pub fn block(view: &JobView) -> String {
    let mut text = format!("job {}  {}  {} {}  {}", view.id, view.name, view.mode, view.policy, view.state.as_str());
    if !view.message.is_empty() {
        write!(text, ": {}", view.message).expect("text takes everything");
    }
    if let Some(frozen) = frozen(view) {
        write!(text, "\n  {frozen}").expect("text takes everything");
    }
    if let Some(progress) = &view.progress {
        progress_lines(&mut text, view, progress);
    }
    text
}

fn progress_lines(text: &mut String, view: &JobView, progress: &Progress) {
    let mut add = |line: String| {
        text.push('\n');
        text.push_str(&line);
    };
    add(format!(
        "  {}  epoch {:.2}  step {}  loss {}  accuracy {}  {} samples/s  max/min step {}  {:.0} s",
        progress.phase,
        progress.epoch,
        progress.version,
        or_dash(progress.loss, |loss| format!("{loss:.4}")),
        or_dash(progress.accuracy, |accuracy| format!("{:.2} %", accuracy * 100.0)),
        or_dash(progress.samples_per_s, |rate| format!("{rate:.0}")),
        or_dash(progress.max_over_min_step, |ratio| format!("{ratio:.2}")),
        progress.wall_s,
    ));
    if !progress.agents.is_empty() {
        let width = progress.agents.iter().map(|agent| agent.name.len()).max().unwrap_or(0).clamp(5, 32);
        add(format!(
            "  {:width$}  {:>6}  {:>9}  {:>6}  {:>9}  {:>8}  state",
            "agent", "batch", "step ms", "idle", "staleness", "updates"
        ));
        for agent in &progress.agents {
            add(agent_line(agent, width));
        }
    }
    let declined = progress.declined.iter().map(|(agent, reason)| format!("  {agent} cannot take part: {reason}"));
    let remarks = progress.remarks.iter().map(|remark| format!("  {remark}"));
    let waiting = progress.waiting.iter().map(|waiting| format!("  {waiting}"));
    let waiting = waiting.filter(|_| !view.state.is_final());
    declined.chain(remarks).chain(waiting).for_each(add);
}

fn agent_line(agent: &AgentProgress, width: usize) -> String {
    let reason = if agent.reason.is_empty() { String::new() } else { format!(": {}", agent.reason) };
    format!(
        "  {:width$}  {:>6}  {:>9}  {:>6}  {:>9}  {:>8}  {}{reason}",
        agent.name,
        agent.local_batch,
        or_dash(agent.step_s, |step_s| format!("{:.1}", step_s * 1e3)),
        or_dash(agent.idle_share, |share| format!("{:.0} %", share * 100.0)),
        or_dash(agent.staleness_mean, |staleness| format!("{staleness:.1}")),
        agent.updates,
        agent.state,
    )
}

/// Shows a job until it ends, and then one last time; how it ended. On a terminal the view is redrawn in place; elsewhere
/// there is a line now and then, and one for each evaluation.
///
/// # Errors
/// [`ClientError`] once the hub has been out of reach for half a minute.
pub fn follow(client: &HubClient, job: u64) -> Result<JobView, ClientError> {
    let terminal = std::io::stderr().is_terminal();
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template("{msg}").expect("a constant template"));
    let (mut last_seen, mut last_line) = (Instant::now(), None::<Instant>);
    let mut last_accuracy = None;
    loop {
        match client.job(job) {
            Ok(view) => {
                last_seen = Instant::now();
                if view.state.is_final() {
                    bar.finish_and_clear();
                    eprintln!("{}", if terminal { block(&view) } else { line(&view) });
                    return Ok(view);
                }
                let accuracy = view.progress.as_ref().and_then(|progress| progress.test_loss);
                if terminal {
                    bar.set_message(block(&view));
                } else if last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) || accuracy != last_accuracy {
                    eprintln!("{}", line(&view));
                    for waiting in view.progress.iter().flat_map(|progress| &progress.waiting) {
                        if last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
                            eprintln!("  {waiting}");
                        }
                    }
                    last_line = Some(Instant::now());
                    last_accuracy = accuracy;
                }
            }
            Err(error @ ClientError::Unreachable { .. }) if last_seen.elapsed() < HUB_LOST_AFTER => {
                bar.set_message(error.to_string());
            }
            Err(error) => {
                bar.finish_and_clear();
                return Err(error);
            }
        }
        std::thread::sleep(REDRAW_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> JobView {
        let agent = AgentProgress {
            agent: 1,
            name: "pi".into(),
            state: "benched".into(),
            reason: "3 failures; back at 90 s".into(),
            local_batch: 16,
            step_s: Some(0.1234),
            busy_s: None,
            idle_share: Some(0.25),
            staleness: None,
            staleness_mean: None,
            updates: 7,
            samples: 112,
            refused: 0,
            failed: 3,
            batch_max: None,
        };
        let progress = Progress {
            phase: "waiting".into(),
            waiting: vec!["waiting for agents: 1 of 2 ready".into()],
            version: 7,
            epoch: 0.5,
            loss: Some(0.75),
            agents: vec![agent],
            declined: [("nano".to_owned(), "no data set".to_owned())].into(),
            ..Progress::default()
        };
        JobView {
            id: 3,
            name: "lenet".into(),
            state: JobState::Running,
            message: String::new(),
            created_s: 0.0,
            mode: "bsp".into(),
            policy: "dynamic".into(),
            dataset: "mnist".into(),
            train_samples: 60_000,
            parameters: 10,
            parameters_frozen: 0,
            progress: Some(progress),
        }
    }

    #[test]
    fn a_view_names_agents_and_everything_that_is_waited_for() {
        let text = block(&view());
        for expected in [
            "job 3  lenet  bsp dynamic  running",
            "epoch 0.50  step 7  loss 0.7500  accuracy -",
            "pi         16      123.4    25 %          -         7  benched: 3 failures; back at 90 s",
            "nano cannot take part: no data set",
            "waiting for agents: 1 of 2 ready",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }

    #[test]
    fn frozen_parameters_are_counted_where_there_are_any() {
        assert!(!block(&view()).contains("frozen"));
        let text = block(&JobView { parameters_frozen: 4, ..view() });
        assert!(text.contains("\n  trains 6 of 10 parameters, the other 4 are frozen\n"), "{text}");
    }

    #[test]
    fn a_line_has_no_line_break() {
        assert_eq!(
            line(&view()),
            "job 3 lenet: running, waiting, epoch 0.50, step 7, loss 0.7500, accuracy -, - samples/s"
        );
    }
}
