//! Commands to agents that wait for their replies.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use omnilearn_mqtt::client::PublishError;
use omnilearn_mqtt::command::CommandReply;
use tokio::sync::oneshot;

use crate::limits::COMMANDS_MAX;

/// Why a command was not done, as far as the hub knows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The hub has no broker.
    #[error("this hub has no broker to send commands over; start it with --mqtt-listen or --mqtt")]
    NoBroker,
    /// Nobody of this name.
    #[error("there is no agent `{name}`; `omnilearn-hub agent list` shows them")]
    Unknown { name: String },
    /// Known, but not from the broker.
    #[error("agent `{name}` is not at the broker; start it with --mqtt, or with an mqtt:// address as --hub")]
    NotAtBroker { name: String },
    /// Gone from the broker.
    #[error("agent `{name}` is offline")]
    Offline { name: String },
    /// The broker is away.
    #[error("the hub is not connected to the broker")]
    BrokerAway,
    /// Too many others wait.
    #[error("{COMMANDS_MAX} commands wait for their replies already")]
    TooMany,
    /// The broker did not take it.
    #[error("the command was not sent")]
    NotSent(#[source] PublishError),
    /// No reply. Whether it was done is not known.
    #[error("agent `{name}` has not replied within {seconds} s; it may still do it")]
    NoReply { name: String, seconds: u64 },
    /// The agent says no.
    #[error("agent `{name}`: {reason}")]
    Refused { name: String, reason: String },
}

struct Waiting {
    agent: String,
    reply: oneshot::Sender<CommandReply>,
}

/// Commands that wait for their replies, by id.
#[derive(Default)]
pub(crate) struct Commands(Mutex<HashMap<String, Waiting>>);

/// A place among those that wait; given back when dropped.
pub(crate) struct Place<'a> {
    commands: &'a Commands,
    id: String,
    reply: oneshot::Receiver<CommandReply>,
}

impl Commands {
    fn with<T>(&self, act: impl FnOnce(&mut HashMap<String, Waiting>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes room for the reply of `agent` to the command `id`.
    pub(crate) fn wait(&self, agent: &str, id: &str) -> Result<Place<'_>, CommandError> {
        let (sender, reply) = oneshot::channel();
        self.with(|waiting| {
            if waiting.len() >= COMMANDS_MAX {
                return Err(CommandError::TooMany);
            }
            waiting.insert(id.to_owned(), Waiting { agent: agent.to_owned(), reply: sender });
            Ok(Place { commands: self, id: id.to_owned(), reply })
        })
    }

    /// Hands a reply to who waits for it; false if nobody does.
    pub(crate) fn replied(&self, agent: &str, reply: CommandReply) -> bool {
        self.with(|waiting| {
            if waiting.get(&reply.id).is_none_or(|waiting| waiting.agent != agent) {
                return false;
            }
            waiting.remove(&reply.id).is_some_and(|waiting| waiting.reply.send(reply).is_ok())
        })
    }
}

impl Place<'_> {
    /// The reply.
    pub(crate) async fn reply(&mut self) -> Option<CommandReply> {
        (&mut self.reply).await.ok()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.commands.with(|waiting| waiting.remove(&self.id));
    }
}

#[cfg(test)]
mod tests {
    use omnilearn_mqtt::session::SessionMark;

    use super::*;

    fn reply(id: &str) -> CommandReply {
        CommandReply::done(id, SessionMark { process: 1, epoch: 1 }, serde_json::Value::Null)
    }

    #[tokio::test]
    async fn a_reply_reaches_who_asked_this_agent_and_nobody_else() {
        let commands = Commands::default();
        let mut place = commands.wait("pi", "1").unwrap();
        assert!(!commands.replied("nano", reply("1")) && !commands.replied("pi", reply("2")));
        assert!(commands.replied("pi", reply("1")));
        assert_eq!(place.reply().await, Some(reply("1")));
        assert!(!commands.replied("pi", reply("1")));
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let commands = Commands::default();
        let places: Vec<Place<'_>> =
            (0..COMMANDS_MAX).map(|id| commands.wait("pi", &id.to_string()).unwrap()).collect();
        assert!(matches!(commands.wait("pi", "more").map(drop), Err(CommandError::TooMany)));
        drop(places);
        assert!(commands.wait("pi", "more").is_ok());
    }
}
