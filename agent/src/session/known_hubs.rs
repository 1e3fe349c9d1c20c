//! The file in which an agent keeps the keys of hubs that it has worked for: a line for each, address and key.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use omnilearn_datasets::unique;
use omnilearn_kernel_host::PublicKey;

use crate::config::HubAddress;

/// Begins a new file, for whoever opens it.
const HEADING: &str = "\
# Keys of the hubs that agents on this machine have worked for, kept when each was first met. A hub that comes with
# another key is refused; if you know why its key has changed, remove its line.
";

/// The line of one hub among those of all.
#[derive(Debug)]
pub(super) struct KnownHubs {
    file: PathBuf,
    hub: String,
}

/// Whether a hub's key was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acquaintance {
    Old,
    /// It was kept just now.
    New,
}

/// Why a hub's key is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum KnownHubError {
    #[error(
        "{hub} signs with key {found}, but line {line} of {} holds it to {known}: the hub has another state folder than \
         before, or another hub answers in its place; if the change is intended, remove that line and restart the agent, or \
         start it with --trust KEY, where KEY is what `omnilearn-hub key show` prints", file.display()
    )]
    Changed { hub: String, found: String, known: String, file: PathBuf, line: usize },
    #[error(
        "line {line} of {} has no key for {hub}; remove that line and restart the agent, or start it with --trust KEY, where \
         KEY is what `omnilearn-hub key show` prints", file.display()
    )]
    Malformed { hub: String, file: PathBuf, line: usize },
    #[error(
        "the hub's key cannot be kept in {}: {cause}; make that possible, or start the agent with --trust KEY, where KEY is \
         what `omnilearn-hub key show` prints", file.display()
    )]
    Io {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl KnownHubs {
    /// The line of this hub, in a file in the cache folder.
    pub(super) fn new(cache: &Path, hub: &HubAddress) -> KnownHubs {
        // Whoever is told of the file may be at another machine, where a relative path says nothing.
        let cache = std::path::absolute(cache).unwrap_or_else(|_| cache.to_owned());
        KnownHubs { file: cache.join("known-hubs"), hub: hub.url() }
    }

    /// The file.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Takes the key that the file has for this hub, or any if it has none, which is then kept.
    pub(super) fn accept(&self, key: PublicKey) -> Result<Acquaintance, KnownHubError> {
        let io = |cause| KnownHubError::Io { file: self.file.clone(), cause };
        if self.holds(&self.read().map_err(io)?, key)? {
            return Ok(Acquaintance::Old);
        }
        // Agents that share a folder write one after the other. Where files cannot be locked, one of two keys that are kept
        // at the same moment is lost, and will be kept the next time.
        let lock = File::options().create(true).truncate(false).write(true).open(self.file.with_extension("lock"));
        let lock = lock.map_err(io)?;
        let _ = lock.lock();
        let text = self.read().map_err(io)?;
        if self.holds(&text, key)? {
            return Ok(Acquaintance::Old);
        }
        self.write(text, key).map_err(io)?;
        Ok(Acquaintance::New)
    }

    fn read(&self) -> io::Result<String> {
        match fs::read_to_string(&self.file) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            result => result,
        }
    }

    /// Whether the text has this key for the hub; false if it has none.
    fn holds(&self, text: &str, key: PublicKey) -> Result<bool, KnownHubError> {
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split_whitespace();
            if words.next() != Some(&self.hub) {
                continue;
            }
            let (hub, file, line) = (self.hub.clone(), self.file.clone(), index + 1);
            let known = words.next().and_then(|word| word.parse::<PublicKey>().ok());
            return match known {
                Some(known) if known == key => Ok(true),
                Some(known) => {
                    let (found, known) = (key.short(), known.short());
                    Err(KnownHubError::Changed { hub, found, known, file, line })
                }
                None => Err(KnownHubError::Malformed { hub, file, line }),
            };
        }
        Ok(false)
    }

    fn write(&self, mut text: String, key: PublicKey) -> io::Result<()> {
        if text.is_empty() {
            text.push_str(HEADING);
        } else if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("{} {key}\n", self.hub));
        let temporary = self.file.with_extension(format!("{}.tmp", unique()));
        let result = write_synced(&temporary, &text).and_then(|()| fs::rename(&temporary, &self.file));
        if result.is_err() {
            let _ = fs::remove_file(&temporary); // perhaps it was never made
        }
        result
    }
}

/// After a power cut there is the old file or the new one, and no empty one, which would take any key.
fn write_synced(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use omnilearn_kernel_host::KeyPair;
    use tempfile::TempDir;

    use super::*;

    fn key(secret: u8) -> PublicKey {
        KeyPair::from_secret(&[secret; 32]).public()
    }

    fn hub(cache: &TempDir, address: &str) -> KnownHubs {
        KnownHubs::new(cache.path(), &HubAddress::parse(address).unwrap())
    }

    #[test]
    fn first_key_of_each_hub_is_kept_and_every_other_refused_with_the_line_to_remove() {
        let cache = TempDir::new().unwrap();
        let (lab, shed) = (hub(&cache, "ws://10.0.0.5:7700"), hub(&cache, "ws://shed:7700"));
        assert_eq!(lab.accept(key(1)).unwrap(), Acquaintance::New);
        assert_eq!(shed.accept(key(2)).unwrap(), Acquaintance::New);
        assert_eq!(lab.accept(key(1)).unwrap(), Acquaintance::Old);
        let text = fs::read_to_string(lab.file()).unwrap();
        let expected = [format!("ws://10.0.0.5:7700/agent {}", key(1)), format!("ws://shed:7700/agent {}", key(2))];
        assert_eq!(text.lines().skip(2).collect::<Vec<_>>(), expected);

        let error = shed.accept(key(1)).unwrap_err().to_string();
        assert!(error.contains(&format!("line 4 of {}", shed.file().display())), "{error}");
        assert!(error.contains(&key(1).short()) && error.contains(&key(2).short()), "{error}");
        assert!(error.contains("--trust") && !error.contains('\n'), "{error}");
        assert_eq!(fs::read_to_string(lab.file()).unwrap(), text, "a refusal changes nothing");

        fs::write(lab.file(), text.lines().take(3).collect::<Vec<_>>().join("\n")).unwrap();
        assert_eq!(shed.accept(key(1)).unwrap(), Acquaintance::New);
        assert_eq!(lab.accept(key(1)).unwrap(), Acquaintance::Old);
        let names = fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| name.to_string_lossy().ends_with(".tmp")).count(), 0);
    }

    #[test]
    fn damaged_file_is_refused_and_not_taken_for_an_empty_one() {
        let cache = TempDir::new().unwrap();
        let lab = hub(&cache, "ws://lab:7700");
        for line in ["ws://lab:7700/agent", "ws://lab:7700/agent 1234"] {
            fs::write(lab.file(), format!("# keys\n{line}\n")).unwrap();
            let error = lab.accept(key(1)).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of "), "{error}");
        }
        fs::write(lab.file(), [0xff, 0xfe]).unwrap();
        assert!(matches!(lab.accept(key(1)), Err(KnownHubError::Io { .. })));
    }

    #[test]
    fn agents_that_share_a_folder_keep_each_others_lines() {
        let cache = TempDir::new().unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let hub = hub(&cache, &format!("ws://hub-{number}:7700"));
                scope.spawn(move || assert_eq!(hub.accept(key(number)).unwrap(), Acquaintance::New));
            }
        });
        for number in 0..8 {
            assert_eq!(hub(&cache, &format!("ws://hub-{number}:7700")).accept(key(number)).unwrap(), Acquaintance::Old);
        }
    }
}
