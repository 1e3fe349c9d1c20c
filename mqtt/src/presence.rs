//! Who is there: small retained messages, and the last wills that take them back.

mod announcer;

use serde::{Deserialize, Serialize};

pub use announcer::Announcer;

use crate::session::SessionMark;
use crate::timings::TimingsFormat;

/// Largest presence, in bytes. Brokers limit what they retain; an agent has one message of less than this.
pub const PRESENCE_BYTES_MAX: usize = 1023;

/// Longest version text, in bytes.
pub const VERSION_BYTES_MAX: usize = 64;

/// Whether somebody is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PresenceState {
    /// Connected to the broker.
    Online,
    /// Gone, by its own word or by its last will.
    Offline,
}

/// How an agent trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Everything over the broker.
    Mqtt,
    /// Over a connection of its own to the hub; only presence, timings and commands over the broker.
    WebSocket,
}

/// Presence of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentPresence {
    /// Whether it is there.
    pub state: PresenceState,
    /// Of which connection this is said.
    pub session: SessionMark,
    /// Its name.
    pub name: String,
    /// Version of its program.
    pub version: String,
    /// How it trains.
    pub transport: Transport,
    /// Whether it was told to pause.
    pub paused: bool,
    /// How its timings are written.
    pub timings: TimingsFormat,
}

/// Presence of the hub. A session that was not seen before asks every agent to say again that it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubPresence {
    /// Whether it is there.
    pub state: PresenceState,
    /// Of which connection this is said.
    pub session: SessionMark,
    /// Version of its program.
    pub version: String,
}

/// Why a payload is no presence.
#[derive(Debug, thiserror::Error)]
pub enum PresenceError {
    /// Longer than [`PRESENCE_BYTES_MAX`].
    #[error("{bytes} bytes, at most {PRESENCE_BYTES_MAX} allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not this JSON.
    #[error("not a presence's JSON")]
    Json(#[source] serde_json::Error),
    /// Another agent's name than the topic's.
    #[error("it names `{found}`")]
    Name {
        /// The name in it.
        found: String,
    },
}

impl AgentPresence {
    /// As JSON of at most [`PRESENCE_BYTES_MAX`] bytes, for a name of at most 256.
    pub fn encode(&self) -> Vec<u8> {
        encode(&AgentPresence { version: cut(&self.version), ..self.clone() })
    }

    /// Reads a presence from the topic of the agent `name`.
    ///
    /// # Errors
    /// [`PresenceError`].
    pub fn decode(name: &str, payload: &[u8]) -> Result<AgentPresence, PresenceError> {
        let presence: AgentPresence = decode(payload)?;
        if presence.name != name {
            return Err(PresenceError::Name { found: presence.name });
        }
        Ok(presence)
    }

    /// Whether this replaces what was believed before. An "offline" is believed only of the connection that was last seen
    /// online: brokers publish the will of a connection that ended long ago when they please. For the same reason an older
    /// connection of the same process is never believed.
    pub fn replaces(&self, believed: Option<&AgentPresence>) -> bool {
        let Some(believed) = believed else { return true };
        match self.state {
            PresenceState::Offline => self.session == believed.session,
            PresenceState::Online => {
                self.session.process != believed.session.process || self.session.epoch >= believed.session.epoch
            }
        }
    }
}

impl HubPresence {
    /// As JSON.
    pub fn encode(&self) -> Vec<u8> {
        encode(&HubPresence { version: cut(&self.version), ..self.clone() })
    }

    /// Reads a presence.
    ///
    /// # Errors
    /// [`PresenceError`].
    pub fn decode(payload: &[u8]) -> Result<HubPresence, PresenceError> {
        decode(payload)
    }
}

fn cut(version: &str) -> String {
    let end = (0..=VERSION_BYTES_MAX.min(version.len())).rev().find(|&end| version.is_char_boundary(end)).unwrap_or(0);
    version[..end].to_owned()
}

fn encode<T: Serialize>(presence: &T) -> Vec<u8> {
    serde_json::to_vec(presence).expect("a presence has string keys only")
}

fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, PresenceError> {
    if payload.len() > PRESENCE_BYTES_MAX {
        return Err(PresenceError::TooLong { bytes: payload.len() });
    }
    serde_json::from_slice(payload).map_err(PresenceError::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(state: PresenceState, process: u64, epoch: u64) -> AgentPresence {
        AgentPresence {
            state,
            session: SessionMark { process, epoch },
            name: "pi-4".into(),
            version: "0.1.0".into(),
            transport: Transport::WebSocket,
            paused: false,
            timings: TimingsFormat::Json,
        }
    }

    #[test]
    fn presence_is_the_json_that_is_documented() {
        let agent = presence(PresenceState::Online, 1, 2);
        let expected = concat!(
            r#"{"state":"online","session":{"process":"0000000000000001","epoch":2},"name":"pi-4","version":"0.1.0","#,
            r#""transport":"websocket","paused":false,"timings":"json"}"#
        );
        assert_eq!(String::from_utf8(agent.encode()).unwrap(), expected);
        assert_eq!(AgentPresence::decode("pi-4", expected.as_bytes()).unwrap(), agent);
        assert!(matches!(AgentPresence::decode("pi-5", expected.as_bytes()), Err(PresenceError::Name { .. })));

        let hub = HubPresence { state: PresenceState::Offline, session: agent.session, version: "0.1.0".into() };
        let expected = r#"{"state":"offline","session":{"process":"0000000000000001","epoch":2},"version":"0.1.0"}"#;
        assert_eq!(String::from_utf8(hub.encode()).unwrap(), expected);
        assert_eq!(HubPresence::decode(expected.as_bytes()).unwrap(), hub);
    }

    #[test]
    fn the_longest_presence_is_below_a_kibibyte() {
        let longest = AgentPresence {
            state: PresenceState::Offline,
            session: SessionMark { process: u64::MAX, epoch: u64::MAX },
            name: "n".repeat(256),
            version: "\u{1}\"ü".repeat(1000),
            transport: Transport::WebSocket,
            paused: false,
            timings: TimingsFormat::Postcard,
        };
        let payload = longest.encode();
        assert!(payload.len() <= PRESENCE_BYTES_MAX, "{}", payload.len());
        assert_eq!(AgentPresence::decode(&longest.name, &payload).unwrap().name, longest.name);
    }

    #[test]
    fn a_late_will_is_not_believed() {
        use PresenceState::{Offline, Online};
        let believed = presence(Online, 1, 3);
        for (state, process, epoch, expected) in [
            (Offline, 1, 3, true),
            (Offline, 1, 2, false),
            (Offline, 1, 4, false),
            (Offline, 2, 3, false),
            (Online, 1, 2, false),
            (Online, 1, 3, true),
            (Online, 1, 4, true),
            (Online, 2, 1, true),
        ] {
            let said = presence(state, process, epoch);
            assert_eq!(said.replaces(Some(&believed)), expected, "{state:?} {process} {epoch}");
        }
        assert!(presence(Offline, 9, 9).replaces(None));
    }

    #[test]
    fn other_payloads_are_refused() {
        for payload in ["", "{}", "null", r#"{"state":"away"}"#, "\u{0}"] {
            assert!(AgentPresence::decode("x", payload.as_bytes()).is_err(), "{payload}");
            assert!(HubPresence::decode(payload.as_bytes()).is_err(), "{payload}");
        }
        assert!(matches!(HubPresence::decode(&[b' '; 1024]), Err(PresenceError::TooLong { bytes: 1024 })));
    }
}
