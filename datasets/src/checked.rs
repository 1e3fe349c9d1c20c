//! Files whose digest was right once. They are not digested again until their length, time of change or place is another.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::error::DatasetError;
use crate::hex::{digest_of, to_hex};

/// Notes on files that were checked, one file for each in a folder.
#[derive(Clone, Debug)]
pub struct Checked {
    folder: PathBuf,
}

impl Checked {
    /// Notes in a cache folder.
    pub fn new(cache: &Path) -> Checked {
        Checked { folder: cache.join("checked") }
    }

    /// Checks a file, by its note or by its content.
    ///
    /// # Errors
    /// [`DatasetError::Digest`] if it is another, [`DatasetError::Io`] if it cannot be read.
    pub fn check(&self, path: &Path, sha256: &str) -> Result<(), DatasetError> {
        let fail = |cause| DatasetError::Io { action: "read", path: path.to_owned(), cause };
        if stamp(path, sha256)
            .is_some_and(|stamp| fs::read_to_string(self.note(path)).is_ok_and(|known| known == stamp))
        {
            return Ok(());
        }
        let found = to_hex(&digest_of(File::open(path).map_err(fail)?).map_err(fail)?);
        if found != sha256 {
            return Err(DatasetError::Digest { path: path.to_owned(), found, expected: sha256.to_owned() });
        }
        self.remember(path, sha256);
        Ok(())
    }

    /// Notes that a file's digest is right. If that fails, it is digested again next time.
    pub fn remember(&self, path: &Path, sha256: &str) {
        let note = self.note(path);
        if let Some(stamp) = stamp(path, sha256) {
            let temporary = note.with_extension(unique());
            let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&temporary, stamp));
            written.and_then(|()| fs::rename(&temporary, &note)).ok();
        }
    }

    fn note(&self, path: &Path) -> PathBuf {
        self.folder.join(format!("{:x}", Sha256::digest(path.as_os_str().as_encoded_bytes())))
    }
}

/// A suffix that nobody else uses: random, since agents in containers that share a cache all have the same process id. The
/// standard library seeds its hash maps from the operating system.
pub fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}", std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), number))
}

/// What a file was when its digest was right. Not its time of use, which a cache sets anew.
fn stamp(path: &Path, sha256: &str) -> Option<String> {
    let data = fs::metadata(path).ok()?;
    Some(format!("{sha256} {} {} {} {}", data.len(), data.mtime(), data.mtime_nsec(), data.ino()))
}
