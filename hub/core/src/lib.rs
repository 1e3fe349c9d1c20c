//! The hub's training core: pure functions of (state, event, now). Actions come out; sockets, disk and clocks are elsewhere.
//!
//! [`Training`] is one job. The shell tells it of [`Event`]s and performs the [`Action`]s that it answers with.

pub mod action;
pub mod config;
pub mod event;
pub mod record;
pub mod status;

mod training;

mod state;
mod sync;

pub mod batching;
pub mod cursor;
pub mod membership;

mod agents;
mod clock;
mod evaluation;
mod late_timings;
mod ledger;
mod mode;

pub mod aggregate;
pub mod model;
pub mod optimizer;
pub mod partition;
mod positions;
pub mod push;
pub mod schedule;

mod buffers;
mod clip;

pub use action::Action;
pub use config::JobConfig;
pub use event::Event;
pub use model::Snapshot;
pub use record::Record;
pub use status::Status;
pub use training::Training;

/// Time since the job started, real or virtual.
pub type Now = std::time::Duration;
