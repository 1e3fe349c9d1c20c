//! Streams over a broker.

use std::time::Duration;

use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::stream::{Acceptor, Dialer, MqttStream};
use omnilearn_wire::sampling::SplitMix64;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::broker::Mosquitto;
use crate::{agent, client, connected, hub, noise, options, topics, within};

/// Writes and reads at once, then ends the stream.
async fn exchange(stream: MqttStream, to_write: Vec<u8>) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        for piece in to_write.chunks(100_000) {
            writer.write_all(piece).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    };
    let read = async {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).await.unwrap();
        bytes
    };
    tokio::join!(write, read).1
}

/// Both ends exchange `len` bytes.
async fn exchange_both_ways(hub: Acceptor, dialer: Dialer, len: usize) {
    let (up, down) = (noise(len, 1), noise(len, 2));
    let expected = (up.clone(), down.clone());
    let mut hub = hub;
    let at_hub = async {
        let stream = hub.accept().await;
        assert_eq!(stream.peer(), "pi-4");
        exchange(stream, down).await
    };
    let at_agent = async { exchange(dialer.dial().await.unwrap(), up).await };
    let found = within(60, async { tokio::join!(at_hub, at_agent) }).await;
    assert!(found == expected, "other bytes arrived: {} and {} of {len}", found.0.len(), found.1.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn megabytes_arrive_as_they_were_sent() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let acceptor = Acceptor::new(hub(&url), topics(&url));
    let dialer = Dialer::new(agent(&url, "pi-4"), topics(&url), "pi-4");
    exchange_both_ways(acceptor, dialer, 5_000_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_outlives_its_broker() {
    let Some(mut broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let mut acceptor = Acceptor::new(hub(&url), topics(&url));
    let dialer = Dialer::new(agent(&url, "pi-4"), topics(&url), "pi-4");
    let (mut at_agent, mut at_hub) =
        within(10, async { tokio::join!(async { dialer.dial().await.unwrap() }, acceptor.accept()) }).await;
    let data = noise(8_000_000, 1);
    let expected = data.clone();
    let write = tokio::spawn(async move {
        at_agent.write_all(&data).await.unwrap();
        at_agent.shutdown().await.unwrap();
        let mut end = Vec::new();
        at_agent.read_to_end(&mut end).await.unwrap();
        end
    });
    let mut read = vec![0; 3_000_000];
    within(20, at_hub.read_exact(&mut read)).await.unwrap();
    for _ in 0..2 {
        broker.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        broker.resume();
        let mut more = vec![0; 1_000_000];
        within(20, at_hub.read_exact(&mut more)).await.unwrap();
        read.extend_from_slice(&more);
    }
    within(20, at_hub.read_to_end(&mut read)).await.unwrap();
    assert!(read == expected, "other bytes arrived, {} of {}", read.len(), expected.len());
    at_hub.write_all(b"done").await.unwrap();
    drop(at_hub); // what was written is delivered nevertheless
    assert_eq!(within(20, write).await.unwrap(), b"done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_takes_128_kib_is_found_out_and_used() {
    // One swallows larger messages and tells nobody, the other ends the connection.
    for lines in ["message_size_limit 131072", "max_packet_size 131072"] {
        let Some(broker) = Mosquitto::start(lines) else { return };
        let url = broker.url("mqtt", "omnilearn");
        for packet_bytes_max in [None, Some(131_072)] {
            let options = Options { packet_bytes_max, ..options(&url) };
            let at_hub = client(options.clone(), "hub", topics(&url).hub_probe());
            let at_agent = client(options, "pi-4", topics(&url).agent_probe("pi-4"));
            assert!(within(10, at_agent.connected()).await && within(10, at_hub.connected()).await);
            assert_eq!(connected(&at_agent).1, 131_072, "{lines}");
            assert_eq!(connected(&at_hub).1, 131_072, "{lines}");
            let acceptor = Acceptor::new(at_hub.clone(), topics(&url));
            let dialer = Dialer::new(at_agent.clone(), topics(&url), "pi-4");
            exchange_both_ways(acceptor, dialer, 2_000_000).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_not_there_is_an_error_and_one_that_is_gone_ends_its_streams() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let dialer = Dialer::new(agent(&url, "pi-4"), topics(&url), "pi-4");
    let error = within(20, dialer.dial()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);

    let first = hub(&url);
    let mut acceptor = Acceptor::new(first.clone(), topics(&url));
    let (at_agent, at_hub) = within(10, async { tokio::join!(dialer.dial(), acceptor.accept()) }).await;
    let (mut at_agent, mut at_hub) = (at_agent.unwrap(), at_hub);
    at_hub.write_all(b"x").await.unwrap();
    assert_eq!(within(5, at_agent.read_u8()).await.unwrap(), b'x');
    // Another hub takes its place and knows nothing of the stream.
    within(5, first.close(None)).await;
    assert!(within(5, at_hub.read_u8()).await.is_err());
    let _other = Acceptor::new(hub(&url), topics(&url));
    at_agent.write_all(b"anybody?").await.unwrap();
    let error = within(10, at_agent.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// Hub and agent of one number begin within 50 ms of each other, in any order. The hub gives work as soon as it can.
async fn race(url: String, number: u64) {
    let mut generator = SplitMix64::new(number);
    let mut delay = || Duration::from_micros(generator.below(50_000));
    let (hub_delay, agent_delay) = (delay(), delay());
    let at_hub = async {
        tokio::time::sleep(hub_delay).await;
        let client = client(options(&url), &format!("hub-{number}"), topics(&url).hub_probe());
        let mut acceptor = Acceptor::new(client.clone(), topics(&url));
        let mut stream = acceptor.accept().await;
        stream.write_u64(number).await.unwrap();
        assert_eq!(stream.read_u64().await.unwrap(), number + 1);
        (client, stream)
    };
    let at_agent = async {
        tokio::time::sleep(agent_delay).await;
        let client = client(options(&url), &format!("pi-{number}"), topics(&url).agent_probe("pi"));
        let dialer = Dialer::new(client.clone(), topics(&url), "pi");
        let mut stream = dialer.dial().await.unwrap();
        assert_eq!(stream.read_u64().await.unwrap(), number);
        stream.write_u64(number + 1).await.unwrap();
        (client, dialer, stream)
    };
    // Nothing is dropped before both are through.
    tokio::join!(at_hub, at_agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_races_of_publishing_and_subscribing_lose_no_assignment() {
    let Some(broker) = Mosquitto::start("max_connections 1000") else { return };
    let mut races = JoinSet::new();
    let mut done = 0;
    for number in 0..1000 {
        // A small fixed packet keeps a thousand probes out of the race.
        races.spawn(race(broker.url("mqtt", &format!("race-{number}")), number));
        if races.len() >= 50 {
            within(30, races.join_next()).await.unwrap().unwrap();
            done += 1;
        }
    }
    while let Some(race) = within(30, races.join_next()).await {
        race.unwrap();
        done += 1;
    }
    assert_eq!(done, 1000);
}
