//! One client, from its first packet to its end. A reader and a writer that do not wait for each other: two ends that both write and
//! do not read would wait for ever.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rumqttc::mqttbytes::v4::{
    ConnAck, Connect, ConnectReturnCode, LastWill, Packet, PubAck, PubComp, PubRec, Publish, SubAck,
    SubscribeReasonCode, UnsubAck,
};
use rumqttc::mqttbytes::{self, Protocol, QoS};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Shared;
use super::outbox::{Outbox, SharedOutbox};
use super::switchboard::{Connection, Message, Quality, is_topic};

/// Time for a client to say who it is.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Time in which a client that has bytes waiting takes some.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Largest first packet, in bytes: names, a login and a will.
const CONNECT_BYTES_MAX: usize = 64 << 10;

/// Most messages of the highest quality that a client has not released.
const UNRELEASED_MAX: usize = 1_000;

/// Room for what is read at once, first and at least.
const READ_BYTES: usize = 64 << 10;
/// See [`READ_BYTES`].
const READ_BYTES_MIN: usize = 4 << 10;

/// Shorter payloads are copied: a piece of what was read keeps all of that in memory.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// Why a connection ended, for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("it has taken its leave")]
    Goodbye,
    #[error("it has closed the connection")]
    Closed,
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("nothing was heard from it for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("it took no byte for {} s", STALL_MAX.as_secs())]
    Stalled,
    #[error("it sent what is not MQTT 3.1.1")]
    Packet(#[source] mqttbytes::Error),
    #[error("it sent a packet where it may not")]
    OutOfPlace,
    #[error("it published on a topic that is none")]
    Topic,
    #[error("its login is not accepted")]
    Login,
    #[error("{0}")]
    Broker(&'static str),
}

/// Serves a client to its end.
pub(super) async fn serve(shared: &Shared, stream: TcpStream, number: Connection) -> (String, End) {
    let (read, mut write) = tokio::io::split(stream);
    let mut reader = Reader { read, bytes: BytesMut::new(), silence_max: None };
    let connect = match timeout(CONNECT_WAIT, admit(shared, &mut reader, &mut write)).await {
        Ok(Ok(connect)) => connect,
        Ok(Err(end)) => return (String::new(), end),
        Err(_) => return (String::new(), End::Silent(CONNECT_WAIT)),
    };
    let client = match connect.client_id.is_empty() {
        true => format!("unnamed-{number}"),
        false => connect.client_id,
    };
    if connect.keep_alive > 0 {
        reader.silence_max = Some(Duration::from_secs(u64::from(connect.keep_alive)).mul_f64(1.5));
    }
    let outbox = SharedOutbox::default();
    outbox.answer(Packet::ConnAck(ConnAck::new(ConnectReturnCode::Success, false)));
    shared.enter(number, &client, connect.last_will.map(will), SharedOutbox::clone(&outbox));
    let end = tokio::select! {
        Err(end) = receive(shared, &mut reader, &outbox, number) => end,
        Err(end) = send(&outbox, &mut write) => end,
        why = outbox.closed() => End::Broker(why),
    };
    shared.leave(number, !matches!(end, End::Goodbye));
    write.shutdown().await.ok();
    (client, end)
}

fn will(will: LastWill) -> Message {
    Message { topic: will.topic.into(), payload: own(will.message), quality: quality(will.qos), retain: will.retain }
}

fn own(payload: Bytes) -> Bytes {
    if payload.len() < COPIED_BYTES_MAX { Bytes::copy_from_slice(&payload) } else { payload }
}

fn quality(qos: QoS) -> Quality {
    match qos {
        QoS::AtMostOnce => Quality::AtMostOnce,
        QoS::AtLeastOnce | QoS::ExactlyOnce => Quality::AtLeastOnce,
    }
}

struct Reader {
    read: ReadHalf<TcpStream>,
    bytes: BytesMut,
    /// Longest time without a byte.
    silence_max: Option<Duration>,
}

impl Reader {
    async fn packet(&mut self, bytes_max: usize) -> Result<Packet, End> {
        loop {
            match Packet::read(&mut self.bytes, bytes_max) {
                Ok(packet) => return Ok(packet),
                Err(mqttbytes::Error::InsufficientBytes(missing)) => {
                    let room = self.bytes.capacity() - self.bytes.len();
                    if room < missing.max(READ_BYTES_MIN) {
                        self.bytes.reserve(missing.max(READ_BYTES));
                    }
                }
                Err(error) => return Err(End::Packet(error)),
            }
            let read = self.read.read_buf(&mut self.bytes);
            let read_bytes = match self.silence_max {
                Some(longest) => timeout(longest, read).await.map_err(|_| End::Silent(longest))??,
                None => read.await?,
            };
            if read_bytes == 0 {
                return Err(End::Closed);
            }
        }
    }
}

/// Hears who a client is, and refuses with the code that says why.
async fn admit(shared: &Shared, reader: &mut Reader, write: &mut WriteHalf<TcpStream>) -> Result<Connect, End> {
    let (code, end) = match reader.packet(CONNECT_BYTES_MAX).await {
        Ok(Packet::Connect(connect)) => {
            let will_is_wrong = connect.last_will.as_ref().is_some_and(|will| !is_topic(&will.topic));
            match () {
                () if connect.protocol != Protocol::V4 => (ConnectReturnCode::RefusedProtocolVersion, End::OutOfPlace),
                () if !shared.accepts(connect.login.as_ref()) => (ConnectReturnCode::NotAuthorized, End::Login),
                () if will_is_wrong => return Err(End::Topic),
                () => return Ok(connect),
            }
        }
        Ok(_) => return Err(End::OutOfPlace),
        Err(End::Packet(mqttbytes::Error::InvalidProtocolLevel(level))) => {
            let end = End::Packet(mqttbytes::Error::InvalidProtocolLevel(level));
            (ConnectReturnCode::RefusedProtocolVersion, end)
        }
        Err(end) => return Err(end),
    };
    let mut refusal = BytesMut::new();
    Packet::ConnAck(ConnAck::new(code, false)).write(&mut refusal, usize::MAX).map_err(End::Packet)?;
    write.write_all(&refusal).await?;
    write.shutdown().await?;
    Err(end)
}

/// Takes a client's packets until it goes.
async fn receive(
    shared: &Shared,
    reader: &mut Reader,
    outbox: &Outbox,
    number: Connection,
) -> Result<std::convert::Infallible, End> {
    let mut unreleased = HashSet::new();
    loop {
        match reader.packet(shared.packet_bytes_max).await? {
            Packet::Publish(publish) => take(shared, publish, outbox, &mut unreleased)?,
            Packet::PubRel(release) => {
                unreleased.remove(&release.pkid);
                outbox.answer(Packet::PubComp(PubComp { pkid: release.pkid }));
            }
            Packet::PubAck(acknowledgement) => outbox.acknowledged(acknowledgement.pkid),
            Packet::Subscribe(subscribe) => {
                let filters: Vec<(String, Quality)> =
                    subscribe.filters.into_iter().map(|filter| (filter.path, quality(filter.qos))).collect();
                shared.subscribe(number, &filters, |granted| {
                    let code = |quality: Option<Quality>| match quality {
                        Some(Quality::AtMostOnce) => SubscribeReasonCode::Success(QoS::AtMostOnce),
                        Some(Quality::AtLeastOnce) => SubscribeReasonCode::Success(QoS::AtLeastOnce),
                        None => SubscribeReasonCode::Failure,
                    };
                    let return_codes = granted.into_iter().map(code).collect();
                    outbox.answer(Packet::SubAck(SubAck { pkid: subscribe.pkid, return_codes }));
                });
            }
            Packet::Unsubscribe(unsubscribe) => {
                shared.unsubscribe(number, &unsubscribe.topics);
                outbox.answer(Packet::UnsubAck(UnsubAck { pkid: unsubscribe.pkid }));
            }
            Packet::PingReq => outbox.answer(Packet::PingResp),
            Packet::Disconnect => return Err(End::Goodbye),
            _ => return Err(End::OutOfPlace),
        }
    }
}

fn take(shared: &Shared, publish: Publish, outbox: &Outbox, unreleased: &mut HashSet<u16>) -> Result<(), End> {
    let Publish { qos, retain, topic, pkid, payload, .. } = publish;
    if !is_topic(&topic) {
        return Err(End::Topic);
    }
    let repeated = match qos {
        QoS::AtMostOnce | QoS::AtLeastOnce => false,
        QoS::ExactlyOnce if unreleased.len() >= UNRELEASED_MAX => return Err(End::OutOfPlace),
        QoS::ExactlyOnce => !unreleased.insert(pkid),
    };
    if !repeated {
        shared.publish(Message { topic: topic.into(), payload: own(payload), quality: quality(qos), retain });
    }
    match qos {
        QoS::AtMostOnce => {}
        QoS::AtLeastOnce => outbox.answer(Packet::PubAck(PubAck { pkid })),
        QoS::ExactlyOnce => outbox.answer(Packet::PubRec(PubRec { pkid })),
    }
    Ok(())
}

/// Writes what waits for a client until it takes no more.
async fn send(outbox: &Outbox, write: &mut WriteHalf<TcpStream>) -> Result<std::convert::Infallible, End> {
    let mut bytes = BytesMut::new();
    loop {
        outbox.fill(&mut bytes).await;
        while !bytes.is_empty() {
            let written = timeout(STALL_MAX, write.write_buf(&mut bytes)).await.map_err(|_| End::Stalled)??;
            if written == 0 {
                return Err(End::Closed);
            }
        }
    }
}
