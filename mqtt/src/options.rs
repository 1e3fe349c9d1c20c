//! How to reach a broker: what a user gives, checked.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::address::BrokerUrl;

/// Smallest limit of a packet: a presence, its topic and its header.
pub const PACKET_BYTES_LEAST: usize = 4 << 10;

/// Largest packet that is ever sent.
pub const PACKET_BYTES_MOST: usize = 1 << 20;

/// How to reach a broker.
#[derive(Clone, Debug)]
pub struct Options {
    /// The broker.
    pub broker: BrokerUrl,
    /// User and password, where the broker asks for them.
    pub credentials: Option<Credentials>,
    /// Certificates.
    pub tls: TlsFiles,
    /// How long the connection may be silent before somebody asks whether the other is there. A broker publishes the will of
    /// who was silent for half as long again.
    pub keep_alive: Duration,
    /// Largest packet that the broker carries, in bytes; none to find out.
    pub packet_bytes_max: Option<usize>,
}

impl Options {
    /// Options with the default of everything but the broker.
    pub fn new(broker: BrokerUrl) -> Options {
        Options {
            broker,
            credentials: None,
            tls: TlsFiles::default(),
            keep_alive: Duration::from_secs(20),
            packet_bytes_max: None,
        }
    }
}

/// User and password. The password is never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Credentials({}, hidden)", self.user)
    }
}

/// Certificates for `mqtts`, in PEM. The key is never shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whose certificates are believed; none for those that the operating system believes.
    pub ca: Option<Vec<u8>>,
    /// Own certificate and its key, where the broker asks for one.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TlsFiles(ca: {}, client: {})", self.ca.is_some(), self.client.is_some())
    }
}

/// Arguments about a broker, for hub and agent alike.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Broker")]
pub struct BrokerArgs {
    /// User at the broker; with a password and without this, `hub` for a hub and its name for an agent.
    #[arg(long, value_name = "NAME", env = "OMNILEARN_MQTT_USER")]
    pub mqtt_user: Option<String>,
    /// File with the password at the broker; without it the variable OMNILEARN_MQTT_PASSWORD is used. A password is never an
    /// argument, where every user of the machine could read it.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_MQTT_PASSWORD_FILE")]
    pub mqtt_password_file: Option<PathBuf>,
    /// Certificates that are believed at mqtts:// addresses, in PEM; by default those that the system believes.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_MQTT_CA")]
    pub mqtt_ca: Option<PathBuf>,
    /// Own certificate for a broker that asks for one, in PEM.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_MQTT_CERT", requires = "mqtt_key")]
    pub mqtt_cert: Option<PathBuf>,
    /// The key of the own certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_MQTT_KEY", requires = "mqtt_cert")]
    pub mqtt_key: Option<PathBuf>,
    /// How long the connection to the broker may be silent, in seconds; it counts as lost after half as long again.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub mqtt_keep_alive: u16,
    /// Largest packet that the broker carries, such as 128KiB, or `auto` to find out.
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = parse_packet)]
    pub mqtt_packet: PacketLimit,
}

/// Largest packet, as an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketLimit {
    /// What the broker turns out to carry.
    #[default]
    Auto,
    /// So many bytes.
    Bytes(usize),
}

/// Why the arguments do not say how to reach the broker.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// A file that cannot be read.
    #[error("{what} `{path}` cannot be read")]
    File {
        /// What is in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A password file that is not text or has nothing in it.
    #[error("the password file `{path}` is not one line of text")]
    Password {
        /// The file.
        path: PathBuf,
    },
    /// Certificates for a connection without TLS, which would go unused.
    #[error("--mqtt-ca, --mqtt-cert and --mqtt-key are for mqtts:// addresses, and this is `{broker}`")]
    NotEncrypted {
        /// The address.
        broker: BrokerUrl,
    },
}

impl BrokerArgs {
    /// Reads what the arguments name. A password without a user is that of `user_default`.
    ///
    /// # Errors
    /// [`OptionsError`], which names the file or argument.
    pub fn options(&self, broker: BrokerUrl, user_default: &str) -> Result<Options, OptionsError> {
        if !broker.is_encrypted() && (self.mqtt_ca.is_some() || self.mqtt_cert.is_some()) {
            return Err(OptionsError::NotEncrypted { broker });
        }
        let password = match &self.mqtt_password_file {
            Some(path) => Some(password(path)?),
            None => std::env::var("OMNILEARN_MQTT_PASSWORD").ok().filter(|password| !password.is_empty()),
        };
        let credentials = match (&self.mqtt_user, password) {
            (Some(user), password) => Some(Credentials { user: user.clone(), password: password.unwrap_or_default() }),
            (None, Some(password)) => Some(Credentials { user: user_default.to_owned(), password }),
            (None, None) => None,
        };
        let ca = self.mqtt_ca.as_deref().map(|path| read("certificate", path)).transpose()?;
        let client = match (&self.mqtt_cert, &self.mqtt_key) {
            (Some(certificate), Some(key)) => Some((read("certificate", certificate)?, read("key", key)?)),
            _ => None,
        };
        let packet_bytes_max = match self.mqtt_packet {
            PacketLimit::Auto => None,
            PacketLimit::Bytes(bytes) => Some(bytes),
        };
        // `default()` leaves 0 here, which MQTT takes for "never ask".
        let keep_alive = Duration::from_secs(u64::from(self.mqtt_keep_alive.max(1)));
        Ok(Options { broker, credentials, tls: TlsFiles { ca, client }, keep_alive, packet_bytes_max })
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, OptionsError> {
    std::fs::read(path).map_err(|source| OptionsError::File { what, path: path.to_owned(), source })
}

fn password(path: &Path) -> Result<String, OptionsError> {
    let wrong = || OptionsError::Password { path: path.to_owned() };
    let text = String::from_utf8(read("password file", path)?).map_err(|_| wrong())?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.contains('\n') { Err(wrong()) } else { Ok(password.to_owned()) }
}

/// Reads `auto` or a size such as `128KiB`, `1MiB` or `131072`.
fn parse_packet(text: &str) -> Result<PacketLimit, String> {
    let text = text.trim();
    if text == "auto" {
        return Ok(PacketLimit::Auto);
    }
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "kb" => 1000,
        "mb" => 1_000_000,
        _ => return Err(format!("`{text}` is not a size; write auto or one such as 128KiB")),
    };
    match number.parse::<usize>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(bytes) if (PACKET_BYTES_LEAST..=PACKET_BYTES_MOST).contains(&bytes) => Ok(PacketLimit::Bytes(bytes)),
        _ => Err(format!("`{text}` is not between 4KiB and 1MiB; write auto or a size such as 128KiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(broker: &str, args: &BrokerArgs) -> Result<Options, OptionsError> {
        args.options(BrokerUrl::parse(broker).unwrap(), "kitchen-pi")
    }

    #[test]
    fn packet_limits_are_sizes_within_bounds() {
        assert_eq!(parse_packet("auto"), Ok(PacketLimit::Auto));
        assert_eq!(parse_packet("128KiB"), Ok(PacketLimit::Bytes(131_072)));
        assert_eq!(parse_packet("1 MiB"), Ok(PacketLimit::Bytes(1 << 20)));
        assert_eq!(parse_packet("100kb"), Ok(PacketLimit::Bytes(100_000)));
        for text in ["", "KiB", "4095", "2MiB", "1.5MiB", "-1", "99999999999999999999MiB", "1GiB"] {
            assert!(parse_packet(text).is_err(), "{text}");
        }
    }

    #[test]
    fn files_are_read_and_passwords_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            Some(path)
        };
        let args = BrokerArgs {
            mqtt_user: Some("pi".into()),
            mqtt_password_file: file("password", "two words\r\n"),
            mqtt_ca: file("ca", "CA"),
            mqtt_cert: file("cert", "CERT"),
            mqtt_key: file("key", "KEY"),
            mqtt_keep_alive: 5,
            mqtt_packet: PacketLimit::Bytes(5000),
        };
        let found = options("mqtts://broker", &args).unwrap();
        assert_eq!(found.credentials, Some(Credentials { user: "pi".into(), password: "two words".into() }));
        assert_eq!(found.tls, TlsFiles { ca: Some(b"CA".into()), client: Some((b"CERT".into(), b"KEY".into())) });
        assert_eq!((found.keep_alive, found.packet_bytes_max), (Duration::from_secs(5), Some(5000)));
        let shown = format!("{found:?}");
        assert!(!shown.contains("two words") && !shown.contains("KEY"), "{shown}");

        assert!(matches!(options("mqtt://broker", &args), Err(OptionsError::NotEncrypted { .. })));
        let args = BrokerArgs { mqtt_user: None, ..args };
        let of_the_agent = Credentials { user: "kitchen-pi".into(), password: "two words".into() };
        assert_eq!(options("mqtts://broker", &args).unwrap().credentials, Some(of_the_agent));
        for text in ["", "\n", "a\nb"] {
            let args = BrokerArgs {
                mqtt_user: Some("pi".into()),
                mqtt_password_file: file("bad", text),
                ..BrokerArgs::default()
            };
            assert!(matches!(options("mqtt://broker", &args), Err(OptionsError::Password { .. })), "{text:?}");
        }
        let args = BrokerArgs { mqtt_password_file: Some(folder.path().join("none")), ..BrokerArgs::default() };
        assert!(options("mqtt://broker", &args).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn arguments_have_defaults() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            broker: BrokerArgs,
        }
        let parse =
            |args: &[&str]| <Cli as clap::Parser>::try_parse_from([&["x"], args].concat()).map(|cli| cli.broker);
        let args = parse(&[]).unwrap();
        assert_eq!((args.mqtt_keep_alive, args.mqtt_packet), (20, PacketLimit::Auto));
        assert!(parse(&["--mqtt-cert", "a"]).is_err());
        assert!(parse(&["--mqtt-keep-alive", "0"]).is_err());
        assert_eq!(parse(&["--mqtt-packet", "64KiB"]).unwrap().mqtt_packet, PacketLimit::Bytes(65_536));
    }
}
