//! The task that sends what a buffer holds.

use std::time::Duration;

use super::{TimedStep, TimingsBuffer};
use crate::client::Client;
use crate::session::SessionMark;

/// Sends an agent's timings: one batch at a time, in order, each until the broker has acknowledged it.
#[derive(Debug)]
pub struct TimingsPublisher {}

impl TimingsPublisher {
    /// Begins to send what `buffer` gets to `topic`, at most one batch in `every`. `session` is the mark that the client's
    /// connections are counted from.
    pub fn start(
        _client: Client,
        _topic: String,
        _buffer: TimingsBuffer,
        _session: SessionMark,
        _every: Duration,
    ) -> TimingsPublisher {
        todo!()
    }

    /// Takes a step and returns its number. Never waits.
    pub fn push(&self, _step: TimedStep) -> u64 {
        todo!()
    }

    /// Steps that are not acknowledged, and steps that were dropped.
    pub fn waiting_and_lost(&self) -> (usize, u64) {
        todo!()
    }

    /// Sends what is left, for at most `longest`.
    pub async fn finish(self, _longest: Duration) {
        todo!()
    }
}
