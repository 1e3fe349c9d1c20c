//! The task of a client: one connection after the other.

mod session;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use self::session::{End, Session};
use super::dialing::dial;
use super::packet_size::PacketSize;
use super::{ClientState, Shared};
use crate::backoff::Backoff;
use crate::random::random;

/// A connection that lasted for so long was sound: the next attempt comes soon. One that is lost earlier, time and again, may be
/// taken by somebody of the same name.
const SOUND: Duration = Duration::from_secs(20);

/// Topics whose messages were too large, remembered so that each is reported once. Beyond, none is reported.
const REPORTED_MAX: usize = 1024;

/// What outlives a connection.
struct Memory {
    packet_size: PacketSize,
    reported: HashSet<String>,
}

impl Memory {
    /// Returns whether it was news.
    fn report_skipped(&mut self, topic: &str, bytes: usize, bytes_max: usize) -> bool {
        let news = self.reported.len() < REPORTED_MAX && self.reported.insert(topic.to_owned());
        if news {
            warn!(
                topic,
                bytes,
                bytes_max,
                "a message is too large for its topic and is skipped; others like it will be silently"
            );
        }
        news
    }
}

/// Connects until the client is closed.
pub(super) async fn run(shared: Arc<Shared>) {
    let config = &shared.config;
    let packet_size = PacketSize::new(config.options.packet_bytes_max, &config.probe_topic);
    let mut memory = Memory { packet_size, reported: HashSet::new() };
    let mut backoff = Backoff::new(random());
    let mut connection = 0;
    while !shared.queue.is_closing() {
        connection += 1;
        let greeting = (config.greet)(connection);
        let begun = Instant::now();
        let dialed = tokio::select! {
            dialed = dial(&config.options, &config.client_id, greeting.will) => dialed,
            () = closing(&shared) => break,
        };
        let (reason, probing) = match dialed {
            Err(error) => (error.to_string(), false),
            Ok(dialed) => match Session::new(&shared, &mut memory, connection).serve(dialed, greeting.hello).await {
                End::Closed => break,
                End::Lost { reason } => (reason, memory.packet_size.on_disconnected()),
            },
        };
        shared.queue.disconnect();
        report(&shared, &reason, probing);
        shared.state.send_replace(ClientState::Connecting { reason: Some(reason) });
        if begun.elapsed() >= SOUND {
            backoff.reset();
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = closing(&shared) => break,
        }
    }
    shared.queue.disconnect();
    shared.state.send_replace(ClientState::Closed);
}

async fn closing(shared: &Shared) {
    while !shared.queue.is_closing() {
        shared.queue.work().await;
    }
}

/// Tells of a lost connection, and of each new reason why there is none; not of the same reason every few seconds.
fn report(shared: &Shared, reason: &str, probing: bool) {
    let broker = &shared.config.options.broker;
    let known = match &*shared.state.borrow() {
        ClientState::Connecting { reason: Some(known) } => known == reason,
        _ => false,
    };
    if probing {
        info!(%broker, reason, "the broker ended the connection over a large packet, trying a smaller one");
    } else if !known {
        warn!(%broker, reason, "not connected to the broker");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_is_reported_once_and_not_without_end() {
        let mut memory = Memory { packet_size: PacketSize::new(None, "probe"), reported: HashSet::new() };
        assert!(memory.report_skipped("a", 100_000, 65_536));
        assert!(!memory.report_skipped("a", 200_000, 65_536));
        assert!(memory.report_skipped("b", 100_000, 65_536));
        for number in 0..2 * REPORTED_MAX {
            memory.report_skipped(&number.to_string(), 100_000, 65_536);
        }
        assert_eq!(memory.reported.len(), REPORTED_MAX);
    }
}
