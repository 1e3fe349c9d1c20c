//! A Mosquitto of the test's own, on a free port of this machine.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A broker that ends with this.
pub(crate) struct Mosquitto {
    child: Option<Child>,
    port: u16,
    folder: TempDir,
}

impl Mosquitto {
    /// Starts a broker with these lines in its configuration besides the port; none, with a word about it, where the program is missing.
    pub(crate) fn start(lines: &str) -> Option<Mosquitto> {
        Mosquitto::start_with(|_| lines.to_owned())
    }

    /// As [`Mosquitto::start`], with lines that name files in the folder that is given.
    pub(crate) fn start_with(lines: impl FnOnce(&Path) -> String) -> Option<Mosquitto> {
        if program().is_none() {
            println!("skipped: the program mosquitto is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let lines = lines(folder.path());
        let anonymous = if lines.contains("allow_anonymous") { "" } else { "allow_anonymous true\n" };
        let port = free_port();
        // Mosquitto gives up root, and could then not read the files of this test.
        let text =
            format!("user root\npersistence false\nlog_type none\nlistener {port} 127.0.0.1\n{anonymous}{lines}\n");
        std::fs::write(folder.path().join("mosquitto.conf"), text).unwrap();
        let mut broker = Mosquitto { child: None, port, folder };
        broker.resume();
        Some(broker)
    }

    /// Address with a topic prefix.
    pub(crate) fn url(&self, scheme: &str, prefix: &str) -> String {
        format!("{scheme}://127.0.0.1:{}/{prefix}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts it, after [`Mosquitto::kill`].
    pub(crate) fn resume(&mut self) {
        let program = program().expect("it was there before");
        let config = self.folder.path().join("mosquitto.conf");
        let child = Command::new(program).arg("-c").arg(config).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.unwrap());
        let begun = Instant::now();
        while let Err(error) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(
                ended.is_none() && begun.elapsed() < Duration::from_secs(10),
                "mosquitto does not run: {error}, {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).map(|_| ()).unwrap_or_else(|error: io::Error| println!("{error}"));
        }
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    folders.map(|folder| folder.join("mosquitto")).find(|program| program.is_file())
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
