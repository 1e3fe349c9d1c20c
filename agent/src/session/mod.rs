//! The agent's session with its hub: connecting, staying alive, and carrying work to the compute thread and results back.
//!
//! Two threads. The *network thread* runs a single-threaded runtime and never computes; the [`compute`] thread runs kernels
//! and never waits for a socket but through a bounded queue. What the agent does about a message is decided by a state
//! machine without sockets.

mod activity;
mod agent;
mod compute;
mod connection;
mod conversation;
mod files;
mod guard;
mod kernel;
mod known_hubs;
mod mqtt;
mod orders;
mod outbox;
mod recorder;
mod route;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use omnilearn_mqtt::claim::ClaimError;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::agent::{Agent, Ended};
pub use self::compute::{Compute, ComputeError, ComputeFactory, Evaluation, ParameterPiece, Prepared, Usage};
use self::kernel::KernelStore;
pub use self::kernel::{CacheError, writable};
use crate::config::AgentConfig;
use crate::device::NoGpu;

/// How often an agent that had been welcome tries again after a refusal, for instance because another took its name.
const REFUSED_WAIT: Duration = Duration::from_secs(60);

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
    /// Another agent has the name at the broker.
    #[error("{broker}: {cause}")]
    Taken {
        /// The broker.
        broker: String,
        /// Who has it, and what to do.
        #[source]
        cause: ClaimError,
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
            Ok(runtime) => {
                let result = runtime.block_on(Agent::new(config, factory, store, shutdown).run());
                runtime.shutdown_background(); // without waiting for a self-test
                result
            }
            Err(cause) => Err(RunError::Thread(cause)),
        };
        let _ = sender.send(result); // the receiver is gone when nobody awaits the agent any more
    };
    std::thread::Builder::new().name("olrn-network".to_owned()).spawn(network).map_err(RunError::Thread)?;
    receiver.await.unwrap_or(Err(RunError::Died))
}
