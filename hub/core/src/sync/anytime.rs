//! Fixed computing time: each agent contributes as many samples as it manages, so that nobody waits and no work is lost.
//!
//! - Step: θ ← step(θ, Σ (b_k/Σb)·g_k), g_k the mean gradient over the b_k samples that agent k has done.
//! - An agent is given an upper bound: at first its batch, then twice what it did the last time. What it has not done is given
//!   back and done by others, so every sample still counts once. b_k is the agent's word, but never more than it was given.
//! - Source: Ferdinand, Al-Lawati, Draper, Nokleby, "Anytime Minibatch: Exploiting Stragglers in Online Distributed
//!   Optimization" (ICLR 2019), with SGD in place of dual averaging, and the hub in place of rounds of consensus.

use omnilearn_wire::AgentId;
use omnilearn_wire::message::Computation;

use super::round::RoundPlan;
use crate::agents::AgentMap;
use crate::cursor::Which;
use crate::state::{Order, State};

/// How much more than the last time an agent can do.
const GROWTH: u32 = 2;

#[derive(Debug)]
pub(super) struct Anytime {
    compute_s: f32,
    /// Samples that each agent did the last time.
    done: AgentMap<u32>,
}

impl Anytime {
    pub(super) fn new(compute_s: f32) -> Anytime {
        Anytime { compute_s, done: AgentMap::default() }
    }
}

impl RoundPlan for Anytime {
    /// The weight of an update is known only when it is complete.
    fn adds_pieces(&self) -> bool {
        false
    }

    fn order(&self, state: &State, agent: AgentId, batch: u32) -> Order {
        let (batch_min, batch_max) = state.config.batch_bounds;
        let batch_max = state.batcher.batch_max(agent).map_or(batch_max, |max| max.min(batch_max));
        let bound = self.done.get(agent).map_or(batch, |done| done.saturating_mul(GROWTH));
        let samples = bound.max(batch_min).min(batch_max);
        let computation = Computation::Timed { compute_s: self.compute_s };
        Order { samples, which: Which::ReturnedFirst, computation }
    }

    fn accepted(&mut self, agent: AgentId, samples: u32) {
        self.done.insert(agent, samples);
    }

    /// Not the batcher's to set.
    fn local_batch(&self, _state: &State, agent: AgentId) -> Option<u32> {
        self.done.get(agent).copied()
    }
}
