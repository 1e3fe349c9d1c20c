//! Who is connected, and which name belongs to which agent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use omnilearn_wire::AgentId;
use omnilearn_wire::message::Machine;

use crate::metered::{Meter, PeerAddress};
use crate::outbound::Outbound;

/// Most names that a hub ever hands numbers to; beyond it only known agents are let in.
const NAMES_MAX: usize = 100_000;

/// Why an agent was not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnterError {
    /// Another process uses the name.
    #[error(
        "the name `{name}` is taken by another process, connected from {address}; give each agent a name of its own (--name)"
    )]
    NameTaken { name: String, address: PeerAddress },
    /// Too many names.
    #[error("this hub already knows {NAMES_MAX} agents")]
    TooManyNames,
}

/// One connection of an agent.
#[derive(Clone)]
pub(crate) struct Session {
    /// Number of the connection, unique within the hub.
    pub(crate) number: u64,
    /// Random number of the agent's process.
    pub(crate) process: u64,
    pub(crate) address: PeerAddress,
    pub(crate) machine: Machine,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) meter: Arc<Meter>,
}

#[derive(Default)]
struct Agents {
    numbers: HashMap<String, AgentId>,
    next: u32,
    sessions: HashMap<AgentId, Session>,
}

/// Who is connected. Shared by connections; critical sections are short.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Agents>);

impl Registry {
    /// A registry that knows these agents from before.
    pub(crate) fn new(known: impl IntoIterator<Item = (AgentId, String)>) -> Registry {
        let numbers: HashMap<String, AgentId> = known.into_iter().map(|(agent, name)| (name, agent)).collect();
        let next = numbers.values().map(|agent| agent.0 + 1).max().unwrap_or(1);
        Registry(Mutex::new(Agents { numbers, next, sessions: HashMap::new() }))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Agents) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a connection in: its agent's number, and the connection that it replaces.
    ///
    /// # Errors
    /// [`EnterError`]: the name is in use by another process.
    pub(crate) fn enter(&self, name: &str, session: Session) -> Result<(AgentId, Option<Session>), EnterError> {
        self.with(|agents| {
            let agent = match agents.numbers.get(name) {
                Some(agent) => *agent,
                None if agents.numbers.len() >= NAMES_MAX => return Err(EnterError::TooManyNames),
                None => {
                    let agent = AgentId(agents.next);
                    agents.next += 1;
                    agents.numbers.insert(name.to_owned(), agent);
                    agent
                }
            };
            if let Some(present) = agents.sessions.get(&agent)
                && present.process != session.process
            {
                return Err(EnterError::NameTaken { name: name.to_owned(), address: present.address.clone() });
            }
            Ok((agent, agents.sessions.insert(agent, session)))
        })
    }

    /// A connection has ended. Nothing happens if it was replaced.
    pub(crate) fn leave(&self, agent: AgentId, number: u64) {
        self.with(|agents| {
            if agents.sessions.get(&agent).is_some_and(|session| session.number == number) {
                agents.sessions.remove(&agent);
            }
        });
    }

    /// The number of a name that was let in before.
    pub(crate) fn number(&self, name: &str) -> Option<AgentId> {
        self.with(|agents| agents.numbers.get(name).copied())
    }

    /// Every connection.
    pub(crate) fn sessions(&self) -> Vec<(AgentId, Session)> {
        self.with(|agents| agents.sessions.iter().map(|(agent, session)| (*agent, session.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64, process: u64) -> Session {
        Session {
            number,
            process,
            address: PeerAddress::Mqtt("pi".to_owned()),
            machine: Machine::default(),
            outbound: Arc::default(),
            meter: Arc::default(),
        }
    }

    #[test]
    fn an_agent_keeps_its_number_over_reconnects_and_restarts_of_the_hub() {
        let registry = Registry::new([(AgentId(7), "pi".to_owned())]);
        let (pi, _) = registry.enter("pi", session(1, 11)).unwrap();
        let (jetson, _) = registry.enter("jetson", session(2, 12)).unwrap();
        assert_eq!((pi, jetson), (AgentId(7), AgentId(8)));
        registry.leave(jetson, 2);
        assert_eq!(registry.enter("jetson", session(3, 99)).unwrap().0, AgentId(8));
    }

    #[test]
    fn the_same_process_takes_over_and_the_old_connection_leaves_without_effect() {
        let registry = Registry::default();
        let (agent, _) = registry.enter("pi", session(1, 11)).unwrap();
        let (_, replaced) = registry.enter("pi", session(2, 11)).unwrap();
        assert_eq!(replaced.unwrap().number, 1);
        registry.leave(agent, 1);
        assert_eq!(registry.sessions()[0].1.number, 2);
    }

    #[test]
    fn another_process_of_the_same_name_is_refused_while_the_first_is_connected() {
        let registry = Registry::default();
        registry.enter("pi", session(1, 11)).unwrap();
        let error = registry.enter("pi", session(2, 12)).map(drop).unwrap_err().to_string();
        assert!(
            error.starts_with("the name `pi` is taken by another process, connected from mqtt agents/pi"),
            "{error}"
        );
        assert!(registry.number("pi").is_some() && registry.number("jetson").is_none());
    }
}
