//! Hub's and agents' ends of a real broker. Skipped where there is none.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod broker;
mod claims;
mod messages;
mod presence;
mod relay;
mod security;
mod streams;
mod timings;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::client::{Client, ClientConfig, ClientState, Greeting};
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::topics::Topics;

fn options(url: &str) -> Options {
    Options::new(BrokerUrl::parse(url).unwrap())
}

fn topics(url: &str) -> Topics {
    Topics::new(BrokerUrl::parse(url).unwrap().prefix())
}

/// A client that says nothing about itself.
fn client(options: Options, id: &str, probe_topic: String) -> Client {
    let greet = Arc::new(|_| Greeting::default());
    Client::start(ClientConfig { options, client_id: id.to_owned(), probe_topic, greet })
}

fn hub(url: &str) -> Client {
    client(options(url), "hub", topics(url).hub_probe())
}

fn agent(url: &str, name: &str) -> Client {
    client(options(url), name, topics(url).agent_probe(name))
}

/// The count of connections and the packet limit of a client that is connected.
fn connected(client: &Client) -> (u64, usize) {
    match *client.state().borrow() {
        ClientState::Connected { connection, packet_bytes_max } => (connection, packet_bytes_max),
        ref other => panic!("{other:?}"),
    }
}

/// What takes longer hangs.
async fn within<T>(seconds: u64, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), what).await.expect("it takes too long")
}

/// Bytes that are told from others.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut generator = omnilearn_wire::sampling::SplitMix64::new(seed);
    (0..len).map(|_| generator.next_u64() as u8).collect()
}
