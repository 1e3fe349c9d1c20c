//! Why a data set cannot be used.

use std::io;
use std::path::PathBuf;

pub use crate::idx::HeaderError;

/// Why a data set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// Not in the catalogue.
    #[error(
        "data set `{name}` is not known here; known: {known}. Others are added at the hub: `omnilearn-hub dataset add --help`"
    )]
    Unknown {
        /// The name.
        name: String,
        /// Names in the catalogue.
        known: String,
    },
    /// A file is nowhere.
    #[error(
        "data set `{name}`: {file} (or {file}.gz) is in none of {searched}. {how_to_get}; or name its folder with --data; or add it at \
         the hub (`omnilearn-hub dataset add {name} FOLDER`), from which agents fetch it"
    )]
    Missing {
        /// The data set.
        name: &'static str,
        /// The file.
        file: &'static str,
        /// Folders searched.
        searched: String,
        /// Where it comes from.
        how_to_get: &'static str,
    },
    /// A file is not what its digest says.
    #[error("{} is damaged or another file: its SHA-256 is {found}, expected {expected}; remove it and fetch it again", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// Digest of its uncompressed content.
        found: String,
        /// The digest that it should have.
        expected: String,
    },
    /// A file's header.
    #[error("{}: {cause}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: HeaderError,
    },
    /// A file of another length than its records have together.
    #[error("{} has {found} bytes, its {samples} samples take {expected}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// Samples that it should hold.
        samples: u64,
        /// Their length.
        expected: u64,
    },
    /// A label out of range.
    #[error("{}: label {label} of sample {sample}, but there are {classes} classes", path.display())]
    Label {
        /// The file.
        path: PathBuf,
        /// The label.
        label: u32,
        /// Which sample.
        sample: usize,
        /// Number of classes.
        classes: u32,
    },
    /// A sample past the end.
    #[error("{}: there is no sample {sample} of {samples}", path.display())]
    Sample {
        /// The file.
        path: PathBuf,
        /// Which was asked for.
        sample: u64,
        /// How many there are.
        samples: u64,
    },
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
    /// A library that cannot be read.
    #[error(transparent)]
    Library(#[from] crate::library::LibraryError),
}
