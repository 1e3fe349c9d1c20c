//! The figures of a run: one object for programs, one table for people.

use std::fmt::Write;

use serde::Serialize;

use crate::fleet::Fleet;
use crate::job::Job;
use crate::oracle;
use crate::simulation::Outcome;

/// Everything that a run comes to. Programs read it as JSON: a field is added, never renamed. What a run cannot say is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The job's name.
    pub name: String,
    /// Agents in the fleet.
    pub agents: usize,
    /// How they were synchronised.
    pub mode: String,
    /// How batches were set.
    pub policy: String,
    /// What moved them, if anything did.
    pub controller: Option<&'static str>,
    /// `real` or `none`.
    pub gradients: &'static str,
    /// Keys of the job file that were set to something else, as `KEY=VALUE`.
    pub set: Vec<String>,
    /// Why the job ended.
    pub ended: String,
    /// Steps of the optimizer: rounds in BSP, updates in ASP.
    pub rounds: u64,
    /// Virtual time from the beginning to the end, in seconds.
    pub virtual_s: f64,
    /// The same without waiting for the first agents and without evaluation.
    pub training_s: f64,
    /// Epochs of accepted samples.
    pub epochs: f64,
    /// Mean training time of an epoch, in seconds.
    pub epoch_s: Option<f64>,
    /// Training time until an evaluation first met the job's `target_accuracy`, in seconds.
    pub time_to_target_s: Option<f64>,
    /// Accuracy of the last evaluation, 0 to 1.
    pub accuracy: Option<f64>,
    /// Mean loss of the last evaluation.
    pub loss: Option<f64>,
    /// Mean loss of the last step.
    pub train_loss: Option<f64>,
    /// Part of the training time in which an agent had nothing to do, as a mean over agents.
    pub idle_share: Option<f64>,
    /// Largest over smallest step time of the agents at work, smoothed, at the end.
    pub step_balance: Option<f64>,
    /// Mean staleness of the updates, in steps.
    pub mean_staleness: Option<f64>,
    /// What 95 % of the updates do not exceed.
    pub staleness_p95: Option<u64>,
    /// The largest.
    pub staleness_max: Option<u64>,
    /// Bytes of gradients that arrived at the hub.
    pub bytes_up: u64,
    /// Bytes of parameters that were sent to agents.
    pub bytes_down: u64,
    /// Updates that count.
    pub updates: u64,
    /// Updates refused because they were too stale.
    pub refused_stale: u64,
    /// Assignments given up because of a deadline.
    pub stragglers: u64,
    /// Assignments given up because their agent left.
    pub abandoned: u64,
    /// Samples that had to be issued again.
    pub samples_reissued: u64,
    /// Changes of the batches.
    pub batch_changes: u64,
    /// The least training time that the agents' true speeds allow, with real batches known from the start; in BSP.
    pub limit_s: Option<f64>,
    /// That over the training time: 1 is perfect.
    pub ratio_to_limit: Option<f64>,
    /// Training time of an oracle that knows the true speeds at every moment and gives whole batches, if it was asked.
    pub oracle_training_s: Option<f64>,
    /// How much longer the run took than the oracle's, such as 0.01 for 1 %.
    pub over_oracle: Option<f64>,
    /// CPU time of the hub's core, in seconds.
    pub core_cpu_s: f64,
    /// The same for each step of the optimizer, in milliseconds.
    pub core_cpu_ms_per_round: Option<f64>,
    /// The same for each 1,000 updates, which is a round of 1,000 agents.
    pub core_cpu_ms_per_1000_agents_and_round: Option<f64>,
    /// Real time of the simulation, in seconds.
    pub wall_s: f64,
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

impl Summary {
    /// The figures of a run. `real`: its gradients were computed.
    pub fn new(job: &Job, fleet: &Fleet, outcome: &Outcome, real: bool) -> Summary {
        let (tally, status) = (&outcome.tally, &outcome.status);
        let counters = &status.counters;
        let (training_s, epochs) = (tally.training_s(), tally.epoch());
        let staleness = tally.staleness_figures();
        let evaluation = tally.last_evaluation.as_ref().filter(|_| real);
        let ended = match &status.phase {
            omnilearn_hub_core::status::Phase::Finished(reason) => reason.to_string(),
            _ => String::new(),
        };
        let core_ms = outcome.core_cpu_s * 1e3;
        Summary {
            name: job.config.name.clone(),
            agents: fleet.agents.len(),
            mode: job.mode.clone(),
            policy: job.policy.clone(),
            controller: job.controller(),
            gradients: if real { "real" } else { "none" },
            set: Vec::new(),
            ended,
            rounds: status.version.0,
            virtual_s: outcome.virtual_time.as_secs_f64(),
            training_s,
            epochs,
            epoch_s: ratio(training_s, epochs),
            time_to_target_s: tally.time_to_target_s.filter(|_| real),
            accuracy: evaluation.and_then(|evaluation| evaluation.accuracy),
            loss: evaluation.map(|evaluation| evaluation.loss),
            train_loss: status.loss.filter(|_| real),
            idle_share: tally.idle_share(),
            step_balance: status.max_over_min_step,
            mean_staleness: staleness.map(|(mean, ..)| mean),
            staleness_p95: staleness.map(|(_, p95, _)| p95),
            staleness_max: staleness.map(|(.., largest)| largest),
            bytes_up: tally.bytes_up,
            bytes_down: tally.bytes_down,
            updates: counters.accepted,
            refused_stale: counters.refused_stale,
            stragglers: counters.stragglers,
            abandoned: counters.abandoned,
            samples_reissued: counters.samples_reissued,
            batch_changes: counters.batch_changes,
            limit_s: outcome.limit_s,
            ratio_to_limit: outcome.limit_s.and_then(|limit_s| ratio(limit_s, training_s)),
            oracle_training_s: None,
            over_oracle: None,
            core_cpu_s: outcome.core_cpu_s,
            core_cpu_ms_per_round: ratio(core_ms, status.version.0 as f64),
            core_cpu_ms_per_1000_agents_and_round: ratio(core_ms, counters.accepted as f64 / 1e3),
            wall_s: outcome.wall_s,
        }
    }

    /// Compares the run with an oracle's.
    ///
    /// # Errors
    /// In words, why there is no oracle for the job.
    pub fn ask_oracle(&mut self, job: &Job, fleet: &Fleet, outcome: &Outcome) -> Result<(), String> {
        if !job.is_bsp() {
            return Err(format!("there is no oracle for mode = \"{}\", only for \"bsp\"", job.mode));
        }
        let rounds = &outcome.pauses_s[..outcome.pauses_s.len().min(self.rounds as usize)];
        let oracle_s = oracle::training_s(fleet, job, rounds).map_err(|error| format!("the oracle: {error}"))?;
        self.oracle_training_s = Some(oracle_s);
        self.over_oracle = ratio(self.training_s, oracle_s).map(|ratio| ratio - 1.0);
        Ok(())
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut rows: Vec<(&str, String)> = Vec::new();
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let controller = self.controller.map_or_else(String::new, |controller| format!(" ({controller})"));
        let title = format!(
            "{}: {} agents, {}, {}{controller} batches, gradients {}; {}",
            self.name, self.agents, self.mode, self.policy, self.gradients, self.ended
        );
        let virtual_s = format!("{:.1} s, {:.1} s of it training", self.virtual_s, self.training_s);
        rows.push(("virtual time", virtual_s));
        if let Some(epoch_s) = self.epoch_s {
            rows.push(("an epoch", format!("{epoch_s:.2} s; {:.2} epochs in {} steps", self.epochs, self.rounds)));
        }
        if let Some(accuracy) = self.accuracy {
            rows.push(("accuracy", format!("{:.2} %", accuracy * 100.0)));
        }
        if let Some(loss) = self.loss {
            rows.push(("test loss", format!("{loss:.4}")));
        }
        if let Some(target_s) = self.time_to_target_s {
            rows.push(("to the target", format!("{target_s:.1} s of training")));
        }
        if let Some(ratio) = self.ratio_to_limit {
            rows.push(("of the limit", format!("{} of the speed that the agents allow", percent(ratio))));
        }
        if let (Some(over), Some(oracle_s)) = (self.over_oracle, self.oracle_training_s) {
            rows.push(("over the oracle", format!("{}; it takes {oracle_s:.1} s of training", percent(over))));
        }
        if let Some(idle_share) = self.idle_share {
            rows.push(("idle", percent(idle_share)));
        }
        if let Some(balance) = self.step_balance {
            rows.push(("max/min step", format!("{balance:.2}")));
        }
        if let (Some(mean), Some(p95), Some(largest)) = (self.mean_staleness, self.staleness_p95, self.staleness_max) {
            rows.push(("staleness", format!("mean {mean:.2}, 95 % up to {p95}, at most {largest} steps")));
        }
        rows.push(("bytes", format!("{} up, {} down", bytes(self.bytes_up), bytes(self.bytes_down))));
        let troubles = [
            (self.stragglers, "past a deadline"),
            (self.abandoned, "of agents that left"),
            (self.refused_stale, "too stale"),
        ];
        let troubles: Vec<String> =
            troubles.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        let lost = match troubles.is_empty() {
            true => String::new(),
            false => format!("; {}: {} samples issued again", troubles.join(", "), self.samples_reissued),
        };
        rows.push(("updates", format!("{}{lost}", self.updates)));
        if let (Some(round_ms), Some(thousand_ms)) =
            (self.core_cpu_ms_per_round, self.core_cpu_ms_per_1000_agents_and_round)
        {
            let core = format!("{round_ms:.3} ms of CPU a step, {thousand_ms:.2} ms for 1,000 agents and round");
            rows.push(("the hub's core", core));
        }
        rows.push(("simulated in", format!("{:.1} s", self.wall_s)));
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut table = format!("{title}\n");
        for (name, text) in rows {
            writeln!(table, "  {name:width$}  {text}").expect("text takes everything");
        }
        table
    }
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut size, mut unit) = (count as f64, 0);
    while size >= 1000.0 && unit + 1 < units.len() {
        size /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{size:.1} {}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_that_fits() {
        let texts = [0, 999, 1_000, 241_834, 12_345_678_901].map(bytes);
        assert_eq!(texts, ["0 B", "999 B", "1.0 kB", "241.8 kB", "12.3 GB"]);
    }
}
