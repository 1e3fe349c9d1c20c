//! Packets out of bytes, with messages that are too large left out.
//!
//! MQTT knows no way to refuse a message: a broker that holds a large one for a topic sends it after every subscription. So it
//! is read past, byte by byte as it comes, and acknowledged like others.

use bytes::{Buf, BytesMut};
use rumqttc::mqttbytes::{self, v4::Packet};

/// Packets other than messages are small. Those that acknowledge subscriptions are the longest.
const OTHER_BYTES_MAX: usize = 64 << 10;

/// First bits of a message's first byte.
const PUBLISH: u8 = 3;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A packet.
    Packet(Packet),
    /// A message that is larger than its topic may carry. Its bytes are not kept.
    Skipped {
        topic: String,
        payload_bytes: usize,
        /// To be acknowledged, where the broker waits for that.
        packet_id: Option<u16>,
    },
}

/// Why the bytes are no packets.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("the broker sent what is not MQTT")]
    Packet(#[source] mqttbytes::Error),
    #[error("the broker sent a packet of {bytes} bytes that is no message")]
    TooLong { bytes: usize },
    #[error("the broker sent a packet that ends too early")]
    Short,
}

/// Reads packets from bytes as they come.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// Bytes of a message that is read past.
    skip: usize,
}

impl Decoder {
    /// The next packet; none if more bytes are needed. `payload_bytes_max` says what a topic may carry.
    pub(super) fn next(
        &mut self,
        bytes: &mut BytesMut,
        payload_bytes_max: impl Fn(&str) -> usize,
    ) -> Result<Option<Decoded>, DecodeError> {
        let skipped = self.skip.min(bytes.len());
        bytes.advance(skipped);
        self.skip -= skipped;
        if self.skip > 0 {
            return Ok(None);
        }
        let Some((header_bytes, remaining)) = fixed_header(bytes)? else { return Ok(None) };
        if bytes[0] >> 4 == PUBLISH {
            let Some(head) = publish_head(&bytes[..], header_bytes, remaining)? else { return Ok(None) };
            let payload_bytes = remaining - (head.end - header_bytes);
            if payload_bytes > payload_bytes_max(head.topic) {
                let (topic, packet_id) = (head.topic.to_owned(), head.packet_id);
                let end = head.end;
                bytes.advance(end);
                self.skip = payload_bytes.saturating_sub(bytes.len());
                bytes.advance(payload_bytes - self.skip);
                return Ok(Some(Decoded::Skipped { topic, payload_bytes, packet_id }));
            }
        } else if remaining > OTHER_BYTES_MAX {
            return Err(DecodeError::TooLong { bytes: remaining });
        }
        if bytes.len() < header_bytes + remaining {
            bytes.reserve(header_bytes + remaining - bytes.len());
            return Ok(None);
        }
        Packet::read(bytes, usize::MAX).map(|packet| Some(Decoded::Packet(packet))).map_err(DecodeError::Packet)
    }
}

/// Length of the fixed header and of what follows it; none if more bytes are needed.
fn fixed_header(bytes: &[u8]) -> Result<Option<(usize, usize)>, DecodeError> {
    let mut remaining = 0;
    for (place, &byte) in bytes.iter().skip(1).take(4).enumerate() {
        remaining |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(Some((2 + place, remaining)));
        }
    }
    if bytes.len() >= 5 { Err(DecodeError::Packet(mqttbytes::Error::MalformedRemainingLength)) } else { Ok(None) }
}

struct PublishHead<'a> {
    topic: &'a str,
    packet_id: Option<u16>,
    /// Where the payload begins.
    end: usize,
}

/// What lies before the payload of a message; none if more bytes are needed.
fn publish_head(bytes: &[u8], header_bytes: usize, remaining: usize) -> Result<Option<PublishHead<'_>>, DecodeError> {
    let with_id = bytes[0] & 0b0110 != 0;
    let Some(length) = bytes.get(header_bytes..header_bytes + 2) else {
        return if remaining < 2 { Err(DecodeError::Short) } else { Ok(None) };
    };
    let topic_end = header_bytes + 2 + usize::from(u16::from_be_bytes([length[0], length[1]]));
    let end = topic_end + if with_id { 2 } else { 0 };
    if end > header_bytes + remaining {
        return Err(DecodeError::Short);
    }
    if bytes.len() < end {
        return Ok(None);
    }
    let topic = std::str::from_utf8(&bytes[header_bytes + 2..topic_end])
        .map_err(|_| DecodeError::Packet(mqttbytes::Error::TopicNotUtf8))?;
    let packet_id = with_id.then(|| u16::from_be_bytes([bytes[topic_end], bytes[topic_end + 1]]));
    Ok(Some(PublishHead { topic, packet_id, end }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rumqttc::mqttbytes::{
        QoS,
        v4::{PubAck, Publish},
    };

    use super::*;

    fn publish(topic: &str, qos: QoS, payload: usize) -> Packet {
        let mut publish = Publish::new(topic, qos, vec![7; payload]);
        publish.pkid = if qos == QoS::AtMostOnce { 0 } else { 9 };
        Packet::Publish(publish)
    }

    fn wire(packets: &[Packet]) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        for packet in packets {
            packet.write(&mut bytes, usize::MAX).unwrap();
        }
        bytes.to_vec()
    }

    /// What comes out of bytes that arrive in pieces, and the most that was ever kept.
    fn decode(bytes: &[u8], piece: usize, max: usize) -> (Vec<Decoded>, usize) {
        let (mut decoder, mut buffer, mut decoded, mut kept) = (Decoder::default(), BytesMut::new(), Vec::new(), 0);
        for piece in bytes.chunks(piece) {
            buffer.extend_from_slice(piece);
            while let Some(next) = decoder.next(&mut buffer, |_| max).unwrap() {
                decoded.push(next);
            }
            kept = kept.max(buffer.len());
        }
        (decoded, kept)
    }

    #[test]
    fn large_messages_are_read_past_whatever_comes_around_them() {
        let packets = [
            publish("a", QoS::AtMostOnce, 100),
            publish("large/retained", QoS::AtLeastOnce, 2 << 20),
            Packet::PingResp,
            publish("large", QoS::AtMostOnce, 101),
            Packet::PubAck(PubAck::new(3)),
            publish("b", QoS::AtLeastOnce, 100),
        ];
        let bytes = wire(&packets);
        let skipped =
            |topic: &str, payload_bytes, packet_id| Decoded::Skipped { topic: topic.into(), payload_bytes, packet_id };
        for piece in [1, 2, 3, 1000, 65_536, bytes.len()] {
            let (decoded, kept) = decode(&bytes, piece, 100);
            assert_eq!(decoded.len(), 6, "pieces of {piece}");
            assert_eq!(decoded[0], Decoded::Packet(packets[0].clone()));
            assert_eq!(decoded[1], skipped("large/retained", 2 << 20, Some(9)));
            assert_eq!(decoded[2], Decoded::Packet(Packet::PingResp));
            assert_eq!(decoded[3], skipped("large", 101, None));
            assert_eq!(decoded[5], Decoded::Packet(packets[5].clone()));
            assert!(kept <= piece + 120, "{kept} bytes kept of pieces of {piece}");
        }
    }

    #[test]
    fn what_is_not_mqtt_is_an_error() {
        let error = |bytes: &[u8]| Decoder::default().next(&mut BytesMut::from(bytes), |_| 10).unwrap_err();
        assert!(matches!(error(&[0x30, 0xff, 0xff, 0xff, 0xff]), DecodeError::Packet(_)));
        assert!(matches!(error(&[0x30, 1, 0]), DecodeError::Short));
        assert!(matches!(error(&[0x30, 4, 0, 9, b'a', b'b']), DecodeError::Short));
        assert!(matches!(error(&[0x30, 4, 0, 1, 0xff, b'b']), DecodeError::Packet(_)));
        assert!(matches!(error(&[0x90, 0xff, 0xff, 0x7f]), DecodeError::TooLong { .. }));
        assert!(matches!(error(&[0xf0, 0]), DecodeError::Packet(_)));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1usize..50) {
            let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
            'pieces: for piece in bytes.chunks(piece) {
                buffer.extend_from_slice(piece);
                loop {
                    match decoder.next(&mut buffer, |_| 20) {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'pieces,
                    }
                }
            }
        }
    }
}
