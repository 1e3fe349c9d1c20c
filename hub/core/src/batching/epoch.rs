//! The paper's controller as its code runs it, for comparison: once per epoch, b_k ← b_k·t̄/t_k, t_k the plain mean of an agent's
//! times in that epoch, and an agent whose batch would change by less than the dead-band keeps it while others move.
//!
//! Source: the code of OmniLearn (IEEE TPDS 2025). It gives the rest of the sum to all agents in equal parts, rounded up, which can
//! break bounds and the sum; here what comes out is scaled in proportion, so that the sum stays B.

use omnilearn_wire::AgentId;

use super::static_::Static;
use super::{Place, Policy, Proposal, Rating, Speed, apportion, approach, share};
use crate::agents::AgentMap;
use crate::config::Start;

#[derive(Debug)]
pub(super) struct Epoch {
    /// Samples of an epoch.
    samples: u32,
    dead_band: f64,
    gain: f64,
    start: Start,
    ratings: Static,
    agents: AgentMap<Window>,
    /// Samples since the batches were last looked at.
    seen: u64,
}

/// One agent's steps since the batches were last looked at.
#[derive(Debug, Default)]
struct Window {
    sum_s: f64,
    samples: u64,
    steps: u32,
    /// Samples per second in the window before.
    throughput: Option<f64>,
}

impl Window {
    fn mean_s(&self) -> f64 {
        self.sum_s / f64::from(self.steps)
    }
}

impl Epoch {
    pub(super) fn new(samples: u32, dead_band: f64, gain: f64, start: Start) -> Epoch {
        Epoch { samples, dead_band, gain, start, ratings: Static::default(), agents: AgentMap::default(), seen: 0 }
    }

    fn begin_anew(&mut self) {
        self.seen = 0;
        for window in self.agents.values_mut() {
            let throughput = (window.sum_s > 0.0).then(|| window.samples as f64 / window.sum_s).or(window.throughput);
            *window = Window { throughput, ..Window::default() };
        }
    }
}

impl Policy for Epoch {
    fn join(&mut self, agent: AgentId, rating: Rating) {
        self.agents.insert(agent, Window::default());
        self.ratings.join(agent, rating);
    }

    fn leave(&mut self, agent: AgentId) {
        self.agents.remove(agent);
        self.ratings.leave(agent);
    }

    fn observe(&mut self, agent: AgentId, batch: u32, seconds: f64) {
        let Some(window) = self.agents.get_mut(agent) else { return };
        window.steps += 1;
        window.sum_s += seconds;
        window.samples += u64::from(batch);
        self.seen += u64::from(batch);
    }

    fn speeds(&self, agents: &[AgentId]) -> Vec<Speed> {
        let throughput = |agent: AgentId| self.agents.get(agent).and_then(|window| window.throughput);
        self.ratings.by_throughput(agents, self.start, throughput)
    }

    fn propose(&mut self, total: u32, present: &[Place]) -> Option<Proposal> {
        if self.seen < u64::from(self.samples) {
            return None;
        }
        let window = |place: &Place| self.agents.get(place.agent).filter(|window| window.steps > 0);
        let means: Vec<f64> = present.iter().map(|place| window(place).map(Window::mean_s)).collect::<Option<_>>()?;
        let mean_s = means.iter().sum::<f64>() / means.len() as f64;
        let mut moved = false;
        let shares = present.iter().zip(&means).map(|(place, own_s)| {
            let (batch, candidate) = (f64::from(place.batch), f64::from(place.batch) * mean_s / own_s);
            let moves = (candidate - batch).abs() >= self.dead_band * candidate;
            moved |= moves;
            share(place, Speed { offset: 0.0, rate: if moves { candidate } else { batch } })
        });
        let targets = apportion::targets(total, &shares.collect::<Vec<_>>()).ok();
        self.begin_anew();
        let targets = approach(present, &targets.filter(|_| moved)?, self.gain);
        let slowest_s = means.iter().copied().fold(0.0, f64::max);
        let fastest_s = means.iter().copied().fold(f64::INFINITY, f64::min);
        let reason = format!("an epoch of steps from {:.1} to {:.1} ms", fastest_s * 1e3, slowest_s * 1e3);
        Some(Proposal { targets, reason })
    }

    fn changed(&mut self, _before: &[Place], _now: &[Place]) {
        self.begin_anew();
    }
}
