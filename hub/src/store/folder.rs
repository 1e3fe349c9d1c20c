//! The state folder's files, and who may use them.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use omnilearn_wire::JobId;

use crate::key_file::HUB_KEY;

/// The library's folder within the state folder. The command line adds to it while a hub runs.
pub const DATASETS: &str = "datasets";

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another hub uses it.
    #[error("the state folder {} is in use by {holder}; stop that hub or give this one another --state", directory.display())]
    InUse {
        /// The folder.
        directory: PathBuf,
        /// Who says to hold it.
        holder: String,
    },
    /// The file is some other program's database.
    #[error("{} is not an OmniLearn database and was left as it is; give the hub another --state", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The database was written by another version of the hub.
    #[error("{} has tables of version {found}, this hub needs {expected}; use that hub or give this one another --state", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: i32,
        /// Version needed.
        expected: i32,
    },
    /// The database cannot be trusted.
    #[error("{} is damaged and was left as it is: {problem}; restore a copy or give the hub another --state", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// SQLite failed.
    #[error("{}: {cause}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: rusqlite::Error,
    },
    /// The operating system failed.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The hub is about to end.
    #[error("the hub is shutting down")]
    ShuttingDown,
}

/// A locked state folder; the lock lasts as long as this.
pub(super) struct Folder {
    directory: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes the folder if need be and locks it.
    pub(super) fn lock(directory: &Path, holder: &str) -> Result<Folder, StoreError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |cause| StoreError::Io { path, cause }
        };
        std::fs::create_dir_all(directory).map_err(io(directory))?;
        let path = directory.join("hub.lock");
        let mut lock =
            File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                lock.take(256).read_to_string(&mut holder).ok();
                let holder = if holder.trim().is_empty() { "another hub" } else { holder.trim() }.to_owned();
                return Err(StoreError::InUse { directory: directory.to_owned(), holder });
            }
            Err(TryLockError::Error(cause)) => return Err(io(&path)(cause)),
        }
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{holder}")).map_err(io(&path))?;
        for folder in ["weights", "given-weights", "kernels", "frozen"] {
            let folder = directory.join(folder);
            std::fs::create_dir_all(&folder).map_err(io(&folder))?;
        }
        Ok(Folder { directory: directory.to_owned(), _lock: lock })
    }

    pub(super) fn database(&self) -> PathBuf {
        self.directory.join("hub.sqlite")
    }

    pub(super) fn hub_key(&self) -> PathBuf {
        self.directory.join(HUB_KEY)
    }

    pub(super) fn datasets(&self) -> PathBuf {
        self.directory.join(DATASETS)
    }

    pub(super) fn weights(&self, job: JobId) -> PathBuf {
        self.directory.join("weights").join(format!("job-{job}.safetensors"))
    }

    pub(super) fn given_weights(&self) -> PathBuf {
        self.directory.join("given-weights")
    }

    pub(super) fn frozen(&self) -> PathBuf {
        self.directory.join("frozen")
    }

    pub(super) fn kernel(&self, digest: &[u8; 32]) -> PathBuf {
        self.directory.join("kernels").join(format!("{}.wasm", crate::digest::to_hex(digest)))
    }
}
