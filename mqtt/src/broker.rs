//! A broker of MQTT 3.1.1 for where there is none: what a hub and its agents need, in the hub's own process.
//!
//! Clients publish and subscribe with quality of service 0 and 1 (2 is taken and delivered as 1), with wildcards, retained messages,
//! last wills and a login. A session lasts as long as its connection. Everything is in memory and bounded; a client that takes
//! too little is closed and misses what came meanwhile.

mod connection;
mod outbox;
mod switchboard;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rumqttc::mqttbytes::v4::Login;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::options::PACKET_BYTES_MOST;
use connection::End;
use outbox::SharedOutbox;
use switchboard::{Connection, Effect, Message, Quality, Switchboard};

/// Most connections. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 10_000;

/// Pause after a failed `accept`, such as for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Largest packet that is taken unless told otherwise, in bytes: what hub and agents send at most, with a margin.
const PACKET_BYTES_MAX: usize = PACKET_BYTES_MOST + (64 << 10);

/// Whether a user with this password is let in.
pub type LoginCheck = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// How a broker is set up.
#[derive(Clone)]
pub struct BrokerConfig {
    /// Who is let in; none for everybody.
    pub login: Option<LoginCheck>,
    /// Largest packet that is taken, in bytes, without its fixed header. Who sends a larger one is closed.
    pub packet_bytes_max: usize,
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig { login: None, packet_bytes_max: PACKET_BYTES_MAX }
    }
}

/// A broker that serves until it is dropped.
#[derive(Debug)]
pub struct Broker {
    address: SocketAddr,
    tasks: JoinSet<()>,
}

impl Broker {
    /// Begins to serve. Must run within a runtime.
    ///
    /// # Errors
    /// The system's, if the listener has no address.
    pub fn start(listener: TcpListener, config: BrokerConfig) -> std::io::Result<Broker> {
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::new(Shared::new(config))));
        Ok(Broker { address, tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection and ends. No will is published, since nobody is left to hear of it.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new(); // ends with this task
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "the broker cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%address, %error, "no TCP_NODELAY");
        }
        let shared = Arc::clone(&shared);
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            let number = shared.next_connection.fetch_add(1, Ordering::Relaxed);
            let (client, end) = connection::serve(&shared, stream, number).await;
            match end {
                End::Login | End::Broker(_) | End::Stalled => {
                    info!(client, %address, reason = %end, "broker closed a client")
                }
                _ => debug!(client, %address, reason = ?end, "client has left the broker"),
            }
            drop(place);
        });
    }
}

/// What connections share.
struct Shared {
    login: Option<LoginCheck>,
    packet_bytes_max: usize,
    next_connection: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    switchboard: Switchboard,
    outboxes: HashMap<Connection, SharedOutbox>,
}

impl State {
    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Deliver(to, message) => {
                    if let Some(outbox) = self.outboxes.get(&to) {
                        outbox.deliver(message);
                    }
                }
                Effect::TakenOver(connection) => {
                    if let Some(outbox) = self.outboxes.remove(&connection) {
                        outbox.close("another connection has its name now");
                    }
                }
            }
        }
    }
}

impl Shared {
    fn new(config: BrokerConfig) -> Shared {
        Shared {
            login: config.login,
            packet_bytes_max: config.packet_bytes_max,
            next_connection: AtomicU64::new(1),
            state: Mutex::default(),
        }
    }

    /// Held while effects are performed, so that all clients see messages in one order.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepts(&self, login: Option<&Login>) -> bool {
        match (&self.login, login) {
            (None, _) => true,
            (Some(check), Some(login)) => check(&login.username, &login.password),
            (Some(_), None) => false,
        }
    }

    fn enter(&self, number: Connection, client: &str, will: Option<Message>, outbox: SharedOutbox) {
        let mut state = self.lock();
        let effects = state.switchboard.connect(number, client, will);
        state.outboxes.insert(number, outbox);
        state.perform(effects);
    }

    fn leave(&self, number: Connection, abruptly: bool) {
        let mut state = self.lock();
        state.outboxes.remove(&number);
        let effects = state.switchboard.gone(number, abruptly);
        state.perform(effects);
    }

    /// Subscribes; `answer` is told what was granted before anything that was kept is delivered.
    fn subscribe(&self, number: Connection, filters: &[(String, Quality)], answer: impl FnOnce(Vec<Option<Quality>>)) {
        let mut state = self.lock();
        let (mut granted, mut kept) = (Vec::new(), Vec::new());
        for (filter, quality) in filters {
            let found = state.switchboard.subscribe(number, filter, *quality);
            granted.push(found.is_some().then_some(*quality));
            kept.extend(found.unwrap_or_default());
        }
        answer(granted);
        state.perform(kept);
    }

    fn unsubscribe(&self, number: Connection, filters: &[String]) {
        let mut state = self.lock();
        filters.iter().for_each(|filter| state.switchboard.unsubscribe(number, filter));
    }

    fn publish(&self, message: Message) {
        let mut state = self.lock();
        let effects = state.switchboard.publish(message);
        state.perform(effects);
    }
}

#[cfg(test)]
mod tests;
