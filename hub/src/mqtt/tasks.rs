//! The hub's tasks at the broker, from the first attempt to the goodbye.

use axum::Router;
use omnilearn_mqtt::broker::Broker;
use omnilearn_mqtt::client::{Client, ClientState, Incoming, Message};
use omnilearn_mqtt::stream::Acceptor;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::identity::{ClaimError, Identity};
use super::{Mqtt, NewTimings, lock};
use crate::limits::{CLAIM_RETRY, TIMINGS_INBOX};
use crate::metered::{MqttMetered, Peer};

/// The tasks behind [`Mqtt`], and the broker, if it is the hub's own.
pub(crate) struct MqttTasks {
    pub(super) mqtt: Mqtt,
    pub(super) broker: Option<Broker>,
    pub(super) claimed: bool,
    pub(super) tasks: JoinSet<()>,
}

impl MqttTasks {
    /// Connects, now or when the broker is there, and serves agents by `router`. What is new of timings goes to `timings`.
    pub(crate) fn begin(&mut self, router: Router, timings: mpsc::Sender<NewTimings>, served: CancellationToken) {
        let (mqtt, claimed) = (self.mqtt.clone(), self.claimed);
        self.tasks.spawn(async move {
            if !claimed {
                tokio::select! {
                    () = served.cancelled() => return,
                    () = claim_at_last(&mqtt.0.identity) => {}
                }
            }
            serve(mqtt, router, timings, served).await;
        });
    }

    /// Has a task end with the rest.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Takes leave of the broker, and ends it if it is the hub's own.
    pub(crate) async fn close(mut self) {
        if let Some(client) = self.mqtt.0.client.get() {
            let goodbye = self.mqtt.0.identity.goodbye(&client.state().borrow().clone());
            client.close(goodbye).await;
        }
        self.tasks.shutdown().await;
        if let Some(broker) = self.broker.take() {
            broker.shutdown().await;
        }
    }
}

/// Asks until the broker is there and the topics are free.
async fn claim_at_last(identity: &Identity) {
    let mut told = false;
    while let Err(error) = identity.claim().await {
        if let ClaimError::Taken { .. } = error {
            if !std::mem::replace(&mut told, true) {
                tracing::error!(%error, "the hub stays away from the broker, and asks again now and then");
            }
            tokio::time::sleep(CLAIM_RETRY).await;
        }
    }
}

/// Connected to the broker, until the hub ends.
async fn serve(mqtt: Mqtt, router: Router, timings: mpsc::Sender<NewTimings>, served: CancellationToken) {
    let mut tasks = JoinSet::new();
    let (batches, mut inbox) = mpsc::channel::<Incoming>(TIMINGS_INBOX);
    let book = mqtt.clone();
    let client = mqtt.0.identity.connect(&mut tasks, move |connection| lock(&book.0.presence).begin(connection));
    mqtt.subscribe(&client, batches);
    let acceptor = Acceptor::new(client.clone(), mqtt.0.identity.topics.clone());
    if mqtt.0.client.set(client.clone()).is_err() {
        return; // begun twice
    }
    tasks.spawn(mqtt.clone().follow(client.clone()));
    let streams = axum::serve(MqttMetered(acceptor), router.into_make_service_with_connect_info::<Peer>())
        .with_graceful_shutdown(served.clone().cancelled_owned());
    tasks.spawn(async move {
        if let Err(error) = streams.await {
            tracing::error!(%error, "streams over the broker are no longer served");
        }
    });
    loop {
        let incoming = tokio::select! {
            () = served.cancelled() => break,
            incoming = inbox.recv() => incoming,
        };
        let Some(incoming) = incoming else { break };
        let Some((new, receipt)) = mqtt.read_timings(&incoming) else { continue };
        let topic = mqtt.0.identity.topics.agent_received(&new.agent);
        if !new.steps.is_empty() && timings.send(new).await.is_err() {
            break;
        }
        // An agent that does not hear of it sends them again.
        client.publish(Message { topic, payload: receipt.encode().into(), retain: false }).ok();
    }
    while tasks.join_next().await.is_some() {}
}

impl Mqtt {
    /// Follows the connection to the broker for the book of presence. The client itself logs when it goes and is back.
    async fn follow(self, client: Client) {
        let mut state = client.state();
        loop {
            let connected = match *state.borrow_and_update() {
                ClientState::Connected { .. } => true,
                ClientState::Connecting { .. } => false,
                ClientState::Closed => return,
            };
            lock(&self.0.presence).connected(connected);
            if state.changed().await.is_err() {
                return;
            }
        }
    }
}
