//! Bytes that were written and not acknowledged.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Size of a piece of memory. Each is let go when its last byte is taken off, so an idle stream holds nothing.
const PIECE_BYTES: usize = 64 << 10;

/// A queue of bytes that can be read anywhere and is taken off at the front.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    /// All full but the last.
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were taken off.
    taken: usize,
    len: usize,
}

impl ByteQueue {
    /// How many bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds bytes at the end.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            if self.pieces.back().is_none_or(|piece| piece.len() == PIECE_BYTES) {
                self.pieces.push_back(Vec::with_capacity(PIECE_BYTES.min(bytes.len().next_power_of_two())));
            }
            let Some(piece) = self.pieces.back_mut() else { return };
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - piece.len()));
            piece.extend_from_slice(now);
            bytes = later;
        }
    }

    /// Copies `len` bytes from the `from`-th on; fewer where there are fewer.
    pub(super) fn copy(&self, from: usize, len: usize, into: &mut BytesMut) {
        let mut at = self.taken + from;
        let end = self.taken + (from + len).min(self.len);
        while at < end {
            let Some(piece) = self.pieces.get(at / PIECE_BYTES) else { return };
            let start = at % PIECE_BYTES;
            let stop = piece.len().min(start + (end - at));
            into.extend_from_slice(&piece[start..stop]);
            at += stop - start;
        }
    }

    /// Takes bytes off at the front.
    pub(super) fn take_off(&mut self, len: usize) {
        let len = len.min(self.len);
        self.len -= len;
        self.taken += len;
        while self.pieces.front().is_some_and(|piece| self.taken >= piece.len()) {
            if let Some(piece) = self.pieces.pop_front() {
                self.taken -= piece.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue_of_bytes(steps in proptest::collection::vec((0usize..200_000, 0usize..200_000, 0usize..70_000), 1..20)) {
            let (mut queue, mut expected, mut next) = (ByteQueue::default(), Vec::new(), 0u32);
            for (push, take, from) in steps {
                let bytes: Vec<u8> = (0..push).map(|_| { next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223); (next >> 24) as u8 }).collect();
                queue.push(&bytes);
                expected.extend_from_slice(&bytes);
                queue.take_off(take);
                expected.drain(..take.min(expected.len()));
                prop_assert_eq!(queue.len(), expected.len());
                let mut copied = BytesMut::new();
                queue.copy(from, 100_000, &mut copied);
                let end = (from + 100_000).min(expected.len());
                prop_assert_eq!(&copied[..], &expected[from.min(end)..end]);
            }
            queue.take_off(usize::MAX);
            prop_assert!(queue.pieces.is_empty() && queue.taken == 0);
        }
    }
}
