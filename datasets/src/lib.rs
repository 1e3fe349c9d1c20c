//! Data sets of every kind in one packed form: imported once at the hub, fetched and read by agents.
//!
//! A packed data set is a [`Manifest`] and, for training and testing, one file of records of equal length ([`form`]). Nothing is held
//! in memory: a batch is read where its samples lie, so a data set takes page cache, which the system gives back when it
//! needs it. The SHA-256 of the manifest names the data set, and the manifest names the files by theirs.

pub mod augment;
pub mod catalogue;
mod checked;
pub mod dataset;
pub mod error;
pub mod fit;
pub mod form;
mod hex;
mod idx;
pub mod import;
pub mod library;
pub mod manifest;
pub mod pack;
mod places;
mod split;
mod statistics;

pub use augment::Augmenter;
pub use checked::{Checked, unique};
pub use dataset::{Dataset, Part, Samples};
pub use error::DatasetError;
pub use fit::{Fit, FitError, Need, Needs, Outline};
pub use form::{Element, Form, Input, Normalise, Target};
pub use hex::{digest_of, from_hex, to_hex};
pub use library::{Library, LibraryError};
pub use manifest::{Manifest, ManifestError};
pub use split::{Batch, Split, Values};
