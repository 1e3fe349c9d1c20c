//! What a person sees while a job runs: bars on a terminal, a line now and then elsewhere. All on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::hub_client::JobStatus;

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The progress of one run.
pub(crate) struct Progress {
    policy: &'static str,
    epochs: u32,
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
        Ok(Self { policy, epochs, view })
    }

    /// Shows a status.
    pub(crate) fn show(&mut self, status: &JobStatus) {
        let job_text = describe_job(status, self.epochs);
        match &mut self.view {
            View::Bars { job, agents, .. } => {
                job.set_position((status.epoch * 1000.0) as u64);
                job.set_message(job_text);
                for (bar, agent) in agents.iter().zip(&status.agents) {
                    bar.set_message(agent.describe());
                }
            }
            View::Lines { last, last_text } => {
                if last.is_some_and(|last| last.elapsed() < LINE_EVERY) {
                    return;
                }
                let agents: Vec<String> = status.agents.iter().map(|agent| agent.describe_short()).collect();
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
}
