//! The hub's end of streams.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::MqttStream;
use super::link::Link;
use super::registry::Registry;
use super::segment::{Kind, Segment};
use crate::client::{Client, Incoming, Qos, WeakClient};
use crate::options::PACKET_BYTES_MOST;
use crate::topics::Topics;

/// Streams that wait to be accepted. When full, further ones are not begun, and their agents ask again.
const WAITING_MAX: usize = 256;

/// Streams of one agent that are not over: the present one, and those that it has not yet noticed to be lost. With more, the
/// others are ended.
const AGENT_STREAMS_MAX: usize = 4;

/// Streams of all agents together; beyond, none is begun.
const STREAMS_MAX: usize = 65_536;

/// Takes streams of agents.
pub struct Acceptor {
    accepted: mpsc::Receiver<MqttStream>,
    /// Streams hold the client, too; this keeps it while there is none.
    _client: Client,
}

impl Acceptor {
    /// An acceptor; subscribes to what comes from agents.
    pub fn new(client: Client, topics: Topics) -> Acceptor {
        let (sender, accepted) = mpsc::channel(WAITING_MAX);
        let all_up = topics.all_up();
        let entrance = Entrance { registry: Arc::new(Registry::default()), client: client.downgrade(), topics, sender };
        let on_message = move |message: Incoming| entrance.on_message(&message);
        client.subscribe_large(&all_up, Qos::AtLeastOnce, PACKET_BYTES_MOST, on_message);
        Acceptor { accepted, _client: client }
    }

    /// The next stream that an agent opens.
    pub async fn accept(&mut self) -> MqttStream {
        match self.accepted.recv().await {
            Some(stream) => stream,
            None => std::future::pending().await, // the client was closed, so nobody comes
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Acceptor")
    }
}

struct Entrance {
    registry: Arc<Registry>,
    client: WeakClient,
    topics: Topics,
    sender: mpsc::Sender<MqttStream>,
}

impl Entrance {
    fn on_message(&self, message: &Incoming) {
        let Some(agent) = self.topics.agent_of(&message.topic).filter(|_| !message.retain) else { return };
        let segment = match Segment::decode(&message.payload) {
            Ok(segment) => segment,
            Err(reason) => return debug!(agent, %reason, "not a segment"),
        };
        let key = (agent.to_owned(), segment.connection);
        match (self.registry.get(&key), segment.kind) {
            (Some(stream), _) => stream.on_segment(&segment),
            (None, Kind::Open) => self.open(agent, &segment),
            (None, Kind::Reset) => {}
            (None, _) => {
                if let Some(client) = self.client.upgrade() {
                    let reset = Segment::bare(Kind::Reset, segment.connection).encode();
                    client.publish_segment(&self.topics.agent_down(agent), reset).ok(); // it is asked again if this is lost
                }
            }
        }
    }

    fn open(&self, agent: &str, open: &Segment) {
        let (Some(client), Ok(permit)) = (self.client.upgrade(), self.sender.try_reserve()) else { return };
        if self.registry.len() >= STREAMS_MAX {
            return warn!(agent, streams = STREAMS_MAX, "too many streams, a new one is not begun");
        }
        let others = self.registry.of_agent(agent);
        if others.len() >= AGENT_STREAMS_MAX {
            warn!(agent, streams = others.len(), "an agent opens many streams, its older ones are ended");
            others.iter().for_each(|stream| stream.abandon());
        }
        let link = Link::accept(open, Instant::now());
        let key = (agent.to_owned(), open.connection);
        permit.send(self.registry.begin(key, self.topics.agent_down(agent), client, link));
    }
}
