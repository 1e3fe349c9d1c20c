//! Semi-synchronous local SGD: agents make local steps from the same parameters, and the mean of what these changed is one step
//! of the hub's optimizer.
//!
//! - Agent k: θ_k after h_k steps of SGD from θ, over n_k samples.
//! - Step: θ ← step(θ, Σ (n_k/Σn)·(θ − θ_k)). With learning rate 1 and no momentum, θ becomes the mean of the θ_k.
//! - A round is H·B samples. All make H steps over their own local batches b_k, n_k = H·b_k; or all have the same local
//!   batch, and h_k is as many as n_k samples make. With measured batches, both let all end at one time.
//! - Sources: Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019); the common time is that of Stripelis,
//!   Thompson, Ambite, "Semi-Synchronous Federated Learning for Energy-Efficient Training and Accelerated Convergence in
//!   Cross-Silo Settings" (2022); the hub's optimizer that of Reddi et al., "Adaptive Federated Optimization" (ICLR 2021).

use omnilearn_wire::AgentId;

use super::local_steps;
use super::round::RoundPlan;
use crate::config::{Balance, Local};
use crate::cursor::Which;
use crate::state::{Order, State};

#[derive(Debug)]
pub(super) struct LocalSgd {
    pub(super) local: Local,
    pub(super) balance: Balance,
}

impl RoundPlan for LocalSgd {
    fn order(&self, state: &State, agent: AgentId, batch: u32) -> Order {
        let samples = batch.saturating_mul(self.local.steps);
        let steps = match self.balance {
            Balance::Batches => self.local.steps,
            Balance::Steps => {
                let agents = state.batcher.agents().max(1) as u32;
                let batch_max = state.batcher.batch_max(agent).unwrap_or(u32::MAX);
                samples.div_ceil(state.batcher.effective_global_batch().div_ceil(agents).clamp(1, batch_max))
            }
        };
        Order { samples, which: Which::ReturnedFirst, computation: local_steps(state, self.local, steps, None) }
    }
}
