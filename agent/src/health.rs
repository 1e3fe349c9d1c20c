//! Whether an agent is well, told through a small file: a container has no curl, and an agent no port.
//!
//! The network thread writes the file when the connection to the hub comes or goes, and every [`WRITE_EVERY`] in any case.
//! `omnilearn-agent health FILE` reads it. An agent that hangs or is gone stops writing, and its file grows old.

use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

/// How often the file is written again. Rare: an agent may have a fiftieth of a core.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// From which age on a file is that of an agent which hangs: several turns of a very slow one.
pub const AGE_MAX: Duration = Duration::from_secs(60);

/// Longest content that is read.
const BYTES_MAX: usize = 1024;

/// First word of a file of an agent that is connected.
const CONNECTED: &str = "connected";

/// What an agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Connected to this hub.
    Connected {
        /// Its address.
        hub: String,
    },
    /// Not connected, and trying.
    Waiting {
        /// The hub's address.
        hub: String,
    },
    /// Not connected, for an operator wants it so.
    Paused {
        /// The hub's address.
        hub: String,
    },
}

impl fmt::Display for Health {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Connected { hub } => write!(formatter, "connected to {hub}"),
            Health::Waiting { hub } => write!(formatter, "waiting for {hub}"),
            Health::Paused { hub } => {
                write!(formatter, "paused; `omnilearn-hub agent resume NAME` sends it back to {hub}")
            }
        }
    }
}

/// Why an agent is not well.
#[derive(Debug, thiserror::Error)]
pub enum Unwell {
    /// It runs and has no hub.
    #[error("not connected: waiting for the hub at {hub}")]
    Waiting {
        /// The hub's address.
        hub: String,
    },
    /// It hangs, or has ended without a goodbye.
    #[error("the agent has not written {} for {} s: it hangs or has ended", path.display(), age.as_secs())]
    Silent {
        /// Its file.
        path: PathBuf,
        /// Age of the file.
        age: Duration,
    },
    /// No agent writes the file.
    #[error("there is no {}: no agent runs with `--health-file {}`, or it has just begun", path.display(), path.display())]
    Missing {
        /// Its file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is not the health file of an agent", path.display())]
    NotHealth {
        /// The file.
        path: PathBuf,
    },
    /// The operating system failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

impl Health {
    fn text(&self) -> String {
        match self {
            Health::Connected { hub } => format!("{CONNECTED} {hub}\n"),
            Health::Waiting { hub } => format!("waiting {hub}\n"),
            Health::Paused { hub } => format!("paused {hub}\n"),
        }
    }

    fn parse(text: &str) -> Option<Health> {
        let (state, hub) = text.trim_end().split_once(' ')?;
        let hub = hub.to_owned();
        match state {
            CONNECTED => Some(Health::Connected { hub }),
            "waiting" => Some(Health::Waiting { hub }),
            "paused" => Some(Health::Paused { hub }),
            _ => None,
        }
    }
}

/// Reads an agent's file. Who is connected is well, and so is who was told to pause: starting it again would help nobody. `now` is
/// compared with the time at which the file was written.
///
/// # Errors
/// [`Unwell`]
pub fn check(path: &Path, now: SystemTime) -> Result<Health, Unwell> {
    let path_of = || path.to_owned();
    let failed = |cause: std::io::Error| match cause.kind() {
        ErrorKind::NotFound => Unwell::Missing { path: path_of() },
        _ => Unwell::Read { path: path_of(), cause },
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX as u64 {
        return Err(Unwell::NotHealth { path: path_of() });
    }
    // A clock that was set back makes the file look new, which is the smaller mistake.
    let age = metadata.modified().map_err(failed)?;
    let age = now.duration_since(age).unwrap_or_default();
    let bytes = fs::read(path).map_err(failed)?;
    let health =
        Health::parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| Unwell::NotHealth { path: path_of() })?;
    match health {
        _ if age > AGE_MAX => Err(Unwell::Silent { path: path_of(), age }),
        Health::Connected { .. } | Health::Paused { .. } => Ok(health),
        Health::Waiting { hub } => Err(Unwell::Waiting { hub }),
    }
}

/// Writes the file time and again, until dropped. Without a path it does nothing.
pub(crate) async fn keep(path: Option<PathBuf>, health: watch::Receiver<Health>) -> Infallible {
    match path {
        Some(path) => keep_every(WRITE_EVERY, path, health).await,
        None => std::future::pending().await,
    }
}

async fn keep_every(period: Duration, path: PathBuf, mut health: watch::Receiver<Health>) -> Infallible {
    let mut warned = false;
    loop {
        let (text, file) = (health.borrow_and_update().text(), path.clone());
        let written = tokio::task::spawn_blocking(move || write(&file, &text)).await;
        if let (Ok(Err(error)), false) = (written, warned) {
            tracing::warn!(file = %path.display(), %error, "cannot write the health file");
            warned = true; // once says it: nothing else changes by it
        }
        tokio::select! {
            changed = health.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
            () = tokio::time::sleep(period) => (),
        }
    }
}

/// Replaces the file as a whole, so that nobody reads half of it.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: &str = "ws://hub:7700";

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("health");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn now() -> SystemTime {
        SystemTime::now()
    }

    #[test]
    fn only_an_agent_that_is_connected_and_writes_is_well() {
        let (_folder, path) = file(&Health::Connected { hub: HUB.to_owned() }.text());
        assert_eq!(check(&path, now()).unwrap(), Health::Connected { hub: HUB.to_owned() });
        let later = now() + AGE_MAX + Duration::from_secs(5);
        assert!(matches!(check(&path, later), Err(Unwell::Silent { age, .. }) if age > AGE_MAX));
        let (_folder, path) = file(&Health::Waiting { hub: HUB.to_owned() }.text());
        let error = check(&path, now()).unwrap_err();
        assert!(error.to_string().contains(HUB), "{error}");
        let paused = Health::Paused { hub: HUB.to_owned() };
        let (_folder, path) = file(&paused.text());
        assert_eq!(check(&path, now()).unwrap(), paused);
    }

    #[test]
    fn a_file_that_is_missing_or_something_else_is_named() {
        let (folder, path) = file("");
        for text in [String::new(), "connected".to_owned(), "fine ws://hub\n".to_owned(), "x".repeat(5000)] {
            fs::write(&path, text).unwrap();
            assert!(matches!(check(&path, now()), Err(Unwell::NotHealth { .. })));
        }
        assert!(matches!(check(folder.path(), now()), Err(Unwell::NotHealth { .. })));
        let error = check(&folder.path().join("other"), now()).unwrap_err().to_string();
        assert!(error.contains("--health-file"), "{error}");
    }

    /// Fails after half a minute.
    async fn until(wanted: impl Fn() -> bool) {
        let give_up = std::time::Instant::now() + Duration::from_secs(30);
        while !wanted() {
            assert!(std::time::Instant::now() < give_up);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_file_follows_the_connection_and_is_written_again_without_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("health");
        let sender = watch::Sender::new(Health::Waiting { hub: HUB.to_owned() });
        let writer = tokio::spawn(keep_every(Duration::from_millis(5), path.clone(), sender.subscribe()));
        until(|| matches!(check(&path, now()), Err(Unwell::Waiting { .. }))).await;
        sender.send_replace(Health::Connected { hub: HUB.to_owned() });
        until(|| check(&path, now()).is_ok()).await;
        fs::remove_file(&path).unwrap();
        until(|| check(&path, now()).is_ok()).await;
        writer.abort();
    }
}
