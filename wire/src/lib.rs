//! What a hub and its agents say to each other: messages, protocol versions, chunks and tensor codecs. Does no IO.
//!
//! A connection begins with a [`handshake`] that every version can read. After it, each WebSocket binary message is one
//! [`message::AgentMessage`] or [`message::HubMessage`] in postcard. Tensors travel as chunks of at most
//! [`limits::CHUNK_BYTES`], so that a heartbeat never waits behind a gradient.

mod bounded;
pub mod codec;
pub mod dataset;
pub mod frame;
pub mod frozen;
#[cfg(test)]
mod golden;
pub mod handshake;
pub mod ids;
pub mod layout;
pub mod limits;
pub mod message;
pub mod partition;
pub mod sampling;

pub use codec::Codec;
pub use ids::{AgentId, AssignmentId, JobId, Samples, Version};
pub use layout::Layout;
