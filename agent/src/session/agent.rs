//! The agent on its network thread: from one connection to the next.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use omnilearn_mqtt::backoff::{self, Backoff};
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::presence::Transport;
use omnilearn_wire::handshake::Hello;
use omnilearn_wire::message::Machine;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::compute::{Command, ComputeFactory, ComputeThread};
use super::connection::{self, Connection, DialError};
use super::conversation::Conversation;
use super::guard::Guard;
use super::kernel::KernelStore;
use super::mqtt::{Hands, Identity, Link};
use super::orders::{Helm, Orders};
use super::recorder::Recorder;
use super::route::{Ferry, Route};
use super::state::{End, Session};
use super::{REFUSED_WAIT, RunError};
use crate::config::{AgentConfig, HubAddress, MqttConfig};
use crate::health::{self, Health};

/// A connection that lasted this long was a good one: the next loss starts the back-off over.
const GOOD_CONNECTION: Duration = backoff::LONGEST;
/// Agents that wait for a hub at a broker, and hear of it in one instant, dial within this time.
const SPREAD: Duration = Duration::from_secs(1);
/// How long the end of the program waits for the compute thread.
const STOP_PATIENCE: Duration = Duration::from_millis(500);
/// How long the end of the program waits for the broker.
const BROKER_PATIENCE: Duration = Duration::from_millis(700);

/// Lives on the network thread.
pub(super) struct Agent {
    config: AgentConfig,
    hello: Hello,
    factory: Arc<dyn ComputeFactory>,
    session: Session,
    compute: ComputeThread,
    backoff: Backoff,
    shutdown: CancellationToken,
    was_welcome: Rc<Cell<bool>>,
    contact: Contact,
    pub(super) health: watch::Sender<Health>,
    pub(super) helm: Helm,
    /// How often the agent has begun anew because an operator said so.
    starts: u64,
    route: Route,
    /// Where timings are kept for the broker, if there is one.
    recorder: Option<Recorder>,
    link: Option<Link>,
}

/// What the log said last of the connection: one line per change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    New,
    Waiting,
    Refused,
    Connected,
}

/// How a connection ended.
#[derive(Debug)]
pub(super) enum Ended {
    Shutdown,
    OnPurpose(End),
    Ordered { reason: &'static str },
    Lost { reason: String },
}

impl Agent {
    /// An agent that has not begun yet.
    pub(super) fn new(
        config: AgentConfig,
        factory: Arc<dyn ComputeFactory>,
        store: KernelStore,
        shutdown: CancellationToken,
    ) -> Agent {
        let machine: Machine = factory.machine();
        // The standard library seeds its hash maps from the operating system.
        let process =
            std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), std::process::id());
        let token = config.token.as_ref().map(|token| token.reveal().to_owned());
        let hello = Hello { name: config.name.clone(), token, process, machine };
        let guard = Guard::new(config.trust.clone(), &config.cache, &config.hub);
        let health = watch::Sender::new(Health::Waiting { hub: config.hub.to_string() });
        let (helm, was_welcome) = (Helm::default(), Rc::default());
        let ferry = watch::Sender::new(Ferry::NoBroker { reason: "still asking whether the name is free".to_owned() });
        let (route, transport) = match &config.hub {
            HubAddress::Socket(address) => (Route::Socket(address.clone()), Transport::WebSocket),
            HubAddress::Broker(_) => (Route::Broker(ferry.subscribe()), Transport::Mqtt),
        };
        let link = broker(&config).map(|mqtt| Link {
            identity: Identity { name: config.name.clone(), process, transport },
            token: config.token.clone(),
            recorder: Recorder::new(&config.name, mqtt.timings_format, mqtt.timings),
            hands: Hands {
                helm: helm.clone(),
                health: health.subscribe(),
                factory: Arc::clone(&factory),
                sources: config.sources.clone(),
            },
            config: mqtt,
            ferry,
            was_welcome: Rc::clone(&was_welcome),
        });
        Agent {
            session: Session::new(store, guard, config.exit_when_done),
            compute: ComputeThread::new(Arc::clone(&factory)),
            backoff: Backoff::new(process),
            health,
            config,
            hello,
            factory,
            shutdown,
            was_welcome,
            contact: Contact::New,
            helm,
            starts: 0,
            route,
            recorder: link.as_ref().map(|link| link.recorder.clone()),
            link,
        }
    }

    /// Works until it is told to end, or cannot go on.
    pub(super) async fn run(mut self) -> Result<(), RunError> {
        let keep_health = health::keep(self.config.health_file.clone(), self.health.subscribe());
        let goodbye = CancellationToken::new();
        let link = self.link.take();
        let broker = link.as_ref().map(|link| link.config.options.broker.to_string());
        let at_broker = async {
            match link {
                Some(link) => link.run(goodbye.clone()).await,
                None => {
                    goodbye.cancelled().await;
                    Ok(())
                }
            }
        };
        let mut at_broker = pin!(at_broker);
        let result = tokio::select! {
            result = self.serve() => {
                goodbye.cancel();
                let _ = tokio::time::timeout(BROKER_PATIENCE, at_broker).await; // a will says the same
                result
            }
            Err(cause) = &mut at_broker => {
                Err(RunError::Taken { broker: broker.unwrap_or_default(), cause })
            }
            never = keep_health => match never {},
        };
        self.compute.stop(STOP_PATIENCE).await;
        result
    }

    async fn serve(&mut self) -> Result<(), RunError> {
        let shutdown = self.shutdown.clone();
        let mut orders = self.helm.follow();
        loop {
            let now = orders.borrow_and_update().clone();
            let paused = now.paused;
            self.obey(now);
            if paused {
                tokio::select! {
                    () = shutdown.cancelled() => return Ok(()),
                    Ok(()) = orders.changed() => continue,
                }
            }
            let dialled = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Ok(()) = orders.changed() => continue,
                dialled = connection::dial(&self.route, &self.hello) => dialled,
            };
            let (wait, is_announced) = match dialled {
                Ok(connection) => match self.converse(connection, &shutdown, &mut orders).await? {
                    Some(wait) => (wait, false),
                    None => return Ok(()),
                },
                Err(error) => (self.on_no_connection(&error)?, error.is_announced()),
            };
            let spread = self.backoff.spread(SPREAD);
            let announced = async {
                self.route.ready().await;
                tokio::time::sleep(spread).await;
            };
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Ok(()) = orders.changed() => (),
                () = announced, if is_announced => (),
                () = tokio::time::sleep(wait) => (),
            }
        }
    }

    /// One connection from welcome to end; how long to wait before the next, or none if there is to be no other.
    async fn converse(
        &mut self,
        connection: Connection,
        shutdown: &CancellationToken,
        orders: &mut watch::Receiver<Orders>,
    ) -> Result<Option<Duration>, RunError> {
        let since = Instant::now();
        self.was_welcome.set(true);
        self.contact = Contact::Connected;
        self.health.send_replace(Health::Connected { hub: self.config.hub.to_string() });
        let welcome = &connection.welcome;
        info!(hub = %self.config.hub, agent = %welcome.agent, name = %self.hello.name, hub_version = %welcome.hub_version,
            protocol = connection.protocol, "connected to the hub");
        let recorder = self.recorder.clone();
        let conversation =
            Conversation::new(connection, &mut self.session, &mut self.compute, &*self.factory, recorder);
        let ended = conversation.run(shutdown, orders).await;
        self.health.send_replace(Health::Waiting { hub: self.config.hub.to_string() });
        let reason = match ended {
            Ended::Shutdown | Ended::OnPurpose(End::Done) => return Ok(None),
            Ended::OnPurpose(End::Dismissed { reason }) => return Err(RunError::Dismissed { reason }),
            Ended::Ordered { reason } => {
                info!(hub = %self.config.hub, reason, "left the hub");
                return Ok(Some(Duration::ZERO));
            }
            Ended::OnPurpose(End::Reconnect { reason }) | Ended::Lost { reason } => reason,
        };
        if since.elapsed() >= GOOD_CONNECTION {
            self.backoff.reset();
        }
        self.contact = Contact::Waiting;
        warn!(hub = %self.config.hub, reason, "lost the hub, connecting again");
        Ok(Some(self.backoff.next_wait()))
    }

    /// Follows orders, while there is no connection.
    fn obey(&mut self, orders: Orders) {
        let Orders { paused, batch_max, secrets, starts, .. } = orders;
        let AgentConfig { hub, cache, .. } = &self.config;
        let (token, trust) = match secrets.as_deref() {
            Some(secrets) => (&secrets.token, &secrets.trust),
            None => (&self.config.token, &self.config.trust),
        };
        self.hello.token = token.as_ref().map(|token| token.reveal().to_owned());
        self.session.obey(Guard::new(trust.clone(), cache, hub), batch_max);
        if std::mem::replace(&mut self.starts, starts) != starts {
            self.hello.machine = self.factory.machine();
            if let Some(job) = self.session.abandon() {
                // A thread with no room for this is so far behind that its hub is about to lose it.
                let _ = self.compute.send(Command::Drop(job));
            }
        }
        let hub = hub.to_string();
        let is_paused = matches!(&*self.health.borrow(), Health::Paused { .. });
        match (is_paused, paused) {
            (false, true) => {
                info!(hub, "paused until an operator resumes");
                self.health.send_replace(Health::Paused { hub });
            }
            (true, false) => {
                info!(hub, "resumed");
                self.health.send_replace(Health::Waiting { hub });
            }
            _ => (),
        }
    }

    /// How long to wait before the next attempt, or why there is none.
    fn on_no_connection(&mut self, error: &DialError) -> Result<Duration, RunError> {
        if error.is_refusal() && self.was_welcome.get() {
            if self.contact != Contact::Refused {
                self.contact = Contact::Refused;
                warn!(hub = %self.config.hub, %error, retry_s = REFUSED_WAIT.as_secs(), "the hub no longer takes this agent");
            }
            return Ok(REFUSED_WAIT);
        }
        if error.is_final() {
            return Err(RunError::Refused { hub: self.config.hub.to_string(), reason: error.to_string() });
        }
        if self.contact == Contact::New || self.contact == Contact::Refused {
            self.contact = Contact::Waiting;
            info!(hub = %self.config.hub, %error, "waiting for the hub");
        } else {
            debug!(hub = %self.config.hub, %error, "still waiting for the hub");
        }
        Ok(self.backoff.next_wait())
    }
}

/// The broker, where there is one.
fn broker(config: &AgentConfig) -> Option<MqttConfig> {
    let of_hub = match &config.hub {
        HubAddress::Broker(broker) => Some(MqttConfig::new(Options::new(broker.clone()))),
        HubAddress::Socket(_) => None,
    };
    config.mqtt.clone().or(of_hub)
}

#[cfg(test)]
mod refusals {
    use omnilearn_wire::handshake::HandshakeError;

    use super::*;
    use crate::session::tests::fake_factory;

    fn agent(was_welcome: bool) -> Agent {
        let config = AgentConfig::new(HubAddress::parse("ws://127.0.0.1:1").expect("a good address"));
        let store = KernelStore::new(std::path::Path::new("/nowhere"));
        let factory = fake_factory();
        let agent = Agent::new(config, factory, store, CancellationToken::new());
        agent.was_welcome.set(was_welcome);
        agent
    }

    fn refused() -> DialError {
        HandshakeError::Refused { reason: "the name is taken".to_owned() }.into()
    }

    #[test]
    fn clone_of_an_agent_ends_and_an_agent_whose_name_was_taken_asks_once_a_minute() {
        assert!(matches!(agent(false).on_no_connection(&refused()), Err(RunError::Refused { .. })));
        let mut displaced = agent(true);
        for _ in 0..3 {
            assert_eq!(displaced.on_no_connection(&refused()).unwrap(), Duration::from_secs(60));
        }
    }

    #[test]
    fn protocol_that_the_hub_no_longer_speaks_is_final_even_for_an_agent_that_was_welcome() {
        let error = HandshakeError::Version { theirs_min: 2, theirs_max: 3 }.into();
        assert!(matches!(agent(true).on_no_connection(&error), Err(RunError::Refused { .. })));
    }

    #[test]
    fn unreachable_hub_is_waited_for_whatever_came_before() {
        for was_welcome in [false, true] {
            let mut agent = agent(was_welcome);
            for _ in 0..100 {
                let unreachable = DialError::Route(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
                assert!(agent.on_no_connection(&unreachable).unwrap() <= backoff::LONGEST);
            }
        }
    }
}
