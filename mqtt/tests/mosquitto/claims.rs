//! Two agents of one name.

use std::sync::Arc;
use std::time::Duration;

use omnilearn_mqtt::claim::{ClaimError, claim};
use omnilearn_mqtt::client::{Client, ClientConfig, Greeting, Message, Qos};
use omnilearn_mqtt::command::{Command, CommandReply, CommandRequest};
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::presence::{AgentPresence, Announcer, PresenceState, Transport};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::TimingsFormat;

use crate::broker::Mosquitto;
use crate::relay::Relay;
use crate::{options, topics, within};

fn presence(session: SessionMark) -> AgentPresence {
    AgentPresence {
        state: PresenceState::Online,
        session,
        name: "pi-4".into(),
        version: "0.1.0".into(),
        transport: Transport::Mqtt,
        paused: false,
        timings: TimingsFormat::Json,
    }
}

/// An agent as far as names go: it claims its name, says that it is there, and answers who asks.
async fn run(url: &str, process: u64) -> Result<(Client, Announcer), ClaimError> {
    run_over(options(url), url, process).await
}

async fn run_over(way: Options, url: &str, process: u64) -> Result<(Client, Announcer), ClaimError> {
    let epoch = claim(&way, &topics(url), "pi-4", process).await?;
    let session = SessionMark { process, epoch };
    let announcer = Announcer::new(topics(url), presence(session));
    let probe_topic = topics(url).agent_probe("pi-4");
    let config =
        ClientConfig { options: options(url), client_id: "pi-4".into(), probe_topic, greet: announcer.greet() };
    let client = Client::start(config);
    announcer.watch(&client);
    let (sender, mut replies) = tokio::sync::mpsc::channel::<CommandReply>(16);
    client.subscribe(&topics(url).agent_command("pi-4"), Qos::AtLeastOnce, move |message| {
        if let Ok(CommandRequest { id, command: Command::Identify }) = CommandRequest::decode(&message.payload) {
            sender.try_send(CommandReply::done(&id, session, serde_json::Value::Null)).unwrap();
        }
    });
    let (answering, topic) = (client.clone(), topics(url).agent_reply("pi-4"));
    tokio::spawn(async move {
        while let Some(reply) = replies.recv().await {
            // Whoever asked asks again if the connection is lost just now.
            answering.publish(Message { topic: topic.clone(), payload: reply.encode().into(), retain: false }).ok();
        }
    });
    within(10, client.connected()).await;
    Ok((client, announcer))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_of_a_running_agent_is_refused_and_the_agent_stays() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let (client, _announcer) = within(10, run(&url, 7)).await.unwrap();
    let error = within(10, run(&url, 3)).await.unwrap_err();
    assert_eq!(error, ClaimError::Taken { name: "pi-4".into(), process: 7 });
    assert!(error.to_string().contains("--name"), "{error}");
    assert_eq!(crate::connected(&client).0, 1, "the connection was not taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_clones_that_begin_at_once_one_goes_on() {
    let Some(broker) = Mosquitto::start("") else { return };
    for apart_ms in [0, 100, 500, 900, 1000, 1100] {
        let url = broker.url("mqtt", &format!("apart-{apart_ms}"));
        for (first, second) in [(1, 2), (2, 1)] {
            let url = format!("{url}/{first}");
            let later = async {
                tokio::time::sleep(Duration::from_millis(apart_ms)).await;
                run(&url, second).await
            };
            let (first, second) = within(20, async { tokio::join!(run(&url, first), later) }).await;
            assert_eq!(u32::from(first.is_ok()) + u32::from(second.is_ok()), 1, "{apart_ms} ms apart");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_nobody_answers_to_is_free_and_its_epochs_are_counted_on() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let topics = topics(&url);
    let greet = Arc::new(|_| Greeting::default());
    let probe_topic = topics.agent_probe("pi-4");
    let left_behind = Client::start(ClientConfig { options: options(&url), client_id: "x".into(), probe_topic, greet });
    within(10, left_behind.connected()).await;
    let stale = presence(SessionMark { process: 9, epoch: 41 });
    let message = Message { topic: topics.agent_presence("pi-4"), payload: stale.encode().into(), retain: true };
    within(5, left_behind.publish_acknowledged(message)).await.unwrap();
    assert_eq!(within(10, claim(&options(&url), &topics, "pi-4", 1)).await, Ok(41));
    let (_client, announcer) = within(10, run(&url, 1)).await.unwrap();
    assert_eq!(announcer.presence().session, SessionMark { process: 1, epoch: 42 });
}

/// An agent that lets [`claim`] decide whenever another says that it is the same. Ends when it has to go.
async fn live(way: Options, url: String, process: u64) -> ClaimError {
    loop {
        match run_over(way.clone(), &url, process).await {
            Ok((client, announcer)) => {
                announcer.challenged().await;
                client.close(None).await;
            }
            Err(error) => return error,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_agent_that_was_cut_off_and_one_that_took_its_place_one_goes() {
    let Some(broker) = Mosquitto::start("") else { return };
    for (first, second) in [(1, 2), (2, 1)] {
        let url = broker.url("mqtt", &format!("first-{first}"));
        let relay = Relay::start(broker.port()).await;
        let way = Options { keep_alive: Duration::from_secs(1), ..options(&relay.url(&format!("first-{first}"))) };
        let mut cut_off = tokio::spawn(live(way, url.clone(), first));
        tokio::time::sleep(Duration::from_millis(1500)).await;
        relay.cut(true);
        tokio::time::sleep(Duration::from_secs(4)).await; // the broker has given it up, so its name is free
        let mut in_its_place = tokio::spawn(live(options(&url), url.clone(), second));
        tokio::time::sleep(Duration::from_millis(1500)).await;
        relay.cut(false);
        let gone = within(20, async {
            tokio::select! {
                gone = &mut cut_off => gone,
                gone = &mut in_its_place => gone,
            }
        });
        assert!(matches!(gone.await.unwrap(), ClaimError::Taken { .. }));
        // The other stays.
        let stays = async {
            tokio::select! {
                gone = &mut cut_off, if !cut_off.is_finished() => gone,
                gone = &mut in_its_place, if !in_its_place.is_finished() => gone,
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(5), stays).await.is_err(), "both are gone");
        cut_off.abort();
        in_its_place.abort();
    }
}
