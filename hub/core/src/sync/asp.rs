//! Asynchronous: nobody waits for anybody.
//!
//! c = (b_k·K/B)·d: the mean gradient of b_k samples counts for as much as its samples in a mean over K agents. d is that of
//! [`dyn_sgd`](super::dyn_sgd) with damping, else 1. A gradient past the largest staleness is refused, and its samples are issued
//! again.

use super::arrival::{Arrival, ArrivalPlan};
use super::dyn_sgd::damping;

#[derive(Debug)]
pub(super) struct Asp {
    pub(super) staleness_max: Option<u64>,
    pub(super) damping: bool,
}

impl ArrivalPlan for Asp {
    fn coefficient(&self, arrival: Arrival) -> f64 {
        arrival.relative() * if self.damping { damping(arrival.staleness) } else { 1.0 }
    }

    fn staleness_max(&self) -> Option<u64> {
        self.staleness_max
    }
}
