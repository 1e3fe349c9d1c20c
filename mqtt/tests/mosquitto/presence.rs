//! Presence that is true whatever brokers do with wills.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use omnilearn_mqtt::client::{Client, ClientConfig, Message, Qos};
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::presence::{AgentPresence, Announcer, HubPresence, PresenceState, Transport};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::TimingsFormat;

use crate::broker::Mosquitto;
use crate::relay::Relay;
use crate::{agent, client, connected, hub, options, topics, within};

fn presence(name: &str) -> AgentPresence {
    AgentPresence {
        state: PresenceState::Online,
        session: SessionMark::new(),
        name: name.into(),
        version: "0.1.0".into(),
        transport: Transport::Mqtt,
        paused: false,
        timings: TimingsFormat::Json,
    }
}

/// An agent that says that it is there.
fn announce(options: Options, url: &str, name: &str) -> (Client, Announcer) {
    let announcer = Announcer::new(topics(url), presence(name));
    let (client_id, probe_topic) = (name.to_owned(), topics(url).agent_probe(name));
    let client = Client::start(ClientConfig { options, client_id, probe_topic, greet: announcer.greet() });
    announcer.watch(&client);
    (client, announcer)
}

/// What a hub believes, and all that it heard.
#[derive(Clone, Default)]
struct Watcher {
    believed: Arc<Mutex<Option<AgentPresence>>>,
    heard: Arc<Mutex<Vec<AgentPresence>>>,
}

impl Watcher {
    fn watch(client: &Client, url: &str) -> Watcher {
        let watcher = Watcher::default();
        let (topics, watching) = (topics(url), watcher.clone());
        client.subscribe(&topics.clone().all_presence(), Qos::AtMostOnce, move |message| {
            let name = topics.agent_of(&message.topic).unwrap();
            let found = AgentPresence::decode(name, &message.payload).unwrap();
            watching.heard.lock().unwrap().push(found.clone());
            let mut believed = watching.believed.lock().unwrap();
            if found.replaces(believed.as_ref()) {
                *believed = Some(found);
            }
        });
        watcher
    }

    fn state(&self) -> Option<PresenceState> {
        self.believed.lock().unwrap().as_ref().map(|presence| presence.state)
    }

    fn heard(&self, state: PresenceState) -> usize {
        self.heard.lock().unwrap().iter().filter(|presence| presence.state == state).count()
    }

    async fn until(&self, condition: impl Fn(&Watcher) -> bool) {
        within(15, async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn presence_comes_with_a_connection_and_goes_with_it() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let watching = hub(&url);
    let watcher = Watcher::watch(&watching, &url);
    let (client, announcer) = announce(options(&url), &url, "pi-4");
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Online)).await;
    announcer.update(|presence| presence.paused = true);
    watcher.until(|watcher| watcher.believed.lock().unwrap().as_ref().unwrap().paused).await;
    within(5, client.close(Some(announcer.goodbye()))).await;
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Offline)).await;

    // One that ends without a word is taken back by its will.
    let (client, announcer) = announce(options(&url), &url, "pi-4");
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Online)).await;
    drop((client, announcer));
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Offline)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_will_that_comes_late_is_not_believed_and_not_left() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let watching = hub(&url);
    let watcher = Watcher::watch(&watching, &url);
    let keep_alive = Duration::from_secs(2);
    let relay = Relay::start(broker.port()).await;
    let (client, _announcer) = announce(Options { keep_alive, ..options(&relay.url("omnilearn")) }, &url, "pi-4");
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Online)).await;

    relay.cut(true);
    tokio::time::sleep(keep_alive.mul_f64(1.4)).await;
    relay.cut(false);
    // By now the broker's patience of 1.5 times the keep-alive is over, and each side may have given up the other.
    tokio::time::sleep(keep_alive * 2).await;
    within(10, client.connected()).await;
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Online)).await;

    // An old will, published at the worst moment: by a client of another name, long after.
    let believed = watcher.believed.lock().unwrap().clone().unwrap();
    let old = SessionMark { epoch: believed.session.epoch.saturating_sub(1), ..believed.session };
    let will = AgentPresence { state: PresenceState::Offline, session: old, ..believed.clone() };
    let online = watcher.heard(PresenceState::Online);
    let topic = topics(&url).agent_presence("pi-4");
    watching.publish(Message { topic, payload: will.encode().into(), retain: true }).unwrap();
    watcher.until(|watcher| watcher.heard(PresenceState::Online) > online).await;
    assert_eq!(watcher.state(), Some(PresenceState::Online));

    // Who comes later finds the agent's answer in the broker's memory and not the will.
    let late = client_of(&url, "late");
    let newcomer = Watcher::watch(&late, &url);
    newcomer.until(|watcher| watcher.state().is_some()).await;
    assert_eq!(newcomer.state(), Some(PresenceState::Online));
}

fn client_of(url: &str, id: &str) -> Client {
    client(options(url), id, format!("{}/{id}", topics(url).hub_probe()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_for_long_is_made_again_and_its_will_forgotten() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let watching = hub(&url);
    let watcher = Watcher::watch(&watching, &url);
    let keep_alive = Duration::from_secs(1);
    let relay = Relay::start(broker.port()).await;
    let (client, _announcer) = announce(Options { keep_alive, ..options(&relay.url("omnilearn")) }, &url, "pi-4");
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Online)).await;
    relay.cut(true);
    // The broker takes the agent for gone, and the agent the broker.
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Offline)).await;
    let mut state = client.state();
    within(10, state.wait_for(|state| !matches!(state, omnilearn_mqtt::client::ClientState::Connected { .. })))
        .await
        .unwrap();
    relay.cut(false);
    watcher.until(|watcher| watcher.state() == Some(PresenceState::Online)).await;
    assert!(connected(&client).0 > 1);
    tokio::time::sleep(keep_alive * 2).await;
    assert_eq!(watcher.state(), Some(PresenceState::Online));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_calls_the_roll_hears_everybody_whatever_the_broker_remembers() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let agents: Vec<_> = (0..5).map(|number| announce(options(&url), &url, &format!("pi-{number}"))).collect();
    for (client, _) in &agents {
        within(10, client.connected()).await;
    }
    let watching = hub(&url);
    let heard = Arc::new(Mutex::new(BTreeSet::new()));
    let hearing = Arc::clone(&heard);
    watching.subscribe(&topics(&url).all_presence(), Qos::AtMostOnce, move |message| {
        if !message.retain {
            hearing.lock().unwrap().insert(message.topic);
        }
    });
    within(10, watching.connected()).await;
    let hub = HubPresence { state: PresenceState::Online, session: SessionMark::new(), version: "0.1.0".into() };
    let topic = topics(&url).hub_presence();
    watching.publish(Message { topic, payload: hub.encode().into(), retain: false }).unwrap();
    within(10, async {
        while heard.lock().unwrap().len() < agents.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_of_the_same_name_is_noticed() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    // Left behind by a run that nobody heard the end of: no reason for alarm.
    let before = agent(&url, "before");
    within(10, before.connected()).await;
    let topic = topics(&url).agent_presence("pi-4");
    let stale = Message { topic: topic.clone(), payload: presence("pi-4").encode().into(), retain: true };
    within(5, before.publish_acknowledged(stale)).await.unwrap();
    let (client, announcer) = announce(options(&url), &url, "pi-4");
    within(10, client.connected()).await;
    assert!(tokio::time::timeout(Duration::from_millis(500), announcer.challenged()).await.is_err());
    // One that speaks while this one is there is.
    let other = presence("pi-4");
    let claim = Message { topic, payload: other.encode().into(), retain: true };
    before.publish(claim).unwrap();
    assert_eq!(within(5, announcer.challenged()).await, other.session.process);
}
