//! What a run left behind, as far as the table and the plots need it.

use std::collections::BTreeMap;

/// One accepted update.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepRecord {
    /// Place of the agent in [`RunRecords::agents`].
    pub(crate) agent: usize,
    /// Training time at which it was applied, evaluation excluded, in seconds.
    pub(crate) at_s: f64,
    /// Version of the parameters after it.
    pub(crate) version: u64,
    /// Epoch of its first sample.
    pub(crate) epoch: u32,
    /// Local batch, in samples.
    pub(crate) batch: u32,
    /// Staleness, in steps.
    pub(crate) staleness: u64,
    /// Time from the end of the agent's push before to this assignment, in seconds.
    pub(crate) wait_s: f64,
    /// Time that the step costs the agent when it works without a break, in seconds.
    pub(crate) sustained_s: f64,
    /// CPU time that the step took the agent, in seconds.
    pub(crate) cpu_s: f64,
    /// Whether the agent called the step not representative.
    pub(crate) warm_up: bool,
}

/// One evaluation on the test set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EvaluationRecord {
    /// Training time, evaluation excluded, in seconds.
    pub(crate) at_s: f64,
    /// Version of the parameters.
    pub(crate) version: u64,
    /// Mean loss.
    pub(crate) loss: f64,
    /// Share of test samples that are classified right, in `0..=1`.
    pub(crate) accuracy: f64,
}

/// A finished run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunRecords {
    /// Names of the agents, in the order of their quotas.
    pub(crate) agents: Vec<String>,
    /// CPU quota of each, in cores.
    pub(crate) quotas: Vec<f64>,
    /// Samples in the training set.
    pub(crate) train_samples: u32,
    /// Every accepted update, in the order in which they were applied.
    pub(crate) steps: Vec<StepRecord>,
    /// Every evaluation, in order.
    pub(crate) evaluations: Vec<EvaluationRecord>,
}

impl RunRecords {
    /// Training time from the first assignment to the last update, evaluation excluded, in seconds.
    pub(crate) fn training_s(&self) -> f64 {
        self.steps.iter().map(|step| step.at_s).fold(0.0, f64::max)
    }

    /// Samples in accepted updates.
    pub(crate) fn samples(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.batch)).sum()
    }

    /// Mean training time per epoch, from the first assignment on, in seconds.
    pub(crate) fn epoch_s(&self) -> Option<f64> {
        let epochs = self.samples() as f64 / f64::from(self.train_samples);
        (epochs > 0.0).then(|| self.training_s() / epochs)
    }

    /// Versions of the parameters made per second of training time.
    pub(crate) fn steps_per_s(&self) -> Option<f64> {
        let versions = self.steps.iter().map(|step| step.version).max()?;
        let training_s = self.training_s();
        (training_s > 0.0).then(|| versions as f64 / training_s)
    }

    /// Accuracy of the last evaluation.
    pub(crate) fn accuracy(&self) -> Option<f64> {
        self.evaluations.last().map(|evaluation| evaluation.accuracy)
    }

    /// Training time until an evaluation first reached the accuracy, in seconds.
    pub(crate) fn time_to(&self, accuracy: f64) -> Option<f64> {
        self.evaluations.iter().find(|evaluation| evaluation.accuracy >= accuracy).map(|evaluation| evaluation.at_s)
    }

    /// Share of the training time in which an agent had nothing to do, averaged over the agents:
    /// `mean_k (1 − Σ sustained_k / training time)`.
    pub(crate) fn idle_share(&self) -> Option<f64> {
        let training_s = self.training_s();
        let busy_s = self.per_agent(|_| true, |step| step.sustained_s);
        if training_s <= 0.0 || busy_s.is_empty() {
            return None;
        }
        let idle: f64 =
            busy_s.values().map(|times| (1.0 - times.iter().sum::<f64>() / training_s).clamp(0.0, 1.0)).sum();
        Some(idle / busy_s.len() as f64)
    }

    /// Largest over smallest of the agents' mean compute times in the last epoch, warm-up steps left out.
    pub(crate) fn max_over_min_compute(&self) -> Option<f64> {
        let last = self.steps.iter().map(|step| step.epoch).max()?;
        let times = self.per_agent(|step| step.epoch == last && !step.warm_up, |step| step.sustained_s);
        let means: Vec<f64> = times.values().map(|times| times.iter().sum::<f64>() / times.len() as f64).collect();
        let (low, high) =
            means.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &mean| (low.min(mean), high.max(mean)));
        (low > 0.0 && low.is_finite()).then(|| high / low)
    }

    /// Mean staleness of the slowest agent: the one with the least samples per second of work. (Over all updates the mean is
    /// near K − 1 whatever the batches are, since each agent has one update in flight.)
    pub(crate) fn slowest_staleness(&self) -> Option<f64> {
        let times = self.per_agent(|_| true, |step| step.sustained_s);
        let samples = self.per_agent(|_| true, |step| f64::from(step.batch));
        let speed = |agent: &usize| {
            samples[agent].iter().sum::<f64>() / times[agent].iter().sum::<f64>().max(f64::MIN_POSITIVE)
        };
        let slowest = times.keys().copied().min_by(|left, right| speed(left).total_cmp(&speed(right)))?;
        let staleness = self.per_agent(|step| step.agent == slowest, |step| step.staleness as f64).remove(&slowest)?;
        Some(staleness.iter().sum::<f64>() / staleness.len() as f64)
    }

    /// Time per epoch, steps per second and accuracy in one line.
    pub(crate) fn describe(&self) -> String {
        let figures = [
            self.epoch_s().map(|epoch_s| format!("{epoch_s:.2} s an epoch")),
            self.steps_per_s().map(|rate| format!("{rate:.1} steps/s")),
            self.accuracy().map(|accuracy| format!("{:.1} % accuracy", accuracy * 100.0)),
        ];
        figures.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn per_agent(
        &self,
        wanted: impl Fn(&StepRecord) -> bool,
        value: impl Fn(&StepRecord) -> f64,
    ) -> BTreeMap<usize, Vec<f64>> {
        let mut values: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for step in self.steps.iter().filter(|step| wanted(step)) {
            values.entry(step.agent).or_default().push(value(step));
        }
        values
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two agents, ten rounds of 0.1 s each: one works 0.1 s a step, the other 0.05 s, after a slow first step that is marked.
    pub(crate) fn canned() -> RunRecords {
        let mut steps = Vec::new();
        for round in 0..10_u32 {
            for agent in 0..2 {
                steps.push(StepRecord {
                    agent,
                    at_s: 0.1 * f64::from(round + 1),
                    version: u64::from(round) + 1,
                    epoch: u32::from(round >= 5),
                    batch: [8, 24][agent],
                    staleness: [4, 1][agent],
                    wait_s: 0.01,
                    sustained_s: [0.1, 0.05][agent],
                    cpu_s: [0.08, 0.04][agent],
                    warm_up: false,
                });
            }
        }
        steps[11].sustained_s = 9.0;
        steps[11].warm_up = true;
        steps[11].at_s = 0.6;
        let evaluation = |at_s, version, accuracy| EvaluationRecord { at_s, version, loss: 1.0 - accuracy, accuracy };
        RunRecords {
            agents: vec!["agent-1".to_owned(), "agent-2".to_owned()],
            quotas: vec![0.225, 1.2],
            train_samples: 160,
            steps,
            evaluations: vec![evaluation(0.5, 5, 0.84), evaluation(0.8, 8, 0.861), evaluation(1.0, 10, 0.87)],
        }
    }

    fn close(found: Option<f64>, expected: f64) {
        assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}, expected {expected}");
    }

    #[test]
    fn an_epochs_time_is_training_time_over_epochs_of_samples() {
        close(canned().epoch_s(), 0.5);
        close(canned().steps_per_s(), 10.0);
    }

    #[test]
    fn idle_share_is_averaged_over_the_agents() {
        let mut records = canned();
        records.steps[11].sustained_s = 0.05;
        close(records.idle_share(), 0.25); // 0 and 0.5
    }

    #[test]
    fn compute_times_are_compared_without_warm_up_steps() {
        close(canned().max_over_min_compute(), 2.0);
    }

    #[test]
    fn staleness_is_that_of_the_slowest_agent() {
        let mut records = canned();
        records.steps[11].sustained_s = 0.05;
        close(records.slowest_staleness(), 4.0);
    }

    #[test]
    fn a_target_is_reached_at_the_first_evaluation_above_it_or_never() {
        close(canned().time_to(0.85), 0.8);
        assert_eq!(canned().time_to(0.88), None);
        close(canned().accuracy(), 0.87);
    }

    #[test]
    fn an_empty_run_has_no_figures() {
        let records = RunRecords::default();
        assert_eq!(records.epoch_s(), None);
        assert_eq!(records.idle_share(), None);
        assert_eq!(records.max_over_min_compute(), None);
        assert_eq!(records.slowest_staleness(), None);
    }
}
