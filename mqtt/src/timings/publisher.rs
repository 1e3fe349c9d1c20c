//! The task that sends what a buffer holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::debug;

use super::{BATCH_BYTES_MAX, TimedStep, TimingsBuffer, TimingsReceipt};
use crate::client::{Client, ClientState, Incoming, Message, Qos};
use crate::presence::{HubPresence, PresenceState};
use crate::random::up_to;
use crate::session::SessionMark;
use crate::topics::Topics;

/// How long a hub may take to confirm a batch before it is sent again.
const RECEIPT_LONGEST: Duration = Duration::from_secs(5);

/// Sends an agent's timings while a hub listens: one batch at a time, in order, each until the hub has confirmed it.
#[derive(Debug)]
pub struct TimingsPublisher {
    shared: Arc<Shared>,
    /// One task, which ends with this.
    task: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    topic: String,
    session: SessionMark,
    buffer: Arc<Mutex<TimingsBuffer>>,
    listening: Arc<Listening>,
    /// The hub confirmed something.
    received: Arc<Notify>,
    /// A step came.
    pushed: Notify,
    hurry: Notify,
}

/// Whether a hub hears what is published. A broker that was away forgets who had subscribed, so an agent that is back before its
/// hub would publish for nobody.
#[derive(Debug, Default)]
struct Listening {
    /// The connection in which a hub was last said to be online, which it says once it has subscribed; 0 for none.
    connection: AtomicU64,
    changed: Notify,
}

impl Listening {
    fn on_hub(&self, message: &Incoming) {
        let Ok(hub) = HubPresence::decode(&message.payload) else { return };
        let connection = if hub.state == PresenceState::Online { message.connection } else { 0 };
        self.connection.store(connection, Ordering::Release);
        self.changed.notify_one();
    }
}

impl TimingsPublisher {
    /// Begins to send what `buffer` gets, at most one batch in `every`. `session` is the mark that the client's connections are
    /// counted from. The buffer outlives the publisher, so that another client goes on where this one was dropped. Must run within
    /// a runtime.
    pub fn start(
        client: Client,
        topics: &Topics,
        buffer: Arc<Mutex<TimingsBuffer>>,
        session: SessionMark,
        every: Duration,
    ) -> TimingsPublisher {
        let topic = {
            let mut buffer = lock(&buffer);
            buffer.failed(); // whatever an earlier publisher had under way
            topics.agent_timings(buffer.agent())
        };
        let listening = Arc::new(Listening::default());
        client.subscribe(&topics.hub_presence(), Qos::AtLeastOnce, {
            let listening = Arc::clone(&listening);
            move |message| listening.on_hub(&message)
        });
        let received = Arc::new(Notify::new());
        let received_topic = topics.agent_received(lock(&buffer).agent());
        client.subscribe(&received_topic, Qos::AtLeastOnce, {
            let (buffer, received) = (Arc::clone(&buffer), Arc::clone(&received));
            move |message| match TimingsReceipt::decode(&message.payload) {
                Ok(receipt) if receipt.process == session.process => {
                    lock(&buffer).received(receipt.next);
                    received.notify_one();
                }
                Ok(receipt) => debug!(process = receipt.process, "a receipt for another process"),
                Err(error) => debug!(%error, "not a receipt"),
            }
        });
        let (pushed, hurry) = (Notify::new(), Notify::new());
        let shared = Arc::new(Shared { client, topic, session, buffer, listening, received, pushed, hurry });
        let mut task = JoinSet::new();
        task.spawn(Arc::clone(&shared).run(every));
        TimingsPublisher { shared, task }
    }

    /// Takes a step and returns its number. Never waits.
    pub fn push(&self, step: TimedStep) -> u64 {
        let seq = self.shared.buffer().push(step);
        self.shared.pushed.notify_one();
        seq
    }

    /// Steps that the hub has not confirmed, and steps that were dropped.
    pub fn waiting_and_lost(&self) -> (usize, u64) {
        let buffer = self.shared.buffer();
        (buffer.waiting(), buffer.lost())
    }

    /// Sends what is left, for at most `longest`.
    pub async fn finish(mut self, longest: Duration) {
        self.shared.hurry.notify_one();
        let emptied = async {
            while self.shared.buffer().waiting() > 0 && !self.task.is_empty() {
                // The task may be between two batches; it is asked until nothing waits.
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.shared.hurry.notify_one();
            }
        };
        tokio::time::timeout(longest, emptied).await.ok(); // what is left then is lost with the process
        self.task.abort_all();
    }
}

fn lock(buffer: &Mutex<TimingsBuffer>) -> MutexGuard<'_, TimingsBuffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner) // a queue is a queue even after a panic
}

/// The connection that there is, or 0; none when the client was closed.
fn connection_of(state: &ClientState) -> Option<u64> {
    match *state {
        ClientState::Connected { connection, .. } => Some(connection),
        ClientState::Connecting { .. } => Some(0),
        ClientState::Closed => None,
    }
}

impl Shared {
    fn buffer(&self) -> MutexGuard<'_, TimingsBuffer> {
        lock(&self.buffer)
    }

    /// Whether a hub hears what is published in this connection.
    fn is_heard(&self, connection: u64) -> bool {
        connection > 0 && self.listening.connection.load(Ordering::Acquire) == connection
    }

    async fn run(self: Arc<Shared>, every: Duration) {
        let mut state = self.client.state();
        let mut served = 0;
        loop {
            let Some(connection) = connection_of(&state.borrow_and_update()) else { return };
            let heard = self.is_heard(connection);
            if heard && served != connection {
                // A fleet that has waited for its hub does not speak at once.
                served = connection;
                self.pause(up_to(every)).await;
            } else if heard && self.send(connection) {
                self.confirmed(connection, &mut state).await;
                self.pause(every).await;
            } else {
                served = if heard { served } else { 0 }; // a hub that comes back is waited for like any
                tokio::select! {
                    () = self.pushed.notified(), if heard => {}
                    () = self.listening.changed.notified() => {}
                    changed = state.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.hurry.notified() => {}
        }
    }

    /// Sends a batch. Returns whether there was something to send.
    fn send(&self, connection: u64) -> bool {
        let Some(bytes_max) = self.client.payload_bytes_max(&self.topic) else { return false };
        let mut buffer = self.buffer();
        let session = self.session.at(connection);
        let Some(payload) = buffer.next_batch(session, bytes_max.min(BATCH_BYTES_MAX)) else { return false };
        let message = Message { topic: self.topic.clone(), payload: payload.into(), retain: false };
        if let Err(error) = self.client.publish(message) {
            debug!(%error, "timings wait");
            buffer.failed();
        }
        true
    }

    /// Waits until the hub has confirmed the batch that is under way, or will not.
    async fn confirmed(&self, sent_in: u64, state: &mut watch::Receiver<ClientState>) {
        let waited = async {
            while self.buffer().is_under_way() {
                let same = connection_of(&state.borrow_and_update()) == Some(sent_in);
                if !same || !self.is_heard(sent_in) {
                    break;
                }
                tokio::select! {
                    () = self.received.notified() => {}
                    () = self.listening.changed.notified() => {}
                    changed = state.changed() => if changed.is_err() { break },
                }
            }
        };
        tokio::time::timeout(RECEIPT_LONGEST, waited).await.ok(); // then it is sent again
        self.buffer().failed();
    }
}
