//! What a run adds up to, counted while it runs, so that no record need be kept.

use std::collections::BTreeMap;

use omnilearn_hub_core::Record;
use omnilearn_hub_core::action::{Level, Notice};
use omnilearn_hub_core::record::{EvaluationRecord, RoundRecord};

/// One agent's time.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    busy_s: f64,
    /// Training time while it was here, but for the present stay.
    present_s: f64,
    /// Training time when it came, if it is here.
    came_s: Option<f64>,
}

/// Sums over a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    agents: Vec<Time>,
    /// Updates by staleness.
    pub(crate) staleness: BTreeMap<u64, u64>,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) last_round: Option<RoundRecord>,
    pub(crate) last_evaluation: Option<EvaluationRecord>,
    /// Training time of the first evaluation that met the target, in seconds.
    pub(crate) time_to_target_s: Option<f64>,
    target: Option<f64>,
    /// How often the core warned, by message.
    pub(crate) warnings: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn new(agents: usize, target: Option<f64>) -> Tally {
        Tally { agents: vec![Time::default(); agents], target, ..Tally::default() }
    }

    /// Training time so far, in seconds: that of the last step.
    pub(crate) fn training_s(&self) -> f64 {
        self.last_round.as_ref().map_or(0.0, |round| round.training_s)
    }

    /// Epochs of accepted samples so far.
    pub(crate) fn epoch(&self) -> f64 {
        self.last_round.as_ref().map_or(0.0, |round| round.epoch)
    }

    pub(crate) fn came(&mut self, agent: usize) {
        self.agents[agent].came_s = Some(self.training_s());
    }

    pub(crate) fn went(&mut self, agent: usize) {
        let training_s = self.training_s();
        let time = &mut self.agents[agent];
        time.present_s += time.came_s.take().map_or(0.0, |came_s| training_s - came_s);
    }

    pub(crate) fn busy(&mut self, agent: usize, seconds: f64) {
        self.agents[agent].busy_s += seconds;
    }

    pub(crate) fn record(&mut self, record: &Record) {
        match record {
            Record::Step(step) => *self.staleness.entry(step.staleness).or_default() += 1,
            Record::Round(round) => self.last_round = Some(round.clone()),
            Record::Evaluation(evaluation) => {
                if self.time_to_target_s.is_none()
                    && let (Some(accuracy), Some(target)) = (evaluation.accuracy, self.target)
                    && accuracy >= target
                {
                    self.time_to_target_s = Some(evaluation.training_s);
                }
                self.last_evaluation = Some(evaluation.clone());
            }
            Record::Timings(_) | Record::Batches(_) => {}
        }
    }

    pub(crate) fn notice(&mut self, notice: &Notice) {
        if notice.level >= Level::Warn {
            *self.warnings.entry(notice.message).or_default() += 1;
        }
    }

    /// Part of the training time while it was here in which an agent had nothing to do, as a mean over agents.
    pub(crate) fn idle_share(&self) -> Option<f64> {
        let training_s = self.training_s();
        let idle = |time: &Time| {
            let present_s = time.present_s + time.came_s.map_or(0.0, |came_s| training_s - came_s);
            (present_s > 0.0).then(|| (1.0 - time.busy_s / present_s).clamp(0.0, 1.0))
        };
        let shares: Vec<f64> = self.agents.iter().filter_map(idle).collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }

    /// Mean, 95th percentile and maximum of the updates' staleness.
    pub(crate) fn staleness_figures(&self) -> Option<(f64, u64, u64)> {
        let updates: u64 = self.staleness.values().sum();
        let sum: u128 =
            self.staleness.iter().map(|(&staleness, &count)| u128::from(staleness) * u128::from(count)).sum();
        let rank = (updates * 95).div_ceil(100);
        let mut seen = 0;
        let p95 = self.staleness.iter().find_map(|(&staleness, &count)| {
            seen += count;
            (seen >= rank).then_some(staleness)
        })?;
        let (&largest, _) = self.staleness.last_key_value()?;
        Some((sum as f64 / updates as f64, p95, largest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_staleness_are_those_of_the_histogram() {
        let mut tally = Tally::new(1, None);
        assert_eq!(tally.staleness_figures(), None);
        tally.staleness = BTreeMap::from([(0, 90), (2, 5), (10, 4), (30, 1)]);
        assert_eq!(tally.staleness_figures(), Some((0.8, 2, 30)));
        tally.staleness = BTreeMap::from([(3, 1)]);
        assert_eq!(tally.staleness_figures(), Some((3.0, 3, 3)));
    }
}
