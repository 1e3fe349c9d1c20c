//! Which run of a process speaks.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::random::random;

/// One connection of one run of a process. It is in a last will and in presence, so that an "offline" that a broker publishes
/// late is told from one that is true: the will of a connection that has long had a successor bears an older mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionMark {
    /// Random number of the process. In JSON 16 hexadecimal digits, since many readers of JSON round large numbers.
    #[serde(serialize_with = "hex", deserialize_with = "from_hex")]
    pub process: u64,
    /// Count of its connections. A process that takes over a name counts on from what it found there.
    pub epoch: u64,
}

impl SessionMark {
    /// A mark for a process that begins: no connection yet.
    pub fn new() -> SessionMark {
        SessionMark { process: random(), epoch: 0 }
    }

    /// The mark of this process with another count.
    pub fn with_epoch(self, epoch: u64) -> SessionMark {
        SessionMark { epoch, ..self }
    }

    /// The mark of the `connection`-th connection of a client, counted on from this one.
    pub fn at(self, connection: u64) -> SessionMark {
        SessionMark { epoch: self.epoch.saturating_add(connection), ..self }
    }
}

impl Default for SessionMark {
    fn default() -> SessionMark {
        SessionMark::new()
    }
}

impl fmt::Display for SessionMark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}.{}", self.process, self.epoch)
    }
}

/// A process's number as 16 hexadecimal digits where people read.
pub(crate) fn hex<S: Serializer>(process: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.collect_str(&format_args!("{process:016x}"))
    } else {
        serializer.serialize_u64(*process)
    }
}

/// Reads what [`hex`] writes.
pub(crate) fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    if !deserializer.is_human_readable() {
        return u64::deserialize(deserializer);
    }
    let text = String::deserialize(deserializer)?;
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(&text, 16) {
        Ok(process) if digits => Ok(process),
        _ => Err(serde::de::Error::custom("a process is 16 hexadecimal digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_hexadecimal_in_json_and_a_number_in_postcard() {
        let mark = SessionMark { process: 0x2a, epoch: 3 };
        let json = serde_json::to_string(&mark).unwrap();
        assert_eq!(json, r#"{"process":"000000000000002a","epoch":3}"#);
        assert_eq!(serde_json::from_str::<SessionMark>(&json).unwrap(), mark);
        let bytes = postcard::to_stdvec(&mark).unwrap();
        assert_eq!(bytes, [0x2a, 3]);
        assert_eq!(postcard::from_bytes::<SessionMark>(&bytes).unwrap(), mark);
        assert_eq!(mark.to_string(), "000000000000002a.3");
    }

    #[test]
    fn other_processes_are_refused() {
        for process in ["", "2a", "+00000000000002a", "000000000000002g", "0000000000000002a"] {
            let json = format!(r#"{{"process":"{process}","epoch":3}}"#);
            assert!(serde_json::from_str::<SessionMark>(&json).is_err(), "{process}");
        }
    }
}
