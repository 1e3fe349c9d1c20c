//! Timings through brokers and hubs that go away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use omnilearn_mqtt::client::{Client, ClientConfig, Greeting, Message, Qos};
use omnilearn_mqtt::presence::{HubPresence, PresenceState};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::{
    TimedStep, TimingsBatch, TimingsBuffer, TimingsFormat, TimingsPublisher, TimingsReceipt,
};

use crate::broker::Mosquitto;
use crate::relay::Relay;
use crate::{agent, options, topics, within};

/// What a hub has taken of one process's steps.
#[derive(Default)]
struct Taken {
    next: u64,
    /// Numbers of the steps, in the order in which they were taken.
    steps: Vec<u64>,
    duplicates: usize,
    lost: u64,
}

/// A hub that takes each step once and says so.
struct Hub {
    client: Client,
    taken: Arc<Mutex<Taken>>,
}

impl Hub {
    fn start(url: &str, session: SessionMark) -> Hub {
        let (topics, mark) = (topics(url), SessionMark::new());
        let presence_topic = topics.hub_presence();
        let greet = Arc::new(move |connection| {
            let hub =
                HubPresence { state: PresenceState::Online, session: mark.at(connection), version: "0.1.0".into() };
            let hello = vec![Message { topic: presence_topic.clone(), payload: hub.encode().into(), retain: true }];
            Greeting { will: None, hello }
        });
        let (options, client_id, probe_topic) = (options(url), format!("hub.{mark}"), topics.hub_probe());
        let client = Client::start(ClientConfig { options, client_id, probe_topic, greet });
        let taken = Arc::new(Mutex::new(Taken::default()));
        let (answering, taking) = (client.clone(), Arc::clone(&taken));
        client.subscribe_large(&topics.all_timings(), Qos::AtLeastOnce, 1 << 20, move |message| {
            let batch = TimingsBatch::decode("pi-4", &message.payload).unwrap();
            assert_eq!(batch.session.process, session.process);
            let mut taken = taking.lock().unwrap();
            for step in batch.steps {
                if step.seq < taken.next {
                    taken.duplicates += 1;
                } else {
                    taken.steps.push(step.seq);
                    taken.next = step.seq + 1;
                }
            }
            taken.lost = taken.lost.max(batch.lost);
            let receipt = TimingsReceipt { process: session.process, next: taken.next };
            let topic = topics.agent_received("pi-4");
            answering.publish(Message { topic, payload: receipt.encode().into(), retain: false }).ok();
        });
        Hub { client, taken }
    }
}

fn buffer(format: TimingsFormat) -> Arc<Mutex<TimingsBuffer>> {
    Arc::new(Mutex::new(TimingsBuffer::new("pi-4", format, 2000)))
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_wait_for_a_broker_arrive_later_in_order() {
    for format in [TimingsFormat::Json, TimingsFormat::Postcard] {
        let Some(mut broker) = Mosquitto::start("") else { return };
        let url = broker.url("mqtt", "omnilearn");
        let session = SessionMark::new();
        let hub = Hub::start(&url, session);
        let at_agent = agent(&url, "pi-4");
        let every = Duration::from_millis(20);
        let publisher = TimingsPublisher::start(at_agent.clone(), &topics(&url), buffer(format), session, every);
        within(10, hub.client.connected()).await;
        for number in 0..5000u64 {
            if number == 1000 {
                broker.kill();
            }
            if number == 4500 {
                broker.resume();
                // Whoever of the two is back first.
                within(20, at_agent.connected()).await;
            }
            assert_eq!(publisher.push(TimedStep { job: number, ..TimedStep::default() }), number);
            if number % 100 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // Nothing is left to send only when the hub has said that it has everything.
        within(20, publisher.finish(Duration::from_secs(15))).await;
        let taken = hub.taken.lock().unwrap();
        assert_eq!(taken.next, 5000, "{format}");
        assert!(taken.lost >= 1000 && taken.steps.len() as u64 + taken.lost >= 5000, "{format}: {} lost", taken.lost);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_had_accepted_and_takes_along_is_sent_again() {
    let Some(mut broker) = Mosquitto::start("") else { return };
    let (url, relay) = (broker.url("mqtt", "omnilearn"), Relay::start(broker.port()).await);
    let session = SessionMark::new();
    let hub = Hub::start(&relay.url("omnilearn"), session);
    // Somebody who reads along tells when the broker has a batch.
    let (sender, mut accepted) = tokio::sync::mpsc::channel(1000);
    let onlooker = agent(&url, "onlooker");
    onlooker.subscribe_large(&topics(&url).all_timings(), Qos::AtLeastOnce, 1 << 20, move |message| {
        sender.try_send(message).ok();
    });
    within(10, async { tokio::join!(hub.client.connected(), onlooker.connected()) }).await;
    let at_agent = agent(&url, "pi-4");
    let every = Duration::from_millis(5);
    let publisher = TimingsPublisher::start(at_agent, &topics(&url), buffer(TimingsFormat::Postcard), session, every);
    let push = |count: usize| {
        for _ in 0..count {
            publisher.push(TimedStep::default());
        }
    };
    let confirmed = || async {
        while publisher.waiting_and_lost().0 > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    push(100);
    within(10, confirmed()).await;
    while accepted.try_recv().is_ok() {}
    relay.cut(true); // the hub hears nothing
    push(100);
    within(10, accepted.recv()).await.unwrap();
    assert!(publisher.waiting_and_lost().0 > 0, "confirmed by nobody");
    broker.kill();
    relay.sever().await;
    assert_eq!(hub.taken.lock().unwrap().next, 100);
    push(100);
    broker.resume();
    relay.cut(false);
    within(30, confirmed()).await;
    let taken = hub.taken.lock().unwrap();
    assert_eq!(taken.steps, (0..300).collect::<Vec<u64>>());
    assert_eq!((taken.lost, publisher.waiting_and_lost().1), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hub_had_taken_and_not_confirmed_goes_to_the_next() {
    let Some(broker) = Mosquitto::start("") else { return };
    let url = broker.url("mqtt", "omnilearn");
    let session = SessionMark::new();
    // A hub that ends before it says anything: it is online, and confirms nothing.
    let presence = HubPresence { state: PresenceState::Online, session: SessionMark::new(), version: "0.1.0".into() };
    let silent = agent(&url, "hub");
    within(10, silent.connected()).await;
    let message = |presence: &HubPresence| Message {
        topic: topics(&url).hub_presence(),
        payload: presence.encode().into(),
        retain: true,
    };
    silent.publish_acknowledged(message(&presence)).await.unwrap();
    let (sender, mut accepted) = tokio::sync::mpsc::channel(1000);
    silent.subscribe(&topics(&url).all_timings(), Qos::AtLeastOnce, move |message| {
        sender.try_send(message).ok();
    });
    let every = Duration::from_millis(5);
    let at_agent = agent(&url, "pi-4");
    let publisher = TimingsPublisher::start(at_agent, &topics(&url), buffer(TimingsFormat::Json), session, every);
    publisher.push(TimedStep::default());
    for _ in 0..2 {
        within(10, accepted.recv()).await.unwrap(); // and again after 5 s
    }
    let gone = HubPresence { state: PresenceState::Offline, ..presence };
    silent.publish_acknowledged(message(&gone)).await.unwrap();
    let hub = Hub::start(&url, session);
    within(10, publisher.finish(Duration::from_secs(9))).await;
    assert_eq!(hub.taken.lock().unwrap().steps, [0]);
}
