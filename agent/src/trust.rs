//! Whose kernels an agent runs.

use std::path::PathBuf;

use omnilearn_kernel_host::{PublicKey, TextError};

/// Whose kernels an agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those of the hub, whose key is kept when it first comes; from then on another key at the same address is refused.
    #[default]
    FirstUse,
    /// Those that one of these keys has signed.
    Keys(Vec<PublicKey>),
}

/// Why `--trust` is not understood.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Not a key.
    #[error("--trust {argument:?}: {cause}; give a key as `omnilearn-hub key show` prints it, or @FILE")]
    Key {
        /// What was given.
        argument: String,
        /// What is wrong with it.
        #[source]
        cause: TextError,
    },
    /// A line of a file is not a key.
    #[error("--trust @{}: line {line}: {cause}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        cause: TextError,
    },
    /// A file without keys. To trust nobody would be of no use, and to trust everybody not what was asked for.
    #[error("--trust @{}: there is no key in the file", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A file that cannot be read.
    #[error("--trust @{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

impl Trust {
    /// Reads the values of `--trust`: keys, and `@FILE` for files with a key on each line, in which lines that begin with
    /// `#` do not count. None at all is trust on first use.
    ///
    /// # Errors
    /// [`TrustError`]
    pub fn parse(arguments: &[String]) -> Result<Trust, TrustError> {
        let mut keys = Vec::new();
        for argument in arguments {
            match argument.strip_prefix('@') {
                Some(path) => keys.extend(read_keys(path.into())?),
                None => keys
                    .push(argument.parse().map_err(|cause| TrustError::Key { argument: argument.to_owned(), cause })?),
            }
        }
        Ok(if arguments.is_empty() { Trust::FirstUse } else { Trust::Keys(keys) })
    }
}

fn read_keys(path: PathBuf) -> Result<Vec<PublicKey>, TrustError> {
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(cause) => return Err(TrustError::File { path, cause }),
    };
    let mut keys = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.parse() {
            Ok(key) => keys.push(key),
            Err(cause) => return Err(TrustError::Line { path, line: index + 1, cause }),
        }
    }
    if keys.is_empty() { Err(TrustError::Empty { path }) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use omnilearn_kernel_host::KeyPair;

    use super::*;

    #[test]
    fn keys_come_as_arguments_and_from_files() {
        let [a, b, c] = [1, 2, 3].map(|secret| KeyPair::from_secret(&[secret; 32]).public());
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, format!("# the lab's hub\n{b}\n\n  {c}  \n")).unwrap();
        assert_eq!(Trust::parse(&[]).unwrap(), Trust::FirstUse);
        let trust = Trust::parse(&[a.to_string(), format!("@{}", file.display())]).unwrap();
        assert_eq!(trust, Trust::Keys(vec![a, b, c]));
    }

    #[test]
    fn what_is_no_key_is_named_and_never_means_trust_in_everybody() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("keys");
        let argument = format!("@{}", file.display());
        let secret = KeyPair::from_secret(&[1; 32]).secret_text();
        for (text, expected) in [
            ("# nobody\n", "there is no key in the file"),
            ("", "there is no key in the file"),
            ("#\nabc\n", "line 2: 3 characters, expected 64 hexadecimal digits"),
            (&secret, "line 1: this is a secret key"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Trust::parse(std::slice::from_ref(&argument)).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("keys"), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(Trust::parse(&[argument]), Err(TrustError::File { .. })));
        let error = Trust::parse(&[String::new()]).unwrap_err().to_string();
        assert!(error.contains("omnilearn-hub key show"), "{error}");
    }
}
