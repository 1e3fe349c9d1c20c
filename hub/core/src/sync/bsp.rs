//! Bulk synchronous: one global batch, one barrier, one step.
//!
//! - Step: θ ← step(θ, Σ (b_k/B)·g_k), B = Σ b_k, when the updates of all are in.
//! - With uniform batches this is the usual baseline; with measured ones it is OmniLearn (IEEE TPDS 2025).

use super::round::RoundPlan;

#[derive(Debug)]
pub(super) struct Bsp;

impl RoundPlan for Bsp {}
