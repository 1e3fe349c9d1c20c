//! The data sets that a hub has: files under their digests, and names that stand for a manifest's digest.
//!
//! ```text
//! files/DIGEST   manifests and the files of splits
//! names/NAME     the digest of the manifest, in hexadecimal
//! arriving/      files that are being written
//! lock           held while names and files change
//! ```
//!
//! A running hub and the command line share the folder without talking to each other: files never change once they have their name,
//! names change by renaming, and the hub looks them up anew for every job and every fetch.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::dataset::Dataset;
use crate::error::DatasetError;
use crate::form::Form;
use crate::hex::{digest_of, from_hex, to_hex};
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError, NameError, SplitFile, check_name};
use crate::pack::{Arriving, Normalising, PackError, Packed, Packer};

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
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
    /// A name that no data set can have.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No such data set.
    #[error("there is no data set `{name}`; `omnilearn-hub dataset list` shows what there is")]
    Unknown {
        /// The name.
        name: String,
    },
    /// Another data set has the name.
    #[error(
        "there is another data set named `{name}`; take another name, or `omnilearn-hub dataset remove {name}` first"
    )]
    Taken {
        /// The name.
        name: String,
    },
    /// A file is not there or is another.
    #[error("data set `{name}` is damaged: {problem}; remove it and add it again")]
    Damaged {
        /// The data set.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A manifest.
    #[error("data set `{name}`: {cause}")]
    Manifest {
        /// The data set.
        name: String,
        /// What is wrong.
        #[source]
        cause: ManifestError,
    },
}

/// A folder of data sets.
#[derive(Clone, Debug)]
pub struct Library {
    folder: PathBuf,
}

/// A data set of a library.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What it is.
    pub manifest: Manifest,
    /// SHA-256 of the manifest as it is kept.
    pub digest: [u8; 32],
    /// Length of the manifest.
    pub bytes: u64,
}

/// What became of a data set that was added.
#[derive(Clone, Debug, PartialEq)]
pub struct Added {
    /// The data set.
    pub found: Found,
    /// Whether it was there before, byte for byte.
    pub was_there: bool,
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LibraryError {
    let path = path.to_owned();
    move |cause| LibraryError::Io { action, path, cause }
}

impl Library {
    /// A folder that may not be there yet.
    pub fn at(folder: &Path) -> Library {
        Library { folder: folder.to_owned() }
    }

    fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    fn file(&self, digest: &[u8; 32]) -> PathBuf {
        self.files().join(to_hex(digest))
    }

    fn names(&self) -> PathBuf {
        self.folder.join("names")
    }

    fn arriving(&self) -> PathBuf {
        self.folder.join("arriving")
    }

    /// Held for as long as the result lives.
    fn lock(&self) -> Result<File, LibraryError> {
        let path = self.folder.join("lock");
        let open = || {
            fs::create_dir_all(&self.folder)?;
            let file = File::options().write(true).create(true).truncate(false).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        open().map_err(io_error("lock", &path))
    }

    /// A data set by its name. None if there is none.
    ///
    /// # Errors
    /// [`LibraryError`] if it is there and cannot be read.
    pub fn find(&self, name: &str) -> Result<Option<Found>, LibraryError> {
        if check_name(name).is_err() {
            return Ok(None);
        }
        let path = self.names().join(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(cause) => return Err(io_error("read", &path)(cause)),
        };
        let damaged = |problem: String| LibraryError::Damaged { name: name.to_owned(), problem };
        let digest = from_hex(text.trim()).ok_or_else(|| damaged(format!("{} holds no digest", path.display())))?;
        let path = self.file(&digest);
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(|cause| damaged(format!("{}: {cause}", path.display())))?;
        file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io_error("read", &path))?;
        if Sha256::digest(&bytes)[..] != digest {
            return Err(damaged(format!("{} is another file", path.display())));
        }
        let manifest =
            Manifest::parse(&bytes).map_err(|cause| LibraryError::Manifest { name: name.to_owned(), cause })?;
        Ok(Some(Found { manifest, digest, bytes: bytes.len() as u64 }))
    }

    /// Names of all data sets, sorted.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if the folder cannot be read.
    pub fn list(&self) -> Result<Vec<String>, LibraryError> {
        let folder = self.names();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(io_error("read", &folder)(cause)),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| check_name(name).is_ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Opens the files of a data set.
    ///
    /// # Errors
    /// [`DatasetError`] if one is not there or has another length.
    pub fn open(&self, manifest: &Manifest) -> Result<Dataset, DatasetError> {
        let open = |split: &SplitFile| {
            let path = self.file(&split.sha256);
            match File::open(&path) {
                Ok(file) => Ok((file, path)),
                Err(cause) => Err(DatasetError::Io { action: "open", path, cause }),
            }
        };
        Dataset::packed(manifest, [open(&manifest.train)?, open(&manifest.test)?])
    }

    /// Begins a data set, and takes away what imports that broke off have left.
    ///
    /// # Errors
    /// [`PackError`].
    pub fn packer(&self, form: Form, normalising: Normalising) -> Result<Packer, PackError> {
        for entry in fs::read_dir(self.arriving()).into_iter().flatten().flatten() {
            // Whoever writes a file holds its lock.
            if File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
                fs::remove_file(entry.path()).ok();
            }
        }
        Packer::new(&self.arriving(), form, normalising)
    }

    /// Refuses a name that another data set has, before a long import.
    ///
    /// # Errors
    /// [`LibraryError::Name`] for what no name can be.
    pub fn check_name(&self, name: &str) -> Result<(), LibraryError> {
        Ok(check_name(name)?)
    }

    /// Keeps a data set: its files first, its name last, each durable before the next.
    ///
    /// # Errors
    /// [`LibraryError::Taken`] if another has the name, [`LibraryError::Io`] if the folder cannot be written.
    pub fn keep(&self, packed: Packed) -> Result<Added, LibraryError> {
        let Packed { manifest, train, test } = packed;
        let (encoded, digest) = manifest.encode();
        let name = manifest.name.clone();
        let found = Found { bytes: encoded.len() as u64, digest, manifest };
        let _lock = self.lock()?;
        let here = self.find(&name);
        let whole = || self.check_files(&found.manifest).is_ok();
        match &here {
            Ok(Some(here)) if here.digest == digest && whole() => return Ok(Added { found, was_there: true }),
            Ok(Some(here)) if here.digest != digest => return Err(LibraryError::Taken { name }),
            // Not there, or damaged: written again.
            _ => {}
        }
        let (files, names) = (self.files(), self.names());
        for folder in [&files, &names] {
            fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        }
        for (arriving, split) in [(train, found.manifest.train), (test, found.manifest.test)] {
            let path = self.file(&split.sha256);
            arriving.keep(&path).map_err(io_error("write", &path))?;
        }
        let write = |bytes: &[u8], path: &Path| {
            let mut arriving = Arriving::create(&self.arriving())?;
            arriving.write(bytes)?;
            arriving.keep(path)
        };
        let path = self.file(&digest);
        write(&encoded, &path).map_err(io_error("write", &path))?;
        sync(&files);
        let path = names.join(&name);
        write(format!("{}\n", to_hex(&digest)).as_bytes(), &path).map_err(io_error("write", &path))?;
        sync(&names);
        Ok(Added { found, was_there: false })
    }

    fn check_files(&self, manifest: &Manifest) -> Result<(), String> {
        for split in [manifest.train, manifest.test] {
            let path = self.file(&split.sha256);
            let length = fs::metadata(&path).map_err(|cause| format!("{}: {cause}", path.display()))?.len();
            if length != split.bytes {
                return Err(format!("{} has {length} bytes instead of {}", path.display(), split.bytes));
            }
        }
        Ok(())
    }

    /// Reads every byte of a data set. `progress` is told the bytes of each file that was found sound.
    ///
    /// # Errors
    /// [`LibraryError::Damaged`] with the file that is another, [`LibraryError::Unknown`].
    pub fn verify(&self, name: &str, progress: &mut dyn FnMut(u64)) -> Result<Found, LibraryError> {
        let found = self.find(name)?.ok_or_else(|| LibraryError::Unknown { name: name.to_owned() })?;
        let damaged = |problem: String| LibraryError::Damaged { name: name.to_owned(), problem };
        self.check_files(&found.manifest).map_err(damaged)?;
        for split in [found.manifest.train, found.manifest.test] {
            let path = self.file(&split.sha256);
            let file = File::open(&path).map_err(io_error("open", &path))?;
            if digest_of(file).map_err(io_error("read", &path))? != split.sha256 {
                return Err(damaged(format!("{} has other content than when it was added", path.display())));
            }
            progress(split.bytes);
        }
        Ok(found)
    }

    /// Forgets a data set and removes the files that no other one has. Returns how many bytes that were.
    ///
    /// # Errors
    /// [`LibraryError::Unknown`], or [`LibraryError::Io`].
    pub fn remove(&self, name: &str) -> Result<u64, LibraryError> {
        check_name(name)?;
        let _lock = self.lock()?;
        let path = self.names().join(name);
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                return Err(LibraryError::Unknown { name: name.to_owned() });
            }
            removed => removed.map_err(io_error("remove", &path))?,
        }
        let mut used = BTreeSet::new();
        for name in self.list()? {
            match self.find(&name) {
                Ok(Some(Found { digest, manifest, .. })) => {
                    used.extend([digest, manifest.train.sha256, manifest.test.sha256]);
                }
                Ok(None) => {}
                Err(_) => return Ok(0), // what a damaged one uses is not known, so everything stays
            }
        }
        let (files, mut bytes) = (self.files(), 0);
        for entry in fs::read_dir(&files).map_err(io_error("read", &files))?.flatten() {
            let digest = entry.file_name().to_str().and_then(from_hex);
            if digest.is_some_and(|digest| !used.contains(&digest)) {
                bytes += entry.metadata().map_or(0, |data| data.len());
                fs::remove_file(entry.path()).map_err(io_error("remove", &entry.path()))?;
            }
        }
        Ok(bytes)
    }

    /// A piece of a file, and the length of the whole; none if there is no such file. May block.
    ///
    /// # Errors
    /// What the system says.
    pub fn piece(&self, digest: &[u8; 32], offset: u64, bytes_max: usize) -> io::Result<Option<(Vec<u8>, u64)>> {
        piece(&self.file(digest), offset, bytes_max)
    }
}

/// A piece of any file, and the length of the whole; none if there is no such file.
///
/// # Errors
/// What the system says.
pub fn piece(path: &Path, offset: u64, bytes_max: usize) -> io::Result<Option<(Vec<u8>, u64)>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause),
    };
    let total = file.metadata()?.len();
    let bytes = total.saturating_sub(offset).min(bytes_max as u64) as usize;
    let mut piece = vec![0; bytes];
    file.read_exact_at(&mut piece, offset)?;
    Ok(Some((piece, total)))
}

/// Makes names in a folder durable. Not every file system can, and then they are as durable as they get.
fn sync(folder: &Path) {
    File::open(folder).and_then(|folder| folder.sync_all()).ok();
}

#[cfg(test)]
mod tests;
