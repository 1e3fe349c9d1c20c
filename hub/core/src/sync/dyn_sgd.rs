//! DynSGD: SSP whose updates count the less the staler they are.
//!
//! - c = (b_k·K/B)/(staleness + 1), staleness in updates that the hub has applied since this one was begun.
//! - Source: Jiang, Cui, Zhang, Yu, "Heterogeneity-aware Distributed Parameter Servers" (SIGMOD 2017), in the simplified form that
//!   public code has (dist-keras). The paper's own keeps the mean of each clock's updates and corrects it when another of that clock comes:
//!   that needs a copy of the model for each clock in flight, and its corrections are no gradients that an optimizer could take.

use super::arrival::{Arrival, ArrivalPlan};

#[derive(Debug)]
pub(super) struct DynSgd {
    pub(super) lead_max: u64,
}

/// d = 1/(staleness + 1).
pub(super) fn damping(staleness: u64) -> f64 {
    1.0 / (staleness as f64 + 1.0)
}

impl ArrivalPlan for DynSgd {
    fn coefficient(&self, arrival: Arrival) -> f64 {
        arrival.relative() * damping(arrival.staleness)
    }

    fn lead_max(&self) -> Option<u64> {
        Some(self.lead_max)
    }
}
