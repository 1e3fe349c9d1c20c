//! An agent's side of presence: says that it is there whenever somebody may believe otherwise.

use std::sync::Arc;

use super::AgentPresence;
use crate::client::{Client, Greeting, Message};
use crate::topics::Topics;

/// Keeps an agent's presence true: in every connection's will and greeting; when its own topic holds something else, since a
/// late will is retained; and when a hub calls the roll.
#[derive(Debug)]
pub struct Announcer {}

impl Announcer {
    /// An announcer of `presence`, whose session is the mark that the client's connections are counted from.
    pub fn new(_topics: Topics, _presence: AgentPresence) -> Announcer {
        todo!()
    }

    /// Will and first message of each connection: [`crate::client::ClientConfig::greet`].
    pub fn greet(&self) -> Arc<dyn Fn(u64) -> Greeting + Send + Sync> {
        todo!()
    }

    /// Begins to watch the agent's own topic and the hub's.
    pub fn watch(&self, _client: &Client) {
        todo!()
    }

    /// Changes what is said, and says it.
    pub fn update(&self, _change: impl FnOnce(&mut AgentPresence)) {
        todo!()
    }

    /// What is said now, in the present connection.
    pub fn presence(&self) -> AgentPresence {
        todo!()
    }

    /// The last message: [`Client::close`].
    pub fn goodbye(&self) -> Message {
        todo!()
    }
}
