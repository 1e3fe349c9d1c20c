//! MQTT between a hub and its agents: addresses, topics, payloads, a client that stays connected, and byte streams over a broker.
//!
//! A [`stream::MqttStream`] stands where a TCP connection would: the same WebSocket, handshake and frames run over it. So a
//! job may mix agents that reach the hub directly with agents that reach nothing but a broker.

pub mod address;
pub mod backoff;
pub mod broker;
pub mod claim;
pub mod client;
pub mod command;
pub mod options;
pub mod presence;
mod random;
pub mod session;
pub mod stream;
pub mod timings;
pub mod topics;
