//! The agent: one edge trainer. It connects to a hub, loads the samples that the hub assigns, runs a kernel over them, and
//! pushes the gradient with what each phase took.

pub mod allocator;
pub mod cli;
pub mod config;
pub mod dataset;
pub mod device;
pub mod engine;
pub mod health;
pub mod kernel_check;
pub mod machine;
pub mod probe;
pub mod session;
pub mod trainer;
pub mod trust;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use self::config::AgentConfig;
use self::session::RunError;
use self::trainer::TrainerFactory;

/// Runs an agent until `shutdown` is cancelled, the hub has no more use for it, or it cannot go on; see
/// [`session::run_with`]. Any runtime may await it, and several agents may run in one process, though each then counts the
/// CPU time of all.
///
/// # Errors
/// [`RunError`].
pub async fn run(config: AgentConfig, shutdown: CancellationToken) -> Result<(), RunError> {
    let factory = TrainerFactory::new(&config)?;
    for (number, adapter) in factory.adapters().iter().enumerate() {
        tracing::info!("adapter gpu:{number} is {adapter}");
    }
    session::run_with(config, Arc::new(factory), shutdown).await
}
