//! The hub: a parameter server that hands each agent a batch sized to what that agent can do.
//!
//! [`run`] serves agents (WebSocket at `/agent`) and users (JSON under `/api/v1`) on one TCP port. What is trained, and when,
//! is decided by `omnilearn-hub-core`, which one task owns; connections talk to it over bounded channels. [`mqtt`] has agents
//! take part over a broker. [`client`] is
//! the other side of the JSON interface, for the command line and for tools. [`offline`] plans a job where no hub runs.

pub mod allocator;
pub mod client;
pub mod export;
pub mod follow;
pub mod job_file;
pub mod key_file;
pub mod limits;
pub mod offline;
pub mod rule_sections;
pub mod signing;
pub mod view;

mod api;
mod checkpoint;
mod connection;
mod counters;
mod digest;
mod first_values;
mod frozen_store;
mod given_weights;
mod inbox;
mod job_data;
mod job_keys;
mod job_task;
mod kernel_store;
mod metered;
pub mod mqtt;
mod outbound;
mod parameter_stream;
mod plan;
mod registry;
mod server;
mod store;
mod weights;
mod weights_store;

pub use digest::Token;
pub use given_weights::GivenWeightsError;
pub use job_keys::UnknownKey;
pub use job_task::Outcome;
pub use plan::PlanError;
pub use server::{Config, RunError, run};
pub use store::{DATASETS, StoreError};
