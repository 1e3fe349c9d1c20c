//! Many agents on a broker that drops what it cares to drop.

use std::time::{Duration, Instant};

use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::client::{Client, ClientConfig};
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::presence::{AgentPresence, Announcer, PresenceState, Transport};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::TimingsFormat;
use omnilearn_mqtt::topics::Topics;
use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::mosquitto::Mosquitto;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const AGENTS: u64 = 2_000;

/// What a real agent does to be seen, and nothing else.
fn simulated(broker: &BrokerUrl, topics: &Topics, number: u64) -> (Client, Announcer) {
    let name = format!("simulated-{number}");
    let presence = AgentPresence {
        state: PresenceState::Online,
        session: SessionMark { process: number + 1, epoch: 0 },
        name: name.clone(),
        version: "0.1.0".to_owned(),
        transport: Transport::Mqtt,
        paused: false,
        timings: TimingsFormat::Json,
    };
    let announcer = Announcer::new(topics.clone(), presence);
    let mut options = Options::new(broker.clone());
    options.packet_bytes_max = Some(64 << 10);
    let probe_topic = topics.agent_probe(&name);
    let client = Client::start(ClientConfig { options, client_id: name, probe_topic, greet: announcer.greet() });
    announcer.watch(&client);
    (client, announcer)
}

fn online(cluster: &Cluster) -> usize {
    let agents = cluster.client.agents().unwrap();
    agents.iter().filter(|agent| agent.presence.as_ref().is_some_and(|presence| presence.state == "online")).count()
}

fn wait_for_all(cluster: &Cluster, patience: Duration) -> Duration {
    let start = Instant::now();
    loop {
        let known = online(cluster);
        if known as u64 >= AGENTS {
            return start.elapsed();
        }
        assert!(start.elapsed() < patience, "{known} of {AGENTS} agents after {patience:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_restarted_hub_knows_two_thousand_agents_within_30_s_on_mosquittos_defaults() {
    let files = getrlimit(Resource::Nofile);
    if files.maximum.is_some_and(|most| most < 2 * AGENTS) {
        println!("skipped: {AGENTS} connections need more open files than are allowed here");
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum.or(Some(3 * AGENTS)), ..files }).unwrap();
    let Some(mosquitto) = Mosquitto::start("").unwrap() else { return };
    let url = mosquitto.url();
    let mut cluster = Cluster::start_with(&["--mqtt", &url]).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (broker, topics) = (BrokerUrl::parse(&url).unwrap(), Topics::new("omnilearn"));
    let clients: Vec<(Client, Announcer)> = runtime.block_on(async {
        let mut clients = Vec::new();
        for number in 0..AGENTS {
            clients.push(simulated(&broker, &topics, number));
            if number % 50 == 49 {
                tokio::time::sleep(Duration::from_millis(20)).await; // the queue of connections to be accepted is short
            }
        }
        clients
    });
    let first = wait_for_all(&cluster, Duration::from_secs(90));
    cluster.restart_hub(&["--mqtt", &url]).unwrap();
    let again = wait_for_all(&cluster, Duration::from_secs(30));
    println!("{AGENTS} agents known {first:.1?} after the last one started, and {again:.1?} after the hub was back");
    drop(clients);
}
