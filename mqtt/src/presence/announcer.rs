//! An agent's side of presence: says that it is there whenever somebody may believe otherwise.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::{AgentPresence, HubPresence, PresenceState};
use crate::client::{Client, Greeting, Incoming, Message, PublishError, Qos};
use crate::random::up_to;
use crate::session::SessionMark;
use crate::topics::Topics;

/// Shortest time between two announcements that somebody else caused.
const AGAIN_LEAST: Duration = Duration::from_secs(1);

/// How long another presence than one's own is left on the topic.
const AGAIN_PATIENCE: Duration = Duration::from_millis(100);

/// A roll call is answered at a random moment within this time, so that a fleet does not answer at once.
const ROLL_CALL_SPREAD: Duration = Duration::from_secs(5);

/// Keeps an agent's presence true: in every connection's will and greeting; when its own topic holds something else, since a
/// late will is retained; and when a hub calls the roll.
#[derive(Debug)]
pub struct Announcer {
    shared: Arc<Shared>,
    /// One task, which ends with this.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    topics: Topics,
    /// The mark that connections are counted from.
    first: SessionMark,
    state: Mutex<State>,
    /// `dirty` or `roll_call` has changed, or what is said.
    changed: Notify,
    challenger: watch::Sender<Option<u64>>,
}

#[derive(Debug)]
struct State {
    /// What is said now; its session is the present connection's.
    said: AgentPresence,
    /// Since when the topic holds something else.
    dirty: Option<Instant>,
    /// Whether something is to be said that was not said.
    news: bool,
    /// When a roll call is answered.
    roll_call: Option<Instant>,
    /// The hub's session that called last.
    hub: Option<SessionMark>,
}

impl Announcer {
    /// An announcer of `presence`, whose session is the mark that the client's connections are counted from.
    pub fn new(topics: Topics, presence: AgentPresence) -> Announcer {
        let first = presence.session;
        let said = AgentPresence { state: PresenceState::Online, ..presence };
        let state = State { said, dirty: None, news: false, roll_call: None, hub: None };
        let (challenger, _) = watch::channel(None);
        let shared = Shared { topics, first, state: Mutex::new(state), changed: Notify::new(), challenger };
        Announcer { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Will and first message of each connection: [`crate::client::ClientConfig::greet`].
    pub fn greet(&self) -> Arc<dyn Fn(u64) -> Greeting + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |connection| {
            let mut state = shared.lock();
            state.said.session = shared.first.at(connection);
            (state.dirty, state.news) = (None, false);
            Greeting { will: Some(shared.offline(&state)), hello: vec![shared.online(&state)] }
        })
    }

    /// Begins to watch the agent's own topic and the hub's. Must run within a runtime.
    pub fn watch(&self, client: &Client) {
        let shared = Arc::clone(&self.shared);
        let name = shared.lock().said.name.clone();
        client.subscribe(&shared.topics.agent_presence(&name), Qos::AtLeastOnce, {
            let shared = Arc::clone(&shared);
            move |message| shared.on_own(&name, &message)
        });
        client.subscribe(&shared.topics.hub_presence(), Qos::AtLeastOnce, {
            let shared = Arc::clone(&shared);
            move |message| shared.on_hub(&message)
        });
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.abort_all();
        tasks.spawn(shared.run(client.clone()));
    }

    /// Changes what is said, and says it.
    pub fn update(&self, change: impl FnOnce(&mut AgentPresence)) {
        let mut state = self.shared.lock();
        change(&mut state.said);
        state.news = true;
        drop(state);
        self.shared.changed.notify_one();
    }

    /// What is said now, in the present connection.
    pub fn presence(&self) -> AgentPresence {
        self.shared.lock().said.clone()
    }

    /// The last message: [`Client::close`].
    pub fn goodbye(&self) -> Message {
        self.shared.offline(&self.shared.lock())
    }

    /// Waits until another process says that it is this agent, and returns that process. One of the two has to go: the
    /// connection is closed without a goodbye, and [`crate::claim::claim`] decides.
    pub async fn challenged(&self) -> u64 {
        let mut challenger = self.shared.challenger.subscribe();
        let challenged = challenger.wait_for(Option::is_some).await.ok().and_then(|process| *process);
        match challenged {
            Some(process) => process,
            None => std::future::pending().await, // the sender lives as long as `self`
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // plain values, whole at every point
    }

    fn message(&self, presence: &AgentPresence) -> Message {
        let topic = self.topics.agent_presence(&presence.name);
        Message { topic, payload: presence.encode().into(), retain: true }
    }

    fn online(&self, state: &State) -> Message {
        self.message(&state.said)
    }

    fn offline(&self, state: &State) -> Message {
        self.message(&AgentPresence { state: PresenceState::Offline, ..state.said.clone() })
    }

    /// Something is said on the own topic.
    fn on_own(&self, name: &str, message: &Incoming) {
        let found = AgentPresence::decode(name, &message.payload);
        let mut state = self.lock();
        if found.as_ref().is_ok_and(|found| *found == state.said) {
            state.dirty = None;
        } else {
            state.dirty.get_or_insert_with(Instant::now);
        }
        // What was retained when the first connection began is what the claim saw.
        let first = state.said.session.epoch <= self.first.epoch + 1;
        if let Ok(found) = found
            && found.state == PresenceState::Online
            && found.session.process != self.first.process
            && !(message.retain && first)
        {
            info!(process = %format_args!("{:016x}", found.session.process), "another process says that it is this agent");
            self.challenger.send_replace(Some(found.session.process));
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The hub is there, or a hub's will says that it is not.
    fn on_hub(&self, message: &Incoming) {
        let hub = match HubPresence::decode(&message.payload) {
            Ok(hub) => hub,
            Err(reason) => return debug!(%reason, "not a hub's presence"),
        };
        let mut state = self.lock();
        if hub.state == PresenceState::Online && state.hub != Some(hub.session) {
            let called_before = state.hub.replace(hub.session).is_some();
            // The greeting has answered what was retained when the connection began.
            if called_before || !message.retain {
                let wait = up_to(ROLL_CALL_SPREAD);
                state.roll_call.get_or_insert(Instant::now() + wait);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    async fn run(self: Arc<Shared>, client: Client) {
        let mut last: Option<Instant> = None;
        loop {
            let due = {
                let state = self.lock();
                // A moment of patience: what a new connection finds is replaced by its greeting anyway.
                let again =
                    state.dirty.map(|since| last.map_or(since, |last| since.max(last + AGAIN_LEAST)) + AGAIN_PATIENCE);
                let news = state.news.then(Instant::now);
                [again, news, state.roll_call].into_iter().flatten().min()
            };
            let Some(due) = due else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.changed.notified() => continue,
            }
            let message = {
                let mut state = self.lock();
                (state.dirty, state.news, state.roll_call) = (None, false, None);
                self.online(&state)
            };
            last = Some(Instant::now());
            match client.publish(message) {
                // The next connection greets.
                Ok(()) | Err(PublishError::Disconnected) => {}
                Err(PublishError::Full) => {
                    client.room().await;
                    self.lock().news = true;
                }
                Err(error @ PublishError::TooLarge { .. }) => debug!(%error, "presence is not announced"),
            }
        }
    }
}
