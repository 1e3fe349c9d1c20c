//! What an agent needs to know before it starts, checked.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use omnilearn_kernel_host::Limits;
use omnilearn_wire::limits::NAME_BYTES_MAX;

use crate::device::DeviceChoice;

use crate::trust::Trust;

/// Where a hub takes agents, below its address.
pub const AGENT_PATH: &str = "/agent";

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The hub.
    pub hub: HubAddress,
    /// Name within the hub: 1 to 256 letters, digits, `-`, `_` or `.` ([`sanitize_name`]).
    pub name: String,
    /// The token that the hub asks for, if it does.
    pub token: Option<Token>,
    /// Whose kernels are run.
    pub trust: Trust,
    /// Folders in which data sets are looked for, before the usual ones.
    pub data: Vec<PathBuf>,
    /// Folder for kernels and compiled code. Created where missing.
    pub cache: PathBuf,
    /// Compute threads; by default what the CPU quota allows.
    pub threads: Option<NonZeroUsize>,
    /// What computes.
    pub device: DeviceChoice,
    /// Most memory that tensors and kernels may take, in bytes; by default a part of what the machine allows.
    pub memory_max: Option<u64>,
    /// What a kernel may use, but for tensors, whose limit follows from `memory_max`.
    pub kernel_limits: Limits,
    /// Whether the agent ends when its job does.
    pub exit_when_done: bool,
}

impl AgentConfig {
    /// A configuration with the default of everything but the hub.
    pub fn new(hub: HubAddress) -> AgentConfig {
        AgentConfig {
            hub,
            name: default_name(),
            token: None,
            trust: Trust::FirstUse,
            data: Vec::new(),
            cache: default_cache(),
            threads: None,
            device: DeviceChoice::default(),
            memory_max: None,
            kernel_limits: Limits::default(),
            exit_when_done: false,
        }
    }
}

/// A shared secret. Never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a text is not a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Nothing but white space.
    #[error("the token is empty")]
    Empty,
    /// Longer than a handshake allows.
    #[error("the token has {bytes} bytes, at most {TOKEN_BYTES_MAX} allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 4096;

impl Token {
    /// Takes a token without the white space around it.
    ///
    /// # Errors
    /// [`TokenError`] if nothing is left or too much.
    pub fn new(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        match text.len() {
            0 => Err(TokenError::Empty),
            1..=TOKEN_BYTES_MAX => Ok(Token(text.to_owned())),
            bytes => Err(TokenError::TooLong { bytes }),
        }
    }

    /// The secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

/// Address of a hub: `ws://HOST:PORT`, with the path [`AGENT_PATH`] where none is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubAddress {
    host: String,
    port: u16,
    path: String,
}

/// Why a text is not the address of a hub.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// TLS is not there yet.
    #[error("`{address}` asks for TLS, which this version does not have; use ws:// to a hub on this machine")]
    Tls {
        /// The address.
        address: String,
    },
    /// Another scheme or none.
    #[error("`{address}` does not begin with ws://; an example is ws://127.0.0.1:7700")]
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
    /// Another machine, over a connection that anyone between can read.
    #[error(
        "`{address}` is not on this machine and the connection is not encrypted; add --insecure if the network between is trusted"
    )]
    NotLoopback {
        /// The address.
        address: String,
    },
}

impl HubAddress {
    /// Reads `ws://HOST:PORT`; an IPv6 address stands in brackets.
    ///
    /// # Errors
    /// [`AddressError`], with the address in it.
    pub fn parse(address: &str) -> Result<HubAddress, AddressError> {
        let named = || address.to_owned();
        let rest = match address.split_once("://") {
            Some(("ws", rest)) => rest,
            Some(("wss", _)) => return Err(AddressError::Tls { address: named() }),
            _ => return Err(AddressError::Scheme { address: named() }),
        };
        let (authority, path) = match rest.find('/') {
            Some(slash) if &rest[slash..] != "/" => (&rest[..slash], &rest[slash..]),
            Some(slash) => (&rest[..slash], AGENT_PATH),
            None => (rest, AGENT_PATH),
        };
        let host_and_port = || AddressError::HostAndPort { address: named() };
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
        Ok(HubAddress { host: bare.to_owned(), port, path: path.to_owned() })
    }

    /// An address at which nobody is, for what needs a configuration and no hub.
    pub fn nowhere() -> HubAddress {
        HubAddress { host: "127.0.0.1".to_owned(), port: 0, path: AGENT_PATH.to_owned() }
    }

    /// The address itself if it is on this machine.
    ///
    /// # Errors
    /// [`AddressError::NotLoopback`] if it is not.
    pub fn loopback_only(self) -> Result<HubAddress, AddressError> {
        if self.is_loopback() { Ok(self) } else { Err(AddressError::NotLoopback { address: self.to_string() }) }
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
        let HubAddress { host, port, path } = self;
        if host.contains(':') { format!("ws://[{host}]:{port}{path}") } else { format!("ws://{host}:{port}{path}") }
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HubAddress { host, port, .. } = self;
        if host.contains(':') {
            write!(formatter, "ws://[{host}]:{port}")
        } else {
            write!(formatter, "ws://{host}:{port}")
        }
    }
}

/// Makes a name that the wire takes: every other character becomes `-`, and an empty name becomes `agent`.
pub fn sanitize_name(name: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let name: String = name.trim().chars().map(|character| if plain(character) { character } else { '-' }).collect();
    match &name[..name.len().min(NAME_BYTES_MAX)] {
        "" => "agent".to_owned(),
        name => name.to_owned(),
    }
}

/// The machine's host name as an agent's name.
pub fn default_name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.or_else(|| std::env::var("HOSTNAME").ok()).or_else(|| std::env::var("COMPUTERNAME").ok());
    sanitize_name(&name.unwrap_or_default())
}

/// The user's cache folder for OmniLearn, or one among the temporary files where the user has no home.
pub fn default_cache() -> PathBuf {
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("omnilearn")
}

/// Reads a size such as `512MiB`, `2GiB`, `300MB` or `1000000`.
///
/// # Errors
/// What is wrong, for the user.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1u64,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(format!("`{text}` is not a size; write one such as 512MiB or 2GiB")),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * (factor as f64) < 1e18 => Ok((number * factor as f64) as u64),
        _ => Err(format!("`{text}` is not a size; write one such as 512MiB or 2GiB")),
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
        ] {
            let error = HubAddress::parse(address).unwrap_err().to_string();
            assert!(error.contains(address), "{error}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (address, loopback) in [
            ("ws://localhost:1", true),
            ("ws://127.9.9.9:1", true),
            ("ws://[::1]:1", true),
            ("ws://10.0.0.1:1", false),
            ("ws://localhost.example:1", false),
            ("ws://0.0.0.0:1", false),
        ] {
            assert_eq!(HubAddress::parse(address).unwrap().is_loopback(), loopback, "{address}");
        }
        let refused = HubAddress::parse("ws://10.0.0.1:1").unwrap().loopback_only().unwrap_err().to_string();
        assert!(refused.contains("--insecure") && !refused.contains('\n'), "{refused}");
    }

    #[test]
    fn names_are_made_fit_for_the_wire() {
        assert_eq!(sanitize_name("raspberry pi\n"), "raspberry-pi");
        assert_eq!(sanitize_name("  "), "agent");
        assert_eq!(sanitize_name("zürich.lan"), "z-rich.lan");
        assert_eq!(sanitize_name(&"x".repeat(1000)).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("300MB"), Ok(300_000_000));
        assert_eq!(parse_bytes("77"), Ok(77));
        for bad in ["", "MiB", "-1", "0", "1 parsec", "1e40GiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn token_is_trimmed_and_hidden() {
        let token = Token::new(" secret\n").unwrap();
        assert_eq!(token.reveal(), "secret");
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(Token::new(" \n"), Err(TokenError::Empty));
    }
}
