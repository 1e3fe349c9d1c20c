//! The virtual fleet: the hub's own training core under a virtual clock, with agents that take o + b/X of virtual time for a
//! batch of b. It answers before anyone buys hardware: how long, how idle, how stale, how many bytes.
//!
//! [`Fleet`] says what the agents are, [`Job`] what they train, [`Gradients`] whether they really compute, and
//! [`simulate`] lets it all happen. Equal seeds give equal bits.

pub mod fleet;
pub mod gradients;
pub mod job;
pub mod limit;
pub mod oracle;
pub mod scale;
pub mod summary;

mod agent;
mod link;
mod noise;
mod queue;
mod simulation;
mod tally;
mod thread_time;

pub use fleet::Fleet;
pub use gradients::Gradients;
pub use job::Job;
pub use simulation::{Observer, Outcome, SimulationError, Unwatched, simulate};
pub use summary::Summary;
