//! Counters of the hub, each incremented in one place.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the hub started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Hellos that were refused.
    pub(crate) handshakes_refused: AtomicU64,
    /// Frames that are no message.
    pub(crate) frames_refused: AtomicU64,
    /// Frames over the limit.
    pub(crate) frames_oversize: AtomicU64,
    /// Reports on a job that does not run, or from an agent that is not ready for it.
    pub(crate) reports_out_of_place: AtomicU64,
    /// HTTP requests without the token.
    pub(crate) requests_unauthorized: AtomicU64,
}

impl Counters {
    /// By name.
    pub(crate) fn by_name(&self) -> BTreeMap<String, u64> {
        let counters = [
            ("handshakes_refused", &self.handshakes_refused),
            ("frames_refused", &self.frames_refused),
            ("frames_oversize", &self.frames_oversize),
            ("reports_out_of_place", &self.reports_out_of_place),
            ("requests_unauthorized", &self.requests_unauthorized),
        ];
        counters.into_iter().map(|(name, value)| (name.to_owned(), value.load(Ordering::Relaxed))).collect()
    }
}
