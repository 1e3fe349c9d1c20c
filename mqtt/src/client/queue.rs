//! Messages that wait to be written to the connection.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::{Message, PublishError};

/// Most messages that wait; with more, [`PublishError::Full`].
const MESSAGES_MAX: usize = 4096;

/// Most bytes that wait; with more, [`PublishError::Full`].
const BYTES_MAX: usize = 8 << 20;

/// Bytes of segments that wait before streams stop to send: they keep what they have to send themselves, and a small queue
/// is one in which a heartbeat does not wait for long.
const SEGMENT_BYTES_MAX: usize = 1 << 20;

/// Which queue a message waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Somebody waits for it: it passes every segment.
    Message,
    /// A segment of a stream, which is in no hurry.
    Segment,
}

/// A message that waits, and who wants to know that the broker has it.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) message: Message,
    pub(super) class: Class,
    pub(super) acknowledged: Option<oneshot::Sender<()>>,
}

impl Queued {
    fn bytes(&self) -> usize {
        packet_bytes(&self.message.topic, self.message.payload.len())
    }
}

/// Length of a packet: header, lengths and packet number at their longest, topic, payload.
pub(super) fn packet_bytes(topic: &str, payload: usize) -> usize {
    const OVERHEAD: usize = 1 + 4 + 2 + 2;
    OVERHEAD + topic.len() + payload
}

/// The queue of one client. Any task puts in without waiting; the connection's task takes out.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Something was put in, or the client is to end, or there is a new subscription.
    work: Notify,
    room: Notify,
    room_for_segments: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Largest packet, while there is a connection.
    packet_bytes_max: Option<usize>,
    messages: VecDeque<Queued>,
    /// After everything else.
    segments: VecDeque<Queued>,
    bytes: usize,
    segment_bytes: usize,
    closing: bool,
    goodbye: Option<Message>,
}

impl Inner {
    fn is_full(&self) -> bool {
        self.messages.len() + self.segments.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }

    fn has_room_for_segments(&self) -> bool {
        self.segment_bytes < SEGMENT_BYTES_MAX && !self.is_full()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner) // a queue is a queue even after a panic
    }

    pub(super) fn put(&self, queued: Queued) -> Result<(), PublishError> {
        let mut inner = self.lock();
        let max = inner.packet_bytes_max.filter(|_| !inner.closing).ok_or(PublishError::Disconnected)?;
        let bytes = queued.bytes();
        if bytes > max {
            return Err(PublishError::TooLarge { bytes, max });
        }
        if inner.is_full() {
            return Err(PublishError::Full);
        }
        inner.bytes += bytes;
        match queued.class {
            Class::Message => inner.messages.push_back(queued),
            Class::Segment => {
                inner.segment_bytes += bytes;
                inner.segments.push_back(queued);
            }
        }
        drop(inner);
        self.work.notify_one();
        Ok(())
    }

    /// The next message to write; a segment only if `last` is [`Class::Segment`].
    pub(super) fn take(&self, last: Class) -> Option<Queued> {
        let mut inner = self.lock();
        let (was_full, had_room) = (inner.is_full(), inner.has_room_for_segments());
        let queued = match inner.messages.pop_front() {
            Some(queued) => queued,
            None if last == Class::Message => return None,
            None => {
                let queued = inner.segments.pop_front()?;
                inner.segment_bytes -= queued.bytes();
                queued
            }
        };
        inner.bytes -= queued.bytes();
        if was_full && !inner.is_full() {
            self.room.notify_waiters();
        }
        if !had_room && inner.has_room_for_segments() {
            self.room_for_segments.notify_waiters();
        }
        Some(queued)
    }

    /// Has the connection's task look around.
    pub(super) fn nudge(&self) {
        self.work.notify_one();
    }

    /// Waits until something was put in since the last call.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// There is a connection that carries packets of this size.
    pub(super) fn open(&self, packet_bytes_max: usize) {
        self.lock().packet_bytes_max = Some(packet_bytes_max);
        self.room.notify_waiters();
        self.room_for_segments.notify_waiters();
    }

    /// There is no connection any more. Nothing is kept for the next: who wants to know hears of it, and what is true now
    /// need not be true then.
    pub(super) fn disconnect(&self) {
        let mut inner = self.lock();
        inner.packet_bytes_max = None;
        let (messages, segments) = (std::mem::take(&mut inner.messages), std::mem::take(&mut inner.segments));
        (inner.bytes, inner.segment_bytes) = (0, 0);
        drop(inner);
        drop((messages, segments));
        self.room.notify_waiters();
        self.room_for_segments.notify_waiters();
    }

    pub(super) fn close(&self, goodbye: Option<Message>) {
        let mut inner = self.lock();
        if !inner.closing {
            (inner.closing, inner.goodbye) = (true, goodbye);
        }
        drop(inner);
        self.work.notify_one();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    pub(super) fn take_goodbye(&self) -> Option<Message> {
        self.lock().goodbye.take()
    }

    pub(super) fn payload_bytes_max(&self, topic: &str) -> Option<usize> {
        self.lock().packet_bytes_max.map(|max| max.saturating_sub(packet_bytes(topic, 0)))
    }

    pub(super) fn has_room_for_segments(&self) -> bool {
        self.lock().has_room_for_segments()
    }

    /// Waits until a message would not be refused for want of room.
    pub(super) async fn room(&self) {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            notified.as_mut().enable(); // before the question, so that no answer is missed
            if !self.lock().is_full() {
                return;
            }
            notified.await;
        }
    }

    /// Waits until streams may send.
    pub(super) async fn room_for_segments(&self) {
        loop {
            let notified = self.room_for_segments.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.has_room_for_segments() {
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn queued(topic: &str, payload: usize, class: Class) -> Queued {
        let message = Message { topic: topic.into(), payload: Bytes::from(vec![0; payload]), retain: false };
        Queued { message, class, acknowledged: None }
    }

    #[test]
    fn messages_pass_segments_and_are_checked_against_the_brokers_limit() {
        let queue = Queue::default();
        assert_eq!(queue.put(queued("a", 1, Class::Message)), Err(PublishError::Disconnected));
        queue.open(1000);
        assert_eq!(queue.payload_bytes_max("abc"), Some(988));
        assert_eq!(
            queue.put(queued("abc", 989, Class::Message)),
            Err(PublishError::TooLarge { bytes: 1001, max: 1000 })
        );
        queue.put(queued("segment", 988, Class::Segment)).unwrap_err();
        queue.put(queued("segment", 900, Class::Segment)).unwrap();
        queue.put(queued("message", 10, Class::Message)).unwrap();
        let topics = |last| -> Vec<String> {
            std::iter::from_fn(|| queue.take(last)).map(|queued| queued.message.topic).collect()
        };
        assert_eq!(topics(Class::Message), ["message"]);
        assert_eq!(topics(Class::Segment), ["segment"]);
        assert_eq!(queue.lock().bytes, 0);
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_makes_room() {
        let queue = Queue::default();
        queue.open(1 << 20);
        while queue.has_room_for_segments() {
            queue.put(queued("s", 1 << 16, Class::Segment)).unwrap();
        }
        assert_eq!(queue.lock().segments.len(), 16);
        while let Ok(()) = queue.put(queued("m", 0, Class::Message)) {}
        assert_eq!(queue.lock().messages.len() + 16, MESSAGES_MAX);
        let taken = tokio::join!(queue.room_for_segments(), queue.room(), async {
            while queue.take(Class::Segment).is_some() {}
        });
        assert_eq!(taken, ((), (), ()));
    }

    #[test]
    fn what_waits_when_the_connection_is_lost_is_dropped_and_heard_of() {
        let queue = Queue::default();
        queue.open(1000);
        let (sender, mut receiver) = oneshot::channel();
        let mut message = queued("m", 1, Class::Message);
        message.acknowledged = Some(sender);
        queue.put(message).unwrap();
        queue.disconnect();
        assert!(receiver.try_recv().is_err());
        assert!(queue.take(Class::Segment).is_none());
        assert_eq!(queue.put(queued("m", 1, Class::Message)), Err(PublishError::Disconnected));
    }
}
