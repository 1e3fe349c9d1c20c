//! Elastic averaging, asynchronous: agents explore with parameters of their own, and a force draws these and the hub's together.
//!
//! - Agent k, whenever it has made τ local steps on its x_k: d = α(x_k − x̃), x_k ← x_k − d; x̃, the hub's parameters, are those
//!   that it was sent before these steps.
//! - Step: x̃ ← x̃ + d. The agent pushes −d, and c = 1 whatever its samples: what x_k loses is what x̃ gains, if the hub's
//!   optimizer has learning rate 1 and no momentum.
//! - Measured times do not move local batches: a fast agent exchanges more often.
//! - α = β/K with β = 0.9 where the job does not say.
//! - Source: Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD" (NeurIPS 2015); with momentum its EAMSGD.

use super::arrival::{Arrival, ArrivalPlan};
use super::local_steps;
use crate::config::Local;
use crate::cursor::Which;
use crate::state::{Order, State};

/// β, what K agents move the hub's parameters together.
const BETA: f32 = 0.9;

#[derive(Debug)]
pub(super) struct ElasticAveraging {
    pub(super) local: Local,
    pub(super) alpha: Option<f32>,
}

impl ArrivalPlan for ElasticAveraging {
    fn order(&self, state: &State, batch: u32) -> Order {
        let agents = state.batcher.agents().max(1) as f32;
        let alpha = self.alpha.unwrap_or(BETA / agents);
        Order {
            samples: batch.saturating_mul(self.local.steps),
            which: Which::ReturnedFirst,
            computation: local_steps(state, self.local, self.local.steps, Some(alpha)),
        }
    }

    fn coefficient(&self, _arrival: Arrival) -> f64 {
        1.0
    }
}
