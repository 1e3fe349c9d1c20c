//! An agent with a broker beside its hub, and one that meets its hub there.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use omnilearn_mqtt::client::{Incoming, Message};
use omnilearn_mqtt::command::{Command, CommandReply, CommandRequest};
use omnilearn_mqtt::presence::{AgentPresence, HubPresence, PresenceState, Transport};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::stream::Acceptor;
use omnilearn_mqtt::timings::{TimingsBatch, TimingsReceipt};
use omnilearn_mqtt::topics::Topics;
use omnilearn_wire::handshake::{self, Welcome};
use omnilearn_wire::message::AgentMessage;
use omnilearn_wire::{AgentId, AssignmentId, frame};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message as Frame;

use super::fake::{FakeFactory, Hub, soon, start, train};
use super::mosquitto::{Broker, Observer};
use crate::config::{AgentConfig, HubAddress, MqttConfig, TimingsWay};
use crate::session::RunError;

fn config(hub: &Hub, broker: &Broker, way: TimingsWay) -> AgentConfig {
    let timings_every = Duration::from_millis(50);
    let mqtt = MqttConfig { timings: way, timings_every, ..MqttConfig::new(broker.options()) };
    AgentConfig { mqtt: Some(mqtt), ..hub.config() }
}

/// What a hub says that is there.
fn hub_is_there() -> Vec<Message> {
    let session = SessionMark { process: 9, epoch: 1 };
    let hub = HubPresence { state: PresenceState::Online, session, version: "test".to_owned() };
    let topic = Topics::new("test").hub_presence();
    vec![Message { topic, payload: Bytes::from(hub.encode()), retain: true }]
}

fn presence(incoming: &Incoming) -> Option<AgentPresence> {
    incoming.topic.ends_with("/presence").then(|| AgentPresence::decode("pi", &incoming.payload).unwrap())
}

impl Observer {
    async fn presence(&mut self, wanted: impl Fn(&AgentPresence) -> bool) -> AgentPresence {
        self.next("the agent's presence", |incoming| presence(incoming).filter(&wanted)).await
    }

    async fn online(&mut self) -> AgentPresence {
        self.presence(|presence| presence.state == PresenceState::Online).await
    }

    /// Says, as the hub does, up to where timings have come.
    fn confirm(&self, batch: &TimingsBatch) {
        let next = batch.steps.last().unwrap().seq + 1;
        let payload = TimingsReceipt { process: batch.session.process, next }.encode();
        let topic = self.topics.agent_received("pi");
        // It is sent again where there is no broker at the moment.
        let _ = self.client.publish(Message { topic, payload: Bytes::from(payload), retain: false });
    }

    async fn command(&mut self, id: &str, command: Command) -> CommandReply {
        let payload = CommandRequest { id: id.to_owned(), command }.encode();
        let topic = self.topics.agent_command("pi");
        self.client.publish(Message { topic, payload: Bytes::from(payload), retain: false }).unwrap();
        let reply = |incoming: &Incoming| {
            let reply = incoming.topic.ends_with("/reply").then(|| CommandReply::decode(&incoming.payload).unwrap());
            reply.filter(|reply| reply.id == id)
        };
        self.next("a reply", reply).await
    }
}

#[tokio::test]
async fn commands_are_acknowledged_and_presence_says_what_they_did() {
    let Some(broker) = Broker::start() else { return };
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = start(config(&hub, &broker, TimingsWay::Push), &FakeFactory::new(8));
    let peer = hub.accept_ready().await;
    let mut observer = Observer::new(&broker, Vec::new()).await;
    let online = observer.online().await;
    assert_eq!((online.transport, online.paused, online.session.epoch), (Transport::WebSocket, false, 1));
    let reply = observer.command("1", Command::Identify).await;
    assert!(reply.ok && reply.session == online.session, "{reply:?}");

    let paused = observer.command("2", Command::Pause).await;
    assert_eq!(paused.result, Some(json!({ "paused": true })));
    drop(peer);
    assert_eq!(observer.command("2", Command::Pause).await, paused, "asked again");
    observer.command("3", Command::Resume).await;
    hub.accept_ready().await;

    let reply = observer.command("4", Command::Limits { threads: Some(7), batch_max: None }).await;
    assert!(!reply.ok && reply.error.unwrap().contains("7 threads"));
    agent.stop().await;
    let gone = observer.presence(|presence| presence.state == PresenceState::Offline).await;
    assert_eq!(gone.session, online.session);
}

#[tokio::test]
async fn presence_tells_of_a_pause() {
    let Some(broker) = Broker::start() else { return };
    let hub = Hub::new().await;
    let agent = start(config(&hub, &broker, TimingsWay::Push), &FakeFactory::new(8));
    let mut observer = Observer::new(&broker, Vec::new()).await;
    observer.online().await;
    observer.command("1", Command::Pause).await;
    observer.command("2", Command::Identify).await;
    // Presence and replies come on topics of their own, in any order.
    let mut fresh = Observer::new(&broker, Vec::new()).await;
    fresh.presence(|presence| presence.paused).await;
    agent.stop().await;
}

#[tokio::test]
async fn broker_that_goes_and_comes_back_disturbs_no_session_and_gets_the_timings_in_order() {
    let Some(mut broker) = Broker::start() else { return };
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = start(config(&hub, &broker, TimingsWay::Mqtt), &FakeFactory::new(8));
    let mut peer = hub.accept_ready().await;
    let mut observer = Observer::new(&broker, hub_is_there()).await;
    observer.online().await;
    peer.send_parameters(0, &[1; 8]).await;
    for assignment in 1..=9 {
        match assignment {
            4 => broker.stop(),
            7 => assert!(broker.restart()),
            _ => (),
        }
        peer.send(&train(assignment)).await;
        let (_, report) = peer.push(AssignmentId(assignment)).await;
        assert_eq!(report.timings, None);
    }
    let mut seen = Vec::new();
    while seen.len() < 9 {
        let batch = |incoming: &Incoming| {
            let is_batch = incoming.topic.ends_with("/timings");
            is_batch.then(|| TimingsBatch::decode("pi", &incoming.payload).unwrap())
        };
        let batch = observer.next("timings", batch).await;
        observer.confirm(&batch);
        assert_eq!(batch.lost, 0);
        // What was not confirmed when the broker went comes twice.
        let next = seen.len() as u64;
        seen.extend(batch.steps.into_iter().filter(|step| step.seq >= next));
    }
    assert!(seen.iter().zip(0..).all(|(step, seq)| step.seq == seq && step.assignment == seq + 1), "{seen:?}");
    assert!(seen.iter().all(|step| step.timings().compute_s == 2.0 && step.samples == 16));
    agent.stop().await;
}

#[tokio::test]
async fn clone_of_an_agent_ends_with_an_error_of_its_own() {
    let Some(broker) = Broker::start() else { return };
    let mut config = AgentConfig::new(HubAddress::parse(&broker.url()).unwrap());
    let folder = tempfile::TempDir::new().unwrap();
    (config.name, config.cache) = ("pi".to_owned(), folder.path().to_owned());
    let first = start(config.clone(), &FakeFactory::new(8));
    let mut observer = Observer::new(&broker, Vec::new()).await;
    let online = observer.online().await;
    let error = start(config, &FakeFactory::new(8)).end().await.unwrap_err();
    assert!(matches!(&error, RunError::Taken { .. }) && error.to_string().contains("--name"), "{error}");
    let mut still = Observer::new(&broker, Vec::new()).await;
    assert_eq!(still.online().await.session, online.session, "the first one was not disturbed");
    first.stop().await;
}

#[tokio::test]
async fn hub_is_met_at_a_broker_once_it_is_there() {
    let Some(broker) = Broker::start() else { return };
    let mut config = AgentConfig::new(HubAddress::parse(&broker.url()).unwrap());
    let folder = tempfile::TempDir::new().unwrap();
    (config.name, config.cache) = ("pi".to_owned(), folder.path().to_owned());
    let agent = start(config, &FakeFactory::new(8));
    let mut observer = Observer::new(&broker, Vec::new()).await;
    assert_eq!(observer.online().await.transport, Transport::Mqtt);

    let client = broker.client("hub", hub_is_there());
    let mut acceptor = Acceptor::new(client, observer.topics.clone());
    let stream = soon("a stream", acceptor.accept()).await;
    assert_eq!(stream.peer(), "pi");
    let mut socket = soon("a WebSocket", tokio_tungstenite::accept_async(stream)).await.unwrap();
    let Some(Ok(Frame::Binary(hello))) = soon("a hello", socket.next()).await else { panic!("no hello") };
    assert_eq!(handshake::decode_hello(&hello).unwrap().1.name, "pi");
    let welcome = Welcome { agent: AgentId(1), heartbeat_ms: 1000, hub_version: "test".to_owned() };
    let welcome = handshake::encode_welcome(handshake::PROTOCOL_MAX, &welcome);
    socket.send(Frame::Binary(Bytes::from(welcome))).await.unwrap();
    let mut heard = Vec::new();
    while let Some(Ok(frame)) = soon("the end", socket.next()).await {
        let Frame::Binary(bytes) = frame else { continue };
        match frame::decode::<AgentMessage<'_>>(&bytes).unwrap() {
            AgentMessage::Heartbeat => agent.shutdown.cancel(),
            message => heard.push(format!("{message:?}")),
        }
    }
    assert_eq!(heard, [r#"Leaving { reason: "the agent is shutting down" }"#]);
    agent.end().await.unwrap();
}
