//! The agent at a broker: one name, presence, timings, commands, and streams to the hub where it is reached this way.

mod attendance;
mod commands;
mod errands;
mod hands;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use omnilearn_mqtt::claim::{ClaimError, claim};
use omnilearn_mqtt::client::{Client, ClientConfig};
use omnilearn_mqtt::options::{Credentials, Options};
use omnilearn_mqtt::presence::{AgentPresence, Announcer, PresenceState, Transport};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::stream::Dialer;
use omnilearn_mqtt::topics::Topics;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::attendance::{Attendance, Left, subscribe};
use self::errands::Errands;
pub(super) use self::hands::Hands;
use super::REFUSED_WAIT;
use super::recorder::Recorder;
use super::route::Ferry;
use crate::config::{MqttConfig, Token};
use crate::health::Health;

/// How long the last timings may take at the end.
const LAST_TIMINGS: Duration = Duration::from_millis(300);
/// How long taking leave of the broker may take.
const GOODBYE: Duration = Duration::from_millis(300);

/// Who an agent is at a broker.
pub(super) struct Identity {
    pub(super) name: String,
    /// Random number of the process.
    pub(super) process: u64,
    pub(super) transport: Transport,
}

/// An agent's connection to a broker, and what it does there.
pub(super) struct Link {
    pub(super) config: MqttConfig,
    pub(super) identity: Identity,
    pub(super) token: Option<Token>,
    pub(super) recorder: Recorder,
    pub(super) hands: Hands,
    /// What the session with the hub knows of the broker.
    pub(super) ferry: watch::Sender<Ferry>,
    /// Whether the hub has taken this agent, so that another of its name is no reason to end.
    pub(super) was_welcome: Rc<Cell<bool>>,
}

impl Identity {
    /// The agent's name and the hub's token are the login where there is no other.
    fn login(&self, options: Options, token: Option<&Token>) -> Options {
        match token {
            Some(token) if options.credentials.is_none() && options.tls.client.is_none() => {
                let credentials = Credentials { user: self.name.clone(), password: token.reveal().to_owned() };
                Options { credentials: Some(credentials), ..options }
            }
            _ => options,
        }
    }
}

impl Link {
    /// Serves until `goodbye` is cancelled.
    ///
    /// # Errors
    /// [`ClaimError::Taken`] if another agent has the name, and the hub has not taken this one.
    pub(super) async fn run(self, goodbye: CancellationToken) -> Result<(), ClaimError> {
        let mut options = self.identity.login(self.config.options.clone(), self.token.as_ref());
        let topics = Topics::new(options.broker.prefix());
        let mut errands = Errands::new(self.hands.clone());
        let mut is_taken = false;
        loop {
            let claimed = tokio::select! {
                () = goodbye.cancelled() => return Ok(()),
                claimed = claim(&options, &topics, &self.identity.name, self.identity.process) => claimed,
            };
            match claimed {
                Ok(epoch) => {
                    is_taken = false;
                    let left = self.attend(&options, &topics, epoch, &mut errands, &goodbye).await;
                    match left {
                        Left::Goodbye => return Ok(()),
                        Left::Rival => warn!(broker = %options.broker, "another agent has come under this name"),
                        Left::Login(changed) => options = *changed,
                    }
                    self.ferry.send_replace(Ferry::NoBroker { reason: "connecting anew".to_owned() });
                }
                Err(error) if !self.was_welcome.get() => return Err(error),
                Err(error) => {
                    if !std::mem::replace(&mut is_taken, true) {
                        warn!(broker = %options.broker, %error, retry_s = REFUSED_WAIT.as_secs(), "the broker is another agent's");
                    }
                    self.ferry.send_replace(Ferry::NoBroker { reason: error.to_string() });
                    tokio::select! {
                        () = goodbye.cancelled() => return Ok(()),
                        () = tokio::time::sleep(REFUSED_WAIT) => (),
                    }
                }
            }
        }
    }

    /// Is there, from a claim of the name until there is a reason to leave.
    async fn attend(
        &self,
        options: &Options,
        topics: &Topics,
        epoch: u64,
        errands: &mut Errands,
        goodbye: &CancellationToken,
    ) -> Left {
        let Identity { name, process, transport } = &self.identity;
        let base = SessionMark { process: *process, epoch };
        let announcer = Announcer::new(topics.clone(), self.presence(base));
        let client = Client::start(ClientConfig {
            options: options.clone(),
            client_id: name.clone(),
            probe_topic: topics.agent_probe(name),
            greet: announcer.greet(),
        });
        announcer.watch(&client);
        let news = subscribe(&client, topics, name);
        let is_route = *transport == Transport::Mqtt;
        let attendance = Attendance {
            client: &client,
            announcer: &announcer,
            topics,
            options,
            identity: &self.identity,
            ferry: &self.ferry,
            dialer: is_route.then(|| Rc::new(Dialer::new(client.clone(), topics.clone(), name))),
            base,
            connection: 0,
            is_connected: false,
            hub_is_there: false,
        };
        let (orders, health) = (self.hands.helm.follow(), self.hands.health.clone());
        self.recorder.publish(client.clone(), topics, base, self.config.timings_every);
        let left = attendance.run(news, orders, health, errands, goodbye).await;
        // Who has made way for another says nothing under its name any more.
        let last = (!matches!(left, Left::Rival)).then(|| announcer.goodbye());
        match left {
            Left::Goodbye => self.recorder.finish(LAST_TIMINGS).await,
            Left::Rival | Left::Login(_) => self.recorder.keep(),
        }
        let _ = tokio::time::timeout(GOODBYE, client.close(last)).await; // a will says the same
        left
    }

    fn presence(&self, session: SessionMark) -> AgentPresence {
        AgentPresence {
            state: PresenceState::Online,
            session,
            name: self.identity.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: self.identity.transport,
            paused: is_paused(&self.hands.health.borrow()),
            timings: self.config.timings_format,
        }
    }
}

fn is_paused(health: &Health) -> bool {
    matches!(health, Health::Paused { .. })
}

#[cfg(test)]
mod tests {
    use omnilearn_mqtt::address::BrokerUrl;

    use super::*;

    #[test]
    fn name_and_token_are_the_login_unless_there_is_another() {
        let identity = Identity { name: "pi".to_owned(), process: 1, transport: Transport::Mqtt };
        let token = Token::new("open sesame").unwrap();
        let options = Options::new(BrokerUrl::parse("mqtt://localhost").unwrap());
        let login = |options: &Options, token| {
            let credentials = identity.login(options.clone(), token).credentials?;
            Some((credentials.user, credentials.password))
        };
        assert_eq!(login(&options, None), None);
        assert_eq!(login(&options, Some(&token)), Some(("pi".to_owned(), "open sesame".to_owned())));
        let own = Credentials { user: "box".to_owned(), password: "secret".to_owned() };
        let own = Options { credentials: Some(own), ..options.clone() };
        assert_eq!(login(&own, Some(&token)), Some(("box".to_owned(), "secret".to_owned())));
        let mut certified = options;
        certified.tls.client = Some((Vec::new(), Vec::new()));
        assert_eq!(login(&certified, Some(&token)), None);
    }
}
