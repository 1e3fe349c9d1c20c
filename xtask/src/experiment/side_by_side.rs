//! How fast agents are under their quotas while all of them work, and how long the hub takes to answer: what the virtual fleet has
//! to know to predict a real one.
//!
//! An agent by itself would be no measure. Between two bursts of its quota its core rests, and on some machines the same work then takes a
//! half more CPU time than on a core that others keep busy; on others two cores are one, and it takes a half more where both are. So the
//! whole fleet is measured at once, and as busy as its batches let it be ([`Company`]).

use std::path::Path;

use anyhow::Context;
use toml::{Table, Value};

use super::calibrate::{MEASURE_S, batches, fit, job};
use super::catalogue::{ModelSpec, Speed, lay_over};
use crate::bench::median;
use crate::demo::{Fleet, Job, RunRecords, table};
use crate::interrupt::Interrupt;

/// Fewest steps of an agent, and most.
const STEPS: (f64, f64) = (20.0, 2000.0);

/// A learning rate at which nothing diverges while time is taken.
const LEARNING_RATE: f64 = 1e-4;

/// Who works beside an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// All, all the time: batches are in proportion to speed. Measured in ASP, where nobody waits for anybody.
    Busy,
    /// The slowest, which work while the others wait for them: batches are equal. Measured in BSP.
    Waiting,
}

impl Company {
    /// What batches by this policy make of a fleet.
    pub(crate) fn under(policy: &str) -> Company {
        if policy == "uniform" { Company::Waiting } else { Company::Busy }
    }

    fn mode(self) -> &'static str {
        match self {
            Company::Busy => "asp",
            Company::Waiting => "bsp",
        }
    }
}

/// What the virtual fleet takes its agents to be like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Each agent's, under its quota.
    pub(crate) speeds: Vec<Speed>,
    /// From the end of a push to the next assignment, in seconds.
    pub(crate) turn_around_s: f64,
}

/// Measures a fleet with a model, at batches that suit these keys of a job.
///
/// # Errors
/// When a process fails, or a larger batch took no longer.
pub(crate) fn measure(
    fleet: &mut Fleet<'_>,
    component: &Path,
    (model, keys): (&ModelSpec, &Table),
    company: Company,
    interrupt: &Interrupt,
) -> anyhow::Result<Measured> {
    let (batches, quotas) = (batches(keys), fleet.quotas().to_vec());
    let mut times = Vec::new();
    let mut waits = Vec::new();
    for batch in batches {
        let steps = quotas.iter().map(|quota| {
            let expected = model.speed.map(|speed| (speed.overhead_s + batch as f64 / speed.samples_per_s) / quota);
            expected.map_or(STEPS.0, |expected| (MEASURE_S / expected).clamp(STEPS.0, STEPS.1))
        });
        let steps = match company {
            Company::Busy => steps.sum::<f64>(),
            Company::Waiting => steps.fold(STEPS.1, f64::min),
        };
        let text = measuring_job(component, model, batch * quotas.len() as i64, steps as i64, company)?;
        let records = fleet.run(&Job { name: "side by side", text, epochs: 1 }, None, interrupt)?;
        times.push(cpu_times(&records, quotas.len())?);
        waits.push(turn_around_s(&records, quotas.len()).context("a run without steps")?);
    }
    let batches = batches.map(|batch| batch as f64);
    let speed = |(agent, quota): (usize, &f64)| {
        let Speed { samples_per_s, overhead_s } = fit(batches, [times[0][agent], times[1][agent]])?;
        anyhow::Ok(Speed { samples_per_s: samples_per_s * quota, overhead_s: overhead_s / quota })
    };
    let speeds = quotas.iter().enumerate().map(speed).collect::<anyhow::Result<_>>()?;
    // Short steps ask the hub often, as in training; after long ones an agent's own quota may have run out.
    Ok(Measured { speeds, turn_around_s: waits[0] })
}

fn measuring_job(
    component: &Path,
    model: &ModelSpec,
    global_batch: i64,
    steps: i64,
    company: Company,
) -> anyhow::Result<String> {
    let mut job = job(component, model, global_batch, steps)?;
    let optimizer = table([("kind", "sgd".into()), ("learning_rate", LEARNING_RATE.into())]);
    job.insert("optimizer".to_owned(), optimizer.into());
    lay_over(&mut job, &table([("training", Value::Table(table([("mode", company.mode().into())])))]));
    toml::to_string(&job).context("writing a job file")
}

/// Mean CPU time of each agent's steps, in seconds.
fn cpu_times(records: &RunRecords, agents: usize) -> anyhow::Result<Vec<f64>> {
    let of_agent = |agent: usize| {
        let steps = records.steps.iter().filter(|step| step.agent == agent && !step.warm_up);
        let (count, sum) = steps.fold((0.0, 0.0), |(count, sum), step| (count + 1.0, sum + step.cpu_s));
        (count > 0.0).then(|| sum / count).with_context(|| format!("agent {} made no steps", agent + 1))
    };
    (0..agents).map(of_agent).collect()
}

/// Median time from the end of a push to the next assignment, in seconds, of the agent that waits least: in BSP the others wait for it.
fn turn_around_s(records: &RunRecords, agents: usize) -> Option<f64> {
    let of_agent = |agent: usize| {
        let steps = records.steps.iter().filter(|step| step.agent == agent && !step.warm_up);
        let mut waits: Vec<f64> = steps.map(|step| step.wait_s).collect();
        waits.sort_unstable_by(f64::total_cmp);
        (!waits.is_empty()).then(|| median(&waits))
    };
    (0..agents).filter_map(of_agent).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::super::tests::catalogue;
    use super::*;
    use crate::demo::canned_records;

    #[test]
    fn each_agent_has_its_mean_and_all_have_one_wait() {
        let records = canned_records();
        let times = cpu_times(&records, 2).unwrap();
        assert!((times[0] - 0.08).abs() < 1e-9 && (times[1] - 0.04).abs() < 1e-9, "{times:?}");
        assert_eq!(turn_around_s(&records, 2), Some(0.01));
        assert!(cpu_times(&records, 3).unwrap_err().to_string().contains("agent 3"));
        assert_eq!(turn_around_s(&RunRecords::default(), 2), None);
    }

    #[test]
    fn the_agent_that_waits_least_tells_how_fast_the_hub_answers() {
        let mut records = canned_records();
        records.steps.iter_mut().filter(|step| step.agent == 0).for_each(|step| step.wait_s = 0.3);
        assert_eq!(turn_around_s(&records, 2), Some(0.01));
    }

    #[test]
    fn the_measuring_job_keeps_agents_as_busy_as_the_policy_does_and_takes_small_steps() {
        let job = |policy| -> Table {
            let model = &catalogue().models["lenet"];
            measuring_job(Path::new("lenet.wasm"), model, 64, 80, Company::under(policy)).unwrap().parse().unwrap()
        };
        assert_eq!(job("uniform")["training"]["mode"].as_str(), Some("bsp"));
        let job = job("deadline");
        assert_eq!(job["training"]["mode"].as_str(), Some("asp"));
        assert_eq!(job["training"]["global_batch"].as_integer(), Some(64));
        assert_eq!(job["optimizer"]["learning_rate"].as_float(), Some(LEARNING_RATE));
        assert_eq!(job["stop"]["steps"].as_integer(), Some(80));
    }
}
