//! A Mosquitto of the test's own on loopback, which can be stopped and started again on the same port.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rumqttc::{Client, Event, MqttOptions, Packet, QoS};

use crate::cluster::Process;

/// Open files that a broker for thousands of clients needs.
const OPEN_FILES: u32 = 20_000;

/// A broker that is killed when dropped.
pub struct Mosquitto {
    process: Option<Process>,
    port: u16,
    folder: tempfile::TempDir,
}

impl Mosquitto {
    /// Starts one that anybody on this machine may use, with more lines of configuration; none if the program is not installed,
    /// which is said as the reason for skipping a test.
    ///
    /// # Errors
    /// If it does not listen.
    pub fn start(configuration: &str) -> Result<Option<Mosquitto>> {
        Self::start_with(&format!("allow_anonymous true\n{configuration}"))
    }

    /// Like [`Mosquitto::start`], with nothing but a listener beside these lines of configuration.
    ///
    /// # Errors
    /// If it does not listen.
    pub fn start_with(configuration: &str) -> Result<Option<Mosquitto>> {
        if program().is_none() {
            println!("skipped: mosquitto is not installed (apt-get install mosquitto)");
            return Ok(None);
        }
        // A port that was free a moment ago; the broker says if somebody else was quicker.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = tempfile::tempdir()?;
        // As root it would become another user, who cannot read what lies in this folder.
        let configuration = format!("user root\nlistener {port} 127.0.0.1\n{configuration}\n");
        std::fs::write(folder.path().join("mosquitto.conf"), configuration)?;
        let mut broker = Mosquitto { process: None, port, folder };
        broker.resume()?;
        Ok(Some(broker))
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Publishes a message as a stranger would, and waits until the broker has it.
    ///
    /// # Errors
    /// If the broker does not take it.
    pub fn publish(&self, topic: &str, payload: &[u8], retain: bool) -> Result<()> {
        self.publish_as(None, topic, payload, retain)
    }

    /// Likewise, with a user's name and password.
    ///
    /// # Errors
    /// If the broker does not take it. Mosquitto takes what its access list forbids, and drops it.
    pub fn publish_as(&self, user: Option<(&str, &str)>, topic: &str, payload: &[u8], retain: bool) -> Result<()> {
        let mut options = MqttOptions::new(format!("stranger-{}", std::process::id()), "127.0.0.1", self.port);
        options.set_max_packet_size(16 << 20, 16 << 20);
        if let Some((name, password)) = user {
            options.set_credentials(name, password);
        }
        let (client, mut connection) = Client::new(options, 8);
        client.publish(topic, QoS::AtLeastOnce, retain, payload)?;
        for event in connection.iter() {
            if let Event::Incoming(Packet::PubAck(_)) = event? {
                return Ok(());
            }
        }
        bail!("the broker has closed the connection")
    }

    /// Kills it, as a power cut would. Nothing that it kept for anybody is left.
    pub fn cut(&mut self) {
        self.process = None;
    }

    /// Starts it again.
    ///
    /// # Errors
    /// If it does not listen.
    pub fn resume(&mut self) -> Result<()> {
        let program = program().unwrap_or_default();
        let mut command = Command::new("sh");
        let raise = format!("ulimit -n {OPEN_FILES} 2>/dev/null; exec \"$0\" -c \"$1\"");
        command.args(["-c", &raise]).arg(program).arg(self.folder.path().join("mosquitto.conf"));
        let process = Process::spawn("mosquitto", &mut command)?;
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            ensure!(start.elapsed() < Duration::from_secs(10), "no mosquitto; it said:\n{}", process.output());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.process = Some(process);
        Ok(())
    }
}

/// Debian keeps it where only administrators look.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    folders.map(|folder| folder.join("mosquitto")).find(|program| program.is_file())
}
