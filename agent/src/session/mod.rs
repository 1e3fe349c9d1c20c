//! The agent's session with its hub: connecting, staying alive, and carrying work to the compute thread and results back.
//!
//! Two threads. The *network thread* runs a single-threaded runtime and never computes; the [`compute`] thread runs kernels
//! and never waits for a socket but through a bounded queue. What the agent does about a message is decided by a state
//! machine without sockets.

mod activity;
mod backoff;
mod compute;
mod connection;
mod conversation;
mod files;
mod guard;
mod kernel;
mod known_hubs;
mod outbox;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use omnilearn_wire::handshake::Hello;
use omnilearn_wire::message::Machine;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::backoff::Backoff;
use self::compute::ComputeThread;
pub use self::compute::{Compute, ComputeError, ComputeFactory, Evaluation, ParameterPiece, Prepared, Usage};
use self::connection::DialError;
use self::conversation::Conversation;
use self::guard::Guard;
use self::kernel::KernelStore;
pub use self::kernel::{CacheError, writable};
use self::state::{End, Session};
use crate::config::AgentConfig;
use crate::device::NoGpu;
use crate::health::{self, Health};

/// A connection that lasted this long was a good one: the next loss starts the back-off over.
const GOOD_CONNECTION: Duration = backoff::LONGEST;
/// How often an agent that had been welcome tries again after a refusal, for instance because another took its name.
const REFUSED_WAIT: Duration = Duration::from_secs(60);
/// How long the end of the program waits for the compute thread.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// Why an agent ended without having been asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The cache folder cannot be written.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The GPU that was asked for cannot be had.
    #[error(transparent)]
    Device(#[from] NoGpu),
    /// The operating system refuses a thread or a runtime.
    #[error("cannot start the network thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The hub refused the agent, and would again.
    #[error("{hub}: {reason}")]
    Refused {
        /// The hub.
        hub: String,
        /// What it said.
        reason: String,
    },
    /// The hub sent the agent away.
    #[error("the hub closed the connection for good: {reason}")]
    Dismissed {
        /// What it said.
        reason: String,
    },
    /// The network thread panicked.
    #[error("the network thread has died")]
    Died,
}

/// Runs an agent with this compute until `shutdown` is cancelled, the hub has no more use for it, or it cannot go on.
/// Ends within two seconds of `shutdown`, in the middle of a step too.
///
/// The network runs on a thread of its own, so this may be awaited on any runtime. Dropping the future shuts the agent down.
///
/// # Errors
/// [`RunError`]; an unreachable hub is not one: the agent waits for it.
pub async fn run_with(
    config: AgentConfig,
    factory: Arc<dyn ComputeFactory>,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    writable(&config.cache)?;
    let store = KernelStore::new(&config.cache);
    let shutdown = shutdown.child_token();
    let _ends_the_thread_when_dropped = shutdown.clone().drop_guard();
    let (sender, receiver) = oneshot::channel();
    let network = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = match runtime {
            Ok(runtime) => runtime.block_on(Agent::new(config, factory, store, shutdown).run()),
            Err(cause) => Err(RunError::Thread(cause)),
        };
        let _ = sender.send(result); // the receiver is gone when nobody awaits the agent any more
    };
    std::thread::Builder::new().name("olrn-network".to_owned()).spawn(network).map_err(RunError::Thread)?;
    receiver.await.unwrap_or(Err(RunError::Died))
}

/// Lives on the network thread.
struct Agent {
    config: AgentConfig,
    hello: Hello,
    factory: Arc<dyn ComputeFactory>,
    session: Session,
    compute: ComputeThread,
    backoff: Backoff,
    shutdown: CancellationToken,
    was_welcome: bool,
    link: Link,
    health: watch::Sender<Health>,
}

/// What the log said last of the connection: one line per change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    New,
    Waiting,
    Refused,
    Connected,
}

/// How a connection ended.
#[derive(Debug)]
enum Ended {
    Shutdown,
    OnPurpose(End),
    Lost { reason: String },
}

impl Agent {
    fn new(
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
        Agent {
            session: Session::new(store, guard, config.exit_when_done),
            compute: ComputeThread::new(Arc::clone(&factory)),
            backoff: Backoff::new(process),
            health: watch::Sender::new(Health::Waiting { hub: config.hub.to_string() }),
            config,
            hello,
            factory,
            shutdown,
            was_welcome: false,
            link: Link::New,
        }
    }

    async fn run(mut self) -> Result<(), RunError> {
        let keep_health = health::keep(self.config.health_file.clone(), self.health.subscribe());
        let result = tokio::select! {
            result = self.serve() => result,
            never = keep_health => match never {},
        };
        self.compute.stop(STOP_PATIENCE).await;
        result
    }

    async fn serve(&mut self) -> Result<(), RunError> {
        let shutdown = self.shutdown.clone();
        loop {
            let dialled = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                dialled = connection::dial(&self.config.hub, &self.hello) => dialled,
            };
            let wait = match dialled {
                Ok(connection) => {
                    let since = Instant::now();
                    self.was_welcome = true;
                    self.link = Link::Connected;
                    self.health.send_replace(Health::Connected { hub: self.config.hub.to_string() });
                    let welcome = &connection.welcome;
                    info!(hub = %self.config.hub, agent = %welcome.agent, name = %self.hello.name, hub_version = %welcome.hub_version,
                        protocol = connection.protocol, "connected to the hub");
                    let conversation =
                        Conversation::new(connection, &mut self.session, &mut self.compute, &*self.factory);
                    let reason = match conversation.run(&shutdown).await {
                        Ended::Shutdown | Ended::OnPurpose(End::Done) => return Ok(()),
                        Ended::OnPurpose(End::Dismissed { reason }) => return Err(RunError::Dismissed { reason }),
                        Ended::OnPurpose(End::Reconnect { reason }) | Ended::Lost { reason } => reason,
                    };
                    if since.elapsed() >= GOOD_CONNECTION {
                        self.backoff.reset();
                    }
                    self.link = Link::Waiting;
                    self.health.send_replace(Health::Waiting { hub: self.config.hub.to_string() });
                    warn!(hub = %self.config.hub, reason, "lost the hub, connecting again");
                    self.backoff.next_wait()
                }
                Err(error) => self.on_no_connection(&error)?,
            };
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(wait) => (),
            }
        }
    }

    /// How long to wait before the next attempt, or why there is none.
    fn on_no_connection(&mut self, error: &DialError) -> Result<Duration, RunError> {
        if error.is_refusal() && self.was_welcome {
            if self.link != Link::Refused {
                self.link = Link::Refused;
                warn!(hub = %self.config.hub, %error, retry_s = REFUSED_WAIT.as_secs(), "the hub no longer takes this agent");
            }
            return Ok(REFUSED_WAIT);
        }
        if error.is_final() {
            return Err(RunError::Refused { hub: self.config.hub.to_string(), reason: error.to_string() });
        }
        if self.link == Link::New || self.link == Link::Refused {
            self.link = Link::Waiting;
            info!(hub = %self.config.hub, %error, "waiting for the hub");
        } else {
            debug!(hub = %self.config.hub, %error, "still waiting for the hub");
        }
        Ok(self.backoff.next_wait())
    }
}

#[cfg(test)]
mod refusals {
    use omnilearn_wire::handshake::HandshakeError;

    use super::*;
    use crate::config::HubAddress;

    fn agent(was_welcome: bool) -> Agent {
        let config = AgentConfig::new(HubAddress::parse("ws://127.0.0.1:1").expect("a good address"));
        let store = KernelStore::new(std::path::Path::new("/nowhere"));
        let factory = tests::fake_factory();
        Agent { was_welcome, ..Agent::new(config, factory, store, CancellationToken::new()) }
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
                let unreachable = DialError::Tcp(std::io::ErrorKind::ConnectionRefused.into());
                assert!(agent.on_no_connection(&unreachable).unwrap() <= backoff::LONGEST);
            }
        }
    }
}
