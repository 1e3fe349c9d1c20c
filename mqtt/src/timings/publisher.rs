//! The task that sends what a buffer holds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{BATCH_BYTES_MAX, TimedStep, TimingsBuffer};
use crate::client::{Client, ClientState, Message, PublishError};
use crate::session::SessionMark;

/// Sends an agent's timings: one batch at a time, in order, each until the broker has acknowledged it.
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
    buffer: Mutex<TimingsBuffer>,
    /// A step came, or the publisher is to finish.
    pushed: Notify,
    hurry: Notify,
}

impl TimingsPublisher {
    /// Begins to send what `buffer` gets to `topic`, at most one batch in `every`. `session` is the mark that the client's
    /// connections are counted from. Must run within a runtime.
    pub fn start(
        client: Client,
        topic: String,
        buffer: TimingsBuffer,
        session: SessionMark,
        every: Duration,
    ) -> TimingsPublisher {
        let buffer = Mutex::new(buffer);
        let (pushed, hurry) = (Notify::new(), Notify::new());
        let shared = Arc::new(Shared { client, topic, session, buffer, pushed, hurry });
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
        loop {
            let connection = match *state.borrow_and_update() {
                ClientState::Connected { connection, .. } => Some(connection),
                ClientState::Connecting { .. } => None,
                ClientState::Closed => return,
            };
            let Some(connection) = connection else {
                if state.changed().await.is_err() {
                    return;
                }
                continue;
            };
            if self.send(self.session.at(connection)).await {
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    () = self.hurry.notified() => {}
                }
            } else {
                tokio::select! {
                    () = self.pushed.notified() => {}
                    changed = state.changed() => if changed.is_err() { return },
                }
            }
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
