//! Messages that nobody can carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use omnilearn_mqtt::client::{Client, Message, PublishError, Qos};
use omnilearn_mqtt::stream::{Acceptor, Dialer};
use rumqttc::{AsyncClient, Event, MqttOptions, Packet, QoS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::broker::Mosquitto;
use crate::{agent, connected, hub, topics, within};

/// Publishes messages as another program would, and returns when the broker has them.
async fn publish_as_another(port: u16, messages: Vec<(String, usize, bool)>) {
    let mut options = MqttOptions::new("another", "127.0.0.1", port);
    options.set_max_packet_size(64 << 20, 64 << 20);
    let (client, mut eventloop) = AsyncClient::new(options, 100);
    let mut missing = messages.len();
    for (topic, bytes, retain) in messages {
        client.publish(topic, QoS::AtLeastOnce, retain, vec![b'x'; bytes]).await.unwrap();
    }
    while missing > 0 {
        if let Event::Incoming(Packet::PubAck(_)) = eventloop.poll().await.unwrap() {
            missing -= 1;
        }
    }
}

/// Counts what comes on a topic.
fn count(client: &Client, topic: &str) -> Arc<AtomicUsize> {
    let counter = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&counter);
    client.subscribe(topic, Qos::AtLeastOnce, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    counter
}

async fn until(condition: impl Fn() -> bool) {
    within(10, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_too_large_are_skipped_and_the_connection_stays() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let topics = topics(&url);
    let (command, presence, down) =
        (topics.agent_command("pi-4"), topics.agent_presence("pi-4"), topics.agent_down("pi-4"));
    let too_large = (64 << 10) + 1;
    let retained =
        vec![(command.clone(), too_large, true), (presence.clone(), 20 << 20, true), (down.clone(), 2 << 20, true)];
    within(20, publish_as_another(broker.port(), retained)).await;

    let at_agent = agent(&url, "pi-4");
    let (commands, presences) = (count(&at_agent, &command), count(&at_agent, &presence));
    let dialer = Dialer::new(at_agent.clone(), topics.clone(), "pi-4");
    let mut acceptor = Acceptor::new(hub(&url), topics.clone());
    assert!(within(10, at_agent.connected()).await);
    let (at_agent_stream, mut at_hub) = within(10, async { tokio::join!(dialer.dial(), acceptor.accept()) }).await;
    let mut stream = at_agent_stream.unwrap();

    // 2 MiB wait in the broker's queue while work goes on, and what is small comes through.
    let waiting = (0..20)
        .map(|_| (command.clone(), 100 << 10, false))
        .chain([(command.clone(), 100, false), (presence, 100, false)]);
    within(20, publish_as_another(broker.port(), waiting.collect())).await;
    until(|| commands.load(Ordering::SeqCst) == 1 && presences.load(Ordering::SeqCst) == 1).await;
    at_hub.write_all(b"work").await.unwrap();
    let mut work = [0; 4];
    within(5, stream.read_exact(&mut work)).await.unwrap();
    assert_eq!((&work, connected(&at_agent).0), (b"work", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_acknowledged_or_refused() {
    let Some(mut broker) = Mosquitto::start("max_queued_messages 0") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let client = hub(&url);
    let message = |bytes: usize| Message { topic: "omnilearn/x".into(), payload: vec![0; bytes].into(), retain: false };
    assert_eq!(client.publish(message(1)), Err(PublishError::Disconnected));
    assert!(within(10, client.connected()).await);
    let heard = count(&client, "omnilearn/x");
    within(5, client.publish_acknowledged(message(10))).await.unwrap();
    let (_, max) = connected(&client);
    assert!(matches!(client.publish(message(max)), Err(PublishError::TooLarge { .. })));
    // Faster than the broker takes them: refused in the end, never waited for.
    let mut published = 1;
    while published < 100_000 && client.publish(message(1000)).is_ok() {
        published += 1;
    }
    within(10, client.room()).await;
    within(5, client.publish_acknowledged(message(10))).await.unwrap();
    until(|| heard.load(Ordering::SeqCst) > published).await;

    broker.kill();
    let lost = within(5, client.publish_acknowledged(message(10))).await;
    assert_eq!(lost, Err(PublishError::Disconnected));
    broker.resume();
    let mut state = client.state();
    within(10, state.wait_for(|_| client.publish(message(1)).is_ok())).await.unwrap();
    within(5, client.close(None)).await;
    assert_eq!(client.publish(message(1)), Err(PublishError::Disconnected));
    assert!(!client.connected().await);
}
