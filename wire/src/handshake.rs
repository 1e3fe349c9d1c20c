//! How a connection begins. Every version of both programs can read these two frames, so that a mismatch is an answer and
//! not a time-out.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `OLRN` |
//! | 4..6 | oldest protocol that the sender speaks, little-endian |
//! | 6..8 | newest protocol that the sender speaks; in an answer both are the one agreed on |
//! | 8 | 0 hello, 1 welcome, 2 refusal |
//! | 9.. | [`Hello`] or [`Welcome`] in postcard; a refusal's text in UTF-8 |

use serde::{Deserialize, Serialize};

use crate::limits::{HANDSHAKE_BYTES_MAX, cut_reason};
use crate::message::Machine;
use crate::{AgentId, limits};

/// Oldest protocol that this build speaks.
pub const PROTOCOL_MIN: u16 = 1;
/// Newest protocol that this build speaks.
pub const PROTOCOL_MAX: u16 = 1;

const MAGIC: [u8; 4] = *b"OLRN";
const PREFIX_BYTES: usize = 9;
const KIND_HELLO: u8 = 0;
const KIND_WELCOME: u8 = 1;
const KIND_REFUSAL: u8 = 2;

/// What an agent says of itself.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the agent, unique within the hub. By default the machine's host name.
    pub name: String,
    /// The shared token, where the hub asks for one.
    pub token: Option<String>,
    /// Random number of this process; tells a reconnecting agent from a second one of the same name.
    pub process: u64,
    /// The machine.
    pub machine: Machine,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "(hidden)");
        formatter.debug_struct("Hello").field("name", &self.name).field("token", &token).finish_non_exhaustive()
    }
}

/// What the hub answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The hub's number for the agent.
    pub agent: AgentId,
    /// How often the agent sends a heartbeat, in milliseconds.
    pub heartbeat_ms: u32,
    /// The hub's version, for the agent's log.
    pub hub_version: String,
}

/// Why a handshake failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer does not speak this family of protocols.
    #[error("the peer is not an OmniLearn {expected}")]
    NotOmniLearn {
        /// What was expected at the other end.
        expected: &'static str,
    },
    /// The versions do not overlap.
    #[error("protocol {theirs_min}..={theirs_max} not supported, need {PROTOCOL_MIN}..={PROTOCOL_MAX}")]
    Version {
        /// Oldest that the peer speaks.
        theirs_min: u16,
        /// Newest that the peer speaks.
        theirs_max: u16,
    },
    /// The frame is too long or its body does not decode.
    #[error("handshake of {bytes} bytes is malformed")]
    Malformed {
        /// Length of the frame.
        bytes: usize,
    },
    /// A name is empty, too long, or has characters other than letters, digits, `-`, `_` and `.`.
    #[error("agent name {name:?} is not 1 to {max} letters, digits, `-`, `_` or `.`", max = limits::NAME_BYTES_MAX)]
    Name {
        /// The name.
        name: String,
    },
    /// The hub refused, with this reason.
    #[error("the hub refused: {reason}")]
    Refused {
        /// The hub's reason.
        reason: String,
    },
}

fn frame(versions: (u16, u16), kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(PREFIX_BYTES + body.len());
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&versions.0.to_le_bytes());
    frame.extend_from_slice(&versions.1.to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(body);
    frame
}

/// The sender's oldest and newest protocol, the kind of frame, and its body.
type Parts<'a> = ((u16, u16), u8, &'a [u8]);

fn parse<'a>(frame: &'a [u8], expected: &'static str) -> Result<Parts<'a>, HandshakeError> {
    if frame.len() > HANDSHAKE_BYTES_MAX {
        return Err(HandshakeError::Malformed { bytes: frame.len() });
    }
    let Some((prefix, body)) = frame.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(HandshakeError::NotOmniLearn { expected });
    };
    let [a, b, c, d, min_low, min_high, max_low, max_high, kind] = *prefix;
    if [a, b, c, d] != MAGIC {
        return Err(HandshakeError::NotOmniLearn { expected });
    }
    let versions = (u16::from_le_bytes([min_low, min_high]), u16::from_le_bytes([max_low, max_high]));
    Ok((versions, kind, body))
}

fn body_bytes(body: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(body).expect("a handshake body holds only types that postcard encodes")
}

/// The agent's first frame.
pub fn encode_hello(hello: &Hello) -> Vec<u8> {
    frame((PROTOCOL_MIN, PROTOCOL_MAX), KIND_HELLO, &body_bytes(hello))
}

/// Reads an agent's first frame: the newest protocol that both speak, and what the agent says.
///
/// # Errors
/// [`HandshakeError`], to be sent back by [`encode_refusal`].
pub fn decode_hello(bytes: &[u8]) -> Result<(u16, Hello), HandshakeError> {
    let ((theirs_min, theirs_max), kind, body) = parse(bytes, "agent")?;
    let agreed = theirs_max.min(PROTOCOL_MAX);
    if agreed < theirs_min.max(PROTOCOL_MIN) {
        return Err(HandshakeError::Version { theirs_min, theirs_max });
    }
    if kind != KIND_HELLO {
        return Err(HandshakeError::NotOmniLearn { expected: "agent" });
    }
    let hello: Hello = postcard::from_bytes(body).map_err(|_| HandshakeError::Malformed { bytes: bytes.len() })?;
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if hello.name.is_empty() || hello.name.len() > limits::NAME_BYTES_MAX || !hello.name.chars().all(plain) {
        let name = hello.name.chars().take(64).collect();
        return Err(HandshakeError::Name { name });
    }
    Ok((agreed, hello))
}

/// The hub's answer to a hello that it takes.
pub fn encode_welcome(protocol: u16, welcome: &Welcome) -> Vec<u8> {
    frame((protocol, protocol), KIND_WELCOME, &body_bytes(welcome))
}

/// The hub's answer to a hello that it does not take.
pub fn encode_refusal(reason: &str) -> Vec<u8> {
    frame((PROTOCOL_MIN, PROTOCOL_MAX), KIND_REFUSAL, cut_reason(reason.to_owned()).as_bytes())
}

/// Reads the hub's answer: the protocol agreed on and the welcome.
///
/// # Errors
/// [`HandshakeError::Refused`] with the hub's reason, or what is wrong with the answer.
pub fn decode_answer(bytes: &[u8]) -> Result<(u16, Welcome), HandshakeError> {
    let ((theirs_min, theirs_max), kind, body) = parse(bytes, "hub")?;
    match kind {
        // Told apart from other refusals, since no later attempt can go better.
        KIND_REFUSAL if theirs_max < PROTOCOL_MIN || theirs_min > PROTOCOL_MAX => {
            Err(HandshakeError::Version { theirs_min, theirs_max })
        }
        KIND_REFUSAL => {
            let reason = cut_reason(String::from_utf8_lossy(body).into_owned());
            Err(HandshakeError::Refused { reason })
        }
        KIND_WELCOME => {
            if theirs_min != theirs_max || !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&theirs_min) {
                return Err(HandshakeError::Version { theirs_min, theirs_max });
            }
            let welcome = postcard::from_bytes(body).map_err(|_| HandshakeError::Malformed { bytes: bytes.len() })?;
            Ok((theirs_min, welcome))
        }
        _ => Err(HandshakeError::NotOmniLearn { expected: "hub" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(name: &str) -> Hello {
        Hello { name: name.to_owned(), token: None, process: 1, machine: Machine::default() }
    }

    fn with_versions(mut frame: Vec<u8>, versions: (u16, u16)) -> Vec<u8> {
        frame[4..6].copy_from_slice(&versions.0.to_le_bytes());
        frame[6..8].copy_from_slice(&versions.1.to_le_bytes());
        frame
    }

    #[test]
    fn overlapping_versions_agree_on_the_newest_in_common() {
        for versions in [(0, 1), (1, 1), (1, 9), (0, u16::MAX)] {
            let frame = with_versions(encode_hello(&hello("pi")), versions);
            assert_eq!(decode_hello(&frame).unwrap().0, 1, "{versions:?}");
        }
    }

    #[test]
    fn versions_that_do_not_overlap_are_answered_with_both_ranges() {
        for versions in [(2, 9), (0, 0)] {
            let frame = with_versions(encode_hello(&hello("pi")), versions);
            let (theirs_min, theirs_max) = versions;
            assert_eq!(decode_hello(&frame), Err(HandshakeError::Version { theirs_min, theirs_max }));
        }
        let text = HandshakeError::Version { theirs_min: 2, theirs_max: 9 }.to_string();
        assert_eq!(text, "protocol 2..=9 not supported, need 1..=1");
    }

    #[test]
    fn body_of_a_version_that_is_not_spoken_is_never_read() {
        let mut frame = with_versions(encode_hello(&hello("pi")), (2, 9));
        frame.truncate(9);
        frame.extend_from_slice(&[0xff; 20]);
        assert!(matches!(decode_hello(&frame), Err(HandshakeError::Version { .. })));
    }

    #[test]
    fn welcome_in_a_version_that_was_not_offered_is_refused() {
        let welcome = Welcome { agent: AgentId(1), heartbeat_ms: 1, hub_version: String::new() };
        for versions in [(2, 2), (0, 0), (1, 2)] {
            let frame = with_versions(encode_welcome(1, &welcome), versions);
            assert!(matches!(decode_answer(&frame), Err(HandshakeError::Version { .. })), "{versions:?}");
        }
    }

    #[test]
    fn refusal_of_a_hub_that_speaks_none_of_our_versions_says_so() {
        for (theirs_min, theirs_max) in [(2, 9), (0, 0)] {
            let frame = with_versions(encode_refusal("protocol"), (theirs_min, theirs_max));
            assert_eq!(decode_answer(&frame), Err(HandshakeError::Version { theirs_min, theirs_max }));
        }
        let frame = with_versions(encode_refusal("the token is wrong"), (0, 9));
        assert!(matches!(decode_answer(&frame), Err(HandshakeError::Refused { .. })));
    }

    #[test]
    fn frames_of_other_programs_are_told_apart() {
        for frame in [&b""[..], b"OLRN", b"GET / HTTP/1.1", b"OLRM\x01\0\x01\0\0"] {
            assert_eq!(decode_hello(frame), Err(HandshakeError::NotOmniLearn { expected: "agent" }));
            assert_eq!(decode_answer(frame), Err(HandshakeError::NotOmniLearn { expected: "hub" }));
        }
        let own = encode_hello(&hello("pi"));
        assert_eq!(decode_answer(&own), Err(HandshakeError::NotOmniLearn { expected: "hub" }));
        assert_eq!(decode_hello(&encode_refusal("no")), Err(HandshakeError::NotOmniLearn { expected: "agent" }));
    }

    #[test]
    fn names_are_checked_and_cut_for_the_answer() {
        for name in ["", "a b", "ü", "a/b", "a\n", &"x".repeat(limits::NAME_BYTES_MAX + 1)] {
            let error = decode_hello(&encode_hello(&hello(name))).unwrap_err();
            assert!(matches!(&error, HandshakeError::Name { name } if name.len() <= 64), "{error:?}");
        }
        for name in ["a", "pi-4.lan_2", &"x".repeat(limits::NAME_BYTES_MAX)] {
            assert_eq!(decode_hello(&encode_hello(&hello(name))).unwrap().1.name, name);
        }
    }

    #[test]
    fn long_and_torn_frames_are_malformed() {
        let long = vec![0; HANDSHAKE_BYTES_MAX + 1];
        assert_eq!(decode_hello(&long), Err(HandshakeError::Malformed { bytes: long.len() }));
        let frame = encode_hello(&hello("pi"));
        for end in PREFIX_BYTES..frame.len() {
            assert_eq!(decode_hello(&frame[..end]), Err(HandshakeError::Malformed { bytes: end }));
        }
    }

    #[test]
    fn refusals_are_cut_and_tolerate_any_bytes() {
        let frame = encode_refusal(&"x".repeat(100_000));
        assert_eq!(frame.len(), PREFIX_BYTES + limits::REASON_BYTES_MAX);
        let mut frame = encode_refusal("no");
        frame.push(0xff);
        assert!(matches!(decode_answer(&frame), Err(HandshakeError::Refused { .. })));
    }

    #[test]
    fn token_is_not_shown() {
        let hello = Hello { token: Some("open sesame".to_owned()), ..hello("pi") };
        assert!(!format!("{hello:?}").contains("sesame"));
    }
}
