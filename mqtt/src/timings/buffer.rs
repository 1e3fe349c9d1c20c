//! Steps that the hub has not confirmed.

use std::collections::VecDeque;

use super::{BATCH_BYTES_MAX, BATCH_STEPS_MAX, TimedStep, TimingsBatch, TimingsFormat};
use crate::session::SessionMark;

/// Steps that are kept while broker or hub are away. When there are more, the oldest is dropped and counted.
pub const STEPS_MAX_DEFAULT: usize = 10_000;

/// A bounded queue of steps. One batch at a time is under way; only the hub's receipt removes its steps.
#[derive(Debug)]
pub struct TimingsBuffer {
    agent: String,
    format: TimingsFormat,
    steps: VecDeque<TimedStep>,
    steps_max: usize,
    next_seq: u64,
    lost: u64,
    /// How many of the first steps are under way, while a batch is.
    under_way: Option<usize>,
    /// Steps before this number were sent at least once. The others nobody can have.
    sent: u64,
}

impl TimingsBuffer {
    /// An empty buffer of an agent that keeps at most `steps_max` steps.
    pub fn new(agent: &str, format: TimingsFormat, steps_max: usize) -> TimingsBuffer {
        TimingsBuffer {
            agent: agent.to_owned(),
            format,
            steps: VecDeque::new(),
            steps_max: steps_max.max(1),
            next_seq: 0,
            lost: 0,
            under_way: None,
            sent: 0,
        }
    }

    /// The agent's name.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Takes a step, gives it the next number and returns that.
    pub fn push(&mut self, step: TimedStep) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        if self.steps.len() == self.steps_max {
            // What is under way may have arrived: it is counted as lost only where there is nothing else to drop.
            let under_way = self.under_way.unwrap_or(0);
            let oldest = if under_way < self.steps.len() { under_way } else { 0 };
            self.steps.remove(oldest);
            self.under_way = self.under_way.map(|under_way| under_way.min(self.steps.len()));
            self.lost += 1;
        }
        self.steps.push_back(TimedStep { seq, ..step });
        seq
    }

    /// The next batch, of at most `bytes_max` bytes; none while one is under way, or where nothing waits.
    pub fn next_batch(&mut self, session: SessionMark, bytes_max: usize) -> Option<Vec<u8>> {
        if self.under_way.is_some() {
            return None;
        }
        let bytes_max = bytes_max.min(BATCH_BYTES_MAX);
        let mut count = self.steps.len().min(BATCH_STEPS_MAX);
        while let Some(first) = self.steps.front() {
            let batch = TimingsBatch {
                agent: self.agent.clone(),
                session,
                first: first.seq,
                lost: self.lost,
                steps: self.steps.iter().take(count).copied().collect(),
            };
            let payload = batch.encode(self.format);
            if payload.len() <= bytes_max {
                self.under_way = Some(count);
                self.sent = self.sent.max(batch.steps.last().map_or(0, |step| step.seq + 1));
                return Some(payload);
            }
            if count == 1 {
                // No packet holds it, and what comes after must not wait for it.
                self.steps.pop_front();
                self.lost += 1;
                count = self.steps.len().min(BATCH_STEPS_MAX);
            } else {
                count = (count * bytes_max / payload.len() * 15 / 16).clamp(1, count - 1);
            }
        }
        None
    }

    /// The hub has every step before number `next`, as far as they were sent. It may say so late, or again.
    pub fn received(&mut self, next: u64) {
        let next = next.min(self.sent);
        let done = self.steps.partition_point(|step| step.seq < next);
        self.steps.drain(..done);
        // What is left of the batch was not taken, and is asked after as before.
        self.under_way = self.under_way.map(|under_way| under_way.saturating_sub(done)).filter(|left| *left > 0);
    }

    /// Nobody knows what became of the batch that was under way: it is sent again, and the hub knows its steps by their numbers.
    pub fn failed(&mut self) {
        self.under_way = None;
    }

    /// Whether a batch is under way.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Steps that the hub has not confirmed.
    pub fn waiting(&self) -> usize {
        self.steps.len()
    }

    /// Steps that were dropped.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
