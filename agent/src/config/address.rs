//! Where a hub is: at an address of its own, or behind a broker.

use std::fmt;

use omnilearn_mqtt::address::{AddressError as BrokerAddressError, BrokerUrl};

/// Where a hub takes agents, below its address.
pub const AGENT_PATH: &str = "/agent";

/// Where a hub is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubAddress {
    /// `ws://HOST:PORT`.
    Socket(SocketAddress),
    /// `mqtt://BROKER[:PORT][/PREFIX]` or `mqtts://…`: hub and agent meet at a broker.
    Broker(BrokerUrl),
}

/// A host, a port, and a path, which is [`AGENT_PATH`] where none is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAddress {
    host: String,
    port: u16,
    path: String,
}

/// Why a text is not the address of a hub.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// TLS is not there yet.
    #[error(
        "`{address}` asks for TLS, which this version has over a broker only; use ws:// to a hub on this machine, or mqtts://"
    )]
    Tls {
        /// The address.
        address: String,
    },
    /// Another scheme or none.
    #[error(
        "`{address}` does not begin with ws://, mqtt:// or mqtts://; examples are ws://127.0.0.1:7700 and mqtt://broker:1883"
    )]
    Scheme {
        /// The address.
        address: String,
    },
    /// No host, no port, or a port that is not one.
    #[error("`{address}` has no host and port; an example is ws://127.0.0.1:7700")]
    HostAndPort {
        /// The address.
        address: String,
    },
    /// The address of a broker that is none.
    #[error(transparent)]
    Broker(#[from] BrokerAddressError),
    /// Another machine, over a connection that anyone between can read.
    #[error("`{address}` is not on this machine and the connection is not encrypted; {advice}")]
    NotLoopback {
        /// The address.
        address: String,
        /// What to do.
        advice: &'static str,
    },
}

/// What to do about a hub on another machine.
const SOCKET_ADVICE: &str = "add --insecure if the network between is trusted";
/// What to do about a broker on another machine.
const BROKER_ADVICE: &str = "use mqtts://, or add --insecure if the network between is trusted";

impl HubAddress {
    /// Reads `ws://HOST:PORT`, in which an IPv6 address stands in brackets, or the address of a broker.
    ///
    /// # Errors
    /// [`AddressError`], with the address in it.
    pub fn parse(address: &str) -> Result<HubAddress, AddressError> {
        match address.split_once("://") {
            Some(("ws", rest)) => SocketAddress::parse(address, rest).map(HubAddress::Socket),
            Some(("mqtt" | "mqtts", _)) => Ok(HubAddress::Broker(BrokerUrl::parse(address)?)),
            Some(("wss", _)) => Err(AddressError::Tls { address: address.to_owned() }),
            _ => Err(AddressError::Scheme { address: address.to_owned() }),
        }
    }

    /// An address at which nobody is, for what needs a configuration and no hub.
    pub fn nowhere() -> HubAddress {
        HubAddress::Socket(SocketAddress { host: "127.0.0.1".to_owned(), port: 0, path: AGENT_PATH.to_owned() })
    }

    /// The address itself if nobody between can read what is said: it is on this machine, or encrypted.
    ///
    /// # Errors
    /// [`AddressError::NotLoopback`] if somebody could.
    pub fn private_only(self) -> Result<HubAddress, AddressError> {
        match &self {
            HubAddress::Socket(socket) if !socket.is_loopback() => {
                Err(AddressError::NotLoopback { address: self.to_string(), advice: SOCKET_ADVICE })
            }
            HubAddress::Broker(broker) => private_broker(broker).map(|()| self),
            HubAddress::Socket(_) => Ok(self),
        }
    }

    /// The whole address, path included, under which a hub's key is kept.
    pub fn url(&self) -> String {
        match self {
            HubAddress::Socket(socket) => socket.url(),
            HubAddress::Broker(broker) => broker.to_string(),
        }
    }
}

/// Whether nobody between can read what is said to a broker.
///
/// # Errors
/// [`AddressError::NotLoopback`] if somebody could.
pub fn private_broker(broker: &BrokerUrl) -> Result<(), AddressError> {
    if broker.is_loopback() || broker.is_encrypted() {
        return Ok(());
    }
    Err(AddressError::NotLoopback { address: broker.to_string(), advice: BROKER_ADVICE })
}

impl SocketAddress {
    fn parse(address: &str, rest: &str) -> Result<SocketAddress, AddressError> {
        let (authority, path) = match rest.find('/') {
            Some(slash) if &rest[slash..] != "/" => (&rest[..slash], &rest[slash..]),
            Some(slash) => (&rest[..slash], AGENT_PATH),
            None => (rest, AGENT_PATH),
        };
        let host_and_port = || AddressError::HostAndPort { address: address.to_owned() };
        let (host, port) = authority.rsplit_once(':').ok_or_else(host_and_port)?;
        let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(host_and_port)?;
        let bare = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
            Some(Some(bare)) => bare,
            Some(None) => return Err(host_and_port()),
            None if host.contains(':') => return Err(host_and_port()),
            None => host,
        };
        let plain = |character: char| character.is_ascii_alphanumeric() || "-_.:%".contains(character);
        let path_is_plain = path.chars().all(|character| character.is_ascii_graphic());
        if bare.is_empty() || !bare.chars().all(plain) || !path_is_plain {
            return Err(host_and_port());
        }
        Ok(SocketAddress { host: bare.to_owned(), port, path: path.to_owned() })
    }

    /// Whether the host is this machine, by its name or number alone.
    pub fn is_loopback(&self) -> bool {
        let number = self.host.parse::<std::net::IpAddr>();
        number.map_or(self.host.eq_ignore_ascii_case("localhost"), |number| number.is_loopback())
    }

    /// Host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The whole address as a WebSocket request needs it.
    pub fn url(&self) -> String {
        format!("{self}{}", self.path)
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SocketAddress { host, port, .. } = self;
        if host.contains(':') {
            write!(formatter, "ws://[{host}]:{port}")
        } else {
            write!(formatter, "ws://{host}:{port}")
        }
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HubAddress::Socket(socket) => socket.fmt(formatter),
            HubAddress::Broker(broker) => broker.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_takes_names_numbers_and_brackets_and_adds_the_path() {
        let urls: Vec<String> =
            ["ws://localhost:7700", "ws://10.0.0.5:80/", "ws://[::1]:7700", "ws://hub.example:9/other"]
                .iter()
                .map(|address| HubAddress::parse(address).unwrap().url())
                .collect();
        let expected = [
            "ws://localhost:7700/agent",
            "ws://10.0.0.5:80/agent",
            "ws://[::1]:7700/agent",
            "ws://hub.example:9/other",
        ];
        assert_eq!(urls, expected);
    }

    #[test]
    fn address_refuses_what_it_cannot_dial_and_names_it() {
        for address in [
            "localhost:7700",
            "http://a:1",
            "ws://a",
            "ws://:1",
            "ws://a:0",
            "ws://a:99999",
            "ws://::1:7",
            "ws://[::1:7",
            "wss://a:1",
            "ws://a b:1",
            "mqtt://",
            "mqtt://a:99999",
        ] {
            let error = HubAddress::parse(address).unwrap_err().to_string();
            assert!(error.contains(address), "{error}");
        }
    }

    #[test]
    fn hub_is_on_this_machine_or_encrypted_unless_the_network_is_trusted() {
        for (address, loopback) in [
            ("ws://localhost:1", true),
            ("ws://127.9.9.9:1", true),
            ("ws://[::1]:1", true),
            ("ws://10.0.0.1:1", false),
            ("ws://localhost.example:1", false),
            ("ws://0.0.0.0:1", false),
            ("mqtt://localhost", true),
            ("mqtt://127.0.0.1:1884/lab", true),
            ("mqtt://broker.example", false),
            ("mqtts://broker.example", true),
        ] {
            assert_eq!(HubAddress::parse(address).unwrap().private_only().is_ok(), loopback, "{address}");
        }
        let refused = HubAddress::parse("ws://10.0.0.1:1").unwrap().private_only().unwrap_err().to_string();
        assert!(refused.contains("--insecure") && !refused.contains('\n'), "{refused}");
    }
}
