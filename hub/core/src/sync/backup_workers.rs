//! Backup workers: a round of K agents closes with the first K − b updates, and the others' are thrown away.
//!
//! - Step: θ ← step(θ, Σ (b_k/Σb)·g_k) over the updates that are in.
//! - Those left out are told, get the next round's work, and have their samples done by others.
//! - Source: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016). They add b workers to N;
//!   here b of the K that are present are backups. With unequal batches, which they
//!   do not have, a round also waits until no more samples are missing than b agents have on average.

use super::round::RoundPlan;

#[derive(Debug)]
pub(super) struct BackupWorkers {
    pub(super) backups: u32,
}

impl RoundPlan for BackupWorkers {
    /// What is added cannot be taken out, and the pieces of a push that is left out would make the round start over.
    fn adds_pieces(&self) -> bool {
        false
    }

    fn backups(&self) -> u32 {
        self.backups
    }
}
