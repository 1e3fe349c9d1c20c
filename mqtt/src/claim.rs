//! One name, one agent: who finds another under its name does not begin.
//!
//! A broker gives a client id to whoever came last, so two agents of one name would take the connection from each other for
//! ever. Therefore an agent asks before it connects under its name, as a client of another name. Who is online answers; and of
//! two who ask at the same time, the one with the smaller number of its process goes on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, ClientConfig, Greeting, Message, PublishError, Qos};
use crate::command::{Command, CommandReply, CommandRequest};
use crate::options::{Options, PACKET_BYTES_LEAST};
use crate::presence::{AgentPresence, PresenceState};
use crate::random::random;
use crate::topics::Topics;

/// How long an answer is waited for: where nothing says that somebody is there, and where the broker's memory does.
const LISTEN: Duration = Duration::from_secs(1);
const LISTEN_LONGER: Duration = Duration::from_secs(3);

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// Answers that wait to be looked at. With more, further ones are dropped, and the question is asked again.
const ANSWERS_MAX: usize = 64;

/// What the id of a question begins with; the number of the process follows.
const QUESTION: &str = "claim-";

/// Why an agent may not use its name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another process answers to it.
    #[error(
        "another agent is online as `{name}` (process {process:016x}); give this one another --name or stop the other"
    )]
    Taken {
        /// The name.
        name: String,
        /// The other process.
        process: u64,
    },
}

/// What somebody says while an answer is waited for.
enum Said {
    Presence { presence: AgentPresence, retained: bool },
    Reply { process: u64 },
    Question { process: u64 },
}

/// Finds out whether another process is online as `name`, which takes one second, or three where the broker's retained presence
/// says so. Waits for the broker. Returns the highest epoch that was seen, to count on from.
///
/// # Errors
/// [`ClaimError::Taken`].
pub async fn claim(options: &Options, topics: &Topics, name: &str, process: u64) -> Result<u64, ClaimError> {
    // A question is small, so nobody has to know what the broker carries.
    let options = Options { packet_bytes_max: Some(PACKET_BYTES_LEAST), ..options.clone() };
    let client = Client::start(ClientConfig {
        options,
        client_id: format!("{name}.claim.{:016x}", random()),
        probe_topic: topics.agent_probe(name),
        greet: Arc::new(|_| Greeting::default()),
    });
    let (sender, mut said) = mpsc::channel(ANSWERS_MAX);
    listen(&client, topics, name, &sender);
    let claimed = ask(&client, topics, name, process, &mut said).await;
    client.close(None).await;
    claimed
}

fn listen(client: &Client, topics: &Topics, name: &str, sender: &mpsc::Sender<Said>) {
    let (presence, reply, question) = (sender.clone(), sender.clone(), sender.clone());
    let owned = name.to_owned();
    client.subscribe(&topics.agent_presence(name), Qos::AtLeastOnce, move |message| {
        if let Ok(found) = AgentPresence::decode(&owned, &message.payload) {
            presence.try_send(Said::Presence { presence: found, retained: message.retain }).ok(); // see ANSWERS_MAX
        }
    });
    client.subscribe(&topics.agent_reply(name), Qos::AtLeastOnce, move |message| {
        if let Ok(found) = CommandReply::decode(&message.payload)
            && !message.retain
        {
            reply.try_send(Said::Reply { process: found.session.process }).ok();
        }
    });
    client.subscribe(&topics.agent_command(name), Qos::AtLeastOnce, move |message| {
        if let Ok(found) = CommandRequest::decode(&message.payload)
            && !message.retain
            && let Some(process) = questioner(&found.id)
        {
            question.try_send(Said::Question { process }).ok();
        }
    });
}

/// The process whose question has this id.
fn questioner(id: &str) -> Option<u64> {
    u64::from_str_radix(id.strip_prefix(QUESTION)?.get(..16)?, 16).ok()
}

async fn ask(
    client: &Client,
    topics: &Topics,
    name: &str,
    process: u64,
    said: &mut mpsc::Receiver<Said>,
) -> Result<u64, ClaimError> {
    let taken = |process| Err(ClaimError::Taken { name: name.to_owned(), process });
    let mut epoch = 0;
    'connections: loop {
        client.connected().await;
        let begun = Instant::now();
        let (mut end, mut next) = (begun + LISTEN, begun);
        loop {
            tokio::select! {
                () = sleep_until(end) => return Ok(epoch),
                () = sleep_until(next) => {
                    next = Instant::now() + ASK_EVERY;
                    let id = format!("{QUESTION}{process:016x}-{:016x}", random());
                    let payload = CommandRequest { id, command: Command::Identify }.encode().into();
                    let question = Message { topic: topics.agent_command(name), payload, retain: false };
                    if client.publish(question) == Err(PublishError::Disconnected) {
                        continue 'connections;
                    }
                }
                Some(said) = said.recv() => match said {
                    Said::Presence { presence, retained } => {
                        epoch = epoch.max(presence.session.epoch);
                        let other = presence.session.process;
                        if other != process && presence.state == PresenceState::Online {
                            if !retained {
                                return taken(other);
                            }
                            end = begun + LISTEN_LONGER;
                        }
                    }
                    Said::Reply { process: other } if other != process => return taken(other),
                    Said::Question { process: other } if other < process => return taken(other),
                    Said::Reply { .. } | Said::Question { .. } => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_told_from_other_commands() {
        assert_eq!(questioner("claim-00000000000000ff-0123456789abcdef"), Some(255));
        for id in ["", "claim-", "claim-ff", "claim-000000000000000g-1", "7", "claim-ééééééééé"] {
            assert_eq!(questioner(id), None, "{id}");
        }
    }
}
