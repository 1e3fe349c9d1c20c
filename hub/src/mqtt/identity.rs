//! The hub at the broker: one hub for a set of topics, and everybody can see whether it is there.

use std::sync::Arc;
use std::time::Duration;

use omnilearn_mqtt::client::{Client, ClientConfig, ClientState, Greeting, Message, Qos};
use omnilearn_mqtt::options::{Options, PACKET_BYTES_LEAST};
use omnilearn_mqtt::presence::{HubPresence, PresenceState};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::topics::Topics;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::limits::{BROKER_WAIT, CLAIM_WAIT, RETAINED_WAIT};

/// Least time between two repeats of the hub's presence.
const REPEAT_EVERY: Duration = Duration::from_secs(1);

/// Why a hub may not use its topics, now or at all.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another hub is there.
    #[error(
        "another hub (process {process:016x}) uses the topics below `{prefix}` at {broker}; stop it, or give this one a prefix \
         of its own, such as {broker}-2"
    )]
    Taken {
        /// What topics begin with.
        prefix: String,
        /// The broker's address, with the prefix.
        broker: String,
        /// The other hub's process.
        process: u64,
    },
    /// The broker does not answer.
    #[error("no answer from the broker at {broker}{}", reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}")))]
    NoBroker {
        /// Its address.
        broker: String,
        /// Why, where the last attempt said so.
        reason: Option<String>,
    },
}

/// Who the hub is at the broker.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) options: Options,
    pub(crate) topics: Topics,
    /// Of this process; connections count on from it.
    pub(crate) mark: SessionMark,
}

impl Identity {
    pub(crate) fn new(options: Options) -> Identity {
        let topics = Topics::new(options.broker.prefix());
        Identity { options, topics, mark: SessionMark::new() }
    }

    /// The client's name at the broker. It is the same for every hub of these topics, so that no two can stay connected.
    fn client_id(&self) -> String {
        format!("{}-hub", self.options.broker.prefix().replace('/', "-"))
    }

    /// Where a hub that begins asks whether another is there.
    fn challenge_topic(&self) -> String {
        format!("{}/hub/claim", self.options.broker.prefix())
    }

    /// What the hub says in its `connection`-th connection.
    fn presence(&self, state: PresenceState, connection: u64) -> Message {
        let session = self.mark.at(connection);
        let presence = HubPresence { state, session, version: env!("CARGO_PKG_VERSION").to_owned() };
        Message { topic: self.topics.hub_presence(), payload: presence.encode().into(), retain: true }
    }

    /// What the hub says last.
    pub(crate) fn goodbye(&self, state: &ClientState) -> Option<Message> {
        let ClientState::Connected { connection, .. } = *state else { return None };
        Some(self.presence(PresenceState::Offline, connection))
    }

    /// Finds out whether another hub uses the topics: one that its presence says is online, and that answers. Takes up to 4 s.
    ///
    /// # Errors
    /// [`ClaimError`]
    pub(crate) async fn claim(&self) -> Result<(), ClaimError> {
        let broker = self.options.broker.to_string();
        let client = Client::start(ClientConfig {
            options: Options { packet_bytes_max: Some(PACKET_BYTES_LEAST), ..self.options.clone() },
            client_id: format!("{}.claim.{:016x}", self.client_id(), self.mark.process),
            probe_topic: self.topics.hub_probe(),
            greet: Arc::new(|_| Greeting::default()),
        });
        let (heard, mut presences) = mpsc::channel(8); // more are not needed to know
        client.subscribe(&self.topics.hub_presence(), Qos::AtLeastOnce, move |incoming| {
            if let Ok(presence) = HubPresence::decode(&incoming.payload) {
                heard.try_send((presence, incoming.retain)).ok();
            }
        });
        let mut state = client.state();
        if !matches!(timeout(BROKER_WAIT, client.connected()).await, Ok(true)) {
            let reason = match &*state.borrow_and_update() {
                ClientState::Connecting { reason } => reason.clone(),
                _ => None,
            };
            client.close(None).await;
            return Err(ClaimError::NoBroker { broker, reason });
        }
        let kept = timeout(RETAINED_WAIT, presences.recv()).await.ok().flatten().map(|(presence, _)| presence);
        let mut answer = None;
        if let Some(other) = kept.filter(|kept| self.is_foreign(kept)) {
            let challenge =
                Message { topic: self.challenge_topic(), payload: self.mark.to_string().into(), retain: false };
            client.publish(challenge).ok();
            let until = Instant::now() + CLAIM_WAIT;
            while let Ok(Some((presence, retain))) = timeout_at(until, presences.recv()).await {
                if !retain && self.is_foreign(&presence) && presence.session.process == other.session.process {
                    answer = Some(presence.session.process);
                    break;
                }
            }
        }
        client.close(None).await;
        match answer {
            Some(process) => {
                let prefix = self.options.broker.prefix().to_owned();
                Err(ClaimError::Taken { prefix, broker, process })
            }
            None => Ok(()),
        }
    }

    fn is_foreign(&self, presence: &HubPresence) -> bool {
        presence.state == PresenceState::Online && presence.session.process != self.mark.process
    }

    /// Connects as the hub, and keeps its presence true by a task among `tasks`. `begins` is called before anything is heard in a
    /// connection, with its number.
    pub(crate) fn connect(&self, tasks: &mut JoinSet<()>, begins: impl Fn(u64) + Send + Sync + 'static) -> Client {
        let identity = self.clone();
        let client = Client::start(ClientConfig {
            options: self.options.clone(),
            client_id: self.client_id(),
            probe_topic: self.topics.hub_probe(),
            greet: Arc::new(move |connection| {
                begins(connection);
                Greeting {
                    will: Some(identity.presence(PresenceState::Offline, connection)),
                    hello: vec![identity.presence(PresenceState::Online, connection)],
                }
            }),
        });
        let (ask, asked) = mpsc::channel(1); // more than one repeat at a time says nothing new
        let (identity, wrong) = (self.clone(), ask.clone());
        client.subscribe(&self.topics.hub_presence(), Qos::AtLeastOnce, move |incoming| {
            let ours = HubPresence::decode(&incoming.payload)
                .is_ok_and(|presence| presence.state == PresenceState::Online && !identity.is_foreign(&presence));
            if !ours {
                wrong.try_send(()).ok();
            }
        });
        client.subscribe(&self.challenge_topic(), Qos::AtLeastOnce, move |_| {
            ask.try_send(()).ok();
        });
        tasks.spawn(repeat(self.clone(), client.clone(), asked));
        client
    }
}

/// Says again that the hub is there whenever somebody asks or its topic says otherwise: a late will is kept by the broker.
async fn repeat(identity: Identity, client: Client, mut asked: mpsc::Receiver<()>) {
    let state = client.state();
    while asked.recv().await.is_some() {
        let now = state.borrow().clone();
        if let ClientState::Connected { connection, .. } = now {
            client.publish(identity.presence(PresenceState::Online, connection)).ok();
        }
        tokio::time::sleep(REPEAT_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use omnilearn_mqtt::address::BrokerUrl;

    use super::*;

    #[test]
    fn a_prefix_has_one_hub_with_one_name() {
        let identity = Identity::new(Options::new(BrokerUrl::parse("mqtt://broker/plant/a").unwrap()));
        assert_eq!(identity.client_id(), "plant-a-hub");
        assert_eq!(identity.challenge_topic(), "plant/a/hub/claim");
        let presence = identity.presence(PresenceState::Online, 3);
        assert!(presence.retain);
        let presence = HubPresence::decode(&presence.payload).unwrap();
        assert_eq!(presence.session, SessionMark { epoch: 3, ..identity.mark });
        assert!(!identity.is_foreign(&presence));
        let other = HubPresence { session: SessionMark { process: !identity.mark.process, epoch: 1 }, ..presence };
        assert!(identity.is_foreign(&other));
        let error = ClaimError::Taken { prefix: "a".into(), broker: "mqtt://b:1883/a".into(), process: 5 };
        assert!(error.to_string().contains("such as mqtt://b:1883/a-2"), "{error}");
    }
}
