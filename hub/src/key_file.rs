//! Secret keys on disk: the hub's own in its state folder, and those of authors.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use omnilearn_kernel_host::{KeyPair, NoRandomNumbers, TextError};

/// Name of the hub's own key in its state folder.
pub const HUB_KEY: &str = "hub.key";

/// Longest content of a file that is taken for a key.
const BYTES_MAX: u64 = 4096;

/// Only the owner may read and write.
const OWNER_ONLY: u32 = 0o600;

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file would be overwritten.
    #[error("the key file {} exists and was left as it is: nothing brings a key back; name another file", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error("the key file {}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: TextError,
    },
    /// The operating system failed.
    #[error("the key file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// There is nothing to make a key of.
    #[error(transparent)]
    Random(#[from] NoRandomNumbers),
}

/// Makes a new key in a new file that only its owner can read.
///
/// # Errors
/// [`KeyFileError`]; a file that exists stays as it is.
pub fn create(path: &Path) -> Result<KeyPair, KeyFileError> {
    let io = |cause| KeyFileError::Io { path: path.to_owned(), cause };
    let key = KeyPair::generate()?;
    let mut file = match File::options().write(true).create_new(true).mode(OWNER_ONLY).open(path) {
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {
            return Err(KeyFileError::Exists { path: path.to_owned() });
        }
        opened => opened.map_err(io)?,
    };
    let written = file.write_all(key.secret_text().as_bytes()).and_then(|()| file.sync_all());
    if let Err(cause) = written {
        std::fs::remove_file(path).ok(); // half a key is none, and would be in the way of the next attempt
        return Err(io(cause));
    }
    Ok(key)
}

/// Reads a key. That others can read it too is said in the log and is no error: some file systems know no owners.
///
/// # Errors
/// [`KeyFileError`]
pub fn read(path: &Path) -> Result<KeyPair, KeyFileError> {
    let key = read_given(path)?;
    let metadata = std::fs::metadata(path).map_err(|cause| KeyFileError::Io { path: path.to_owned(), cause })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let mode = format!("{mode:o}");
        tracing::warn!(file = %path.display(), mode, "others than the owner may use this secret key; run `chmod 600` on it");
    }
    Ok(key)
}

/// Reads a key that was provided as a secret. Whoever mounts secrets into a container chooses their owner and their mode, and
/// the user there could not change them, so nothing is said about these.
///
/// # Errors
/// [`KeyFileError`]
pub(crate) fn read_given(path: &Path) -> Result<KeyPair, KeyFileError> {
    let io = |cause| KeyFileError::Io { path: path.to_owned(), cause };
    let file = File::open(path).map_err(io)?;
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).map_err(io)?;
    KeyPair::parse_secret(&text).map_err(|cause| KeyFileError::Text { path: path.to_owned(), cause })
}

/// Reads a key, or makes it if there is none yet.
///
/// # Errors
/// [`KeyFileError`]
pub(crate) fn read_or_create(path: &Path) -> Result<KeyPair, KeyFileError> {
    match read(path) {
        Err(KeyFileError::Io { cause, .. }) if cause.kind() == ErrorKind::NotFound => create(path),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("author.key");
        let made = read_or_create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_create(&path).unwrap().public(), made.public());
        let error = create(&path).unwrap_err();
        assert!(matches!(error, KeyFileError::Exists { .. }), "{error}");
        assert_eq!(read(&path).unwrap().public(), made.public());
        // Others may read it now, which is worth a warning.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(read(&path).unwrap().public(), made.public());
    }

    #[test]
    fn a_file_that_is_no_key_is_refused_by_name_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.key");
        let public = KeyPair::from_secret(&[1; 32]).public().to_string();
        for content in [String::new(), public, "x".repeat(10_000)] {
            std::fs::write(&path, &content).unwrap();
            let error = anyhow::Error::from(read_or_create(&path).unwrap_err());
            assert!(format!("{error:#}").contains("hub.key: this is no secret key"), "{error:#}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }
}
