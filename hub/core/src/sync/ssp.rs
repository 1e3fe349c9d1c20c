//! Stale-synchronous: asynchronous, but nobody begins while more than `lead_max` pushes ahead of the slowest.
//!
//! - c = b_k/B: one push of every agent together is one step over a global batch. So with a lead of 0, which is a barrier, and
//!   with plain SGD, the parameters after each K pushes are those of BSP. Momentum and Adam step K times as often as in BSP.
//! - Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NeurIPS 2013).

use super::arrival::{Arrival, ArrivalPlan};

#[derive(Debug)]
pub(super) struct Ssp {
    pub(super) lead_max: u64,
}

impl ArrivalPlan for Ssp {
    fn coefficient(&self, arrival: Arrival) -> f64 {
        arrival.share()
    }

    fn lead_max(&self) -> Option<u64> {
        Some(self.lead_max)
    }
}
