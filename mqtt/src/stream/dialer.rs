//! The agent's end of streams.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tracing::debug;

use super::link::Link;
use super::registry::Registry;
use super::segment::{Kind, Segment};
use super::{MqttStream, error};
use crate::client::{Client, Incoming, Qos};
use crate::options::PACKET_BYTES_MOST;
use crate::random::random;
use crate::topics::Topics;

/// How long a hub may take to answer.
const DIAL_LONGEST: Duration = Duration::from_secs(10);

/// Opens streams from an agent to the hub.
pub struct Dialer {
    client: Client,
    topics: Topics,
    agent: String,
    registry: Arc<Registry>,
}

impl Dialer {
    /// A dialer of the agent `agent`; subscribes to what comes for it.
    pub fn new(client: Client, topics: Topics, agent: &str) -> Dialer {
        let registry = Arc::new(Registry::default());
        let (weak, streams, name, up) =
            (client.downgrade(), Arc::clone(&registry), agent.to_owned(), topics.agent_up(agent));
        let on_message = move |message: Incoming| {
            let segment = match Segment::decode(&message.payload) {
                Ok(segment) if !message.retain => segment,
                Ok(_) => return,
                Err(reason) => return debug!(topic = message.topic, %reason, "not a segment"),
            };
            match streams.get(&(name.clone(), segment.connection)) {
                Some(stream) => stream.on_segment(&segment),
                None if segment.kind == Kind::Reset => {}
                None => {
                    if let Some(client) = weak.upgrade() {
                        let reset = Segment::bare(Kind::Reset, segment.connection).encode();
                        client.publish_segment(&up, reset).ok(); // it is asked again if this is lost
                    }
                }
            }
        };
        let down = topics.agent_down(agent);
        client.subscribe_large(&down, Qos::AtLeastOnce, PACKET_BYTES_MOST, on_message);
        Dialer { client, topics, agent: agent.to_owned(), registry }
    }

    /// Opens a stream. Asks again until a hub answers, for at most 10 s.
    ///
    /// # Errors
    /// `TimedOut` if no hub answers.
    pub async fn dial(&self) -> io::Result<MqttStream> {
        let number = random();
        let link = Link::dial(number, Instant::now());
        let key = (self.agent.clone(), number);
        let stream = self.registry.begin(key, self.topics.agent_up(&self.agent), self.client.clone(), link);
        let answered = poll_fn(|context| {
            let mut state = stream.shared.lock();
            if let Some(over) = state.link.over() {
                return Poll::Ready(Err(error(over)));
            }
            if !state.link.is_opening() {
                return Poll::Ready(Ok(()));
            }
            state.writer = Some(context.waker().clone());
            Poll::Pending
        });
        match tokio::time::timeout(DIAL_LONGEST, answered).await {
            Ok(answered) => answered.map(|()| stream),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no hub answers at the broker")),
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Dialer({})", self.agent)
    }
}
