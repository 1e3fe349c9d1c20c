//! Timings through a broker that goes away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use omnilearn_mqtt::client::{Client, ClientConfig, Greeting, Message, Qos};
use omnilearn_mqtt::presence::{HubPresence, PresenceState};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::{TimedStep, TimingsBatch, TimingsBuffer, TimingsFormat, TimingsPublisher};

use crate::broker::Mosquitto;
use crate::{agent, options, topics, within};

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_wait_for_a_broker_arrive_later_in_order() {
    for format in [TimingsFormat::Json, TimingsFormat::Postcard] {
        let Some(mut broker) = Mosquitto::start("") else { return };
        let url = broker.url("mqtt", "omnilearn");
        let heard = Arc::new(Mutex::new(Vec::<TimingsBatch>::new()));
        let hearing = Arc::clone(&heard);
        let (url_of_hub, mark) = (url.clone(), SessionMark::new());
        let greet = Arc::new(move |connection| {
            let hub =
                HubPresence { state: PresenceState::Online, session: mark.at(connection), version: "0.1.0".into() };
            let payload = hub.encode().into();
            let hello = vec![Message { topic: topics(&url_of_hub).hub_presence(), payload, retain: true }];
            Greeting { will: None, hello }
        });
        let probe_topic = topics(&url).hub_probe();
        let at_hub =
            Client::start(ClientConfig { options: options(&url), client_id: "hub".into(), probe_topic, greet });
        at_hub.subscribe_large(&topics(&url).all_timings(), Qos::AtLeastOnce, 1 << 20, move |message| {
            hearing.lock().unwrap().push(TimingsBatch::decode("pi-4", &message.payload).unwrap());
        });
        let session = SessionMark::new();
        let at_agent = agent(&url, "pi-4");
        let buffer = Arc::new(Mutex::new(TimingsBuffer::new("pi-4", format, 2000)));
        let publisher =
            TimingsPublisher::start(at_agent.clone(), &topics(&url), buffer, session, Duration::from_millis(20));
        within(10, at_hub.connected()).await;
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
        within(20, publisher.finish(Duration::from_secs(15))).await;
        let last = |heard: &[TimingsBatch]| heard.last().and_then(|batch| batch.steps.last().map(|step| step.seq));
        within(10, async {
            while last(&heard.lock().unwrap()) != Some(4999) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let heard = heard.lock().unwrap();
        let mut seen: Vec<u64> = heard.iter().flat_map(|batch| batch.steps.iter().map(|step| step.seq)).collect();
        let come = seen.len();
        seen.dedup();
        assert!(seen.is_sorted(), "{format}: out of order");
        let lost = heard.last().unwrap().lost;
        assert!(lost >= 1000 && seen.len() as u64 + lost >= 5000, "{format}: {} of {come} and {lost} lost", seen.len());
        assert!(heard.iter().all(|batch| batch.session.process == session.process));
    }
}
