//! One direction of a stream, where it begins.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::super::byte_queue::ByteQueue;
use super::super::segment::{HEADER_BYTES, Kind, Segment};
use super::WINDOW_BYTES;

/// Wait without progress before something is sent again: before a round trip was measured, and the bounds of what follows
/// from one. Losses are rare, since brokers speak TCP on both sides, so patience costs little and haste would load a link
/// that is only slow.
const RESEND_FIRST: Duration = Duration::from_secs(2);
const RESEND_LEAST: Duration = Duration::from_secs(1);
const RESEND_MOST: Duration = Duration::from_secs(8);

/// What was written, and how far it got.
#[derive(Debug)]
pub(super) struct Sending {
    /// Bytes from `acknowledged` on.
    kept: ByteQueue,
    acknowledged: u64,
    /// The next byte to send.
    next: u64,
    /// One past the last byte that was ever sent.
    sent: u64,
    /// The first byte that the other end does not take yet.
    window_end: u64,
    finishing: bool,
    finish: Finish,
    /// Whether to ask for an acknowledgement although nothing may be sent.
    ask: bool,
    /// Whether one segment at a time is sent, after a time without progress.
    cautious: bool,
    /// When something was last acknowledged, or sending began.
    progress: Instant,
    resend_wait: Duration,
    round_trip: RoundTrip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Unsent,
    /// Sent before, and to be sent again.
    Due,
    Sent,
    Acknowledged,
}

/// Smoothed round trip and its deviation, as TCP estimates them (RFC 6298), in seconds.
#[derive(Debug, Default)]
struct RoundTrip {
    mean_and_deviation_s: Option<(f64, f64)>,
    /// The segment that is measured: its end, and when it was sent.
    measured: Option<(u64, Instant)>,
}

impl RoundTrip {
    fn on_acknowledged(&mut self, acknowledged: u64, now: Instant) {
        let Some((_, sent)) = self.measured.take_if(|(end, _)| *end <= acknowledged) else { return };
        let sample_s = (now - sent).as_secs_f64();
        self.mean_and_deviation_s = Some(match self.mean_and_deviation_s {
            None => (sample_s, sample_s / 2.0),
            Some((mean_s, deviation_s)) => {
                (mean_s + (sample_s - mean_s) / 8.0, deviation_s + ((sample_s - mean_s).abs() - deviation_s) / 4.0)
            }
        });
    }

    fn resend_wait(&self) -> Duration {
        match self.mean_and_deviation_s {
            None => RESEND_FIRST,
            Some((mean_s, deviation_s)) => Duration::try_from_secs_f64(mean_s + 4.0 * deviation_s)
                .unwrap_or(RESEND_MOST)
                .clamp(RESEND_LEAST, RESEND_MOST),
        }
    }
}

impl Sending {
    pub(super) fn new(now: Instant) -> Sending {
        Sending {
            kept: ByteQueue::default(),
            acknowledged: 0,
            next: 0,
            sent: 0,
            window_end: 0,
            finishing: false,
            finish: Finish::Unsent,
            ask: false,
            cautious: false,
            progress: now,
            resend_wait: RESEND_FIRST,
            round_trip: RoundTrip::default(),
        }
    }

    fn written(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    pub(super) fn next_offset(&self) -> u64 {
        self.next
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.finish == Finish::Acknowledged
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.finishing
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        if self.finishing {
            return 0;
        }
        let taken = bytes.len().min(WINDOW_BYTES - self.kept.len().min(WINDOW_BYTES));
        self.kept.push(&bytes[..taken]);
        taken
    }

    pub(super) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Returns false if the other end acknowledges what was never sent.
    pub(super) fn on_acknowledged(&mut self, acknowledged: u64, window: u32, now: Instant) -> bool {
        let finish_sent = matches!(self.finish, Finish::Sent | Finish::Due | Finish::Acknowledged);
        let all = self.sent + u64::from(finish_sent);
        if acknowledged > all {
            return false;
        }
        self.window_end = self.window_end.max(acknowledged.saturating_add(u64::from(window)));
        let mut progress = false;
        // The end counts as a byte after the last; it is sent only when all bytes were.
        if finish_sent && acknowledged == all && self.finish != Finish::Acknowledged {
            self.finish = Finish::Acknowledged;
            progress = true;
        }
        let acknowledged = acknowledged.min(self.sent);
        if acknowledged > self.acknowledged {
            self.kept.take_off((acknowledged - self.acknowledged) as usize);
            self.acknowledged = acknowledged;
            self.next = self.next.max(acknowledged);
            self.round_trip.on_acknowledged(acknowledged, now);
            progress = true;
        }
        if progress {
            self.progress = now;
            self.cautious = false;
            self.resend_wait = self.round_trip.resend_wait();
        }
        true
    }

    /// Something was lost: begins again with the first byte that is not acknowledged.
    pub(super) fn send_again(&mut self, now: Instant) {
        self.next = self.acknowledged;
        if self.finish == Finish::Sent {
            self.finish = Finish::Due;
        }
        self.round_trip.measured = None; // an acknowledgement could be of either sending
        self.progress = now;
    }

    pub(super) fn on_reconnected(&mut self, now: Instant) {
        self.send_again(now);
        self.cautious = false;
        self.resend_wait = RESEND_FIRST;
    }

    fn is_under_way(&self) -> bool {
        self.next > self.acknowledged || self.finish == Finish::Sent
    }

    fn is_blocked(&self) -> bool {
        self.next < self.written() && self.next >= self.window_end
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.is_under_way() || self.is_blocked()).then(|| self.progress + self.resend_wait)
    }

    pub(super) fn on_deadline(&mut self, now: Instant, backlog: bool) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if backlog {
            self.progress = now;
            return;
        }
        if self.is_under_way() {
            self.send_again(now);
            self.cautious = true;
        } else {
            self.ask = true;
            self.progress = now;
        }
        self.resend_wait = (self.resend_wait * 2).min(RESEND_MOST);
    }

    /// The next segment that this direction needs; `segment` has everything else in it.
    pub(super) fn next_segment(&mut self, segment: &mut Segment, payload_max: usize, now: Instant) -> Option<Bytes> {
        let mut end = self.written().min(self.window_end);
        if self.cautious {
            end = end.min(self.acknowledged + payload_max as u64);
        }
        let idle = !self.is_under_way();
        if self.next < end {
            let len = (end - self.next).min(payload_max as u64) as usize;
            (segment.kind, segment.offset) = (Kind::Data, self.next);
            let mut message = BytesMut::with_capacity(HEADER_BYTES + len);
            segment.put_header(&mut message);
            self.kept.copy((self.next - self.acknowledged) as usize, len, &mut message);
            self.next += len as u64;
            if self.next > self.sent {
                self.sent = self.next;
                self.round_trip.measured.get_or_insert((self.next, now));
            }
            if idle {
                self.progress = now;
            }
            self.ask = false;
            return Some(message.freeze());
        }
        if self.finishing && self.next == self.written() && matches!(self.finish, Finish::Unsent | Finish::Due) {
            (segment.kind, segment.offset) = (Kind::Finish, self.next);
            self.finish = Finish::Sent;
            if idle {
                self.progress = now;
            }
            return Some(segment.encode());
        }
        if std::mem::take(&mut self.ask) {
            (segment.kind, segment.offset) = (Kind::Data, self.next);
            return Some(segment.encode());
        }
        None
    }
}
