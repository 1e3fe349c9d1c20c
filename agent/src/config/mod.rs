//! What an agent needs to know before it starts, checked.

mod address;
mod mqtt;
mod sources;
mod token;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use omnilearn_kernel_host::Limits;
use omnilearn_mqtt::options::Options;
use omnilearn_wire::limits::NAME_BYTES_MAX;

pub use self::address::{AGENT_PATH, AddressError, HubAddress, SocketAddress, private_broker};
pub use self::mqtt::{MqttConfig, TimingsWay};
pub use self::sources::{Secrets, Sources};
pub use self::token::{TOKEN_BYTES_MAX, Token, TokenError};
use crate::device::DeviceChoice;
use crate::trust::Trust;

/// What data sets from hubs may take in the cache folder, unless told otherwise.
pub const DATA_CACHE_MAX_DEFAULT: u64 = 10 << 30;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The hub.
    pub hub: HubAddress,
    /// The broker, where there is one: that of `hub`, or another way beside it for presence, timings and commands.
    pub mqtt: Option<MqttConfig>,
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
    /// Most bytes of data sets from hubs that are kept in the cache folder; what was used longest ago goes first.
    pub data_cache_max: u64,
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
    /// File in which the agent says whether it is well; see [`crate::health`].
    pub health_file: Option<PathBuf>,
    /// Where token, keys and passwords were read, if they can be read again.
    pub sources: Option<Sources>,
}

impl AgentConfig {
    /// A configuration with the default of everything but the hub.
    pub fn new(hub: HubAddress) -> AgentConfig {
        let mqtt = match &hub {
            HubAddress::Broker(broker) => Some(MqttConfig::new(Options::new(broker.clone()))),
            HubAddress::Socket(_) => None,
        };
        AgentConfig {
            hub,
            mqtt,
            name: default_name(),
            token: None,
            trust: Trust::FirstUse,
            data: Vec::new(),
            cache: default_cache(),
            data_cache_max: DATA_CACHE_MAX_DEFAULT,
            threads: None,
            device: DeviceChoice::default(),
            memory_max: None,
            kernel_limits: Limits::default(),
            exit_when_done: false,
            health_file: None,
            sources: None,
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
}
