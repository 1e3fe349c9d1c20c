//! Bounded staleness with backup: a round closes with all but b updates, and those missing count in a later round, if they are
//! not too old by then.
//!
//! - Step: θ ← step(θ, Σ (b_k/Σb)·g_k) over the updates that are in, at most one of each agent, of this round or of at most s
//!   rounds ago.
//! - An update that would be more than s rounds old is taken back before it comes, and its agent skips to the present round.
//! - Source: Luo, Lin, Zhuo, Qian, "Hop: Heterogeneity-aware Decentralized Training" (ASPLOS 2019), whose rounds are those of
//!   neighbours in a graph. Here all agents are the hub's neighbours, and gradients are averaged in place of parameters.

use super::round::RoundPlan;

#[derive(Debug)]
pub(super) struct Hop {
    pub(super) backups: u32,
    pub(super) staleness_max: u64,
}

impl RoundPlan for Hop {
    /// The pieces of a late push would fall into two rounds.
    fn adds_pieces(&self) -> bool {
        false
    }

    fn backups(&self) -> u32 {
        self.backups
    }

    fn staleness_max(&self) -> Option<u64> {
        Some(self.staleness_max)
    }

    /// Batches that change while updates are late may sum to more than one global batch.
    fn samples_max(&self, global_batch: u32, _ordered: u32) -> u32 {
        global_batch.saturating_mul(2)
    }
}
