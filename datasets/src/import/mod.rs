//! From the files that users have to a packed data set. One file for each kind.

mod arrays;
mod choose;
mod cifar10;
mod csv;
mod idx;
mod images;
mod text;

use std::io;
use std::path::{Path, PathBuf};

pub use self::choose::Kind;
use crate::form::{CLASSES_MAX, RECORD_BYTES_MAX};
use crate::library::{Added, Library, LibraryError};
use crate::pack::{Normalising, PackError, Packed};

/// What is imported and how. Everything has a default that fits most.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the source is; by default what it looks like.
    pub kind: Option<Kind>,
    /// Share of the samples that is set apart for testing, where the source does not say which.
    pub test_part: f64,
    /// Which of them, where they are drawn.
    pub seed: u64,
    /// Whether inputs are normalised by mean and deviation of the training samples.
    pub normalise: bool,
    /// Whether what cannot be read is left out and counted, rather than ending the import.
    pub skip_damaged: bool,
    /// For image folders.
    pub images: ImageOptions,
    /// For tables.
    pub csv: CsvOptions,
    /// For arrays.
    pub arrays: ArrayOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            kind: None,
            test_part: 0.1,
            seed: 0,
            normalise: true,
            skip_damaged: false,
            images: ImageOptions::default(),
            csv: CsvOptions::default(),
            arrays: ArrayOptions::default(),
        }
    }
}

/// How images become samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// One channel instead of three.
    pub grey: bool,
}

impl Default for ImageOptions {
    fn default() -> Self {
        ImageOptions { size: (64, 64), grey: false }
    }
}

/// How rows become samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvOptions {
    /// Columns that are inputs; by default all that hold numbers in the first row and are nothing else.
    pub columns: Vec<String>,
    /// Columns with the numbers to predict. In windows, those of the row after it.
    pub targets: Vec<String>,
    /// Column with the class. In windows, that of the last row.
    pub label: Option<String>,
    /// Column with the key that a partition may go by. Windows never span two keys.
    pub key: Option<String>,
    /// Rows of a window; without it each row is a sample.
    pub length: Option<u32>,
    /// Rows from the start of one window to that of the next.
    pub stride: u32,
    /// What stands between values.
    pub delimiter: u8,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions {
            columns: Vec::new(),
            targets: Vec::new(),
            label: None,
            key: None,
            length: None,
            stride: 1,
            delimiter: b',',
        }
    }
}

/// Which arrays are what, by their names in the file or folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayOptions {
    /// Training inputs.
    pub inputs: Option<String>,
    /// Training targets.
    pub targets: Option<String>,
    /// Test inputs.
    pub test_inputs: Option<String>,
    /// Test targets.
    pub test_targets: Option<String>,
    /// Keys of the training samples, whole numbers.
    pub keys: Option<String>,
    /// Whether images are `[samples, height, width, channels]`.
    pub channels_last: bool,
    /// Whether whole-numbered targets are numbers to predict and not classes.
    pub regression: bool,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Done so far.
    pub done: u64,
    /// All that there is, where that is known.
    pub total: Option<u64>,
    /// Of what.
    pub what: &'static str,
}

/// Who is told how far an import is.
pub type Watch<'a> = &'a mut dyn FnMut(Progress);

/// What came of an import.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The data set.
    pub added: Added,
    /// What was left out since it could not be read; the first few are named.
    pub skipped: Skipped,
    /// What the user may want to know.
    pub notes: Vec<String>,
}

/// Files or rows that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// The first of them, and what was wrong.
    pub first: Vec<String>,
}

impl Skipped {
    const NAMED_MAX: usize = 5;

    /// Counts something that cannot be read, or ends the import with it.
    fn skip(&mut self, error: ImportError, allowed: bool) -> Result<(), ImportError> {
        if !allowed {
            return Err(error);
        }
        self.count += 1;
        if self.first.len() < Self::NAMED_MAX {
            self.first.push(error.to_string());
        }
        Ok(())
    }
}

/// Why a source cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The system.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// A file that is not what it should be.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A row that is not what it should be.
    #[error("{}, line {line}: {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// Options that do not go with the source.
    #[error("{0}")]
    Options(String),
    /// The records.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The library.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

impl ImportError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImportError {
        let path = path.to_owned();
        move |cause| ImportError::Io { action, path, cause }
    }

    fn damaged(path: &Path, problem: impl Into<String>) -> ImportError {
        ImportError::Damaged { path: path.to_owned(), problem: problem.into() }
    }
}

/// What every importer works with.
struct Job<'a> {
    library: &'a Library,
    name: &'a str,
    options: &'a Options,
    watch: Watch<'a>,
    skipped: Skipped,
    notes: Vec<String>,
}

impl Job<'_> {
    fn normalising(&self) -> Normalising {
        if self.options.normalise { Normalising::Measured } else { Normalising::Off }
    }

    fn progress(&mut self, done: u64, total: Option<u64>, what: &'static str) {
        (self.watch)(Progress { done, total, what });
    }
}

/// Imports a data set under a name. `sources` are files or folders; only text takes several.
///
/// # Errors
/// [`ImportError`]; nothing is kept then.
pub fn import(
    library: &Library,
    name: &str,
    sources: &[PathBuf],
    options: &Options,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    library.check_name(name)?;
    if !(0.0..1.0).contains(&options.test_part) {
        return Err(ImportError::Options(format!("--test-part {} is not from 0 to below 1", options.test_part)));
    }
    let kind = match options.kind {
        Some(kind) => kind,
        None => choose::kind(sources)?,
    };
    let mut job = Job { library, name, options, watch, skipped: Skipped::default(), notes: Vec::new() };
    let packed = match (kind, sources) {
        (Kind::Text, sources) => text::import(&mut job, sources)?,
        (_, [source]) => import_one(&mut job, kind, source)?,
        (_, sources) => {
            let problem = format!("{} sources given, {} takes one file or folder", sources.len(), kind.name());
            return Err(ImportError::Options(problem));
        }
    };
    let Job { skipped, notes, .. } = job;
    Ok(Imported { added: library.keep(packed)?, skipped, notes })
}

fn import_one(job: &mut Job<'_>, kind: Kind, source: &Path) -> Result<Packed, ImportError> {
    match kind {
        Kind::Idx => idx::import(job, source),
        Kind::Cifar10 => cifar10::import(job, source),
        Kind::Images => images::import(job, source),
        Kind::Arrays => arrays::import(job, source),
        Kind::Csv => csv::import(job, source),
        Kind::Text => text::import(job, &[source.to_owned()]),
    }
}

/// Names by number, in the order in which they were first asked for.
#[derive(Debug, Default)]
struct Numbering {
    numbers: std::collections::HashMap<String, u32>,
    names: Vec<String>,
}

impl Numbering {
    /// The number of a name; none if there are too many.
    fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(&number) = self.numbers.get(name) {
            return Some(number);
        }
        let number = u32::try_from(self.names.len()).ok().filter(|&number| number < CLASSES_MAX)?;
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        Some(number)
    }

    /// The numbers of sorted names, so that they do not depend on the order in a file.
    fn sorted(names: impl IntoIterator<Item = String>) -> Numbering {
        let names: Vec<String> =
            names.into_iter().collect::<std::collections::BTreeSet<String>>().into_iter().collect();
        let numbers = names.iter().zip(0..).map(|(name, number)| (name.clone(), number)).collect();
        Numbering { numbers, names }
    }
}

/// Refuses a shape whose records nobody could hold, before anything is made room for.
fn check_record(shape: &[u64], element_bytes: u64) -> Result<Vec<u32>, String> {
    let bytes = shape.iter().try_fold(element_bytes, |bytes, &size| bytes.checked_mul(size));
    match bytes {
        Some(1..=RECORD_BYTES_MAX) => Ok(shape.iter().map(|&size| size as u32).collect()),
        _ => Err(format!("samples of shape {shape:?} have no elements, or more than {RECORD_BYTES_MAX} bytes")),
    }
}

#[cfg(test)]
mod fixtures;
