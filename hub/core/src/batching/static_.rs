//! b_k = B·c_k / Σc from a rating taken once, before training.

use omnilearn_wire::AgentId;

use super::{Policy, Rating, Speed};
use crate::agents::AgentMap;
use crate::config::Start;

#[derive(Debug, Default)]
pub(super) struct Static {
    ratings: AgentMap<Rating>,
}

/// Measured throughput at the largest calibrated batch, in samples per second.
fn measured(rating: &Rating) -> Option<f64> {
    let point = rating.calibration.iter().max_by_key(|point| point.samples)?;
    Some(f64::from(point.samples) / point.step_s)
}

/// Throughputs that were seen in training, in samples per second, if anyone has one. An agent without is taken to be like the mean
/// of the others.
pub(super) fn seen(agents: &[AgentId], throughput: impl Fn(AgentId) -> Option<f64>) -> Option<Vec<f64>> {
    let known: Vec<f64> = agents.iter().copied().filter_map(&throughput).collect();
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    (!known.is_empty()).then(|| agents.iter().map(|&agent| throughput(agent).unwrap_or(mean)).collect())
}

impl Static {
    /// Shares that the job gives, or measured throughputs: the first that all agents have, since they do not mix.
    pub(super) fn rated(&self, agents: &[AgentId]) -> Option<Vec<Speed>> {
        self.given(agents).or_else(|| self.measured(agents))
    }

    fn measured(&self, agents: &[AgentId]) -> Option<Vec<Speed>> {
        let speed = |&agent| Some(Speed { offset: 0.0, rate: self.ratings.get(agent).and_then(measured)? });
        agents.iter().map(speed).collect()
    }

    fn given(&self, agents: &[AgentId]) -> Option<Vec<Speed>> {
        let share = |&agent| Some(Speed { offset: 0.0, rate: self.ratings.get(agent)?.share? });
        agents.iter().map(share).collect()
    }

    /// Speeds from throughputs that were seen in training, in samples per second; before anyone has one, batches start as the job says.
    pub(super) fn by_throughput(
        &self,
        agents: &[AgentId],
        start: Start,
        throughput: impl Fn(AgentId) -> Option<f64>,
    ) -> Vec<Speed> {
        if let Some(rates) = seen(agents, throughput) {
            return rates.into_iter().map(|rate| Speed { offset: 0.0, rate }).collect();
        }
        let rated = self.rated(agents).filter(|_| start == Start::Static);
        rated.unwrap_or_else(|| vec![Speed::EQUAL; agents.len()])
    }

    fn by_cores(&self, agents: &[AgentId]) -> Vec<Speed> {
        let cores = |agent| self.ratings.get(agent).map(|rating| rating.cores).filter(|&cores| cores > 0.0);
        agents.iter().map(|&agent| Speed { offset: 0.0, rate: cores(agent).unwrap_or(1.0) }).collect()
    }
}

impl Policy for Static {
    fn join(&mut self, agent: AgentId, rating: Rating) {
        self.ratings.insert(agent, rating);
    }

    fn leave(&mut self, agent: AgentId) {
        self.ratings.remove(agent);
    }

    /// Ratings, or, unless all agents have one, cores.
    fn speeds(&self, agents: &[AgentId]) -> Vec<Speed> {
        self.rated(agents).unwrap_or_else(|| self.by_cores(agents))
    }
}
