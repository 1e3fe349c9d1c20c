//! A hub in this process, and agents at the broker.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use omnilearn_hub::client::{ClientError, HubClient};
use omnilearn_hub::mqtt::{MqttConfig, Password};
use omnilearn_hub::view::AgentView;
use omnilearn_hub::{Config, Outcome, RunError, Token, run};
use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::client::{Client, ClientConfig, Message, Qos};
use omnilearn_mqtt::command::{Command, CommandReply, CommandRequest};
use omnilearn_mqtt::options::{Credentials, Options};
use omnilearn_mqtt::presence::{AgentPresence, Announcer, PresenceState, Transport};
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::stream::{Dialer, MqttStream};
use omnilearn_mqtt::timings::TimingsFormat;
use omnilearn_mqtt::topics::Topics;
use omnilearn_wire::handshake::{self, Hello, Welcome};
use omnilearn_wire::message::Machine;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_util::sync::CancellationToken;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn options(port: u16) -> Options {
    Options::new(BrokerUrl::parse(&format!("mqtt://127.0.0.1:{port}")).unwrap())
}

pub(crate) fn existing(port: u16) -> MqttConfig {
    MqttConfig::Existing(options(port))
}

pub(crate) fn own(port: u16, token: Option<&str>) -> MqttConfig {
    MqttConfig::Own {
        listen: SocketAddr::from(([127, 0, 0, 1], port)),
        password: token.map(|token| Password(token.to_owned())),
    }
}

pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    shutdown: CancellationToken,
    pub(crate) task: JoinHandle<Result<Outcome, RunError>>,
    token: Option<String>,
}

impl Hub {
    pub(crate) async fn start(state: &Path, mqtt: MqttConfig, token: Option<&str>) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let config = Config {
            state: state.to_owned(),
            key: None,
            token: token.map(Token::new),
            exit_when_done: false,
            mqtt: Some(mqtt),
        };
        let task = tokio::spawn(run(listener, config, shutdown.clone()));
        Hub { address, shutdown, task, token: token.map(str::to_owned) }
    }

    pub(crate) async fn call<T: Send + 'static>(&self, call: impl FnOnce(HubClient) -> T + Send + 'static) -> T {
        let client = HubClient::new(&format!("http://{}", self.address), self.token.as_deref());
        tokio::task::spawn_blocking(move || call(client)).await.unwrap()
    }

    pub(crate) async fn command(&self, agent: &'static str, command: Command) -> Result<serde_json::Value, String> {
        let refused = |error| match error {
            ClientError::Refused { status, reason } => format!("{status} {reason}"),
            other => panic!("{other}"),
        };
        self.call(move |client| client.command(agent, &command)).await.map_err(refused)
    }

    /// Asks until an agent is as wanted.
    pub(crate) async fn agent_when(&self, name: &str, wanted: impl Fn(&AgentView) -> bool) -> AgentView {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let agents = self.call(|client| client.agents()).await.unwrap();
            if let Some(view) = agents.iter().find(|agent| agent.name == name && wanted(agent)) {
                return view.clone();
            }
            assert!(Instant::now() < give_up, "{agents:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn connected_to_broker(&self, connected: bool) {
        let give_up = Instant::now() + PATIENCE;
        while self.call(|client| client.health()).await.unwrap().mqtt.unwrap().connected != connected {
            assert!(Instant::now() < give_up, "not {connected}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn stop(self) {
        let begun = Instant::now();
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
        assert!(begun.elapsed() < Duration::from_millis(2_500), "{:?}", begun.elapsed());
    }
}

pub(crate) fn presence_of(view: &AgentView) -> &str {
    view.presence.as_ref().map_or("none", |presence| presence.state.as_str())
}

/// An agent at the broker that does what it is told and computes nothing.
pub(crate) struct Agent {
    pub(crate) client: Client,
    pub(crate) topics: Topics,
    pub(crate) mark: SessionMark,
    announcer: Arc<Announcer>,
    dialer: Dialer,
    pub(crate) commands: Arc<Mutex<Vec<CommandRequest>>>,
}

impl Agent {
    pub(crate) async fn start(name: &str, options: Options) -> Agent {
        let topics = Topics::new(options.broker.prefix());
        let mark = SessionMark::new();
        let presence = AgentPresence {
            state: PresenceState::Online,
            session: mark,
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            transport: Transport::Mqtt,
            paused: false,
            timings: TimingsFormat::Json,
        };
        let announcer = Arc::new(Announcer::new(topics.clone(), presence));
        let client = Client::start(ClientConfig {
            options,
            client_id: name.to_owned(),
            probe_topic: topics.agent_probe(name),
            greet: announcer.greet(),
        });
        announcer.watch(&client);
        let commands = Arc::<Mutex<Vec<CommandRequest>>>::default();
        let (seen, said, replies, reply_topic) =
            (Arc::clone(&commands), Arc::clone(&announcer), client.clone(), topics.agent_reply(name));
        client.subscribe(&topics.agent_command(name), Qos::AtLeastOnce, move |incoming| {
            let request = CommandRequest::decode(&incoming.payload).unwrap();
            let reply = match request.command {
                Command::Pause => {
                    said.update(|presence| presence.paused = true);
                    CommandReply::done(&request.id, mark, serde_json::json!({ "paused": true }))
                }
                _ => CommandReply::refused(&request.id, mark, "not in this test"),
            };
            seen.lock().unwrap().push(request);
            let payload = reply.encode().into();
            replies.publish(Message { topic: reply_topic.clone(), payload, retain: false }).unwrap();
        });
        let dialer = Dialer::new(client.clone(), topics.clone(), name);
        assert!(tokio::time::timeout(PATIENCE, client.connected()).await.unwrap());
        Agent { client, topics, mark, announcer, dialer, commands }
    }

    /// Opens a stream to the hub and says hello under a name.
    pub(crate) async fn dial(&self, name: &str, token: Option<&str>) -> (WebSocketStream<MqttStream>, Frame) {
        let stream = self.dialer.dial().await.unwrap();
        let (mut socket, _) = tokio_tungstenite::client_async("ws://hub/agent", stream).await.unwrap();
        let token = token.map(str::to_owned);
        let hello = Hello { name: name.to_owned(), token, process: self.mark.process, machine: Machine::default() };
        socket.send(Frame::Binary(handshake::encode_hello(&hello).into())).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
        (socket, answer)
    }

    pub(crate) async fn leave(&self) {
        self.client.close(Some(self.announcer.goodbye())).await;
    }
}

pub(crate) fn welcome(answer: &Frame) -> Result<Welcome, String> {
    let Frame::Binary(answer) = answer else { panic!("{answer:?}") };
    handshake::decode_answer(answer).map(|(_, welcome)| welcome).map_err(|error| error.to_string())
}

pub(crate) fn with_password(options: Options, user: &str, password: &str) -> Options {
    Options { credentials: Some(Credentials { user: user.to_owned(), password: password.to_owned() }), ..options }
}
