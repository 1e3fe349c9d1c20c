//! A Mosquitto of our own on loopback, where it is installed.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::process::Process;
use crate::demo::free_port;
use crate::interrupt::Interrupt;

/// Longest wait for it to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// A broker that ends when dropped.
#[derive(Debug)]
pub(crate) struct Mosquitto {
    _process: Process,
    port: u16,
}

impl Mosquitto {
    /// Starts one with its defaults, but for all clients of this machine; none if it is not installed.
    ///
    /// # Errors
    /// When it does not listen.
    pub(crate) fn start(folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Option<Self>> {
        let Some(program) = program() else { return Ok(None) };
        let port = free_port()?;
        let config = folder.join("mosquitto.conf");
        fs::write(&config, format!("listener {port} 127.0.0.1\nallow_anonymous true\n"))
            .with_context(|| format!("writing {}", config.display()))?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&config);
        let mut process = Process::spawn("mosquitto", command, &folder.join("mosquitto.log"))?;
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            process.check_running()?;
            interrupt.sleep(Duration::from_millis(20))?;
            if start.elapsed() > PATIENCE {
                bail!("mosquitto does not listen; see {}", process.log().display());
            }
        }
        Ok(Some(Self { _process: process, port }))
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }
}

/// Debian keeps it where only administrators look.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    folders.map(|folder| folder.join("mosquitto")).find(|program| program.is_file())
}
