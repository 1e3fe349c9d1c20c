//! The task that sends what a buffer holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{BATCH_BYTES_MAX, TimedStep, TimingsBuffer};
use crate::client::{Client, ClientState, Incoming, Message, PublishError, Qos};
use crate::presence::{HubPresence, PresenceState};
use crate::random::random;
use crate::session::SessionMark;
use crate::topics::Topics;

/// Sends an agent's timings while a hub listens: one batch at a time, in order, each until the broker has acknowledged it.
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
    /// A step came.
    pushed: Notify,
    hurry: Notify,
}

/// Whether a hub hears what is published. A broker that was away forgets who had subscribed, so an agent that is back before its
/// hub would publish for nobody, and be told that all is well.
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
            let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
            buffer.failed(); // whatever an earlier publisher had under way
            topics.agent_timings(buffer.agent())
        };
        let listening = Arc::new(Listening::default());
        client.subscribe(&topics.hub_presence(), Qos::AtLeastOnce, {
            let listening = Arc::clone(&listening);
            move |message| listening.on_hub(&message)
        });
        let (pushed, hurry) = (Notify::new(), Notify::new());
        let shared = Arc::new(Shared { client, topic, session, buffer, listening, pushed, hurry });
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

    /// Steps that are not acknowledged, and steps that were dropped.
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

impl Shared {
    fn buffer(&self) -> MutexGuard<'_, TimingsBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner) // a queue is a queue even after a panic
    }

    async fn run(self: Arc<Shared>, every: Duration) {
        let mut state = self.client.state();
        let mut served = 0;
        loop {
            let connection = match *state.borrow_and_update() {
                ClientState::Connected { connection, .. } => connection,
                ClientState::Connecting { .. } => 0,
                ClientState::Closed => return,
            };
            let heard = connection > 0 && self.listening.connection.load(Ordering::Acquire) == connection;
            if heard && served != connection {
                // A fleet that has waited for its hub does not speak at once.
                served = connection;
                self.pause(every.mul_f64(random() as f64 / u64::MAX as f64)).await;
            } else if heard && self.send(self.session.at(connection)).await {
                self.pause(every).await;
            } else {
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

    /// Sends a batch. Returns whether there may be another.
    async fn send(&self, session: SessionMark) -> bool {
        let Some(bytes_max) = self.client.payload_bytes_max(&self.topic) else { return false };
        let Some(payload) = self.buffer().next_batch(session, bytes_max.min(BATCH_BYTES_MAX)) else { return false };
        let message = Message { topic: self.topic.clone(), payload: payload.into(), retain: false };
        let sent = self.client.publish_acknowledged(message).await;
        let mut buffer = self.buffer();
        match sent {
            Ok(()) => buffer.acknowledged(),
            Err(PublishError::TooLarge { .. } | PublishError::Full | PublishError::Disconnected) => buffer.failed(),
        }
        true
    }
}
