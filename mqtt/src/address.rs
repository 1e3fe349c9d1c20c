//! Where a broker is, and below which topic everything lies.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Prefix of topics where an address names none.
pub const PREFIX_DEFAULT: &str = "omnilearn";

/// Longest prefix, in bytes: a topic has at most 65,535, and a name takes 256.
pub const PREFIX_BYTES_MAX: usize = 256;

/// Address of a broker: `mqtt://HOST[:1883][/PREFIX]`, or `mqtts://HOST[:8883][/PREFIX]` with TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BrokerUrl {
    encrypted: bool,
    host: String,
    port: u16,
    prefix: String,
}

/// Why a text is not the address of a broker.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another scheme or none.
    #[error("`{address}` does not begin with mqtt:// or mqtts://; an example is mqtt://127.0.0.1:1883")]
    Scheme {
        /// The address.
        address: String,
    },
    /// A user or password, which every user of the machine could read among the arguments. The address is not repeated.
    #[error("a broker's address holds no user and no password; give --mqtt-user and --mqtt-password-file")]
    Credentials,
    /// No host, or a port that is not one.
    #[error("`{address}` has no host and port; an example is mqtt://127.0.0.1:1883")]
    HostAndPort {
        /// The address.
        address: String,
    },
    /// A prefix with wildcards, empty levels or other characters.
    #[error(
        "topic prefix `{prefix}` is not 1 to {PREFIX_BYTES_MAX} letters, digits, `-`, `_` and `.` in levels parted by `/`"
    )]
    Prefix {
        /// The prefix.
        prefix: String,
    },
}

impl BrokerUrl {
    /// Reads an address.
    ///
    /// # Errors
    /// [`AddressError`], which says what an address looks like.
    pub fn parse(text: &str) -> Result<BrokerUrl, AddressError> {
        let text = text.trim();
        let (encrypted, rest) = match text.split_once("://") {
            Some(("mqtt", rest)) => (false, rest),
            Some(("mqtts", rest)) => (true, rest),
            _ if text.contains('@') => return Err(AddressError::Credentials),
            _ => return Err(AddressError::Scheme { address: text.to_owned() }),
        };
        if rest.contains('@') {
            return Err(AddressError::Credentials);
        }
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = host_and_port(authority, if encrypted { 8883 } else { 1883 })
            .ok_or_else(|| AddressError::HostAndPort { address: text.to_owned() })?;
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let prefix = if prefix.is_empty() { PREFIX_DEFAULT } else { prefix };
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.split('/').all(is_level) {
            return Err(AddressError::Prefix { prefix: prefix.to_owned() });
        }
        Ok(BrokerUrl { encrypted, host, port, prefix: prefix.to_owned() })
    }

    /// Name or number of the broker's machine, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the connection is encrypted (`mqtts`).
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Whether the broker is on this machine.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// What every topic begins with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// A level of a topic that no broker, filter or file could misread.
fn is_level(level: &str) -> bool {
    !level.is_empty() && level.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn host_and_port(authority: &str, port_default: u16) -> Option<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.:".contains(character);
    if host.is_empty() || !host.chars().all(plain) {
        return None;
    }
    let port = match port {
        None => port_default,
        Some(port) => port.parse().ok().filter(|&port| port != 0)?,
    };
    Some((host.to_owned(), port))
}

impl FromStr for BrokerUrl {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<BrokerUrl, AddressError> {
        BrokerUrl::parse(text)
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BrokerUrl { encrypted, host, port, prefix } = self;
        let scheme = if *encrypted { "mqtts" } else { "mqtt" };
        if host.contains(':') {
            write!(formatter, "{scheme}://[{host}]:{port}/{prefix}")
        } else {
            write!(formatter, "{scheme}://{host}:{port}/{prefix}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_and_shown() {
        let shown = |text: &str| BrokerUrl::parse(text).unwrap().to_string();
        assert_eq!(shown("mqtt://broker"), "mqtt://broker:1883/omnilearn");
        assert_eq!(shown("mqtts://broker.example/"), "mqtts://broker.example:8883/omnilearn");
        assert_eq!(shown(" mqtt://10.0.0.5:2000/plant-1/line.2/ "), "mqtt://10.0.0.5:2000/plant-1/line.2");
        assert_eq!(shown("mqtt://[::1]"), "mqtt://[::1]:1883/omnilearn");
        let url: BrokerUrl = "mqtts://[::1]:7/x".parse().unwrap();
        assert_eq!((url.host(), url.port(), url.prefix(), url.is_encrypted()), ("::1", 7, "x", true));
        assert_eq!(BrokerUrl::parse(&url.to_string()), Ok(url));
    }

    #[test]
    fn this_machine_is_told_from_others() {
        for (text, expected) in
            [("mqtt://localhost", true), ("mqtt://127.0.0.2", true), ("mqtt://[::1]", true), ("mqtt://10.0.0.1", false)]
        {
            assert_eq!(BrokerUrl::parse(text).unwrap().is_loopback(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| BrokerUrl::parse(text).unwrap_err();
        for text in ["", "broker:1883", "ws://broker", "MQTT://broker"] {
            assert!(matches!(error(text), AddressError::Scheme { .. }), "{text}");
        }
        for text in [
            "mqtt://",
            "mqtt://:1883",
            "mqtt://b:",
            "mqtt://b:0",
            "mqtt://b:65536",
            "mqtt://[::1",
            "mqtt://a:1:2",
            "mqtt://ü",
        ] {
            assert!(matches!(error(text), AddressError::HostAndPort { .. }), "{text}");
        }
        for text in ["mqtt://b/a//b", "mqtt://b/+", "mqtt://b/a/#", "mqtt://b/$SYS", "mqtt://b/ä", "mqtt://b/a b"] {
            assert!(matches!(error(text), AddressError::Prefix { .. }), "{text}");
        }
        assert!(matches!(error(&format!("mqtt://b/{}", "x".repeat(257))), AddressError::Prefix { .. }));
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in ["mqtt://user:secret@broker", "user:secret@broker", "mqtts://user@broker/x"] {
            let message = BrokerUrl::parse(text).unwrap_err().to_string();
            assert!(message.contains("--mqtt-password-file") && !message.contains("secret"), "{message}");
        }
    }
}
