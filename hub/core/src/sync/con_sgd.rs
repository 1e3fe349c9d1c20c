//! ConSGD: SSP whose updates all count with one constant rate.
//!
//! - c = λ·(b_k·K/B). With the default λ = 1/K this is [`ssp`](super::ssp), whose share already is one over the number of agents;
//!   with λ = 1 it is an [`asp`](super::asp) that waits for the slowest.
//! - Source: Jiang, Cui, Zhang, Yu, "Heterogeneity-aware Distributed Parameter Servers" (SIGMOD 2017).

use super::arrival::{Arrival, ArrivalPlan};

#[derive(Debug)]
pub(super) struct ConSgd {
    pub(super) lead_max: u64,
    pub(super) rate: Option<f64>,
}

impl ArrivalPlan for ConSgd {
    fn coefficient(&self, arrival: Arrival) -> f64 {
        arrival.relative() * self.rate.unwrap_or(1.0 / arrival.agents())
    }

    fn lead_max(&self) -> Option<u64> {
        Some(self.lead_max)
    }
}
