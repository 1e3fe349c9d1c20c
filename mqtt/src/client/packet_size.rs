//! How large a packet the broker carries, found out by sending.
//!
//! MQTT 3.1.1 has no word for it. Some brokers end a connection on which something larger comes, others take it and tell
//! nobody. So a client sends itself a large message and a small one after it: if the small one comes back alone, or nothing
//! does and the connection ends, the large one was too large.

use bytes::{BufMut, Bytes, BytesMut};

use super::queue::packet_bytes;
use crate::random::random;

/// What is tried, the largest first. More than a segment of a stream and a batch of timings want is not asked for, so that a
/// slow link is not busy with it for long.
const CANDIDATES: [usize; 4] = [256 << 10, 128 << 10, 64 << 10, 16 << 10];

/// Taken where nothing comes back at all.
const FALLBACK: usize = CANDIDATES[CANDIDATES.len() - 1];

/// What a client knows of its broker, over all connections.
#[derive(Debug)]
pub(super) struct PacketSize {
    fixed: Option<usize>,
    topic: String,
    /// So that others who use the topic are told from oneself.
    nonce: u64,
    candidate: usize,
    asking: bool,
    /// Whether the candidate came back in an earlier connection.
    proven: bool,
    /// Connections in a row that ended while it was under way.
    ended: u32,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Publish these, in order, and wait for one of them.
    Ask([Bytes; 2]),
    /// Wait on.
    Wait,
    /// This is the limit.
    Known(usize),
}

impl PacketSize {
    /// Nothing known but what the user said.
    pub(super) fn new(fixed: Option<usize>, topic: &str) -> PacketSize {
        PacketSize {
            fixed,
            topic: topic.to_owned(),
            nonce: random(),
            candidate: 0,
            asking: false,
            proven: false,
            ended: 0,
        }
    }

    fn probe(&self, large: bool) -> Bytes {
        let bytes = match large {
            true => CANDIDATES[self.candidate].saturating_sub(packet_bytes(&self.topic, 0)),
            false => 0,
        };
        let mut payload = BytesMut::with_capacity(bytes.max(10));
        payload.put_u64(self.nonce);
        payload.put_u8(self.candidate as u8);
        payload.put_u8(u8::from(large));
        payload.resize(bytes.max(10), 0);
        payload.freeze()
    }

    fn ask(&mut self) -> Step {
        self.asking = true;
        Step::Ask([self.probe(true), self.probe(false)])
    }

    fn known(&mut self) -> Step {
        (self.asking, self.proven, self.ended) = (false, true, 0);
        Step::Known(CANDIDATES[self.candidate])
    }

    fn smaller(&mut self) -> Step {
        self.proven = false;
        if self.candidate + 1 < CANDIDATES.len() {
            self.candidate += 1;
            self.ask()
        } else {
            self.give_up()
        }
    }

    /// A connection begins.
    pub(super) fn begin(&mut self) -> Step {
        match self.fixed {
            Some(bytes) => Step::Known(bytes),
            None => self.ask(),
        }
    }

    /// A message on the topic came.
    pub(super) fn on_message(&mut self, payload: &[u8]) -> Step {
        if !self.asking || payload.get(..9) != Some(&self.probe(false)[..9]) {
            return Step::Wait;
        }
        match payload.get(9) {
            Some(1) => self.known(),
            Some(_) => self.smaller(),
            None => Step::Wait,
        }
    }

    /// Nothing comes back.
    pub(super) fn give_up(&mut self) -> Step {
        self.asking = false;
        Step::Known(FALLBACK)
    }

    /// The connection ended. Returns whether the candidate may have been the reason.
    pub(super) fn on_disconnected(&mut self) -> bool {
        let blamed = std::mem::take(&mut self.asking);
        self.ended = if blamed { self.ended + 1 } else { 0 };
        // What was carried once is given up only when it cannot be chance.
        let enough = if self.proven { 2 } else { 1 };
        if blamed && self.ended >= enough && self.candidate + 1 < CANDIDATES.len() {
            self.candidate += 1;
            (self.proven, self.ended) = (false, 0);
        }
        blamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(step: Step) -> [Bytes; 2] {
        match step {
            Step::Ask(messages) => messages,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_packet_that_comes_back_is_the_limit() {
        let mut size = PacketSize::new(None, "omnilearn/hub/probe");
        let [large, small] = asked(size.begin());
        assert_eq!((packet_bytes("omnilearn/hub/probe", large.len()), small.len()), (CANDIDATES[0], 10));
        assert_eq!(size.on_message(b"others write here too"), Step::Wait);
        assert_eq!(size.on_message(&PacketSize::new(None, "t").probe(true)), Step::Wait);
        assert_eq!(size.on_message(&large), Step::Known(CANDIDATES[0]));
        assert_eq!(size.on_message(&small), Step::Wait);
        assert!(!size.on_disconnected());
    }

    #[test]
    fn a_packet_that_is_swallowed_is_too_large() {
        let mut size = PacketSize::new(None, "t");
        let mut messages = asked(size.begin());
        for _ in 1..CANDIDATES.len() {
            messages = asked(size.on_message(&messages[1]));
        }
        assert_eq!(size.on_message(&messages[1]), Step::Known(FALLBACK));
    }

    #[test]
    fn a_packet_that_ends_the_connection_is_too_large_and_not_sent_again() {
        let mut size = PacketSize::new(None, "t");
        asked(size.begin());
        assert!(size.on_disconnected());
        let [large, _] = asked(size.begin());
        assert_eq!(size.on_message(&large), Step::Known(CANDIDATES[1]));
        // It was carried: one lost connection proves nothing against it, two in a row do.
        for expected in [CANDIDATES[1], CANDIDATES[2]] {
            asked(size.begin());
            assert!(size.on_disconnected());
            assert_eq!(packet_bytes("t", size.probe(true).len()), expected);
        }
    }

    #[test]
    fn what_the_user_says_is_not_tried() {
        let mut size = PacketSize::new(Some(5000), "t");
        assert_eq!(size.begin(), Step::Known(5000));
        assert!(!size.on_disconnected());
    }
}
