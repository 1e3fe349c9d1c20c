//! The description of a packed data set: what its samples are and which files hold them.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fit::Outline;
use crate::form::{CLASSES_MAX, Form, FormError, Input, SAMPLES_MAX, Target};
use crate::hex;

/// The format that this program writes and reads.
pub const FORMAT: u32 = 1;
/// Longest manifest, in bytes. Most of a long one are names of classes and groups.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Longest name of a data set, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest file of a split, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 50;

/// A packed data set. Written as JSON; the SHA-256 of these bytes names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Name in job files.
    pub name: String,
    /// What its samples are.
    pub form: Form,
    /// Samples to learn from.
    pub train: SplitFile,
    /// Samples to test with; there may be none.
    pub test: SplitFile,
    /// Names of the classes by number; none if they have no names.
    pub classes: Vec<String>,
    /// Names of the groups by number; none if samples are not grouped.
    pub groups: Vec<String>,
}

/// The file of one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitFile {
    /// Records; in a stream, tokens.
    pub length: u64,
    /// Length of the file.
    pub bytes: u64,
    /// SHA-256 of the file.
    #[serde(with = "hex")]
    pub sha256: [u8; 32],
}

/// Why bytes are not a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Too long to be looked at.
    #[error("a manifest of {bytes} bytes, at most {MANIFEST_BYTES_MAX} are taken")]
    TooLong {
        /// Its length.
        bytes: u64,
    },
    /// Not JSON, or with other fields.
    #[error("not a manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// Written by a later version.
    #[error("packed in format {found}, this program reads format {FORMAT}; use a newer version")]
    Format {
        /// In the manifest.
        found: u32,
    },
    /// A name that no data set can have.
    #[error(transparent)]
    Name(#[from] NameError),
    /// What its samples are.
    #[error(transparent)]
    Form(#[from] FormError),
    /// A file whose length is not that of its records, or too many of these.
    #[error("{split}: {length} records and {bytes} bytes do not go together")]
    Length {
        /// `train` or `test`.
        split: &'static str,
        /// Records.
        length: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Nothing to learn from.
    #[error("there are no training samples")]
    Empty,
    /// Names of classes or groups that do not go with the form.
    #[error("{found} names of {what} do not go with the samples")]
    Names {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
    },
}

/// A name that no data set can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` cannot be a data set's name: 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`, the first a letter or digit"
)]
pub struct NameError {
    /// The name, cut.
    pub name: String,
}

/// Checks a name, which is also that of a file.
///
/// # Errors
/// [`NameError`].
pub fn check_name(name: &str) -> Result<(), NameError> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let begins = name.starts_with(|character: char| character.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(NameError { name: name.chars().take(NAME_BYTES_MAX).collect() })
}

impl Manifest {
    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// [`ManifestError`] at the first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLong { bytes: bytes.len() as u64 });
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        // Before anything else, since a later format may have other fields.
        let Version { format } = serde_json::from_slice(bytes)?;
        if format != FORMAT {
            return Err(ManifestError::Format { found: format });
        }
        let manifest: Manifest = serde_json::from_slice(bytes)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks that everything goes together.
    ///
    /// # Errors
    /// [`ManifestError`] at the first thing that does not.
    pub fn check(&self) -> Result<(), ManifestError> {
        check_name(&self.name)?;
        self.form.check()?;
        let record_bytes = self.form.record_bytes().ok_or(FormError::Record)?;
        let length_max = match self.form.input {
            Input::Array { .. } => SAMPLES_MAX,
            Input::Tokens { .. } => FILE_BYTES_MAX,
        };
        for (split, SplitFile { length, bytes, .. }) in [("train", self.train), ("test", self.test)] {
            let fits = length <= length_max && bytes <= FILE_BYTES_MAX;
            if !fits || length.checked_mul(record_bytes) != Some(bytes) {
                return Err(ManifestError::Length { split, length, bytes });
            }
        }
        if self.train.length == 0 {
            return Err(ManifestError::Empty);
        }
        let classes = match self.form.target {
            Target::Classes { count } => count as usize,
            _ => 0,
        };
        if !self.classes.is_empty() && self.classes.len() != classes {
            return Err(ManifestError::Names { what: "classes", found: self.classes.len() });
        }
        let groups = self.groups.len();
        if (groups > 0) != self.form.grouped || groups > CLASSES_MAX as usize {
            return Err(ManifestError::Names { what: "groups", found: groups });
        }
        Ok(())
    }

    /// The bytes that are kept and sent, and their SHA-256.
    pub fn encode(&self) -> (Vec<u8>, [u8; 32]) {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a manifest has text keys and finite numbers");
        bytes.push(b'\n');
        let digest = Sha256::digest(&bytes).into();
        (bytes, digest)
    }

    /// What a job needs to know before any file is there.
    pub fn outline(&self) -> Outline {
        Outline { name: self.name.clone(), form: self.form.clone(), train: self.train.length, test: self.test.length }
    }

    /// Length of both files.
    pub fn bytes(&self) -> u64 {
        self.train.bytes.saturating_add(self.test.bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::form::Element;

    pub(crate) fn manifest() -> Manifest {
        let input = Input::Array { element: Element::U8, shape: vec![1, 2, 2], normalise: None };
        let file = |length| SplitFile { length, bytes: length * 8, sha256: [7; 32] };
        Manifest {
            format: FORMAT,
            name: "tiny".to_owned(),
            form: Form { input, target: Target::Classes { count: 2 }, grouped: false },
            train: file(6),
            test: file(2),
            classes: vec!["cat".to_owned(), "dog".to_owned()],
            groups: Vec::new(),
        }
    }

    #[test]
    fn what_was_encoded_is_parsed_and_has_one_digest() {
        let (bytes, digest) = manifest().encode();
        assert_eq!(Manifest::parse(&bytes).unwrap(), manifest());
        assert_eq!(manifest().encode().1, digest);
        let other = Manifest { name: "other".to_owned(), ..manifest() };
        assert_ne!(other.encode().1, digest);
    }

    #[test]
    fn hostile_manifests_are_refused() {
        let refused = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            Manifest::parse(&manifest.encode().0).unwrap_err().to_string()
        };
        let message = refused(&|manifest| manifest.format = 2);
        assert!(message.contains("format 2") && message.contains("newer"), "{message}");
        assert!(refused(&|manifest| manifest.train.bytes += 1).contains("train"));
        assert!(refused(&|manifest| manifest.test.length = u64::MAX).contains("test"));
        assert!(
            refused(&|manifest| manifest.train = SplitFile { length: 0, bytes: 0, sha256: [0; 32] })
                .contains("no training")
        );
        assert!(refused(&|manifest| manifest.form.grouped = true).contains("train"), "records are longer then");
        assert!(refused(&|manifest| manifest.groups.push("x".to_owned())).contains("groups"));
        assert!(refused(&|manifest| drop(manifest.classes.pop())).contains("classes"));
        for name in ["", ".hidden", "../up", "a/b", "ä", &"x".repeat(65)] {
            assert!(refused(&|manifest| manifest.name = name.to_owned()).contains("name"), "{name}");
        }
        assert!(Manifest::parse(b"{}").is_err());
        assert!(Manifest::parse(b"[[[[").is_err());
        let unknown =
            String::from_utf8(manifest().encode().0).unwrap().replacen("\"name\"", "\"more\": 1, \"name\"", 1);
        assert!(Manifest::parse(unknown.as_bytes()).unwrap_err().to_string().contains("more"));
    }
}
