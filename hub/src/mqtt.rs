//! The hub at a broker: agents that reach nothing else, presence, timings and commands. Without a broker, or while it is away,
//! everything else goes on.

mod commands;
mod hearing;
mod identity;
mod presence_book;
mod tasks;
mod timings_book;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::broker::{Broker, BrokerConfig, LoginCheck};
use omnilearn_mqtt::client::{Client, ClientState, Message};
use omnilearn_mqtt::command::{Command, CommandReply, CommandRequest};
use omnilearn_mqtt::options::{Credentials, Options};
use omnilearn_mqtt::presence::PresenceState;
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::TimedStep;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::digest::Token;
use crate::limits::{COMMAND_WAIT, SELF_TEST_WAIT};
use commands::Commands;
use identity::Identity;
use presence_book::PresenceBook;
use timings_book::TimingsBook;

pub(crate) use commands::CommandError;
pub use identity::ClaimError;
pub(crate) use presence_book::Seen;
pub(crate) use tasks::MqttTasks;
pub(crate) use timings_book::TimingsCounts;

/// The user as which a hub logs in at a broker of its own.
const HUB_USER: &str = "hub";

/// Which broker a hub uses.
#[derive(Clone, Debug)]
pub enum MqttConfig {
    /// One that is there.
    Existing(Options),
    /// One of the hub's own.
    Own {
        /// Where it listens.
        listen: SocketAddr,
        /// What clients log in with, if they must: the hub's token.
        password: Option<Password>,
    },
}

/// A password that is not shown.
#[derive(Clone)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Password(hidden)")
    }
}

/// Why a hub cannot use its broker.
#[derive(Debug, thiserror::Error)]
pub enum MqttError {
    /// A broker of its own cannot listen.
    #[error(
        "the broker cannot listen on {listen}: {cause}; is another one running there? give this one another --mqtt-listen, or use \
         that one with --mqtt"
    )]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// Why.
        cause: std::io::Error,
    },
    /// Another hub is there.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// What the hub knows from the broker.
struct Shared {
    identity: Identity,
    client: OnceLock<Client>,
    presence: Mutex<PresenceBook>,
    timings: Mutex<TimingsBook>,
    timings_dropped: AtomicU64,
    commands: Commands,
    /// Topics whose payloads were reported as wrong.
    reported: Mutex<HashSet<String>>,
    payloads_refused: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // a book is never left half-written
}

/// A handle to the hub's side of the broker.
#[derive(Clone)]
pub(crate) struct Mqtt(Arc<Shared>);

/// Timings of an agent that are new.
pub(crate) struct NewTimings {
    pub(crate) agent: String,
    pub(crate) steps: Vec<TimedStep>,
}

impl Mqtt {
    /// Starts the broker, if it is the hub's own, and claims the topics. Goes on without a broker that does not answer.
    pub(crate) async fn claim(config: MqttConfig) -> Result<(Mqtt, MqttTasks), MqttError> {
        let (options, broker) = match config {
            MqttConfig::Existing(options) => (options, None),
            MqttConfig::Own { listen, password } => {
                let failed = |cause| MqttError::Listen { listen, cause };
                let listener = TcpListener::bind(listen).await.map_err(failed)?;
                let login = password.as_ref().map(|password| {
                    let token = Token::new(&password.0);
                    Arc::new(move |_: &str, shown: &str| token.accepts(shown)) as LoginCheck
                });
                let broker =
                    Broker::start(listener, BrokerConfig { login, ..BrokerConfig::default() }).map_err(failed)?;
                let address = BrokerUrl::parse(&format!("mqtt://{}", own_address(broker.address())))
                    .expect("an address and port are a broker's address");
                let credentials =
                    password.map(|password| Credentials { user: HUB_USER.to_owned(), password: password.0 });
                tracing::info!(agents = %format!("mqtt://{}", broker.address()), "broker listens");
                (Options { credentials, ..Options::new(address) }, Some(broker))
            }
        };
        let identity = Identity::new(options);
        let claimed = match &broker {
            Some(_) => true, // nobody else has had the time to
            None => match identity.claim().await {
                Ok(()) => true,
                Err(error @ ClaimError::NoBroker { .. }) => {
                    tracing::warn!(%error, "the hub goes on without the broker, and keeps asking");
                    false
                }
                Err(error) => return Err(error.into()),
            },
        };
        let mqtt = Mqtt(Arc::new(Shared {
            identity,
            client: OnceLock::new(),
            presence: Mutex::default(),
            timings: Mutex::default(),
            timings_dropped: AtomicU64::new(0),
            commands: Commands::default(),
            reported: Mutex::default(),
            payloads_refused: AtomicU64::new(0),
        }));
        let tasks = MqttTasks { mqtt: mqtt.clone(), broker, claimed, tasks: JoinSet::new() };
        Ok((mqtt, tasks))
    }

    /// The broker's address, with the prefix of topics.
    pub(crate) fn broker(&self) -> String {
        self.0.identity.options.broker.to_string()
    }

    /// Whether the hub is connected to the broker.
    pub(crate) fn is_connected(&self) -> bool {
        let connected = |client: &Client| matches!(*client.state().borrow(), ClientState::Connected { .. });
        self.0.client.get().is_some_and(connected)
    }

    /// What is known of the presence of every agent.
    pub(crate) fn presence(&self) -> Vec<Seen> {
        lock(&self.0.presence).all()
    }

    /// How many timings have come from an agent.
    pub(crate) fn timings(&self, agent: &str) -> Option<TimingsCounts> {
        lock(&self.0.timings).counts(agent)
    }

    /// Counters, by name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 5] {
        let timings = lock(&self.0.timings).total();
        [
            ("mqtt_payloads_refused", self.0.payloads_refused.load(Ordering::Relaxed)),
            ("timings_received", timings.received),
            ("timings_duplicates", timings.duplicates),
            ("timings_lost", timings.lost),
            ("timing_batches_dropped", self.0.timings_dropped.load(Ordering::Relaxed)),
        ]
    }

    /// Has an agent do something, and waits for its reply. `known`: whether an agent of this name has ever been here.
    pub(crate) async fn command(
        &self,
        name: &str,
        command: Command,
        known: bool,
    ) -> Result<serde_json::Value, CommandError> {
        let shared = &self.0;
        let client = shared.client.get().filter(|_| self.is_connected()).ok_or(CommandError::BrokerAway)?;
        let name = || name.to_owned();
        match lock(&shared.presence).find(&name()) {
            None if known => return Err(CommandError::NotAtBroker { name: name() }),
            None => return Err(CommandError::Unknown { name: name() }),
            Some(seen) if seen.presence.state == PresenceState::Offline => {
                return Err(CommandError::Offline { name: name() });
            }
            Some(_) => {}
        }
        let wait = if command == Command::SelfTest { SELF_TEST_WAIT } else { COMMAND_WAIT };
        let id = format!("{:016x}", SessionMark::new().process);
        let mut place = shared.commands.wait(&name(), &id)?;
        let payload = CommandRequest { id, command }.encode().into();
        let message = Message { topic: shared.identity.topics.agent_command(&name()), payload, retain: false };
        let answered = timeout(wait, async {
            client.publish_acknowledged(message).await.map_err(CommandError::NotSent)?;
            Ok(place.reply().await)
        });
        match answered.await {
            Ok(Ok(Some(CommandReply { ok: true, result, .. }))) => Ok(result.unwrap_or_default()),
            Ok(Ok(Some(CommandReply { error, .. }))) => {
                let reason = error.unwrap_or_else(|| "it does not say why".to_owned());
                Err(CommandError::Refused { name: name(), reason })
            }
            Ok(Err(error)) => Err(error),
            Ok(Ok(None)) | Err(_) => Err(CommandError::NoReply { name: name(), seconds: wait.as_secs() }),
        }
    }
}

/// Under which address the hub itself reaches a broker that listens there.
fn own_address(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
