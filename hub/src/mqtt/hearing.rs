//! What comes from the broker, on the task that serves the connection: looked at briefly, noted, and nothing waited for.

use std::sync::atomic::Ordering;

use omnilearn_mqtt::client::{Client, Incoming, Qos};
use omnilearn_mqtt::command::CommandReply;
use omnilearn_mqtt::presence::AgentPresence;
use omnilearn_mqtt::timings::{BATCH_BYTES_MAX, TimingsBatch, TimingsReceipt};
use tokio::sync::mpsc;

use super::presence_book::Heard;
use super::{Mqtt, NewTimings, lock};

/// Topics of which something that is no payload of ours is reported, once each.
const REPORTED_MAX: usize = 1_000;

impl Mqtt {
    /// Has everything that agents say looked at; batches of timings go to `batches`, since they take a while.
    pub(super) fn subscribe(&self, client: &Client, batches: mpsc::Sender<Incoming>) {
        let topics = &self.0.identity.topics;
        let mqtt = self.clone();
        client.subscribe(&topics.all_presence(), Qos::AtMostOnce, move |incoming| mqtt.hear_presence(&incoming));
        let mqtt = self.clone();
        client.subscribe(&topics.all_replies(), Qos::AtLeastOnce, move |incoming| mqtt.hear_reply(&incoming));
        let mqtt = self.clone();
        client.subscribe_large(&topics.all_timings(), Qos::AtLeastOnce, BATCH_BYTES_MAX, move |incoming| {
            if batches.try_send(incoming).is_err() && mqtt.0.timings_dropped.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!("timings come faster than they are looked at, some are dropped; training goes on");
            }
        });
    }

    /// Says once per topic that something on it is no payload of ours.
    fn refuse(&self, topic: &str, error: &dyn std::error::Error) {
        self.0.payloads_refused.fetch_add(1, Ordering::Relaxed);
        let mut reported = lock(&self.0.reported);
        if reported.len() < REPORTED_MAX && reported.insert(topic.to_owned()) {
            let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
            tracing::warn!(topic, reason = %format!("{error}{cause}"), "a message was skipped; more on this topic are only counted");
        }
    }

    fn hear_presence(&self, incoming: &Incoming) {
        let Some(name) = self.0.identity.topics.agent_of(&incoming.topic) else { return };
        if incoming.payload.is_empty() {
            return; // somebody has cleared what the broker kept
        }
        let presence = match AgentPresence::decode(name, &incoming.payload) {
            Ok(presence) => presence,
            Err(error) => return self.refuse(&incoming.topic, &error),
        };
        let (session, paused) = (presence.session, presence.paused);
        match lock(&self.0.presence).hear(presence) {
            Heard::Came => tracing::info!(agent = name, %session, paused, "agent is at the broker"),
            Heard::Left => tracing::info!(agent = name, %session, "agent has left the broker"),
            Heard::Same => tracing::debug!(agent = name, %session, paused, "presence"),
            Heard::Stale => tracing::debug!(agent = name, %session, "presence of an earlier connection"),
            Heard::Full => tracing::debug!(agent = name, "presence of too many agents"),
        }
    }

    fn hear_reply(&self, incoming: &Incoming) {
        let Some(name) = self.0.identity.topics.agent_of(&incoming.topic) else { return };
        match CommandReply::decode(&incoming.payload) {
            Ok(reply) => {
                let (id, ok) = (reply.id.clone(), reply.ok);
                let waited = self.0.commands.replied(name, reply);
                tracing::debug!(agent = name, id, ok, waited, "reply");
            }
            Err(error) => self.refuse(&incoming.topic, &error),
        }
    }

    /// The steps of a message that are new, and what to tell the agent: also where none is new, since what it was told before
    /// may have been lost.
    pub(super) fn read_timings(&self, incoming: &Incoming) -> Option<(NewTimings, TimingsReceipt)> {
        let name = self.0.identity.topics.agent_of(&incoming.topic)?;
        match TimingsBatch::decode(name, &incoming.payload) {
            Ok(batch) => {
                let process = batch.session.process;
                let mut book = lock(&self.0.timings);
                let steps = book.take(batch);
                let receipt = book.receipt(name, process)?;
                Some((NewTimings { agent: name.to_owned(), steps }, receipt))
            }
            Err(error) => {
                self.refuse(&incoming.topic, &error);
                None
            }
        }
    }
}
