//! What nobody has: batches that are right for the true speeds from each round's first moment on. A run's distance from it is
//! what measuring costs.
//!
//! The oracle's run is arithmetic, with no core in it: as many rounds as the real run made, each as long as its slowest agent
//! takes for the best whole batch, with noise of the same kind. Its rounds begin where the real run's would: at the same epochs,
//! and after the same pauses for evaluation.

use omnilearn_hub_core::Now;
use omnilearn_hub_core::batching::apportion::Infeasible;

use crate::agent::duration;
use crate::fleet::{AgentSpec, Fleet};
use crate::job::Job;
use crate::limit::{Changes, Pace, whole_batches};
use crate::noise;

/// What draws of noise are for, beside agent and round.
const ORACLE: u64 = u64::MAX - 1;

fn is_here(spec: &AgentSpec, now: Now) -> bool {
    spec.joins <= now && spec.leaves.is_none_or(|(leaves, _)| leaves > now)
}

/// Training time of the oracle's run, in seconds. `pauses_s` has for each round how much of the time until its begin the real run
/// did not spend on training.
///
/// # Errors
/// [`Infeasible`], where the agents of a round cannot take the global batch.
pub fn training_s(fleet: &Fleet, job: &Job, pauses_s: &[f64]) -> Result<f64, Infeasible> {
    let config = &job.config;
    let changes = Changes::of(fleet);
    let mut training_s = 0.0;
    let mut known = None;
    let mut plan: Vec<(usize, u32, Pace)> = Vec::new();
    for (round, pause_s) in pauses_s.iter().enumerate() {
        let now = duration(training_s + pause_s);
        let epoch = round as f64 * f64::from(config.global_batch) / f64::from(config.train_samples);
        let here = fleet.agents.iter().filter(|spec| is_here(spec, now)).count();
        let key = Some((changes.come(now, epoch), here));
        if known != key {
            let here = fleet.agents.iter().enumerate().filter(|(_, spec)| is_here(spec, now));
            let paced = here.map(|(index, spec)| (index, Pace::of(spec, (now, epoch), job.stream_bytes)));
            let (agents, paces): (Vec<usize>, Vec<Pace>) = paced.unzip();
            let batches = whole_batches(config.global_batch, config.batch_bounds, &paces)?;
            plan =
                agents.into_iter().zip(batches).zip(paces).map(|((agent, batch), pace)| (agent, batch, pace)).collect();
            known = key;
        }
        let seconds = |&(agent, batch, pace): &(usize, u32, Pace)| {
            let spec = &fleet.agents[agent];
            let compute_s = spec.overhead_s + f64::from(batch) / pace.samples_per_s;
            let factor = noise::factor(spec.noise, fleet.seed, &[agent as u64, ORACLE, round as u64]);
            pace.offset_s - spec.overhead_s + compute_s * factor
        };
        training_s += plan.iter().map(seconds).fold(0.0, f64::max);
    }
    Ok(training_s)
}
