//! Which agents are there, by what they say at the broker. Pure: told what came, it says what that means.

use std::collections::BTreeMap;

use omnilearn_mqtt::presence::{AgentPresence, PresenceState};

/// Most names that presence is kept of; those of further agents are not seen here, and train all the same.
const NAMES_MAX: usize = 100_000;

/// What a message means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The agent is there, and was not before.
    Came,
    /// The agent has gone.
    Left,
    /// Nothing new, or a detail.
    Same,
    /// Of a connection that has had a successor: a late will.
    Stale,
    /// No more names fit.
    Full,
}

#[derive(Debug)]
struct Entry {
    believed: AgentPresence,
    /// In which of the hub's own connections it was last heard.
    heard_in: u64,
}

/// What is known of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) presence: AgentPresence,
    /// Whether that was said in the present connection to the broker, and not before the hub lost sight of it.
    pub(crate) certain: bool,
}

/// Presence of every agent that was ever heard.
#[derive(Debug, Default)]
pub(crate) struct PresenceBook {
    agents: BTreeMap<String, Entry>,
    /// The hub's last connection to the broker, or the one that it tries to make.
    connection: u64,
    /// Whether it stands.
    connected: bool,
}

impl PresenceBook {
    /// What is heard from now on comes in this connection. Who does not say again that it is there is in doubt.
    pub(crate) fn begin(&mut self, connection: u64) {
        self.connection = connection;
    }

    /// Whether the hub is connected to the broker.
    pub(crate) fn connected(&mut self, connected: bool) {
        self.connected = connected;
    }

    /// Takes in what an agent, or its will, says.
    pub(crate) fn hear(&mut self, presence: AgentPresence) -> Heard {
        let before = self.agents.get(&presence.name);
        if !presence.replaces(before.map(|entry| &entry.believed)) {
            return Heard::Stale;
        }
        if before.is_none() && self.agents.len() >= NAMES_MAX {
            return Heard::Full;
        }
        let was_online = before.is_some_and(|entry| entry.believed.state == PresenceState::Online);
        let heard = match (presence.state, was_online) {
            (PresenceState::Online, false) => Heard::Came,
            (PresenceState::Offline, true) => Heard::Left,
            _ => Heard::Same,
        };
        let heard_in = self.connection;
        self.agents.insert(presence.name.clone(), Entry { believed: presence, heard_in });
        heard
    }

    fn seen(&self, entry: &Entry) -> Seen {
        let certain = self.connected && self.connection == entry.heard_in;
        Seen { presence: entry.believed.clone(), certain }
    }

    /// What is known of an agent.
    pub(crate) fn find(&self, name: &str) -> Option<Seen> {
        self.agents.get(name).map(|entry| self.seen(entry))
    }

    /// What is known of everybody, by name.
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.agents.values().map(|entry| self.seen(entry)).collect()
    }
}

#[cfg(test)]
mod tests {
    use omnilearn_mqtt::presence::Transport;
    use omnilearn_mqtt::session::SessionMark;
    use omnilearn_mqtt::timings::TimingsFormat;

    use super::*;

    fn presence(state: PresenceState, process: u64, epoch: u64) -> AgentPresence {
        AgentPresence {
            state,
            session: SessionMark { process, epoch },
            name: "pi".into(),
            version: "0.1.0".into(),
            transport: Transport::Mqtt,
            paused: false,
            timings: TimingsFormat::Json,
        }
    }

    fn online(process: u64, epoch: u64) -> AgentPresence {
        presence(PresenceState::Online, process, epoch)
    }

    fn offline(process: u64, epoch: u64) -> AgentPresence {
        presence(PresenceState::Offline, process, epoch)
    }

    fn book() -> PresenceBook {
        let mut book = PresenceBook::default();
        book.begin(1);
        book.connected(true);
        book
    }

    #[test]
    fn an_agent_comes_changes_and_goes() {
        let mut book = book();
        assert_eq!(book.hear(online(1, 1)), Heard::Came);
        assert_eq!(book.hear(AgentPresence { paused: true, ..online(1, 1) }), Heard::Same);
        assert!(book.find("pi").unwrap().presence.paused);
        assert_eq!(book.hear(offline(1, 1)), Heard::Left);
        assert_eq!(book.find("pi").unwrap(), Seen { presence: offline(1, 1), certain: true });
        assert_eq!(book.find("nano"), None);
    }

    #[test]
    fn wills_of_connections_that_have_had_a_successor_change_nothing() {
        let mut book = book();
        book.hear(online(1, 1));
        book.hear(online(1, 2));
        assert_eq!(book.hear(offline(1, 1)), Heard::Stale);
        assert_eq!(book.hear(online(2, 3)), Heard::Same);
        assert_eq!(book.hear(offline(1, 2)), Heard::Stale);
        assert_eq!(book.all(), [Seen { presence: online(2, 3), certain: true }]);
        assert_eq!(book.hear(offline(2, 3)), Heard::Left);
    }

    #[test]
    fn a_late_will_that_the_broker_kept_is_corrected_by_the_roll_call() {
        let mut book = book();
        assert_eq!(book.hear(offline(1, 4)), Heard::Same);
        assert_eq!(book.hear(online(1, 5)), Heard::Came);
    }

    #[test]
    fn who_is_not_heard_again_after_the_broker_was_away_is_in_doubt() {
        let mut book = book();
        book.hear(online(1, 1));
        book.connected(false);
        assert!(!book.find("pi").unwrap().certain);
        book.begin(2);
        assert_eq!(book.hear(AgentPresence { name: "nano".into(), ..online(2, 1) }), Heard::Came);
        book.connected(true);
        assert!(!book.find("pi").unwrap().certain && book.find("nano").unwrap().certain);
        assert_eq!(book.hear(online(1, 1)), Heard::Same);
        assert!(book.find("pi").unwrap().certain);
    }
}
