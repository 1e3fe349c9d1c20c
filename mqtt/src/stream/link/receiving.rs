//! One direction of a stream, where it ends.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};

use super::super::segment::Segment;
use super::WINDOW_BYTES;

/// Bytes that arrive before an acknowledgement is sent at once.
const ACKNOWLEDGE_BYTES: u64 = WINDOW_BYTES as u64 / 4;

/// How long an acknowledgement waits for a segment that can carry it.
const ACKNOWLEDGE_WAIT: Duration = Duration::from_millis(20);

/// Payloads up to this size are copied, so that they do not keep the large buffer that they were read into.
const COPY_BYTES: usize = 4 << 10;

/// What has arrived, and how far it was read.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    waiting: VecDeque<Bytes>,
    /// Bytes that count against the window: those in `waiting`, and those that nobody reads any more.
    held: usize,
    /// The next byte.
    received: u64,
    finished: bool,
    discarding: bool,
    /// What the other end was last told.
    told_received: u64,
    told_end: u64,
    due: Option<Instant>,
    due_now: bool,
    again: bool,
    /// Where the last gap was that was reported: one report is enough, and if it is lost, time will tell.
    gap: Option<u64>,
}

impl Receiving {
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    fn room(&self) -> usize {
        WINDOW_BYTES - self.held.min(WINDOW_BYTES)
    }

    /// How much has arrived, the end included, and how much more is taken.
    pub(super) fn acknowledgement(&self) -> (u64, u32) {
        (self.received + u64::from(self.finished), self.room() as u32)
    }

    pub(super) fn acknowledge_now(&mut self) {
        self.due_now = true;
    }

    pub(super) fn is_acknowledgement_due(&self) -> bool {
        self.due_now
    }

    pub(super) fn on_acknowledgement_sent(&mut self) {
        (self.due_now, self.due) = (false, None);
        self.told_received = self.received;
        self.told_end = self.received + self.room() as u64;
    }

    pub(super) fn ask_again(&mut self) {
        self.again = true;
        self.gap = None;
    }

    pub(super) fn take_again(&mut self) -> bool {
        std::mem::take(&mut self.again)
    }

    fn on_gap(&mut self) {
        if self.gap != Some(self.received) {
            self.gap = Some(self.received);
            self.again = true;
        }
    }

    /// Returns false if no sender would have sent this.
    pub(super) fn on_data(&mut self, segment: &Segment, now: Instant) -> bool {
        let mut payload = segment.payload.clone();
        let end = segment.offset + payload.len() as u64;
        if payload.is_empty() || end <= self.received {
            self.due_now = true; // a question, or what came before, whose acknowledgement may be lost
            return true;
        }
        if self.finished {
            return false;
        }
        if segment.offset > self.received {
            self.on_gap();
            return true;
        }
        payload.advance((self.received - segment.offset) as usize);
        payload.truncate(self.room());
        if payload.len() < (end - self.received) as usize {
            self.due_now = true; // more than is taken
        }
        self.received += payload.len() as u64;
        self.held += payload.len();
        if !self.discarding && !payload.is_empty() {
            self.waiting.push_back(if payload.len() <= COPY_BYTES {
                Bytes::copy_from_slice(&payload)
            } else {
                payload
            });
        }
        if self.received - self.told_received >= ACKNOWLEDGE_BYTES {
            self.due_now = true;
        } else {
            self.due.get_or_insert(now + ACKNOWLEDGE_WAIT);
        }
        true
    }

    /// Returns false if bytes came after the end.
    pub(super) fn on_finish(&mut self, offset: u64) -> bool {
        if offset > self.received {
            self.on_gap();
            return !self.finished;
        }
        if offset == self.received {
            self.finished = true;
        }
        self.due_now = true;
        offset == self.received
    }

    pub(super) fn read(&mut self, most: usize) -> Option<Bytes> {
        let first = self.waiting.front_mut()?;
        let bytes = first.split_to(most.min(first.len()));
        if first.is_empty() {
            self.waiting.pop_front();
        }
        self.held -= bytes.len();
        let opened = self.received + self.room() as u64 - self.told_end;
        if !self.finished && opened >= ACKNOWLEDGE_BYTES {
            self.due_now = true;
        }
        Some(bytes)
    }

    /// The window stays as it is, so that the other end stops by itself.
    pub(super) fn discard(&mut self) {
        self.discarding = true;
        self.waiting.clear();
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn on_deadline(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.due_now = true;
        }
    }
}
