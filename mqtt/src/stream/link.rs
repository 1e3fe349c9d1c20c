//! Both ends of a stream as pure state: segments and `now` go in, segments come out.
//!
//! Each direction counts its bytes. Every segment says how many bytes of the other direction have arrived without a gap, and
//! how many more are taken. What is not acknowledged is kept and sent again: from a byte that the other end names, after a
//! time without progress, and after each reconnection of one's own to the broker. So nothing is asked of the broker but that
//! it now and then delivers a message.

mod receiving;
mod sending;

use std::time::{Duration, Instant};

use bytes::Bytes;

use self::receiving::Receiving;
use self::sending::Sending;
use super::segment::{Kind, Segment};

/// Most bytes that are under way or wait for their reader, in each direction. As many as TCP is allowed to keep unsent
/// elsewhere, so that a slow agent looks alike over both.
pub(super) const WINDOW_BYTES: usize = 512 << 10;

/// First wait before a stream is asked for again; it doubles up to [`OPEN_WAIT_MOST`].
const OPEN_WAIT_FIRST: Duration = Duration::from_millis(200);
const OPEN_WAIT_MOST: Duration = Duration::from_millis(1600);

/// Why a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The other end said so, or does not know of it.
    Reset,
    /// The other end does not keep to the protocol.
    Violation,
    /// Ended here.
    Abandoned,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Asked for, at `again` once more.
    Opening {
        again: Instant,
        wait: Duration,
    },
    Open,
    Over {
        why: Over,
        tell: bool,
    },
}

/// One end of a stream.
#[derive(Debug)]
pub(super) struct Link {
    connection: u64,
    phase: Phase,
    sending: Sending,
    receiving: Receiving,
}

impl Link {
    /// The end that asks for a stream.
    pub(super) fn dial(connection: u64, now: Instant) -> Link {
        let phase = Phase::Opening { again: now, wait: OPEN_WAIT_FIRST };
        Link { connection, phase, sending: Sending::new(now), receiving: Receiving::default() }
    }

    /// The end that was asked.
    pub(super) fn accept(open: &Segment, now: Instant) -> Link {
        let (sending, receiving) = (Sending::new(now), Receiving::default());
        let mut link = Link { connection: open.connection, phase: Phase::Open, sending, receiving };
        link.on_segment(open, now);
        link
    }

    /// Whether the other end has not answered yet.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening { .. })
    }

    /// Why it is over, if it is.
    pub(super) fn over(&self) -> Option<Over> {
        match self.phase {
            Phase::Over { why, .. } => Some(why),
            _ => None,
        }
    }

    /// Whether everything that was written has arrived, the end included.
    pub(super) fn is_delivered(&self) -> bool {
        self.sending.is_delivered()
    }

    /// Whether everything that the other end wrote has arrived, the end included.
    pub(super) fn is_finished_by_peer(&self) -> bool {
        self.receiving.is_finished()
    }

    /// Takes bytes to send, as many as there is room for.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        self.sending.write(bytes)
    }

    /// No more bytes are written.
    pub(super) fn finish(&mut self) {
        self.sending.finish();
    }

    /// Whether [`Link::finish`] was called.
    pub(super) fn is_finishing(&self) -> bool {
        self.sending.is_finishing()
    }

    /// Bytes that arrived, at most `most`; none where none wait.
    pub(super) fn read(&mut self, most: usize) -> Option<Bytes> {
        self.receiving.read(most)
    }

    /// From now on, what arrives has no reader.
    pub(super) fn discard(&mut self) {
        self.receiving.discard();
    }

    /// Ends the stream at once and tells the other end, unless both ends are through with it anyway.
    pub(super) fn abandon(&mut self) {
        let through = self.is_delivered() && self.is_finished_by_peer();
        if self.over().is_none() && !through {
            self.phase = Phase::Over { why: Over::Abandoned, tell: true };
        }
    }

    /// A segment came.
    pub(super) fn on_segment(&mut self, segment: &Segment, now: Instant) {
        if segment.kind == Kind::Reset {
            if self.over().is_none() {
                self.phase = Phase::Over { why: Over::Reset, tell: false };
            }
            return;
        }
        match &mut self.phase {
            Phase::Over { tell, .. } => {
                *tell = true;
                return;
            }
            Phase::Opening { .. } => self.phase = Phase::Open,
            Phase::Open => {}
        }
        let sound = self.sending.on_acknowledged(segment.acknowledged, segment.window, now)
            && match segment.kind {
                Kind::Data => self.receiving.on_data(segment, now),
                Kind::Finish => self.receiving.on_finish(segment.offset),
                Kind::Open => {
                    self.receiving.acknowledge_now();
                    true
                }
                Kind::Again => {
                    self.sending.send_again(now);
                    true
                }
                Kind::Ack | Kind::Reset => true,
            };
        if !sound {
            self.phase = Phase::Over { why: Over::Violation, tell: true };
        }
    }

    /// The own client is connected again; what was under way in either direction may be lost.
    pub(super) fn on_reconnected(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Opening { again, wait } => (*again, *wait) = (now, OPEN_WAIT_FIRST),
            Phase::Open => {
                self.sending.on_reconnected(now);
                self.receiving.ask_again();
            }
            Phase::Over { .. } => {}
        }
    }

    /// When [`Link::on_deadline`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Opening { again, .. } => Some(again),
            Phase::Open => [self.sending.deadline(), self.receiving.deadline()].into_iter().flatten().min(),
            Phase::Over { .. } => None,
        }
    }

    /// Time has passed. With `backlog`, segments still wait to leave this machine, so that none can be missing yet.
    pub(super) fn on_deadline(&mut self, now: Instant, backlog: bool) {
        if let Phase::Open = self.phase {
            self.sending.on_deadline(now, backlog);
            self.receiving.on_deadline(now);
        }
    }

    /// The next segment to send, with at most `payload_max` bytes in it; none where nothing is to be sent now.
    pub(super) fn next_segment(&mut self, payload_max: usize, now: Instant) -> Option<Bytes> {
        let connection = self.connection;
        match &mut self.phase {
            Phase::Over { tell, .. } => {
                let tell = std::mem::take(tell);
                return tell.then(|| Segment::bare(Kind::Reset, connection).encode());
            }
            Phase::Opening { again, .. } if now < *again => return None,
            Phase::Opening { again, wait } => {
                *again = now + *wait;
                *wait = (*wait * 2).min(OPEN_WAIT_MOST);
                let mut open = Segment::bare(Kind::Open, connection);
                open.window = WINDOW_BYTES as u32;
                return Some(open.encode());
            }
            Phase::Open => {}
        }
        let mut segment = Segment::bare(Kind::Ack, connection);
        (segment.acknowledged, segment.window) = self.receiving.acknowledgement();
        let again = self.receiving.take_again();
        let message = if again {
            segment.kind = Kind::Again;
            segment.offset = self.sending.next_offset();
            Some(segment.encode())
        } else if let Some(message) = self.sending.next_segment(&mut segment, payload_max, now) {
            Some(message)
        } else {
            segment.offset = self.sending.next_offset();
            self.receiving.is_acknowledgement_due().then(|| segment.encode())
        };
        if message.is_some() {
            self.receiving.on_acknowledgement_sent();
        }
        message
    }
}

#[cfg(test)]
mod tests;
