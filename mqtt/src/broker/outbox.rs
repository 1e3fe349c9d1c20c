//! What waits to be written to one client. Whoever puts in never waits; a client that takes too little is closed.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v4::{Packet, Publish};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::switchboard::{Message, Quality};

/// Bytes that may wait for one client: the hub has half a MiB from each agent that sends. A client with more is closed.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Answers that may wait for one client that does not take them. A client with more is closed.
const ANSWERS_MAX: usize = 10_000;

/// Messages that a client has not acknowledged. Further ones wait.
const UNACKNOWLEDGED_MAX: usize = 1_000;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 64 << 10;

/// What a message weighs beside its payload, which clients share.
const MESSAGE_BYTES: usize = 64;

#[derive(Debug, Default)]
struct Queues {
    answers: VecDeque<Packet>,
    messages: VecDeque<Message>,
    bytes: usize,
    unacknowledged: HashSet<u16>,
    last_id: u16,
}

/// The queue of one client.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queues: Mutex<Queues>,
    filled: Notify,
    closed: CancellationToken,
    why: Mutex<Option<&'static str>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // a queue is a queue at every point
}

impl Outbox {
    /// Answers go before messages.
    pub(super) fn answer(&self, packet: Packet) {
        let mut queues = lock(&self.queues);
        queues.answers.push_back(packet);
        let too_many = queues.answers.len() > ANSWERS_MAX;
        drop(queues);
        self.filled.notify_one();
        if too_many {
            self.close("it does not take answers");
        }
    }

    pub(super) fn deliver(&self, message: Message) {
        let mut queues = lock(&self.queues);
        queues.bytes += weight(&message);
        queues.messages.push_back(message);
        let too_many = queues.bytes > WAITING_BYTES_MAX;
        drop(queues);
        self.filled.notify_one();
        if too_many {
            self.close("too many messages wait for it");
        }
    }

    /// The client has a message.
    pub(super) fn acknowledged(&self, id: u16) {
        lock(&self.queues).unacknowledged.remove(&id);
        self.filled.notify_one();
    }

    /// Ends the connection; the first reason stays.
    pub(super) fn close(&self, why: &'static str) {
        lock(&self.why).get_or_insert(why);
        *lock(&self.queues) = Queues::default();
        self.closed.cancel();
    }

    /// Waits until it is closed, and says why.
    pub(super) async fn closed(&self) -> &'static str {
        self.closed.cancelled().await;
        lock(&self.why).unwrap_or_default()
    }

    /// Puts what waits into `bytes`, as much as is written at once; waits until there is something.
    pub(super) async fn fill(&self, bytes: &mut BytesMut) {
        loop {
            {
                let mut queues = lock(&self.queues);
                while bytes.len() < WRITE_BYTES
                    && let Some(packet) = queues.next()
                {
                    // Packets that are too long for MQTT do not come in.
                    packet.write(bytes, usize::MAX).ok();
                }
            }
            if !bytes.is_empty() {
                return;
            }
            self.filled.notified().await;
        }
    }
}

impl Queues {
    fn next(&mut self) -> Option<Packet> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        let wants_id = self.messages.front()?.quality == Quality::AtLeastOnce;
        if wants_id && self.unacknowledged.len() >= UNACKNOWLEDGED_MAX {
            return None;
        }
        let message = self.messages.pop_front()?;
        self.bytes -= weight(&message);
        let (qos, pkid) = if wants_id { (QoS::AtLeastOnce, self.fresh_id()) } else { (QoS::AtMostOnce, 0) };
        let Message { topic, payload, retain, .. } = message;
        Some(Packet::Publish(Publish { dup: false, qos, retain, topic: String::from(&*topic), pkid, payload }))
    }

    fn fresh_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if self.unacknowledged.insert(self.last_id) {
                return self.last_id;
            }
        }
    }
}

fn weight(message: &Message) -> usize {
    message.payload.len() + MESSAGE_BYTES
}

/// An outbox that several hold.
pub(super) type SharedOutbox = Arc<Outbox>;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rumqttc::mqttbytes::v4::PubAck;

    use super::*;

    fn message(quality: Quality, bytes: usize) -> Message {
        Message { topic: "t".into(), payload: Bytes::from(vec![7; bytes]), quality, retain: false }
    }

    async fn packets(outbox: &Outbox) -> Vec<Packet> {
        let mut bytes = BytesMut::new();
        outbox.fill(&mut bytes).await;
        std::iter::from_fn(|| Packet::read(&mut bytes, usize::MAX).ok()).collect()
    }

    #[tokio::test]
    async fn answers_pass_messages_and_messages_wait_for_acknowledgements() {
        let outbox = Outbox::default();
        for _ in 0..UNACKNOWLEDGED_MAX + 1 {
            outbox.deliver(message(Quality::AtLeastOnce, 0));
        }
        outbox.answer(Packet::PingResp);
        let written = packets(&outbox).await;
        assert_eq!((&written[0], written.len()), (&Packet::PingResp, 1 + UNACKNOWLEDGED_MAX));
        outbox.acknowledged(400);
        let Packet::Publish(last) = packets(&outbox).await.remove(0) else { panic!("no message") };
        assert_eq!(last.pkid, UNACKNOWLEDGED_MAX as u16 + 1);
    }

    #[tokio::test]
    async fn numbers_go_round_and_are_free_when_they_come_again() {
        let outbox = Outbox::default();
        lock(&outbox.queues).last_id = u16::MAX - 1;
        lock(&outbox.queues).unacknowledged.insert(1);
        for _ in 0..3 {
            outbox.deliver(message(Quality::AtLeastOnce, 0));
        }
        let ids = packets(&outbox).await.into_iter().map(|packet| match packet {
            Packet::Publish(publish) => publish.pkid,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.collect::<Vec<_>>(), [u16::MAX, 2, 3]);
    }

    #[tokio::test]
    async fn who_takes_too_little_is_closed() {
        let outbox = Outbox::default();
        for _ in 0..64 {
            outbox.deliver(message(Quality::AtMostOnce, 1 << 20));
        }
        assert_eq!(outbox.closed().await, "too many messages wait for it");
        let outbox = Outbox::default();
        for pkid in 0..=ANSWERS_MAX as u16 {
            outbox.answer(Packet::PubAck(PubAck { pkid }));
        }
        assert_eq!(outbox.closed().await, "it does not take answers");
    }
}
