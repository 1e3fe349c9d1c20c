//! A hub at a broker, its own or Mosquitto, with agents that compute nothing.
#![expect(clippy::unwrap_used, reason = "tests")]

mod agents;
mod broker;
mod harness;
mod own_broker;
