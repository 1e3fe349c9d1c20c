//! Writes a packed data set: records go to files under temporary names, with their digests taken on the way.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::checked::unique;
use crate::form::{Form, FormError, Input, Normalise, Target};
use crate::manifest::{FORMAT, Manifest, ManifestError, SplitFile};
use crate::statistics::Statistics;

/// Which split a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// To learn from.
    Train,
    /// To test with.
    Test,
}

/// How inputs are to be normalised.
#[derive(Clone, Debug, PartialEq)]
pub enum Normalising {
    /// By mean and deviation of the training samples.
    Measured,
    /// By numbers that are known.
    Given(Normalise),
    /// Not at all.
    Off,
}

/// One record's target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecordTarget<'a> {
    /// There is none.
    None,
    /// A class.
    Class(u32),
    /// Numbers.
    Values(&'a [f32]),
}

/// Names of what records hold only numbers of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Of the classes; may be empty.
    pub classes: Vec<String>,
    /// Of the groups.
    pub groups: Vec<String>,
}

/// Why records cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file.
    #[error("cannot write to {}: {cause}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// What samples are.
    #[error(transparent)]
    Form(#[from] FormError),
    /// What came of it.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Another length than the samples before.
    #[error(
        "a sample of {found} bytes with a target of {target} bytes, those before have {expected} and {expected_target}"
    )]
    Length {
        /// Bytes of the input.
        found: usize,
        /// Bytes of the target.
        target: usize,
        /// What the form says of the input.
        expected: usize,
        /// What the form says of the target.
        expected_target: usize,
    },
}

/// A file under a temporary name. It is locked while it is written, so that what a crash left behind is known by its free
/// lock; dropped before it is kept, it is removed.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) path: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl Arriving {
    pub(crate) fn create(folder: &Path) -> io::Result<Arriving> {
        fs::create_dir_all(folder)?;
        let (path, file) = loop {
            let path = folder.join(unique());
            match File::options().write(true).create_new(true).open(&path) {
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {} // of a process in another container
                opened => break (path, opened?),
            }
        };
        file.lock()?;
        Ok(Arriving { path, file: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), bytes: 0 })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn summary(&self, length: u64) -> SplitFile {
        SplitFile { length, bytes: self.bytes, sha256: self.hash.clone().finalize().into() }
    }

    /// Gives the file its name for good. One that is there already is replaced: it has the same content, or is damaged.
    pub(crate) fn keep(mut self, target: &Path) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.path, target)
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok(); // not there under this name if it was kept
    }
}

/// A data set that is being written.
#[derive(Debug)]
pub struct Packer {
    folder: PathBuf,
    form: Form,
    normalising: Normalising,
    statistics: Statistics,
    train: Arriving,
    test: Arriving,
    lengths: [u64; 2],
    class_max: u32,
    record: Vec<u8>,
}

/// A data set that is written and not yet kept.
#[derive(Debug)]
pub struct Packed {
    pub(crate) manifest: Manifest,
    pub(crate) train: Arriving,
    pub(crate) test: Arriving,
}

impl Packer {
    /// Begins files in a folder. The number of classes in `form` may be too small; it grows with the labels.
    ///
    /// # Errors
    /// [`PackError::Form`] for a form that makes no sense, [`PackError::Io`] if files cannot be made.
    pub fn new(folder: &Path, form: Form, normalising: Normalising) -> Result<Packer, PackError> {
        form.check()?;
        let io = |cause| PackError::Io { path: folder.to_owned(), cause };
        let statistics = match normalising {
            Normalising::Measured => Statistics::new(&form.input),
            Normalising::Given(_) | Normalising::Off => Statistics::Off,
        };
        Ok(Packer {
            folder: folder.to_owned(),
            form,
            normalising,
            statistics,
            train: Arriving::create(folder).map_err(io)?,
            test: Arriving::create(folder).map_err(io)?,
            lengths: [0; 2],
            class_max: 0,
            record: Vec::new(),
        })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`PackError::Length`] if it has another length than the form says, [`PackError::Io`] if it cannot be written.
    pub fn add(&mut self, which: Which, input: &[u8], target: RecordTarget<'_>, group: u32) -> Result<(), PackError> {
        self.record.clear();
        self.record.extend_from_slice(input);
        match target {
            RecordTarget::None => {}
            RecordTarget::Class(class) => {
                self.class_max = self.class_max.max(class);
                self.record.extend_from_slice(&class.to_le_bytes());
            }
            RecordTarget::Values(values) => {
                self.record.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
        let target = self.record.len() - input.len();
        let (expected, expected_target) = (self.form.input_bytes(), self.form.target_bytes());
        if input.len() != expected || target != expected_target {
            return Err(PackError::Length { found: input.len(), target, expected, expected_target });
        }
        if self.form.grouped {
            self.record.extend_from_slice(&group.to_le_bytes());
        }
        let record = std::mem::take(&mut self.record);
        let written = self.write(which, &record, 1);
        self.record = record;
        if which == Which::Train {
            self.statistics.add(input);
        }
        written
    }

    /// Adds tokens to a stream, as they lie in its file.
    ///
    /// # Errors
    /// [`PackError::Io`] if they cannot be written.
    pub fn add_tokens(&mut self, which: Which, tokens: &[u8]) -> Result<(), PackError> {
        let count = tokens.len() / self.form.input_bytes().max(1);
        self.write(which, tokens, count as u64)
    }

    /// Notes that a stream has tokens up to this one: they are all below its vocabulary, which may have been begun too small.
    pub fn see_token(&mut self, token: u32) {
        self.class_max = self.class_max.max(token);
    }

    fn write(&mut self, which: Which, bytes: &[u8], records: u64) -> Result<(), PackError> {
        let (file, length) = match which {
            Which::Train => (&mut self.train, 0),
            Which::Test => (&mut self.test, 1),
        };
        self.lengths[length] += records;
        file.write(bytes).map_err(|cause| PackError::Io { path: self.folder.clone(), cause })
    }

    /// Ends the files and describes them.
    ///
    /// # Errors
    /// [`PackError::Manifest`] if what was written is no data set, such as one without training samples.
    pub fn finish(self, name: &str, names: Names) -> Result<Packed, PackError> {
        let Packer { mut form, normalising, statistics, train, test, lengths, class_max, .. } = self;
        if let Input::Array { normalise, .. } = &mut form.input {
            *normalise = match normalising {
                Normalising::Measured => statistics.normalise(),
                Normalising::Given(given) => Some(given),
                Normalising::Off => None,
            };
        }
        if let Target::Classes { count } = &mut form.target {
            *count = (*count).max(class_max.saturating_add(1)).max(names.classes.len() as u32);
        }
        if let Input::Tokens { vocabulary, .. } = &mut form.input {
            *vocabulary = (*vocabulary).max(class_max.saturating_add(1));
        }
        let manifest = Manifest {
            format: FORMAT,
            name: name.to_owned(),
            form,
            train: train.summary(lengths[0]),
            test: test.summary(lengths[1]),
            classes: names.classes,
            groups: names.groups,
        };
        manifest.check()?;
        Ok(Packed { manifest, train, test })
    }
}
