//! The same batch for all.

use omnilearn_wire::AgentId;

use super::static_::seen;
use super::{Policy, Rating, Speed};
use crate::agents::AgentMap;

/// Part of a new step in the mean.
const SMOOTHING: f64 = 0.2;

#[derive(Debug, Default)]
pub(super) struct Uniform {
    /// Samples per second of those that made a step. Batches do not depend on it, other work does.
    throughput: AgentMap<f64>,
}

impl Policy for Uniform {
    fn join(&mut self, agent: AgentId, _rating: Rating) {
        self.throughput.remove(agent);
    }

    fn leave(&mut self, agent: AgentId) {
        self.throughput.remove(agent);
    }

    fn observe(&mut self, agent: AgentId, batch: u32, seconds: f64) {
        let throughput = f64::from(batch) / seconds;
        let mean = self.throughput.get(agent).map_or(throughput, |mean| mean + SMOOTHING * (throughput - mean));
        self.throughput.insert(agent, mean);
    }

    fn speeds(&self, agents: &[AgentId]) -> Vec<Speed> {
        vec![Speed::EQUAL; agents.len()]
    }

    fn rates(&self, agents: &[AgentId]) -> Vec<f64> {
        seen(agents, |agent| self.throughput.get(agent).copied())
            .unwrap_or_else(|| vec![Speed::EQUAL.rate; agents.len()])
    }
}
