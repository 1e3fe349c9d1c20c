//! What agents do at the broker, with each kind of broker.

use futures_util::StreamExt;
use omnilearn_mqtt::client::Message;
use omnilearn_mqtt::command::Command;
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::{TimedStep, TimingsBatch, TimingsFormat};

use crate::broker::{Mosquitto, free_port};
use crate::harness::{Agent, Hub, PATIENCE, existing, options, own, presence_of, welcome};

async fn presence_commands_and_timings(hub: &Hub, port: u16) {
    let agent = Agent::start("pi", options(port)).await;
    let view = hub.agent_when("pi", |view| presence_of(view) == "online").await;
    assert_eq!((view.id, view.transport.as_deref(), view.address), (0, Some("mqtt"), None));

    let done = hub.command("pi", Command::Pause).await.unwrap();
    assert_eq!(done, serde_json::json!({ "paused": true }));
    hub.agent_when("pi", |view| view.presence.as_ref().is_some_and(|presence| presence.paused)).await;
    let refused = hub.command("pi", Command::Limits { threads: Some(2), batch_max: None }).await.unwrap_err();
    assert_eq!(refused, "422 agent `pi`: not in this test");
    assert_eq!(agent.commands.lock().unwrap().len(), 2);
    let unknown = hub.command("nano", Command::Pause).await.unwrap_err();
    assert!(unknown.starts_with("404 there is no agent `nano`"), "{unknown}");

    let step = |seq| TimedStep { seq, job: 1, assignment: seq, samples: 8, ..TimedStep::default() };
    for (first, last) in [(0, 3), (0, 3), (5, 6)] {
        let batch = TimingsBatch {
            agent: "pi".into(),
            session: agent.mark,
            first,
            lost: 0,
            steps: (first..last).map(step).collect(),
        };
        let payload = batch.encode(TimingsFormat::Postcard).into();
        let topic = agent.topics.agent_timings("pi");
        agent.client.publish_acknowledged(Message { topic, payload, retain: false }).await.unwrap();
    }
    let view = hub.agent_when("pi", |view| view.timings.is_some_and(|timings| timings.received == 4)).await;
    let timings = view.timings.unwrap();
    assert_eq!((timings.duplicates, timings.lost), (3, 2));

    // What is no payload is counted and passed over.
    let nonsense = |topic: String| Message { topic, payload: vec![0xff; 300].into(), retain: false };
    for topic in [agent.topics.agent_timings("pi"), agent.topics.agent_reply("pi"), agent.topics.agent_presence("x")] {
        agent.client.publish_acknowledged(nonsense(topic)).await.unwrap();
    }
    agent.leave().await;
    hub.agent_when("pi", |view| presence_of(view) == "offline").await;
    let offline = hub.command("pi", Command::Pause).await.unwrap_err();
    assert_eq!(offline, "409 agent `pi` is offline");
    let health = hub.call(|client| client.health()).await.unwrap();
    assert_eq!(health.counters["mqtt_payloads_refused"], 3);
}

async fn handshake_over_the_broker(hub: &Hub, port: u16) {
    let agent = Agent::start("xavier", options(port)).await;
    let (_socket, answer) = agent.dial("another", None).await;
    let refusal = welcome(&answer).unwrap_err();
    assert!(refusal.contains("the hello is of `another`, and came on the topics of agent `xavier`"), "{refusal}");

    let (mut socket, answer) = agent.dial("xavier", None).await;
    assert_eq!(welcome(&answer).unwrap().heartbeat_ms, 5_000);
    let view = hub.agent_when("xavier", |view| view.connected).await;
    assert_eq!((view.address.as_deref(), view.transport.as_deref()), (Some("mqtt agents/xavier"), Some("mqtt")));
    assert!(view.received_bytes > 0 && view.sent_bytes > 0);
    socket.close(None).await.unwrap();
    while tokio::time::timeout(PATIENCE, socket.next()).await.unwrap().is_some() {}
    hub.agent_when("xavier", |view| !view.connected && presence_of(view) == "online").await;
    agent.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_seen_commanded_and_served_over_the_hubs_own_broker() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let hub = Hub::start(folder.path(), own(port, None), None).await;
    presence_commands_and_timings(&hub, port).await;
    handshake_over_the_broker(&hub, port).await;
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_seen_commanded_and_served_over_mosquitto() {
    let Some(broker) = Mosquitto::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), existing(broker.port()), None).await;
    presence_commands_and_timings(&hub, broker.port()).await;
    handshake_over_the_broker(&hub, broker.port()).await;
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_hub_on_the_same_topics_is_refused_and_a_successor_is_not() {
    let Some(broker) = Mosquitto::start() else { return };
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hub = Hub::start(folder.path(), existing(broker.port()), None).await;
    hub.connected_to_broker(true).await;
    let second = Hub::start(other.path(), existing(broker.port()), None).await;
    let error = second.task.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("another hub") && error.contains("a prefix of its own"), "{error}");
    hub.connected_to_broker(true).await;

    hub.task.abort(); // says no goodbye
    let successor = Hub::start(other.path(), existing(broker.port()), None).await;
    successor.connected_to_broker(true).await;
    successor.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_there_before_the_hub_or_while_the_broker_was_away_is_seen() {
    let Some(mut broker) = Mosquitto::start() else { return };
    let (folder, port) = (tempfile::tempdir().unwrap(), broker.port());
    let agent = Agent::start("pi", options(port)).await;
    // A broker that has lost what it kept, or has a late will: the roll call corrects it.
    let late = SessionMark { process: agent.mark.process, epoch: 0 };
    let late = format!(
        r#"{{"state":"offline","session":{},"name":"pi","version":"","transport":"mqtt","paused":false,"timings":"json"}}"#,
        serde_json::to_string(&late).unwrap()
    );
    let topic = agent.topics.agent_presence("pi");
    agent.client.publish_acknowledged(Message { topic, payload: late.into(), retain: true }).await.unwrap();
    let hub = Hub::start(folder.path(), existing(port), None).await;
    hub.agent_when("pi", |view| presence_of(view) == "online").await;

    broker.stop();
    hub.connected_to_broker(false).await;
    hub.agent_when("pi", |view| presence_of(view) == "unknown").await;
    let away = hub.command("pi", Command::Pause).await.unwrap_err();
    assert!(away.starts_with("503 the hub is not connected"), "{away}");
    broker.restart();
    hub.agent_when("pi", |view| presence_of(view) == "online").await;
    hub.command("pi", Command::Pause).await.unwrap();
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_begins_without_its_broker_and_finds_it_later() {
    let Some(mut broker) = Mosquitto::start() else { return };
    broker.stop();
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), existing(broker.port()), None).await;
    hub.connected_to_broker(false).await;
    broker.restart();
    hub.connected_to_broker(true).await;
    hub.stop().await;
}
