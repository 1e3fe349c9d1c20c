//! A client that stays connected to a broker.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use crate::options::Options;

/// What a client is.
#[derive(Clone)]
pub struct ClientConfig {
    /// How to reach the broker.
    pub options: Options,
    /// Its name at the broker, which takes the connection from whoever had that name before.
    pub client_id: String,
    /// Topic of its own to learn what the broker carries.
    pub probe_topic: String,
    /// Will and first messages of each connection, counted 1, 2, 3, ….
    pub greet: Arc<dyn Fn(u64) -> Greeting + Send + Sync>,
}

/// How a connection begins, and how it ends where nobody could say goodbye.
#[derive(Clone, Debug, Default)]
pub struct Greeting {
    /// Published by the broker when the connection is lost.
    pub will: Option<Message>,
    /// Published when the subscriptions are acknowledged, before anything else.
    pub hello: Vec<Message>,
}

/// A message to publish with quality of service 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// Whether the broker keeps it for who subscribes later.
    pub retain: bool,
}

/// A message that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// Whether it was published before this client subscribed.
    pub retain: bool,
    /// Whether the broker may have sent it before.
    pub duplicate: bool,
}

/// How hard a broker tries to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// Once or not at all.
    AtMostOnce,
    /// Once or more often, while the connection lasts.
    AtLeastOnce,
}

/// Whether a client is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// Not connected, and trying.
    Connecting {
        /// Why the last connection or attempt failed.
        reason: Option<String>,
    },
    /// Connected, subscribed, and its first messages sent.
    Connected {
        /// Count of connections, from 1.
        connection: u64,
        /// Largest packet that the broker carries, in bytes, header and topic included.
        packet_bytes_max: usize,
    },
    /// Ended by [`Client::close`].
    Closed,
}

/// Why a message was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// More than the broker carries.
    #[error("a packet of {bytes} bytes, and the broker carries {max}")]
    TooLarge {
        /// The packet's length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Too much waits to be sent.
    #[error("too many messages wait for the broker")]
    Full,
    /// No connection, or it was lost before the broker had acknowledged the message.
    #[error("not connected to the broker")]
    Disconnected,
}

/// A handle on a connection to a broker that is made again whenever it is lost. The connection ends with the last handle.
#[derive(Clone)]
pub struct Client {}

impl Client {
    /// Begins to connect.
    pub fn start(_config: ClientConfig) -> Client {
        todo!()
    }

    /// Whether it is connected.
    pub fn state(&self) -> watch::Receiver<ClientState> {
        todo!()
    }

    /// Waits until it is connected; false if it was closed.
    pub async fn connected(&self) -> bool {
        todo!()
    }

    /// Has `handler` called with every message that matches `filter`, in this connection and in those to come. It runs on the
    /// task that serves the connection, so it must not block. Messages over [`SMALL_BYTES_MAX`] are skipped and reported
    /// once per topic.
    pub fn subscribe(&self, _filter: &str, _qos: Qos, _handler: impl Fn(Incoming) + Send + Sync + 'static) {
        todo!()
    }

    /// As [`Client::subscribe`], for messages of up to `payload_bytes_max`.
    pub fn subscribe_large(
        &self,
        _filter: &str,
        _qos: Qos,
        _payload_bytes_max: usize,
        _handler: impl Fn(Incoming) + Send + Sync + 'static,
    ) {
        todo!()
    }

    /// Publishes without waiting for anything.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn publish(&self, _message: Message) -> Result<(), PublishError> {
        todo!()
    }

    /// Publishes and waits until the broker has the message.
    ///
    /// # Errors
    /// [`PublishError`]; [`PublishError::Disconnected`] where nobody knows whether it has.
    pub async fn publish_acknowledged(&self, _message: Message) -> Result<(), PublishError> {
        todo!()
    }

    /// Waits until there is room for a message.
    pub async fn room(&self) {
        todo!()
    }

    /// Publishes `goodbye`, takes leave of the broker, so that it publishes no will, and ends.
    pub async fn close(&self, _goodbye: Option<Message>) {
        todo!()
    }
}

/// Largest payload of a message that a topic carries unless told otherwise, in bytes.
pub const SMALL_BYTES_MAX: usize = 64 << 10;

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Client")
    }
}
