//! A client that stays connected to a broker.
//!
//! Packets are those of rumqttc; the loop that carries them is ours. rumqttc's own reads nothing while it writes, so that two
//! ends that are both busy can wait for each other; it gives up on a write after a fixed time, however slow the link; and a
//! message over its limit ends the connection, again and again where the message is retained.

mod connection;
mod decoder;
mod dialing;
mod packet_size;
mod queue;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use self::queue::{Class, Queue, Queued};
use crate::options::Options;

/// Largest payload of a message that a topic carries unless told otherwise, in bytes.
pub const SMALL_BYTES_MAX: usize = 64 << 10;

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

impl fmt::Debug for ClientConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClientConfig({} at {})", self.client_id, self.options.broker)
    }
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
    /// In which connection it came, as in [`ClientState::Connected`].
    pub connection: u64,
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
        /// Count of connections, from 1. Attempts that failed count, too.
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

type Handler = dyn Fn(Incoming) + Send + Sync;

/// A filter, and who hears of what matches it.
struct Subscription {
    filter: String,
    qos: Qos,
    payload_bytes_max: usize,
    handler: Box<Handler>,
}

/// What handles and the connection's task share.
struct Shared {
    config: ClientConfig,
    queue: Queue,
    state: watch::Sender<ClientState>,
    /// Only ever grows, so that a connection knows what it has subscribed to by a number.
    subscriptions: Mutex<Vec<Arc<Subscription>>>,
}

impl Shared {
    fn subscriptions_from(&self, first: usize) -> Vec<Arc<Subscription>> {
        let subscriptions = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        subscriptions.get(first..).unwrap_or_default().to_vec()
    }
}

struct Inner {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A handle on a connection to a broker that is made again whenever it is lost. The connection ends with the last handle.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// A handle that does not keep the connection, for handlers, which the connection keeps.
#[derive(Clone)]
pub(crate) struct WeakClient(Weak<Inner>);

impl WeakClient {
    pub(crate) fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(|inner| Client { inner })
    }
}

impl Client {
    /// Begins to connect. Must run within a runtime.
    pub fn start(config: ClientConfig) -> Client {
        let (state, _) = watch::channel(ClientState::Connecting { reason: None });
        let shared = Arc::new(Shared { config, queue: Queue::default(), state, subscriptions: Mutex::default() });
        let task = tokio::spawn(connection::run(Arc::clone(&shared))).abort_handle();
        Client { inner: Arc::new(Inner { shared, task }) }
    }

    pub(crate) fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.inner))
    }

    fn queue(&self) -> &Queue {
        &self.inner.shared.queue
    }

    /// Whether it is connected.
    pub fn state(&self) -> watch::Receiver<ClientState> {
        self.inner.shared.state.subscribe()
    }

    /// Waits until it is connected; false if it was closed.
    pub async fn connected(&self) -> bool {
        let mut state = self.state();
        let decided = state.wait_for(|state| !matches!(state, ClientState::Connecting { .. })).await;
        decided.is_ok_and(|state| matches!(*state, ClientState::Connected { .. }))
    }

    /// Has `handler` called with every message that matches `filter`, in this connection and in those to come. It runs on the
    /// task that serves the connection, so it must not block. Messages over [`SMALL_BYTES_MAX`] are skipped and reported
    /// once per topic.
    pub fn subscribe(&self, filter: &str, qos: Qos, handler: impl Fn(Incoming) + Send + Sync + 'static) {
        self.subscribe_large(filter, qos, SMALL_BYTES_MAX, handler);
    }

    /// As [`Client::subscribe`], for messages of up to `payload_bytes_max`.
    pub fn subscribe_large(
        &self,
        filter: &str,
        qos: Qos,
        payload_bytes_max: usize,
        handler: impl Fn(Incoming) + Send + Sync + 'static,
    ) {
        let subscription =
            Subscription { filter: filter.to_owned(), qos, payload_bytes_max, handler: Box::new(handler) };
        let shared = &self.inner.shared;
        shared.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(subscription));
        shared.queue.nudge();
    }

    /// Publishes without waiting for anything.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn publish(&self, message: Message) -> Result<(), PublishError> {
        self.queue().put(Queued { message, class: Class::Message, acknowledged: None })
    }

    /// Publishes and waits until the broker has the message.
    ///
    /// # Errors
    /// [`PublishError`]; [`PublishError::Disconnected`] where nobody knows whether it has.
    pub async fn publish_acknowledged(&self, message: Message) -> Result<(), PublishError> {
        let (sender, acknowledged) = oneshot::channel();
        self.queue().put(Queued { message, class: Class::Message, acknowledged: Some(sender) })?;
        acknowledged.await.map_err(|_| PublishError::Disconnected)
    }

    /// Waits until there is room for a message.
    pub async fn room(&self) {
        self.queue().room().await;
    }

    /// Publishes `goodbye`, takes leave of the broker, so that it publishes no will, and ends.
    pub async fn close(&self, goodbye: Option<Message>) {
        self.queue().close(goodbye);
        let mut state = self.state();
        // An error means that the task is gone already.
        state.wait_for(|state| *state == ClientState::Closed).await.map(|_| ()).ok();
    }

    /// Publishes a segment of a stream, after all messages. Streams send again what a lost connection took along.
    pub(crate) fn publish_segment(&self, topic: &str, payload: Bytes) -> Result<(), PublishError> {
        let message = Message { topic: topic.to_owned(), payload, retain: false };
        self.queue().put(Queued { message, class: Class::Segment, acknowledged: None })
    }

    /// Largest payload of a message to `topic`; none while there is no connection.
    pub(crate) fn payload_bytes_max(&self, topic: &str) -> Option<usize> {
        self.queue().payload_bytes_max(topic)
    }

    /// Whether streams may send.
    pub(crate) fn has_room_for_segments(&self) -> bool {
        self.queue().has_room_for_segments()
    }

    /// Waits until streams may send.
    pub(crate) async fn room_for_segments(&self) {
        self.queue().room_for_segments().await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Client({:?})", self.inner.shared.config)
    }
}
