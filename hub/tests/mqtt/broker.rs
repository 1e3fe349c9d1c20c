//! Brokers to test with.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a broker may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until somebody listens, or nobody does any more.
pub(crate) fn wait_for(port: u16, listens: bool) {
    let give_up = Instant::now() + PATIENCE;
    while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_ok() != listens {
        assert!(Instant::now() < give_up, "port {port} is not {listens}");
        std::thread::yield_now();
    }
}

/// A Mosquitto that ends with the test.
pub(crate) struct Mosquitto {
    port: u16,
    process: Child,
    folder: tempfile::TempDir,
}

impl Mosquitto {
    /// None, and a line that says so, where there is no Mosquitto.
    pub(crate) fn start() -> Option<Mosquitto> {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let process = spawn(folder.path(), port)?;
        wait_for(port, true);
        Some(Mosquitto { port, process, folder })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn stop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        wait_for(self.port, false);
    }

    pub(crate) fn restart(&mut self) {
        self.process = spawn(self.folder.path(), self.port).unwrap();
        wait_for(self.port, true);
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn spawn(folder: &Path, port: u16) -> Option<Child> {
    let config = folder.join("mosquitto.conf");
    let mut file = std::fs::File::create(&config).unwrap();
    write!(file, "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n").unwrap();
    let program = ["mosquitto", "/usr/sbin/mosquitto"].into_iter().find_map(|program| {
        Command::new(program).arg("-c").arg(&config).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
    });
    if program.is_none() {
        eprintln!("skipped: no program `mosquitto`");
    }
    program
}
