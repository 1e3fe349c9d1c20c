//! Who gets which message: subscriptions, retained messages and last wills. Pure: told what happened, it says what follows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::topics::matches;

/// Filters of one client. Further ones are refused.
const FILTERS_MAX: usize = 256;

/// Retained messages, and their bytes. A message beyond is delivered, but not kept.
const RETAINED_MAX: usize = 100_000;
/// See [`RETAINED_MAX`].
const RETAINED_BYTES_MAX: usize = 64 << 20;

/// Longest topic or filter, in bytes.
const TOPIC_BYTES_MAX: usize = 1024;

/// Number of a connection, never used again.
pub(super) type Connection = u64;

/// How hard to try: whether a message is to be acknowledged. (Exactly once is at least once here, and says so.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Quality {
    AtMostOnce,
    AtLeastOnce,
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) topic: Arc<str>,
    pub(super) payload: Bytes,
    pub(super) quality: Quality,
    /// As published: to be kept. As delivered: it was kept.
    pub(super) retain: bool,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Deliver(Connection, Message),
    /// Another connection has the client's name now.
    TakenOver(Connection),
}

#[derive(Debug)]
struct Session {
    client: String,
    filters: Vec<String>,
    will: Option<Message>,
}

/// Connections by filter, with the quality that each asked for.
type Subscribers = BTreeMap<Connection, Quality>;

/// The state of a broker.
#[derive(Debug, Default)]
pub(super) struct Switchboard {
    sessions: HashMap<Connection, Session>,
    clients: HashMap<String, Connection>,
    /// By filters without wildcards, which are most: each agent has some.
    exact: HashMap<String, Subscribers>,
    /// By filters with wildcards, which are few.
    wild: HashMap<String, Subscribers>,
    retained: HashMap<Arc<str>, Message>,
    retained_bytes: usize,
}

impl Switchboard {
    /// A client has connected. An earlier connection of its name ends, and its will is published before the client hears anything.
    pub(super) fn connect(&mut self, connection: Connection, client: &str, will: Option<Message>) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(earlier) = self.clients.get(client).copied() {
            effects.push(Effect::TakenOver(earlier));
            effects.extend(self.gone(earlier, true));
        }
        self.clients.insert(client.to_owned(), connection);
        self.sessions.insert(connection, Session { client: client.to_owned(), filters: Vec::new(), will });
        effects
    }

    /// A connection has ended, by the client's own word or without.
    pub(super) fn gone(&mut self, connection: Connection, abruptly: bool) -> Vec<Effect> {
        let Some(session) = self.sessions.remove(&connection) else { return Vec::new() };
        self.clients.remove(&session.client);
        for filter in &session.filters {
            self.forget(connection, filter);
        }
        session.will.filter(|_| abruptly).map_or_else(Vec::new, |will| self.publish(will))
    }

    fn subscribers(&mut self, filter: &str) -> &mut HashMap<String, Subscribers> {
        if filter.contains(['+', '#']) { &mut self.wild } else { &mut self.exact }
    }

    fn forget(&mut self, connection: Connection, filter: &str) {
        let by_filter = self.subscribers(filter);
        if let Some(subscribers) = by_filter.get_mut(filter) {
            subscribers.remove(&connection);
            if subscribers.is_empty() {
                by_filter.remove(filter);
            }
        }
    }

    /// A client subscribes; what it is granted, if it is, and what was kept for it.
    pub(super) fn subscribe(&mut self, connection: Connection, filter: &str, quality: Quality) -> Option<Vec<Effect>> {
        let session = self.sessions.get_mut(&connection)?;
        let known = session.filters.iter().any(|known| known == filter);
        if !is_filter(filter) || (!known && session.filters.len() >= FILTERS_MAX) {
            return None;
        }
        if !known {
            session.filters.push(filter.to_owned());
        }
        self.subscribers(filter).entry(filter.to_owned()).or_default().insert(connection, quality);
        let is_exact = self.exact.contains_key(filter);
        let one = self.retained.get(filter).filter(|_| is_exact);
        let many = self.retained.values().filter(|kept| !is_exact && matches(filter, &kept.topic));
        let deliver = |kept: &Message| {
            Effect::Deliver(connection, Message { quality: kept.quality.min(quality), ..kept.clone() })
        };
        Some(one.into_iter().chain(many).map(deliver).collect())
    }

    /// A client does not subscribe any more.
    pub(super) fn unsubscribe(&mut self, connection: Connection, filter: &str) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.filters.retain(|known| known != filter);
            self.forget(connection, filter);
        }
    }

    /// A message is published. Whoever has several filters that match gets it once.
    pub(super) fn publish(&mut self, message: Message) -> Vec<Effect> {
        if message.retain {
            self.keep(&message);
        }
        let wild = self.wild.iter().filter(|(filter, _)| matches(filter, &message.topic));
        let matching = self.exact.get(&*message.topic).into_iter().chain(wild.map(|(_, subscribers)| subscribers));
        let mut to = Subscribers::new();
        for (&connection, &quality) in matching.flatten() {
            let granted = to.entry(connection).or_insert(quality);
            *granted = quality.max(*granted);
        }
        let deliver = |(connection, quality): (Connection, Quality)| {
            let quality = quality.min(message.quality);
            Effect::Deliver(connection, Message { quality, retain: false, ..message.clone() })
        };
        to.into_iter().map(deliver).collect()
    }

    fn keep(&mut self, message: &Message) {
        if let Some(earlier) = self.retained.remove(&message.topic) {
            self.retained_bytes -= bytes_of(&earlier);
        }
        let bytes = bytes_of(message);
        let fits = self.retained.len() < RETAINED_MAX && self.retained_bytes + bytes <= RETAINED_BYTES_MAX;
        if !message.payload.is_empty() && fits {
            self.retained_bytes += bytes;
            // A copy, since the payload is a piece of what was read, and would keep all of that.
            let payload = Bytes::copy_from_slice(&message.payload);
            self.retained.insert(Arc::clone(&message.topic), Message { payload, ..message.clone() });
        }
    }
}

fn bytes_of(message: &Message) -> usize {
    message.topic.len() + message.payload.len()
}

/// Whether a message may be published there. Topics that begin with `$` are a broker's own, and this one has none.
pub(super) fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && topic.len() <= TOPIC_BYTES_MAX && !topic.starts_with('$') && !topic.contains(['+', '#', '\0'])
}

/// Whether it can be subscribed to: wildcards are whole levels, `#` the last.
fn is_filter(filter: &str) -> bool {
    let plain = |level: &str| !level.contains(['+', '#', '\0']);
    let mut levels = filter.split('/').rev();
    let last = levels.next().is_some_and(|last| last == "#" || last == "+" || plain(last));
    !filter.is_empty()
        && filter.len() <= TOPIC_BYTES_MAX
        && !filter.starts_with('$')
        && last
        && levels.all(|level| level == "+" || plain(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str, payload: &str, retain: bool) -> Message {
        let payload = Bytes::copy_from_slice(payload.as_bytes());
        Message { topic: topic.into(), payload, quality: Quality::AtLeastOnce, retain }
    }

    fn board(clients: &[(&str, &[&str])]) -> Switchboard {
        let mut board = Switchboard::default();
        for (connection, (client, filters)) in (1..).zip(clients) {
            board.connect(connection, client, None);
            for filter in *filters {
                board.subscribe(connection, filter, Quality::AtLeastOnce).unwrap();
            }
        }
        board
    }

    fn delivered(effects: &[Effect]) -> Vec<String> {
        let text = |effect: &Effect| match effect {
            Effect::Deliver(to, message) => {
                let kept = if message.retain { " (kept)" } else { "" };
                format!("{to} {} {}{kept}", message.topic, String::from_utf8_lossy(&message.payload))
            }
            Effect::TakenOver(connection) => format!("{connection} taken over"),
        };
        effects.iter().map(text).collect()
    }

    #[test]
    fn a_message_goes_once_to_everybody_whose_filters_match() {
        let mut board = board(&[("hub", &["a/+/up", "a/#", "a/x/up"]), ("x", &["a/x/down"]), ("y", &["a/+"])]);
        assert_eq!(delivered(&board.publish(message("a/x/up", "1", false))), ["1 a/x/up 1"]);
        assert_eq!(delivered(&board.publish(message("a/x/down", "2", false))), ["1 a/x/down 2", "2 a/x/down 2"]);
        assert_eq!(delivered(&board.publish(message("a/x", "3", false))), ["1 a/x 3", "3 a/x 3"]);
        assert!(board.publish(message("ü", "4", false)).is_empty());
        board.unsubscribe(1, "a/#");
        assert_eq!(delivered(&board.publish(message("a/x", "5", false))), ["3 a/x 5"]);
        board.gone(3, false);
        assert!(board.publish(message("a/x", "6", false)).is_empty());
    }

    #[test]
    fn quality_is_the_lesser_of_what_was_asked_for_and_what_was_sent() {
        let mut board = board(&[("x", &[])]);
        board.subscribe(1, "a", Quality::AtMostOnce).unwrap();
        let sent = |board: &mut Switchboard, quality| match &board
            .publish(Message { quality, ..message("a", "", false) })[..]
        {
            [Effect::Deliver(1, message)] => message.quality,
            other => panic!("{other:?}"),
        };
        assert_eq!(sent(&mut board, Quality::AtLeastOnce), Quality::AtMostOnce);
        board.subscribe(1, "a", Quality::AtLeastOnce).unwrap();
        assert_eq!(sent(&mut board, Quality::AtLeastOnce), Quality::AtLeastOnce);
        assert_eq!(sent(&mut board, Quality::AtMostOnce), Quality::AtMostOnce);
    }

    #[test]
    fn retained_messages_are_kept_replaced_and_cleared() {
        let mut board = board(&[("x", &["p/+"])]);
        assert_eq!(delivered(&board.publish(message("p/1", "old", true))), ["1 p/1 old"]);
        board.publish(message("p/1", "new", true));
        board.publish(message("p/2", "other", true));
        board.publish(message("p/3", "not kept", false));
        let found = |board: &mut Switchboard, filter: &str| {
            let mut found = delivered(&board.subscribe(1, filter, Quality::AtLeastOnce).unwrap());
            found.sort();
            found
        };
        assert_eq!(found(&mut board, "p/+"), ["1 p/1 new (kept)", "1 p/2 other (kept)"]);
        assert_eq!(found(&mut board, "p/2"), ["1 p/2 other (kept)"]);
        board.publish(message("p/1", "", true));
        assert_eq!(found(&mut board, "#"), ["1 p/2 other (kept)"]);
        assert_eq!(board.retained_bytes, "p/2other".len());
        board.publish(message("p/4", &"x".repeat(RETAINED_BYTES_MAX), true));
        assert_eq!(board.retained.len(), 1);
    }

    #[test]
    fn a_client_that_takes_over_its_own_name_keeps_its_own_will() {
        let mut board = board(&[("hub", &["presence/#"])]);
        let offline = |epoch: &str| Some(message("presence/x", epoch, true));
        board.connect(2, "x", offline("offline 1"));
        let effects = board.connect(3, "x", offline("offline 2"));
        assert_eq!(delivered(&effects), ["2 taken over", "1 presence/x offline 1"]);
        assert!(board.gone(2, true).is_empty());
        assert_eq!(delivered(&board.gone(3, true)), ["1 presence/x offline 2"]);
        board.connect(4, "x", offline("offline 4"));
        assert!(board.gone(4, false).is_empty());
        assert!(board.clients.len() == 1 && board.exact.is_empty());
    }

    #[test]
    fn what_is_no_topic_or_filter_is_refused() {
        let mut board = board(&[("x", &[])]);
        for filter in ["", "a/#/b", "a#", "a/b+", "++", "$SYS/#", "$share/g/a", "a\0", &"x".repeat(TOPIC_BYTES_MAX + 1)]
        {
            assert!(board.subscribe(1, filter, Quality::AtMostOnce).is_none(), "{filter}");
        }
        for filter in ["#", "+", "/", "a//b", "+/+/#", "ü/+"] {
            assert!(board.subscribe(1, filter, Quality::AtMostOnce).is_some(), "{filter}");
        }
        assert!(board.subscribe(9, "a", Quality::AtMostOnce).is_none());
        for topic in ["", "a/+", "#", "$SYS/x", "a\0"] {
            assert!(!is_topic(topic), "{topic}");
        }
        for number in 0..FILTERS_MAX - 6 {
            assert!(board.subscribe(1, &number.to_string(), Quality::AtMostOnce).is_some());
        }
        assert!(board.subscribe(1, "one more", Quality::AtMostOnce).is_none());
        assert!(board.subscribe(1, "#", Quality::AtLeastOnce).is_some());
    }
}
