//! The streams of one end, by agent and number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

use super::link::Link;
use super::{MqttStream, Shared};
use crate::client::{Client, ClientState};

/// Which stream of which agent.
pub(super) type Key = (String, u64);

/// Streams that are not over, and their pumps, which end with this.
#[derive(Default)]
pub(super) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    streams: HashMap<Key, Arc<Shared>>,
    pumps: JoinSet<()>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner) // a map is a map even after a panic
    }

    /// The stream of this key.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Shared>> {
        self.lock().streams.get(key).cloned()
    }

    /// The streams of an agent.
    pub(super) fn of_agent(&self, agent: &str) -> Vec<Arc<Shared>> {
        let inner = self.lock();
        inner.streams.iter().filter(|((name, _), _)| name == agent).map(|(_, stream)| Arc::clone(stream)).collect()
    }

    /// How many streams there are.
    pub(super) fn len(&self) -> usize {
        self.lock().streams.len()
    }

    /// Begins a stream. Must run within a runtime.
    pub(super) fn begin(self: &Arc<Registry>, key: Key, topic: String, client: Client, link: Link) -> MqttStream {
        let connection = match *client.state().borrow() {
            ClientState::Connected { connection, .. } => connection,
            _ => 0,
        };
        let shared = Arc::new(Shared::new(&key.0, topic, client, link));
        let mut inner = self.lock();
        while inner.pumps.try_join_next().is_some() {} // those that ended
        inner.streams.insert(key.clone(), Arc::clone(&shared));
        let (registry, pumped) = (Arc::downgrade(self), Arc::clone(&shared));
        inner.pumps.spawn(async move {
            pumped.pump(connection).await;
            if let Some(registry) = registry.upgrade() {
                registry.lock().streams.remove(&key);
            }
        });
        MqttStream { shared }
    }
}
