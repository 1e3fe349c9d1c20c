//! The process of a broker that is the hub's own: rumqttd, told on its standard input where to listen, for as long as that is open.

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::net::SocketAddr;
use std::sync::Arc;

use omnilearn_mqtt::address::PREFIX_DEFAULT;
use omnilearn_mqtt::topics::Topics;
use rumqttd::{Broker, Config, ConnectionSettings, RouterConfig, SegmentConfig, ServerSettings};
use serde::{Deserialize, Serialize};

use crate::digest::{self, Token};

/// Largest packet that is taken, in bytes: the largest that hub and agents send, with a margin for headers of others.
const PACKET_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// Most connections. Each further one is not answered.
const CONNECTIONS_MAX: usize = 10_000;

/// Messages that a subscriber without acknowledgements is sent at once; so many retained ones it sees when it subscribes.
const PUBLISHES_AT_ONCE: u64 = 1_000;

/// What waits for the subscribers of one filter: a ring of segments. A message that is overtaken by the ring is lost, and what
/// is in it stays in memory for as long as the broker runs, so it is small where there are many filters.
const SEGMENT_BYTES: usize = 256 << 10;
/// See [`SEGMENT_BYTES`].
const SEGMENTS: usize = 6;

/// The same for what agents send to the hub, which is one filter for all of them.
const UP_SEGMENT_BYTES: usize = 4 << 20;
/// See [`UP_SEGMENT_BYTES`].
const UP_SEGMENTS: usize = 16;

/// Time for a client to say who it is.
const CONNECT_WAIT_MS: u16 = 5_000;

/// Longest line that says what to do.
const SETUP_BYTES_MAX: u64 = 4 << 10;

/// What the process is told, on one line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    listen: SocketAddr,
    /// SHA-256 of the password of every client, if they must log in.
    password: Option<String>,
}

/// Why the process ended.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// Started by hand.
    #[error("this is for the hub itself; `omnilearn-hub serve --mqtt-listen ADDRESS:PORT` starts a broker")]
    NotTold,
    /// The port.
    #[error("the broker cannot listen on {listen}")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// Something in rumqttd.
    #[error("the broker failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It has ended without an error.
    #[error("the broker serves nobody any more")]
    Ended,
}

impl Setup {
    pub(crate) fn new(listen: SocketAddr, password: Option<Token>) -> Setup {
        Setup { listen, password: password.map(|password| digest::to_hex(password.digest())) }
    }

    /// For the process's standard input.
    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).expect("an address and a digest are texts") + "\n"
    }

    fn read(input: &mut impl BufRead) -> Option<Setup> {
        let mut line = String::new();
        input.take(SETUP_BYTES_MAX).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// What clients must show; none if everybody is let in.
    fn token(&self) -> Result<Option<Token>, BrokerError> {
        let digest = |text: &String| digest::from_hex(text).map(Token::of_digest).ok_or(BrokerError::NotTold);
        self.password.as_ref().map(digest).transpose()
    }
}

/// Runs the broker as standard input says, until that ends: then the hub has, and so does the process.
///
/// # Errors
/// [`BrokerError`]; returns in no other way.
pub fn run() -> Result<(), BrokerError> {
    let mut input = std::io::stdin().lock();
    let setup = Setup::read(&mut input).ok_or(BrokerError::NotTold)?;
    let token = setup.token()?;
    drop(input);
    let listen = setup.listen;
    // rumqttd only logs that it cannot.
    std::net::TcpListener::bind(listen).map_err(|cause| BrokerError::Listen { listen, cause })?;
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).ok();
        std::process::exit(0);
    });
    end_with_the_router();
    Broker::new(config(listen, token)).start().map_err(|error| BrokerError::Failed(Box::new(error)))?;
    Err(BrokerError::Ended)
}

/// A panic in a connection's task ends that connection. One in the router, or a lock that a panic has left poisoned, would leave a
/// process that listens and serves nobody: it ends instead, and the hub starts another.
fn end_with_the_router() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        let is_router = std::thread::current().name().is_some_and(|name| name.starts_with("router"));
        if is_router || panic.to_string().contains("PoisonError") {
            std::process::exit(1);
        }
    }));
}

fn config(listen: SocketAddr, token: Option<Token>) -> Config {
    let mut connections = ConnectionSettings {
        connection_timeout_ms: CONNECT_WAIT_MS,
        max_payload_size: PACKET_BYTES_MAX,
        max_inflight_count: 100, // rumqttd keeps to this whatever is set
        auth: None,
        external_auth: None,
        dynamic_filters: false,
    };
    if let Some(token) = token {
        let token = Arc::new(token);
        connections.set_auth_handler(move |_client, _user, password: String| {
            let token = Arc::clone(&token);
            async move { token.accepts(&password) }
        });
    }
    let name = "mqtt".to_owned();
    let server = ServerSettings { name: name.clone(), listen, tls: None, next_connection_delay_ms: 0, connections };
    let up = SegmentConfig { max_segment_size: UP_SEGMENT_BYTES, max_segment_count: UP_SEGMENTS };
    let all_up = Topics::new(PREFIX_DEFAULT).all_up();
    Config {
        router: RouterConfig {
            max_connections: CONNECTIONS_MAX,
            max_outgoing_packet_count: PUBLISHES_AT_ONCE,
            max_segment_size: SEGMENT_BYTES,
            max_segment_count: SEGMENTS,
            custom_segment: Some(HashMap::from([(all_up, up)])),
            ..RouterConfig::default()
        },
        v4: Some(HashMap::from([(name, server)])),
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_on_one_line_and_knows_no_secret() {
        let setup = Setup::new("127.0.0.1:1883".parse().unwrap(), Some(Token::new("secret")));
        let line = setup.line();
        assert!(line.ends_with('\n') && !line.contains("secret"));
        let read = Setup::read(&mut line.as_bytes()).unwrap();
        assert_eq!(read.listen, setup.listen);
        assert!(read.token().unwrap().unwrap().accepts("secret"));
        for wrong in ["", "\n", "hello", "{\"listen\":\"x\"}\n"] {
            assert!(Setup::read(&mut wrong.as_bytes()).is_none(), "{wrong:?}");
        }
        let wrong = Setup { password: Some("secret".into()), ..setup };
        assert!(matches!(wrong.token(), Err(BrokerError::NotTold)));
    }
}
