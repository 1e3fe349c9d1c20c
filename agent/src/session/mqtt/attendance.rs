//! What an agent does while it has its name at a broker.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use omnilearn_mqtt::client::{Client, ClientState, Incoming, Message, Qos};
use omnilearn_mqtt::command::CommandReply;
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::presence::{Announcer, HubPresence, PresenceState};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::stream::Dialer;
use omnilearn_mqtt::topics::Topics;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::errands::Errands;
use super::{Identity, is_paused};
use crate::health::Health;
use crate::session::orders::Orders;
use crate::session::route::Ferry;

/// Messages from the broker that wait for the agent's network thread. When there are more, they are dropped: presence comes
/// again, and whoever sent a command sends it again.
const NEWS_MAX: usize = 256;
/// A login that has changed is used after this time, in which the command's reply gets to the broker.
const LOGIN_WAIT: Duration = Duration::from_secs(1);

/// What comes from the broker.
pub(super) enum News {
    Hub(Bytes),
    Command(Bytes),
}

/// Why a connection was given up.
pub(super) enum Left {
    Goodbye,
    Rival,
    Login(Box<Options>),
}

/// A connection and what is known from it.
pub(super) struct Attendance<'a> {
    pub(super) client: &'a Client,
    pub(super) announcer: &'a Announcer,
    pub(super) topics: &'a Topics,
    pub(super) options: &'a Options,
    pub(super) identity: &'a Identity,
    pub(super) ferry: &'a watch::Sender<Ferry>,
    /// Opens streams to the hub, if that is how it is reached.
    pub(super) dialer: Option<Rc<Dialer>>,
    /// The mark that connections are counted from.
    pub(super) base: SessionMark,
    /// Count of connections so far.
    pub(super) connection: u64,
    pub(super) is_connected: bool,
    pub(super) hub_is_there: bool,
}

/// Has everything that concerns the agent put into one queue.
pub(super) fn subscribe(client: &Client, topics: &Topics, name: &str) -> mpsc::Receiver<News> {
    let (news, receiver) = mpsc::channel(NEWS_MAX);
    let forward = |filter: String, qos: Qos, into: fn(Incoming) -> News| {
        let news = news.clone();
        client.subscribe(&filter, qos, move |incoming| {
            if news.try_send(into(incoming)).is_err() {
                debug!("a message from the broker is dropped, for too many wait");
            }
        });
    };
    forward(topics.hub_presence(), Qos::AtLeastOnce, |incoming| News::Hub(incoming.payload));
    forward(topics.agent_command(name), Qos::AtLeastOnce, |incoming| News::Command(incoming.payload));
    receiver
}

impl Attendance<'_> {
    /// Serves until there is a reason to leave.
    pub(super) async fn run(
        mut self,
        mut news: mpsc::Receiver<News>,
        mut orders: watch::Receiver<Orders>,
        mut health: watch::Receiver<Health>,
        errands: &mut Errands,
        goodbye: &CancellationToken,
    ) -> Left {
        let mut state = self.client.state();
        state.mark_changed(); // the first one is news, too
        health.mark_changed();
        let mut login: Option<(Instant, Box<Options>)> = None;
        loop {
            let session = self.base.at(self.connection);
            let login_at = login.as_ref().map(|(at, _)| *at);
            // Every arm is safe to drop: what it waits for stays where it is.
            tokio::select! {
                biased;
                () = goodbye.cancelled() => return Left::Goodbye,
                _process = self.announcer.challenged() => return Left::Rival,
                Ok(()) = state.changed() => {
                    let state = state.borrow_and_update().clone();
                    self.on_state(state);
                }
                Ok(()) = health.changed() => self.tell_whether_paused(is_paused(&health.borrow_and_update())),
                Ok(()) = orders.changed() => {
                    let changed = self.changed_login(&orders.borrow_and_update());
                    login = changed.map(|options| (Instant::now() + LOGIN_WAIT, options)).or(login);
                }
                () = until(login_at) => if let Some((_, options)) = login {
                    return Left::Login(options);
                },
                reply = errands.finished(session) => self.reply(&reply),
                Some(news) = news.recv() => match news {
                    News::Hub(payload) => self.on_hub(&payload),
                    News::Command(payload) => if let Some(reply) = errands.on_payload(&payload, session) {
                        self.reply(&reply);
                    },
                },
            }
        }
    }

    fn on_state(&mut self, state: ClientState) {
        match state {
            ClientState::Connected { connection, .. } => {
                self.connection = connection;
                self.is_connected = true;
                self.show(None);
            }
            ClientState::Connecting { reason } => {
                self.is_connected = false;
                self.show(reason);
            }
            ClientState::Closed => (),
        }
    }

    fn on_hub(&mut self, payload: &[u8]) {
        match HubPresence::decode(payload) {
            Ok(presence) => {
                self.hub_is_there = presence.state == PresenceState::Online;
                self.show(None);
            }
            Err(error) => debug!(%error, "the hub's presence is not understood"),
        }
    }

    /// Tells the session with the hub how it can be reached.
    fn show(&self, reason: Option<String>) {
        let ferry = match &self.dialer {
            _ if !self.is_connected => {
                Ferry::NoBroker { reason: reason.unwrap_or_else(|| "not connected yet".to_owned()) }
            }
            Some(dialer) if self.hub_is_there => Ferry::Ready(Rc::clone(dialer)),
            _ => Ferry::NoHub,
        };
        self.ferry.send_replace(ferry);
    }

    fn tell_whether_paused(&self, paused: bool) {
        if self.announcer.presence().paused != paused {
            self.announcer.update(|presence| presence.paused = paused);
        }
    }

    /// How to log in from now on, if that has changed.
    fn changed_login(&self, orders: &Orders) -> Option<Box<Options>> {
        let secrets = orders.secrets.as_deref()?;
        let options = self.identity.login(secrets.broker.clone()?, secrets.token.as_ref());
        let is_new = options.credentials != self.options.credentials || options.tls != self.options.tls;
        is_new.then(|| Box::new(options))
    }

    fn reply(&self, reply: &CommandReply) {
        let topic = self.topics.agent_reply(&self.identity.name);
        let message = Message { topic, payload: reply.encode().into(), retain: false };
        if let Err(error) = self.client.publish(message) {
            // Whoever asks again gets the same reply.
            debug!(id = reply.id, %error, "a reply cannot be sent");
        }
    }
}

/// Waits for a time, or for ever where there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
