//! A job watched to its end, on whatever fleet it runs.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::hub_client::{self, HubClient, JobStatus};
use super::progress::Progress;
use super::session::Job;
use crate::interrupt::Interrupt;

/// Longest time in which a job may make no step.
const STEP_PATIENCE: Duration = Duration::from_secs(300);

/// Time between two looks at the hub.
const POLL_EVERY: Duration = Duration::from_millis(300);

/// What a look at the job led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Watch on.
    GoOn,
    /// The job has done what it was for, though it runs on.
    Enough,
}

/// Watches a job until it is done, or until `look`, which sees its state time and again, has seen enough. Returns the job as
/// it was last seen.
///
/// # Errors
/// When the job fails, makes no progress, or an agent cannot take part; whatever `look` has against going on.
pub(crate) fn watch(
    client: &HubClient,
    (job, run): (u64, &Job),
    agents: usize,
    interrupt: &Interrupt,
    look: &mut dyn FnMut(&JobStatus) -> anyhow::Result<Next>,
) -> anyhow::Result<hub_client::Job> {
    let mut progress = Progress::start(run.name, run.epochs, agents)?;
    let mut last_step = (0, Instant::now());
    loop {
        interrupt.sleep(POLL_EVERY)?;
        let view = client.job(job)?;
        let mut status = view.progress.clone().unwrap_or_default();
        // The hub counts agents in the order of their coming; people know them by their names.
        status.agents.sort_by(|left, right| (left.name.len(), &left.name).cmp(&(right.name.len(), &right.name)));
        progress.show(&status);
        let next = look(&status)?;
        match view.state.as_str() {
            "queued" | "running" if next == Next::GoOn => {}
            "queued" | "running" | "done" => return Ok(view),
            state => bail!("the job is {state}: {}", view.message),
        }
        if let Some((agent, reason)) = status.declined.iter().next() {
            bail!("{agent} cannot take part: {reason}");
        }
        if status.version != last_step.0 {
            last_step = (status.version, Instant::now());
        }
        if last_step.1.elapsed() > STEP_PATIENCE {
            bail!("no step in {} s; {}", STEP_PATIENCE.as_secs(), status.waiting.join("; "));
        }
    }
}
