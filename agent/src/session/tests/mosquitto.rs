//! A broker of the test's own, where there is Mosquitto.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use omnilearn_datasets::unique;
use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::client::{Client, ClientConfig, Greeting, Incoming, Message, Qos};
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::topics::Topics;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::fake::soon;

/// Where Debian puts it, which is on no user's path.
const PROGRAMS: [&str; 2] = ["mosquitto", "/usr/sbin/mosquitto"];

/// A broker on a port of its own. Ends when dropped.
pub(super) struct Broker {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Broker {
    /// Starts it; none, with a word on why, where there is no Mosquitto.
    pub(super) fn start() -> Option<Broker> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut broker = Broker { folder: TempDir::new().unwrap(), port, process: None };
        let settings = format!("listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n");
        std::fs::write(broker.folder.path().join("conf"), settings).unwrap();
        if broker.restart() {
            return Some(broker);
        }
        eprintln!("skipped: there is no mosquitto on this machine");
        None
    }

    /// Starts it again after [`Broker::stop`]; false if there is no such program.
    pub(super) fn restart(&mut self) -> bool {
        let started = PROGRAMS.iter().find_map(|program| {
            let mut command = Command::new(program);
            command.arg("-c").arg(self.folder.path().join("conf"));
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
        });
        self.process = started;
        if self.process.is_none() {
            return false;
        }
        let begin = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(10), "mosquitto does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Kills it.
    pub(super) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(super) fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}/test", self.port)
    }

    pub(super) fn options(&self) -> Options {
        let packet_bytes_max = Some(128 << 10);
        Options { packet_bytes_max, ..Options::new(BrokerUrl::parse(&self.url()).unwrap()) }
    }

    /// A client that greets with these messages.
    pub(super) fn client(&self, name: &str, hello: Vec<Message>) -> Client {
        Client::start(ClientConfig {
            options: self.options(),
            client_id: name.to_owned(),
            probe_topic: format!("test/{name}"),
            greet: Arc::new(move |_| Greeting { will: None, hello: hello.clone() }),
        })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Someone who reads along what an agent says.
pub(super) struct Observer {
    pub(super) client: Client,
    pub(super) topics: Topics,
    messages: mpsc::UnboundedReceiver<Incoming>,
}

impl Observer {
    /// `hello` is what it says itself, each time it is connected.
    pub(super) async fn new(broker: &Broker, hello: Vec<Message>) -> Observer {
        let topics = Topics::new("test");
        let client = broker.client(&format!("observer-{}", unique()), hello);
        let (sender, messages) = mpsc::unbounded_channel();
        for filter in [topics.all_presence(), topics.all_timings(), topics.all_replies()] {
            let sender = sender.clone();
            client.subscribe(&filter, Qos::AtLeastOnce, move |incoming| {
                let _ = sender.send(incoming); // the test may be over
            });
        }
        assert!(soon("the broker", client.connected()).await);
        Observer { client, topics, messages }
    }

    /// The next message that `read` makes something of.
    pub(super) async fn next<T>(&mut self, what: &str, mut read: impl FnMut(&Incoming) -> Option<T>) -> T {
        let found = async {
            loop {
                let incoming = self.messages.recv().await.expect("the client lives as long as the test");
                if let Some(found) = read(&incoming) {
                    return found;
                }
            }
        };
        soon(what, found).await
    }
}
