//! Pieces of a stream as they lie in messages.

use bytes::{BufMut, Bytes, BytesMut};

/// First byte of every segment. Another layout takes another number.
pub(super) const SEGMENT_VERSION: u8 = 1;

/// Bytes before the payload: version, kind, connection, offset, acknowledged, window; numbers big-endian.
pub(super) const HEADER_BYTES: usize = 1 + 1 + 8 + 8 + 8 + 4;

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Kind {
    /// Asks for a stream. Sent again until something comes back.
    Open = 0,
    /// Bytes of the stream; an empty one asks for an acknowledgement.
    Data = 1,
    /// Nothing but the acknowledgement that every segment carries.
    Ack = 2,
    /// No bytes come after this offset. Counts as one byte, so that it is acknowledged like them.
    Finish = 3,
    /// The stream is over at once, or was never known.
    Reset = 4,
    /// An acknowledgement of somebody to whom something was lost: send again from there.
    Again = 5,
}

/// A piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) kind: Kind,
    /// Which stream of the agent.
    pub(super) connection: u64,
    /// Where in the stream the payload lies.
    pub(super) offset: u64,
    /// How many bytes of the other direction have arrived, without a gap.
    pub(super) acknowledged: u64,
    /// How many bytes past that are taken.
    pub(super) window: u32,
    pub(super) payload: Bytes,
}

/// Why a payload is no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SegmentError {
    #[error("{bytes} bytes are no segment")]
    Short { bytes: usize },
    #[error("segment version {version}, and this end speaks {SEGMENT_VERSION}")]
    Version { version: u8 },
    #[error("segment of kind {kind}")]
    Kind { kind: u8 },
    #[error("a payload in a segment that has none")]
    Payload,
    #[error("an offset that no stream reaches")]
    Offset,
}

/// Streams end before this offset, so that sums of offsets and lengths are numbers.
const OFFSET_MAX: u64 = 1 << 62;

impl Segment {
    /// A segment without payload.
    pub(super) fn bare(kind: Kind, connection: u64) -> Segment {
        Segment { kind, connection, offset: 0, acknowledged: 0, window: 0, payload: Bytes::new() }
    }

    /// Writes the header, after which the payload comes.
    pub(super) fn put_header(&self, bytes: &mut BytesMut) {
        bytes.put_u8(SEGMENT_VERSION);
        bytes.put_u8(self.kind as u8);
        bytes.put_u64(self.connection);
        bytes.put_u64(self.offset);
        bytes.put_u64(self.acknowledged);
        bytes.put_u32(self.window);
    }

    /// As a message.
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + self.payload.len());
        self.put_header(&mut bytes);
        bytes.extend_from_slice(&self.payload);
        bytes.freeze()
    }

    /// Reads a message. The payload stays where it is.
    pub(super) fn decode(message: &Bytes) -> Result<Segment, SegmentError> {
        let short = SegmentError::Short { bytes: message.len() };
        let (&version, _) = message.split_first().ok_or(short)?;
        if version != SEGMENT_VERSION {
            return Err(SegmentError::Version { version });
        }
        let (header, payload) = message.split_at_checked(HEADER_BYTES).ok_or(short)?;
        let kind = match header[1] {
            0 => Kind::Open,
            1 => Kind::Data,
            2 => Kind::Ack,
            3 => Kind::Finish,
            4 => Kind::Reset,
            5 => Kind::Again,
            kind => return Err(SegmentError::Kind { kind }),
        };
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&header[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let mut window = [0; 4];
        window.copy_from_slice(&header[26..30]);
        let (offset, acknowledged) = (number(10), number(18));
        if offset >= OFFSET_MAX || acknowledged >= OFFSET_MAX {
            return Err(SegmentError::Offset);
        }
        if kind != Kind::Data && !payload.is_empty() {
            return Err(SegmentError::Payload);
        }
        Ok(Segment {
            kind,
            connection: number(2),
            offset,
            acknowledged,
            window: u32::from_be_bytes(window),
            payload: message.slice(HEADER_BYTES..),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_segment_has_exactly_these_bytes() {
        let segment = Segment {
            kind: Kind::Data,
            connection: 0x0102_0304_0506_0708,
            offset: 0x1112,
            acknowledged: 0x2122,
            window: 0x3132_3334,
            payload: Bytes::from_static(b"abc"),
        };
        #[rustfmt::skip]
        let expected = [
            1, 1,
            1, 2, 3, 4, 5, 6, 7, 8,
            0, 0, 0, 0, 0, 0, 0x11, 0x12,
            0, 0, 0, 0, 0, 0, 0x21, 0x22,
            0x31, 0x32, 0x33, 0x34,
            b'a', b'b', b'c',
        ];
        assert_eq!(segment.encode()[..], expected);
        assert_eq!(Segment::decode(&segment.encode()), Ok(segment));
        let kinds = [Kind::Open, Kind::Data, Kind::Ack, Kind::Finish, Kind::Reset, Kind::Again];
        for (number, kind) in kinds.into_iter().enumerate() {
            assert_eq!(Segment::bare(kind, 0).encode()[1], number as u8);
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = Segment::bare(Kind::Ack, 7).encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = byte;
            Segment::decode(&bytes.into())
        };
        assert_eq!(Segment::decode(&Bytes::new()), Err(SegmentError::Short { bytes: 0 }));
        assert_eq!(Segment::decode(&good.slice(..29)), Err(SegmentError::Short { bytes: 29 }));
        assert_eq!(with(0, 2), Err(SegmentError::Version { version: 2 }));
        assert_eq!(with(1, 6), Err(SegmentError::Kind { kind: 6 }));
        assert_eq!(with(10, 0xff), Err(SegmentError::Offset));
        assert_eq!(with(18, 0x40), Err(SegmentError::Offset));
        let longer: Bytes = [&good[..], b"x"].concat().into();
        assert_eq!(Segment::decode(&longer), Err(SegmentError::Payload));
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), plausible in any::<bool>()) {
            if plausible && bytes.len() > 1 {
                bytes[0] = SEGMENT_VERSION;
                bytes[1] %= 6;
            }
            let bytes = Bytes::from(bytes);
            if let Ok(segment) = Segment::decode(&bytes) {
                prop_assert_eq!(segment.encode(), bytes);
            }
        }
    }
}
