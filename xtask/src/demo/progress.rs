//! What a person sees while a job runs: bars on a terminal, a line now and then elsewhere. All on standard error.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::hub_client::{AgentStatus, JobStatus};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The progress of one run.
pub(crate) struct Progress {
    policy: &'static str,
    epochs: u32,
    idle: IdleMeter,
    view: View,
}

enum View {
    Bars { _group: MultiProgress, job: ProgressBar, agents: Vec<ProgressBar> },
    Lines { last: Option<Instant>, last_text: String },
}

impl Progress {
    /// Starts to show.
    ///
    /// # Errors
    /// Never for the templates that are written here.
    pub(crate) fn start(policy: &'static str, epochs: u32, agents: usize) -> anyhow::Result<Self> {
        let view = if std::io::stderr().is_terminal() {
            let group = MultiProgress::new();
            let job = group.add(ProgressBar::new(u64::from(epochs) * 1000));
            job.set_style(ProgressStyle::with_template("{prefix:<9} [{bar:28}] {wide_msg}")?.progress_chars("=> "));
            job.set_prefix(policy);
            let line = ProgressStyle::with_template("  {wide_msg}")?;
            let agents = (0..agents).map(|_| group.add(ProgressBar::new(1).with_style(line.clone()))).collect();
            View::Bars { _group: group, job, agents }
        } else {
            View::Lines { last: None, last_text: String::new() }
        };
        Ok(Self { policy, epochs, idle: IdleMeter::default(), view })
    }

    /// Shows a status.
    pub(crate) fn show(&mut self, status: &JobStatus) {
        let job_text = describe_job(status, self.epochs);
        let idle_shares = self.idle.shares(status);
        let agents_with_idle = || status.agents.iter().zip(&idle_shares);
        match &mut self.view {
            View::Bars { job, agents, .. } => {
                job.set_position((status.epoch * 1000.0) as u64);
                job.set_message(job_text);
                for (bar, (agent, idle_share)) in agents.iter().zip(agents_with_idle()) {
                    bar.set_message(agent.describe(*idle_share));
                }
            }
            View::Lines { last, last_text } => {
                if last.is_some_and(|last| last.elapsed() < LINE_EVERY) {
                    return;
                }
                let agents: Vec<String> = agents_with_idle().map(|(agent, idle)| agent.describe_short(*idle)).collect();
                let text = format!("{}: {job_text} | {}", self.policy, agents.join(" | "));
                // A job that waits says so once.
                if text != *last_text {
                    eprintln!("{text}");
                    *last_text = text;
                }
                *last = Some(Instant::now());
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let View::Bars { job, agents, .. } = &self.view {
            for bar in agents {
                bar.finish_and_clear();
            }
            job.finish_and_clear();
        }
    }
}

/// The agents' idle shares of late, in the meaning of the table at the end: one minus the time that an agent's updates cost
/// it over the training time in which it made them. Time in a barrier in which its CPU quota refills is not idle.
#[derive(Default)]
struct IdleMeter {
    past: VecDeque<JobStatus>,
}

impl IdleMeter {
    /// Training time that a share is taken over, in seconds.
    const WINDOW_S: f64 = 3.0;

    /// Takes a status and returns the shares of its agents.
    fn shares(&mut self, status: &JobStatus) -> Vec<Option<f64>> {
        let training_s = status.training_s;
        // One from before the window stays, so that there is always something to compare with.
        while self.past.get(1).is_some_and(|second| training_s - second.training_s >= Self::WINDOW_S) {
            self.past.pop_front();
        }
        let before = self.past.front();
        let share = |agent: &AgentStatus| {
            let before = before?;
            let earlier = before.agents.iter().find(|earlier| earlier.agent == agent.agent)?;
            let span_s = training_s - before.training_s;
            let busy_s = agent.updates.checked_sub(earlier.updates)? as f64 * agent.step_s?;
            (span_s > 0.0).then(|| (1.0 - busy_s / span_s).clamp(0.0, 1.0))
        };
        let shares = status.agents.iter().map(share).collect();
        if self.past.back().is_none_or(|last| last.training_s < training_s) {
            self.past.push_back(status.clone());
        }
        shares
    }
}

fn describe_job(status: &JobStatus, epochs: u32) -> String {
    // An update that is missing for a moment is how BSP works, and no news.
    if status.version == 0
        && let Some(waiting) = status.waiting.first()
    {
        return waiting.clone();
    }
    let mut parts = vec![format!("epoch {:.2}/{epochs}", status.epoch)];
    parts.extend(status.loss.map(|loss| format!("loss {loss:.3}")));
    parts.extend(status.accuracy.map(|accuracy| format!("accuracy {:.1} %", accuracy * 100.0)));
    parts.extend(status.samples_per_s.map(|rate| format!("{rate:.0} samples/s")));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::hub_client::tests::status;
    use super::*;

    #[test]
    fn a_running_job_is_described_by_its_figures() {
        assert_eq!(describe_job(&status(), 8), "epoch 1.25/8, loss 0.512, accuracy 84.1 %, 9100 samples/s");
    }

    #[test]
    fn a_job_without_a_step_says_what_it_waits_for() {
        let waiting =
            JobStatus { version: 0, waiting: vec!["waiting for agents: 3 of 4 ready".to_owned()], ..status() };
        assert_eq!(describe_job(&waiting, 8), "waiting for agents: 3 of 4 ready");
    }

    #[test]
    fn idle_shares_compare_what_updates_cost_with_the_time_they_came_in() {
        let at = |training_s: f64, updates: u64| {
            let agent = AgentStatus { updates, step_s: Some(0.05), ..status().agents[0].clone() };
            JobStatus { training_s, agents: vec![agent], ..status() }
        };
        let mut meter = IdleMeter::default();
        assert_eq!(meter.shares(&at(0.0, 0)), [None]);
        assert_eq!(meter.shares(&at(1.0, 10)), [Some(0.5)]);
        // While the model is evaluated no time passes and nothing changes.
        assert_eq!(meter.shares(&at(1.0, 10)), [Some(0.5)]);
        meter.shares(&at(2.0, 20));
        meter.shares(&at(3.0, 20));
        let share = meter.shares(&at(5.0, 60))[0].unwrap(); // since 2 s: 40 updates of 0.05 s in 3 s
        assert!((share - 1.0 / 3.0).abs() < 1e-9, "{share}");
    }
}
