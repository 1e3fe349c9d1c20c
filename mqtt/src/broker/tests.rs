//! Over real sockets, with packets made by hand and with rumqttc's own client.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rumqttc::mqttbytes::v4::{Connect, ConnectReturnCode, LastWill, Packet, PubRel, Publish, Subscribe};
use rumqttc::mqttbytes::{Protocol, QoS};
use rumqttc::{AsyncClient, Event, MqttOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

async fn broker(config: BrokerConfig) -> Broker {
    Broker::start(TcpListener::bind("127.0.0.1:0").await.unwrap(), config).unwrap()
}

struct Peer {
    stream: TcpStream,
    bytes: BytesMut,
}

impl Peer {
    async fn dial(broker: &Broker) -> Peer {
        Peer { stream: TcpStream::connect(broker.address()).await.unwrap(), bytes: BytesMut::new() }
    }

    async fn connect(broker: &Broker, name: &str) -> Peer {
        Peer::connect_as(broker, Connect::new(name)).await
    }

    async fn connect_as(broker: &Broker, connect: Connect) -> Peer {
        let mut peer = Peer::dial(broker).await;
        peer.send(Packet::Connect(connect)).await;
        let Some(Packet::ConnAck(answer)) = peer.next().await else { panic!("no answer") };
        assert_eq!((answer.code, answer.session_present), (ConnectReturnCode::Success, false));
        peer
    }

    async fn send(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        packet.write(&mut bytes, usize::MAX).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn publish(&mut self, topic: &str, payload: &[u8], qos: QoS, retain: bool) {
        let pkid = u16::from(qos != QoS::AtMostOnce);
        let payload = Bytes::copy_from_slice(payload);
        self.send(Packet::Publish(Publish { dup: false, qos, retain, topic: topic.into(), pkid, payload })).await;
    }

    async fn subscribe(&mut self, filter: &str) {
        self.send(Packet::Subscribe(Subscribe { pkid: 9, ..Subscribe::new(filter, QoS::AtLeastOnce) })).await;
        assert!(matches!(self.next().await, Some(Packet::SubAck(_))));
    }

    /// The next packet; none at the end.
    async fn next(&mut self) -> Option<Packet> {
        loop {
            if let Ok(packet) = Packet::read(&mut self.bytes, usize::MAX) {
                return Some(packet);
            }
            match timeout(PATIENCE, self.stream.read_buf(&mut self.bytes)).await.unwrap() {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The next message: topic, payload, and whether it was kept.
    async fn message(&mut self) -> (String, String, bool) {
        match self.next().await {
            Some(Packet::Publish(publish)) => {
                (publish.topic, String::from_utf8(publish.payload.to_vec()).unwrap(), publish.retain)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn will(name: &str, message: &str) -> Connect {
    let will = LastWill::new(format!("presence/{name}"), message, QoS::AtLeastOnce, true);
    Connect { last_will: Some(will), ..Connect::new(name) }
}

fn said(topic: &str, payload: &str, retain: bool) -> (String, String, bool) {
    (topic.into(), payload.into(), retain)
}

#[tokio::test]
async fn wills_are_those_of_the_connection_that_ended() {
    let broker = broker(BrokerConfig::default()).await;
    let mut hub = Peer::connect(&broker, "hub").await;
    hub.subscribe("presence/+").await;
    let mut first = Peer::connect_as(&broker, will("x", "first")).await;
    let second = Peer::connect_as(&broker, will("x", "second")).await;
    assert_eq!(hub.message().await, said("presence/x", "first", false));
    assert!(first.next().await.is_none(), "the first was closed");
    drop(second);
    assert_eq!(hub.message().await, said("presence/x", "second", false));
    let mut polite = Peer::connect_as(&broker, will("y", "polite")).await;
    polite.send(Packet::Disconnect).await;
    assert!(polite.next().await.is_none());
    let mut silent = Connect { keep_alive: 1, ..will("z", "silent") };
    silent.clean_session = false;
    let _silent = Peer::connect_as(&broker, silent).await;
    assert_eq!(hub.message().await, said("presence/z", "silent", false));
    let mut late = Peer::connect(&broker, "late").await;
    late.subscribe("presence/x").await;
    assert_eq!(late.message().await, said("presence/x", "second", true));
    broker.shutdown().await;
}

#[tokio::test]
async fn who_does_not_log_in_is_told_so() {
    let login: LoginCheck = Arc::new(|user, password| (user, password) == ("pi", "secret"));
    let broker = broker(BrokerConfig { login: Some(login), ..BrokerConfig::default() }).await;
    let with = |user: &str, password: &str| {
        let mut connect = Connect::new("pi");
        connect.set_login(user, password);
        connect
    };
    Peer::connect_as(&broker, with("pi", "secret")).await;
    let newer = Connect { protocol: Protocol::V5, ..with("pi", "secret") };
    for (connect, code) in [
        (Connect::new("pi"), ConnectReturnCode::NotAuthorized),
        (with("pi", "wrong"), ConnectReturnCode::NotAuthorized),
        (newer, ConnectReturnCode::RefusedProtocolVersion),
    ] {
        let mut peer = Peer::dial(&broker).await;
        peer.send(Packet::Connect(connect)).await;
        let Some(Packet::ConnAck(answer)) = peer.next().await else { panic!("no answer") };
        assert_eq!(answer.code, code);
        assert!(peer.next().await.is_none());
    }
}

#[tokio::test]
async fn one_client_that_breaks_the_rules_ends_alone() {
    let broker = broker(BrokerConfig { packet_bytes_max: 1000, ..BrokerConfig::default() }).await;
    let mut witness = Peer::connect(&broker, "witness").await;
    witness.subscribe("#").await;
    let publish = |topic: &str, bytes: usize| Packet::Publish(Publish::new(topic, QoS::AtMostOnce, vec![b'x'; bytes]));
    for packet in [publish("a", 2000), publish("a/#", 1), publish("$SYS/a", 1), publish("", 1), Packet::PingResp] {
        let mut peer = Peer::connect(&broker, "peer").await;
        peer.send(packet).await;
        assert!(peer.next().await.is_none());
    }
    let mut peer = Peer::connect(&broker, "peer").await;
    peer.send(publish("ü/a", 3)).await;
    assert_eq!(witness.message().await, said("ü/a", "xxx", false));
}

#[tokio::test]
async fn bytes_that_are_no_packets_end_a_connection_and_no_more() {
    let broker = broker(BrokerConfig::default()).await;
    let mut connect = BytesMut::new();
    Packet::Connect(Connect::new("peer")).write(&mut connect, usize::MAX).unwrap();
    let mut random = 7u64;
    for round in 0..500 {
        let mut peer = Peer::dial(&broker).await;
        let mut bytes = if round % 2 == 0 { connect.to_vec() } else { Vec::new() };
        for _ in 0..round % 60 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push((random >> 33) as u8 & if round % 3 == 0 { 0x3f } else { 0xff });
        }
        peer.stream.write_all(&bytes).await.ok();
        peer.stream.shutdown().await.ok();
        while peer.next().await.is_some() {}
    }
    Peer::connect(&broker, "peer").await;
}

#[tokio::test]
async fn a_message_of_the_highest_quality_is_delivered_once_though_it_is_sent_twice() {
    let broker = broker(BrokerConfig::default()).await;
    let mut peer = Peer::connect(&broker, "peer").await;
    peer.subscribe("a").await;
    for _ in 0..2 {
        peer.publish("a", b"once", QoS::ExactlyOnce, false).await;
    }
    peer.send(Packet::PubRel(PubRel { pkid: 1 })).await;
    peer.publish("a", b"last", QoS::AtMostOnce, false).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last: &String| last != "message last") {
        seen.push(match peer.next().await.unwrap() {
            Packet::Publish(publish) => format!("message {}", String::from_utf8_lossy(&publish.payload)),
            Packet::PubRec(_) => "received".to_owned(),
            Packet::PubComp(_) => "complete".to_owned(),
            other => panic!("{other:?}"),
        });
    }
    let count = |what: &str| seen.iter().filter(|seen| *seen == what).count();
    assert_eq!((count("received"), count("complete"), count("message once")), (2, 1, 1), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_that_flood_each_other_do_not_wait_for_each_other_for_ever() {
    const MESSAGES: usize = 200;
    let broker = broker(BrokerConfig::default()).await;
    let mut tasks = JoinSet::new();
    let both_listen = Arc::new(tokio::sync::Barrier::new(2));
    for (own, other) in [("a", "b"), ("b", "a")] {
        let mut options = MqttOptions::new(own, "127.0.0.1", broker.address().port());
        options.set_max_packet_size(1 << 20, 1 << 20).set_keep_alive(PATIENCE);
        let (client, mut events) = AsyncClient::new(options, 10);
        client.subscribe(own, QoS::AtLeastOnce).await.unwrap();
        let both_listen = Arc::clone(&both_listen);
        tasks.spawn(async move {
            let (mut received, mut acknowledged) = (0, 0);
            while received < MESSAGES || acknowledged < MESSAGES {
                match timeout(PATIENCE, events.poll()).await.unwrap().unwrap() {
                    Event::Incoming(rumqttc::Packet::SubAck(_)) => {
                        let (client, both_listen) = (client.clone(), Arc::clone(&both_listen));
                        tokio::spawn(async move {
                            both_listen.wait().await;
                            for _ in 0..MESSAGES {
                                client.publish(other, QoS::AtLeastOnce, false, vec![1; 256 << 10]).await.unwrap();
                            }
                        });
                    }
                    Event::Incoming(rumqttc::Packet::Publish(_)) => received += 1,
                    Event::Incoming(rumqttc::Packet::PubAck(_)) => acknowledged += 1,
                    _ => {}
                }
            }
        });
    }
    while let Some(done) = timeout(PATIENCE, tasks.join_next()).await.unwrap() {
        done.unwrap();
    }
}
