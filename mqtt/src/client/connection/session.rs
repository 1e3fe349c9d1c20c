//! One connection, from the broker's answer to its end.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v4::{Packet, PubAck, Publish, Subscribe, SubscribeFilter, SubscribeReasonCode};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::Memory;
use crate::client::decoder::{Decoded, Decoder};
use crate::client::dialing::Dialed;
use crate::client::packet_size::Step;
use crate::client::queue::{Class, Queued};
use crate::client::{ClientState, Incoming, Message, Qos, Shared, Subscription};
use crate::options::PACKET_BYTES_MOST;
use crate::topics::matches;

/// Bytes that are written ahead of the connection before messages are left in the queue, where others may pass them.
const OUT_BYTES_MAX: usize = 256 << 10;

/// Publications that the broker has not acknowledged before others are left in the queue. Segments stop earlier, so that a
/// message always finds a number for its packet.
const UNACKNOWLEDGED_MAX: usize = 2000;
const UNACKNOWLEDGED_SEGMENTS_MAX: usize = 1000;

/// Room for what is read at once.
const READ_BYTES: usize = 64 << 10;

/// How long a broker may take over subscriptions and probes while no byte comes, and over a goodbye.
const ANSWER_LONGEST: Duration = Duration::from_secs(10);
const GOODBYE_LONGEST: Duration = Duration::from_secs(2);

/// How a connection ended.
pub(super) enum End {
    /// The client was closed.
    Closed,
    /// It was lost.
    Lost { reason: String },
}

/// How far a connection has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first subscriptions are not acknowledged.
    Subscribing,
    /// What the broker carries is not known.
    Probing,
    Open,
    /// The goodbye is not acknowledged.
    Closing,
    /// Nothing is left but to write what is in `out`.
    Leaving,
}

pub(super) struct Session<'a> {
    shared: &'a Shared,
    memory: &'a mut Memory,
    connection: u64,
    phase: Phase,
    /// Since when the phase waits for the broker.
    waiting_since: Instant,
    out: BytesMut,
    next_id: u16,
    unacknowledged: HashMap<u16, Option<oneshot::Sender<()>>>,
    /// What was asked for, in order, and the filters of each question that waits for an answer.
    subscriptions: Vec<Arc<Subscription>>,
    subscribing: HashMap<u16, Vec<String>>,
    /// Whether the broker lets nobody hear the probe topic.
    probe_refused: bool,
    goodbye_id: Option<u16>,
    hello: Vec<Message>,
    last_read: Instant,
    last_written: Instant,
    pinged: Option<Instant>,
}

impl<'a> Session<'a> {
    pub(super) fn new(shared: &'a Shared, memory: &'a mut Memory, connection: u64) -> Session<'a> {
        let now = Instant::now();
        Session {
            shared,
            memory,
            connection,
            phase: Phase::Subscribing,
            waiting_since: now,
            out: BytesMut::new(),
            next_id: 0,
            unacknowledged: HashMap::new(),
            subscriptions: Vec::new(),
            subscribing: HashMap::new(),
            probe_refused: false,
            goodbye_id: None,
            hello: Vec::new(),
            last_read: now,
            last_written: now,
            pinged: None,
        }
    }

    /// Carries packets in both directions until the connection ends.
    pub(super) async fn serve(mut self, dialed: Dialed, hello: Vec<Message>) -> End {
        self.hello = hello;
        let lost = |reason: String| End::Lost { reason };
        let Dialed { transport, mut bytes, quick } = dialed;
        let (mut reader, mut writer) = tokio::io::split(transport);
        let (mut decoder, mut unflushed) = (Decoder::default(), false);
        self.subscribe(true);
        let tick = self.shared.config.options.keep_alive / 10;
        let mut ticks = tokio::time::interval(tick.clamp(Duration::from_millis(50), Duration::from_secs(1)));
        loop {
            // What came with the broker's answer is decoded before anything is waited for.
            if let Err(reason) = self.decode(&mut decoder, &mut bytes) {
                return lost(reason);
            }
            // Before messages, which may be answered on what was just subscribed to.
            self.subscribe(false);
            self.fill();
            if self.phase == Phase::Leaving && self.out.is_empty() && !unflushed {
                writer.shutdown().await.ok(); // the broker has everything already
                return End::Closed;
            }
            bytes.reserve(READ_BYTES);
            // Each of these loses nothing when another is first.
            tokio::select! {
                read = reader.read_buf(&mut bytes) => match read {
                    Ok(0) => return self.ended("the broker ended the connection".into()),
                    Ok(_) => {
                        quick.ask();
                        (self.last_read, self.pinged) = (Instant::now(), None);
                    }
                    Err(error) => return self.ended(format!("the connection was lost: {error}")),
                },
                written = write_or_flush(&mut writer, &mut self.out), if unflushed || !self.out.is_empty() => match written {
                    Ok(bytes) => (self.last_written, unflushed) = (Instant::now(), bytes > 0),
                    Err(error) => return self.ended(format!("the connection was lost: {error}")),
                },
                () = self.shared.queue.work() => {}
                _ = ticks.tick() => if let Err(reason) = self.on_tick() {
                    return self.ended(reason);
                },
            }
        }
    }

    /// A connection that ends while it is being closed was closed.
    fn ended(&self, reason: String) -> End {
        match self.phase {
            Phase::Closing | Phase::Leaving => End::Closed,
            _ => End::Lost { reason },
        }
    }

    fn write(&mut self, packet: Packet) {
        // Packets are built here from topics and filters within the lengths that MQTT knows.
        if let Err(error) = packet.write(&mut self.out, usize::MAX) {
            warn!(%error, "a packet cannot be written");
        }
    }

    fn id(&mut self) -> u16 {
        loop {
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            if !self.unacknowledged.contains_key(&self.next_id) && !self.subscribing.contains_key(&self.next_id) {
                return self.next_id;
            }
        }
    }

    /// Asks for what was not asked for yet.
    fn subscribe(&mut self, first: bool) {
        let new = self.shared.subscriptions_from(self.subscriptions.len());
        let filter = |filter: &str, qos: Qos| SubscribeFilter { path: filter.to_owned(), qos: rumqttc_qos(qos) };
        let mut filters: Vec<_> =
            new.iter().map(|subscription| filter(&subscription.filter, subscription.qos)).collect();
        if first {
            filters.push(filter(&self.shared.config.probe_topic, Qos::AtLeastOnce));
        }
        self.subscriptions.extend(new);
        if filters.is_empty() {
            return;
        }
        let pkid = self.id();
        self.subscribing.insert(pkid, filters.iter().map(|filter| filter.path.clone()).collect());
        self.write(Packet::Subscribe(Subscribe { pkid, filters }));
    }

    fn publish(&mut self, message: Message, acknowledged: Option<oneshot::Sender<()>>) -> u16 {
        let id = self.id();
        let mut publish = Publish::from_bytes(message.topic, QoS::AtLeastOnce, message.payload);
        (publish.retain, publish.pkid) = (message.retain, id);
        self.unacknowledged.insert(id, acknowledged);
        self.write(Packet::Publish(publish));
        id
    }

    /// Moves messages from the queue to where they are written from.
    fn fill(&mut self) {
        if self.phase != Phase::Open {
            if self.shared.queue.is_closing() && matches!(self.phase, Phase::Subscribing | Phase::Probing) {
                self.leave();
            }
            return;
        }
        while self.out.len() < OUT_BYTES_MAX && self.unacknowledged.len() < UNACKNOWLEDGED_MAX {
            let last = match self.unacknowledged.len() < UNACKNOWLEDGED_SEGMENTS_MAX {
                true => Class::Segment,
                false => Class::Message,
            };
            match self.shared.queue.take(last) {
                Some(Queued { message, acknowledged, .. }) => {
                    self.publish(message, acknowledged);
                }
                None if last == Class::Segment && self.shared.queue.is_closing() => return self.leave(),
                None => return,
            }
        }
    }

    /// Says goodbye, then ends the connection.
    fn leave(&mut self) {
        self.waiting_since = Instant::now();
        match self.shared.queue.take_goodbye() {
            Some(goodbye) => {
                self.goodbye_id = Some(self.publish(goodbye, None));
                self.phase = Phase::Closing;
            }
            None => {
                self.phase = Phase::Leaving;
                self.write(Packet::Disconnect);
            }
        }
    }

    fn decode(&mut self, decoder: &mut Decoder, bytes: &mut BytesMut) -> Result<(), String> {
        loop {
            let bytes_max =
                |topic: &str| payload_bytes_max(&self.subscriptions, &self.shared.config.probe_topic, topic);
            match decoder.next(bytes, bytes_max).map_err(|error| error.to_string())? {
                None => return Ok(()),
                Some(Decoded::Packet(packet)) => self.on_packet(packet),
                Some(Decoded::Skipped { topic, payload_bytes, packet_id }) => {
                    let max = bytes_max(&topic);
                    self.memory.report_skipped(&topic, payload_bytes, max);
                    if let Some(id) = packet_id {
                        self.write(Packet::PubAck(PubAck::new(id)));
                    }
                }
            }
        }
    }

    fn on_packet(&mut self, packet: Packet) {
        match packet {
            Packet::Publish(publish) => {
                if publish.qos != QoS::AtMostOnce {
                    self.write(Packet::PubAck(PubAck::new(publish.pkid)));
                }
                self.on_publish(publish);
            }
            Packet::PubAck(acknowledgement) => {
                if let Some(Some(waiting)) = self.unacknowledged.remove(&acknowledgement.pkid) {
                    waiting.send(()).ok(); // who waited may have gone
                }
                if self.goodbye_id.take_if(|id| *id == acknowledgement.pkid).is_some() {
                    self.leave();
                }
            }
            Packet::SubAck(answer) => {
                let filters = self.subscribing.remove(&answer.pkid).unwrap_or_default();
                let refused = |(filter, code)| (code == &SubscribeReasonCode::Failure).then_some(filter);
                let refused: Vec<&String> = filters.iter().zip(&answer.return_codes).filter_map(refused).collect();
                for filter in &refused {
                    warn!(filter, "the broker refuses a subscription; its rules of access do not fit");
                }
                self.probe_refused |= refused.contains(&&self.shared.config.probe_topic);
                if self.phase == Phase::Subscribing && self.subscribing.is_empty() {
                    self.phase = Phase::Probing;
                    let step = match self.memory.packet_size.begin() {
                        Step::Ask(_) if self.probe_refused => self.memory.packet_size.give_up(),
                        step => step,
                    };
                    self.take_step(step);
                }
            }
            _ => {} // pings, and what no broker sends
        }
    }

    fn on_publish(&mut self, publish: Publish) {
        if publish.topic == self.shared.config.probe_topic {
            if self.phase == Phase::Probing {
                let step = self.memory.packet_size.on_message(&publish.payload);
                self.take_step(step);
            }
            return;
        }
        let Publish { topic, payload, retain, .. } = publish;
        let incoming = Incoming { topic, payload, retain, connection: self.connection };
        for subscription in &self.subscriptions {
            if matches(&subscription.filter, &incoming.topic) {
                (subscription.handler)(incoming.clone());
            }
        }
    }

    fn take_step(&mut self, step: Step) {
        match step {
            Step::Wait => {}
            Step::Ask(payloads) => {
                self.waiting_since = Instant::now();
                for payload in payloads {
                    let message = Message { topic: self.shared.config.probe_topic.clone(), payload, retain: false };
                    self.publish(message, None);
                }
            }
            Step::Known(packet_bytes_max) => self.open(packet_bytes_max),
        }
    }

    fn open(&mut self, packet_bytes_max: usize) {
        for message in std::mem::take(&mut self.hello) {
            self.publish(message, None);
        }
        self.phase = Phase::Open;
        self.shared.queue.open(packet_bytes_max);
        let connection = self.connection;
        info!(broker = %self.shared.config.options.broker, packet_bytes_max, "connected to the broker");
        self.shared.state.send_replace(ClientState::Connected { connection, packet_bytes_max });
    }

    /// Looks at the clock: whether the broker is there, and whether it does what it was asked.
    fn on_tick(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let keep_alive = self.shared.config.options.keep_alive;
        let silent = now - self.last_read;
        if let Some(pinged) = self.pinged
            && now - pinged >= keep_alive / 2
        {
            return Err(format!("the broker was silent for {:.1} s", silent.as_secs_f64()));
        }
        let quiet = silent.max(now - self.last_written); // either side may have nothing to say
        if self.pinged.is_none() && quiet >= keep_alive * 3 / 4 {
            self.pinged = Some(now);
            self.write(Packet::PingReq);
        }
        // On a slow link a large probe takes its time, but something moves.
        let waiting = now - self.waiting_since.max(self.last_written).max(self.last_read);
        match self.phase {
            Phase::Subscribing if waiting >= ANSWER_LONGEST => Err("the broker does not answer a subscription".into()),
            Phase::Probing if waiting >= ANSWER_LONGEST => {
                let topic = &self.shared.config.probe_topic;
                warn!(
                    topic,
                    "no message to itself comes back, so packets stay small; --mqtt-packet says what the broker carries"
                );
                let step = self.memory.packet_size.give_up();
                self.take_step(step);
                Ok(())
            }
            Phase::Closing | Phase::Leaving if now - self.waiting_since >= GOODBYE_LONGEST => {
                Err("the broker does not acknowledge the goodbye".into())
            }
            _ => Ok(()),
        }
    }
}

/// Writes some bytes, or flushes where there are none, and returns how many were written. Loses nothing when dropped.
async fn write_or_flush<W: AsyncWrite + Unpin>(writer: &mut W, out: &mut BytesMut) -> io::Result<usize> {
    if out.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write_buf(out).await }
}

/// The most that a topic may carry. What nobody subscribed to carries nothing.
fn payload_bytes_max(subscriptions: &[Arc<Subscription>], probe_topic: &str, topic: &str) -> usize {
    if topic == probe_topic {
        return PACKET_BYTES_MOST;
    }
    let matching = subscriptions.iter().filter(|subscription| matches(&subscription.filter, topic));
    matching.map(|subscription| subscription.payload_bytes_max).max().unwrap_or(0)
}

fn rumqttc_qos(qos: Qos) -> QoS {
    match qos {
        Qos::AtMostOnce => QoS::AtMostOnce,
        Qos::AtLeastOnce => QoS::AtLeastOnce,
    }
}
