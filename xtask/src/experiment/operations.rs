//! What a fleet of real processes does when it is disturbed, and what it costs: time to detect a loss and to recover, memory
//! of the hub, bytes of a round, and the way out when a quota is cut.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use toml::Table;

use super::Rows;
use super::catalogue::{ModelSpec, lay_over};
use super::csv::Csv;
use super::definition::OperationsPlan;
use super::outcome::{Outcome, RowKey};
use super::write::Run;
use crate::bench::median;
use crate::demo::{Fleet, Job, JobStatus, Kit, Loss, table};
use crate::interrupt::Interrupt;

/// Steps that a job makes before it is disturbed.
const SETTLED_STEPS: u64 = 30;

/// Steps of a job that ends by being stopped.
const STEPS_ENDLESS: i64 = 1_000_000;

/// Time between two looks at the hub while something is timed. Its share of what is measured is the resolution.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longest that a round waits for an agent that makes no progress, where that is not what is measured.
const ROUND_DEADLINE_S: f64 = 30.0;

/// Everything that is measured with.
struct Bench<'a> {
    kit: &'a Kit,
    plan: &'a OperationsPlan,
    model: &'a ModelSpec,
    component: &'a Path,
    out: &'a Path,
    interrupt: &'a Interrupt,
}

/// Runs all of it.
///
/// # Errors
/// When something does not build or a process fails, and after an interrupt.
pub(crate) fn run(run: &Run<'_>, data: Option<&Path>, interrupt: &Interrupt) -> anyhow::Result<Rows> {
    let plan = run.definition.operations.as_ref().context("the definition has no [operations]")?;
    let plan = if run.quick { plan.quick() } else { plan.clone() };
    let model = run.catalogue.models.get(&plan.model).with_context(|| format!("no model `{}`", plan.model))?;
    let kit = Kit::prepare(run.workspace, data, None, interrupt)?;
    let component = run.workspace.component(&model.kernel);
    let bench = Bench { kit: &kit, plan: &plan, model, component: &component, out: run.out, interrupt };
    let mut outcomes = Vec::new();
    for &clients in &plan.clients {
        eprintln!("{clients} agents: memory and bytes");
        outcomes.extend(bench.costs(clients)?);
    }
    for &clients in plan.clients.iter().filter(|&&clients| clients > 1) {
        eprintln!("{clients} agents: one is killed");
        let (detect_s, recover_s) = bench.losses(clients, Loss::Killed, ROUND_DEADLINE_S)?;
        outcomes.push(bench.outcome("agent killed", clients, &[("detect_s", detect_s), ("recover_s", recover_s)]));
    }
    for &deadline_s in &plan.round_deadlines_s {
        eprintln!("{} agents: one falls silent, rounds wait {deadline_s} s", plan.fleet);
        let (detect_s, recover_s) = bench.losses(plan.fleet, Loss::Silent, deadline_s)?;
        outcomes.push(bench.outcome(
            "agent silent",
            plan.fleet,
            &[("round_deadline_s", deadline_s), ("detect_s", detect_s), ("recover_s", recover_s)],
        ));
    }
    for policy in ["uniform", "deadline"] {
        eprintln!("{} agents: the quota of one is cut, {policy}", plan.fleet);
        outcomes.push(bench.throttled(policy, run)?);
    }
    Ok(Rows { outcomes, taken_over: 0 })
}

impl Bench<'_> {
    fn fleet(&self, clients: u32) -> anyhow::Result<Fleet<'_>> {
        let quota = self.kit.quota_total() / f64::from(clients);
        self.kit.start_fleet_with(vec![quota; clients as usize], &self.out.join("logs"), self.interrupt)
    }

    fn job(&self, clients: u32, steps: i64, over: &Table) -> anyhow::Result<Job> {
        let component = self.component.to_str().context("the workspace's path is not UTF-8")?;
        let mut job = table([
            ("dataset", self.model.dataset.as_str().into()),
            ("kernel", table([("path", component.into())]).into()),
        ]);
        lay_over(&mut job, &self.model.job);
        // A job ends at the first condition that is met, so the model's own end must not stay beside ours.
        job.remove("stop");
        lay_over(
            &mut job,
            &table([
                ("name", "operations".into()),
                ("evaluate", table([("every_steps", STEPS_ENDLESS.into())]).into()),
                ("stop", table([("steps", steps.into())]).into()),
                ("fleet", table([("agents_min", 1.into()), ("wait_for_agents", clients.into())]).into()),
            ]),
        );
        lay_over(&mut job, over);
        Ok(Job { name: "operations", text: toml::to_string(&job).context("writing a job file")?, epochs: 1 })
    }

    fn outcome(&self, case: &str, clients: u32, figures: &[(&str, f64)]) -> Outcome {
        Outcome {
            key: RowKey {
                case: case.to_owned(),
                model: self.plan.model.clone(),
                hl: 1,
                agents: clients,
                mode: "bsp".to_owned(),
                policy: "deadline".to_owned(),
            },
            figures: figures.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            skipped: None,
        }
    }

    /// Memory of the hub in training, and bytes per round, with each codec.
    fn costs(&self, clients: u32) -> anyhow::Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for codec in ["f32", "bf16"] {
            let mut fleet = self.fleet(clients)?;
            let over = table([("training", table([("codec", codec.into())]).into())]);
            let job = fleet.start_job(&self.job(clients, STEPS_ENDLESS, &over)?)?;
            let start = self.until(&mut fleet, job, |status| status.version >= SETTLED_STEPS)?;
            let before = fleet.hub().agent_bytes()?;
            let end = self.until(&mut fleet, job, |status| status.version >= start.version + self.plan.rounds)?;
            let after = fleet.hub().agent_bytes()?;
            let memory = fleet.hub_resident_bytes()?;
            fleet.stop();
            let bytes = (after.0 - before.0) + (after.1 - before.1);
            let bytes_per_round = bytes as f64 / (end.version - start.version) as f64;
            let figures = [("hub_resident_bytes", memory), ("bytes_per_round", bytes_per_round)];
            outcomes.push(self.outcome(&format!("costs, {codec}"), clients, &figures));
        }
        Ok(outcomes)
    }

    /// Medians of the times to detect a loss and to make the first step after it.
    fn losses(&self, clients: u32, loss: Loss, deadline_s: f64) -> anyhow::Result<(f64, f64)> {
        let (mut detected, mut recovered) = (Vec::new(), Vec::new());
        for _ in 0..self.plan.trials {
            let mut fleet = self.fleet(clients)?;
            let over = table([("fleet", table([("round_deadline_s", deadline_s.into())]).into())]);
            let job = fleet.start_job(&self.job(clients, STEPS_ENDLESS, &over)?)?;
            self.until(&mut fleet, job, |status| status.version >= SETTLED_STEPS)?;
            let lost = Instant::now();
            fleet.lose(fleet.agents() - 1, loss)?;
            let noticed = |status: &JobStatus| {
                let counted =
                    ["stragglers", "abandoned"].iter().any(|name| status.counters.get(*name).is_some_and(|&n| n > 0));
                counted || status.agents.len() < clients as usize
            };
            let status = self.until(&mut fleet, job, noticed)?;
            detected.push(lost.elapsed().as_secs_f64());
            // The round that was disturbed may close with this look; the one after it is surely without the agent.
            self.until(&mut fleet, job, |now| now.version > status.version)?;
            recovered.push(lost.elapsed().as_secs_f64());
            fleet.wake_all();
            fleet.stop();
        }
        detected.sort_unstable_by(f64::total_cmp);
        recovered.sort_unstable_by(f64::total_cmp);
        Ok((median(&detected), median(&recovered)))
    }

    /// Throughput before an agent's quota is cut, and after.
    fn throttled(&self, policy: &str, run: &Run<'_>) -> anyhow::Result<Outcome> {
        let policy_job = &run.catalogue.policies.get(policy).with_context(|| format!("no policy `{policy}`"))?.job;
        let mut fleet = self.fleet(self.plan.fleet)?;
        let job = fleet.start_job(&self.job(self.plan.fleet, STEPS_ENDLESS, policy_job)?)?;
        self.until(&mut fleet, job, |status| status.version >= SETTLED_STEPS)?;
        let before = self.rate(&mut fleet, job)?;
        let quota = self.kit.quota_total() / f64::from(self.plan.fleet) * self.plan.quota_cut_to;
        fleet.set_quota(0, quota)?;
        let cut = fleet.hub().job(job)?.progress.unwrap_or_default().training_s;
        // Long enough to find the new batches, and only then timed.
        self.rate(&mut fleet, job)?;
        let after = self.rate(&mut fleet, job)?;
        let mut outcome = self.outcome(
            "quota cut",
            self.plan.fleet,
            &[("cut_at_s", cut), ("samples_per_s", after), ("samples_per_s_before", before), ("kept", after / before)],
        );
        policy.clone_into(&mut outcome.key.policy);
        let folder = run.out.join("rows").join(outcome.key.slug()).join("seed-1");
        fleet.export_records(job, &folder)?;
        fleet.stop();
        let rounds = Csv::read(&folder.join("rounds.csv"))?;
        if rounds.numbers(["training_s", "samples"])?.is_empty() {
            bail!("{} has no rounds", folder.display());
        }
        Ok(outcome)
    }

    /// Samples per second over some seconds.
    fn rate(&self, fleet: &mut Fleet<'_>, job: u64) -> anyhow::Result<f64> {
        let samples = |fleet: &Fleet<'_>| {
            let status = fleet.hub().job(job)?.progress.unwrap_or_default();
            anyhow::Ok((status.epoch * f64::from(self.kit.spec().train_samples), status.training_s))
        };
        let start = samples(fleet)?;
        self.interrupt.sleep(Duration::from_secs_f64(self.plan.rate_s))?;
        fleet.check_hub(self.interrupt)?;
        let end = samples(fleet)?;
        if end.1 <= start.1 {
            bail!("no step in {} s", self.plan.rate_s);
        }
        Ok((end.0 - start.0) / (end.1 - start.1))
    }

    /// Looks at a job until it is as wanted.
    fn until(&self, fleet: &mut Fleet<'_>, job: u64, wanted: impl Fn(&JobStatus) -> bool) -> anyhow::Result<JobStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            fleet.check_hub(self.interrupt)?;
            let view = fleet.hub().job(job)?;
            if !matches!(view.state.as_str(), "queued" | "running") {
                bail!("the job is {}: {}", view.state, view.message);
            }
            let status = view.progress.unwrap_or_default();
            if wanted(&status) {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("waited {} s; {}", PATIENCE.as_secs(), status.waiting.join("; "));
            }
            self.interrupt.sleep(LOOK_EVERY)?;
        }
    }
}

/// Samples per second in windows of a run, from its rounds: the middle of each window and the rate in it.
pub(crate) fn rates(rounds: &[[f64; 2]], window_s: f64) -> Vec<(f64, f64)> {
    let mut windows: BTreeMap<u64, f64> = BTreeMap::new();
    for [time, samples] in rounds {
        *windows.entry((time / window_s) as u64).or_default() += samples;
    }
    // The last window is cut off by the end of the run.
    windows.pop_last();
    windows.into_iter().map(|(window, samples)| ((window as f64 + 0.5) * window_s, samples / window_s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_counted_in_windows_and_the_unfinished_one_is_left_out() {
        let rounds = [[0.2, 10.0], [0.9, 10.0], [1.5, 30.0], [2.1, 5.0]];
        assert_eq!(rates(&rounds, 1.0), [(0.5, 20.0), (1.5, 30.0)]);
        assert_eq!(rates(&[], 1.0), []);
    }
}
