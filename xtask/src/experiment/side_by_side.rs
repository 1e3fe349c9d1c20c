//! How fast agents are under their quotas while all of them work, and how long the hub takes to answer: what the virtual fleet has
//! to know to predict a real one.
//!
//! What a sample costs depends on who else works, and on the batch: of two virtual cores that share one each takes a half more CPU time
//! while the other is busy, a core that rests between the bursts of a quota may be slower than one that does not, and a batch that no
//! longer fits a cache costs more than a line through smaller ones says. So the whole fleet is measured at once, with the batches of the job
//! that is to be predicted, and with a quarter of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use toml::Table;

use super::calibrate::{self, fit, global_batch};
use super::catalogue::{Speed, lay_over};
use super::plan::PlannedRow;
use super::ratios::UNIFORM;
use crate::bench::median_of;
use crate::demo::{Fleet, Job, RunRecords, table};
use crate::interrupt::Interrupt;

/// A learning rate at which nothing diverges while time is taken.
const LEARNING_RATE: f64 = 1e-4;

/// What the virtual fleet takes its agents to be like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Each agent's, under its quota.
    pub(crate) speeds: Vec<Speed>,
    /// From the last push of a round to the next assignment, in seconds.
    pub(crate) turn_around_s: f64,
}

/// Measures a fleet at a row's job in BSP.
///
/// # Errors
/// When a process fails, or a larger batch took no longer.
pub(crate) fn measure(
    fleet: &mut Fleet<'_>,
    row: &PlannedRow<'_>,
    (component, seed): (&Path, u64),
    interrupt: &Interrupt,
) -> anyhow::Result<Measured> {
    let quotas = fleet.quotas().to_vec();
    let job: Table = row.job_file(component, seed)?.parse().context("reading a job file")?;
    let large = global_batch(&job);
    let mut costs = Vec::new();
    let mut turn_around_s = None;
    for batch in [(large / 4).max(1), large] {
        let expected_s = row.model.speed.map(|speed| expected_s(speed, batch as f64, &quotas, &row.key.policy));
        let text = measuring_job(&job, batch, calibrate::steps(expected_s))?;
        let records = fleet.run(&Job { name: "side by side", text, epochs: 1 }, None, interrupt)?;
        costs.push(step_costs(&records, quotas.len())?);
        turn_around_s = turn_around(&records);
    }
    let speed = |(agent, quota): (usize, &f64)| {
        let [small, large] = [costs[0][agent], costs[1][agent]];
        let Speed { samples_per_s, overhead_s } = fit([small.0, large.0], [small.1, large.1])?;
        anyhow::Ok(Speed { samples_per_s: samples_per_s * quota, overhead_s: overhead_s / quota })
    };
    let speeds = quotas.iter().enumerate().map(speed).collect::<anyhow::Result<_>>()?;
    Ok(Measured { speeds, turn_around_s: turn_around_s.context("a run without steps")? })
}

/// About how long a step over a global batch takes.
fn expected_s(speed: Speed, global_batch: f64, quotas: &[f64], policy: &str) -> f64 {
    let Speed { samples_per_s, overhead_s } = speed;
    if policy == UNIFORM {
        let slowest = quotas.iter().copied().fold(f64::INFINITY, f64::min);
        (overhead_s + global_batch / quotas.len() as f64 / samples_per_s) / slowest
    } else {
        (overhead_s * quotas.len() as f64 + global_batch / samples_per_s) / quotas.iter().sum::<f64>()
    }
}

fn measuring_job(job: &Table, global_batch: i64, steps: i64) -> anyhow::Result<String> {
    let mut job = job.clone();
    calibrate::cut_to_size(&mut job, global_batch, steps);
    lay_over(&mut job, &table([("optimizer", table([("learning_rate", LEARNING_RATE.into())]).into())]));
    toml::to_string(&job).context("writing a job file")
}

/// The [`step_cost`] of each agent.
fn step_costs(records: &RunRecords, agents: usize) -> anyhow::Result<Vec<(f64, f64)>> {
    let cost = |agent| step_cost(records, agent).with_context(|| format!("agent {} made no steps", agent + 1));
    (0..agents).map(cost).collect()
}

/// Mean local batch of an agent's steps, and their mean CPU time in seconds, if it made any.
pub(super) fn step_cost(records: &RunRecords, agent: usize) -> Option<(f64, f64)> {
    let steps = records.steps.iter().filter(|step| step.agent == agent && !step.warm_up);
    let (count, samples, cpu_s) = steps.fold((0.0, 0.0, 0.0), |(count, samples, cpu_s), step| {
        (count + 1.0, samples + f64::from(step.batch), cpu_s + step.cpu_s)
    });
    (count > 0.0).then(|| (samples / count, cpu_s / count))
}

/// Median over rounds of how long the agent whose push was the last waited for its next assignment, in seconds.
fn turn_around(records: &RunRecords) -> Option<f64> {
    let mut least: BTreeMap<u64, f64> = BTreeMap::new();
    for step in records.steps.iter().filter(|step| !step.warm_up) {
        least.entry(step.version).and_modify(|wait_s| *wait_s = wait_s.min(step.wait_s)).or_insert(step.wait_s);
    }
    median_of(least.into_values())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::canned_records;

    #[test]
    fn each_agent_has_its_means_and_all_have_one_wait() {
        let records = canned_records();
        let costs = step_costs(&records, 2).unwrap();
        assert!((costs[0].1 - 0.08).abs() < 1e-9 && (costs[1].1 - 0.04).abs() < 1e-9, "{costs:?}");
        assert_eq!((costs[0].0, costs[1].0), (8.0, 24.0));
        assert_eq!(turn_around(&records), Some(0.01));
        assert!(step_costs(&records, 3).unwrap_err().to_string().contains("agent 3"));
        assert_eq!(turn_around(&RunRecords::default()), None);
    }

    #[test]
    fn who_waits_least_in_a_round_tells_how_fast_the_hub_answers() {
        let mut records = canned_records();
        // Who is the last takes turns.
        for step in &mut records.steps {
            step.wait_s = if step.version % 2 == step.agent as u64 { 0.01 } else { 0.3 };
        }
        assert_eq!(turn_around(&records), Some(0.01));
    }

    #[test]
    fn the_measuring_job_is_the_row_s_over_other_batches_and_as_long_as_asked() {
        let text = "training.global_batch = 256\nbatching.policy = \"dynamic\"\nstop.epochs = 3\n\
                    optimizer = { momentum = 0.9, learning_rate = 0.1 }";
        let job: Table = measuring_job(&text.parse().unwrap(), 64, 80).unwrap().parse().unwrap();
        assert_eq!(job["batching"]["policy"].as_str(), Some("dynamic"));
        assert_eq!(job["training"]["global_batch"].as_integer(), Some(64));
        assert_eq!(job["optimizer"]["learning_rate"].as_float(), Some(LEARNING_RATE));
        assert_eq!(job["optimizer"]["momentum"].as_float(), Some(0.9));
        assert_eq!(job["stop"].as_table().unwrap().len(), 1);
        assert_eq!(job["stop"]["steps"].as_integer(), Some(80));
    }

    #[test]
    fn equal_batches_wait_for_the_slowest_and_others_for_nobody() {
        let speed = Speed { samples_per_s: 1000.0, overhead_s: 0.0 };
        let expected = |policy| expected_s(speed, 100.0, &[0.1, 0.9], policy);
        assert!((expected("uniform") - 0.5).abs() < 1e-9 && (expected("deadline") - 0.1).abs() < 1e-9);
    }
}
