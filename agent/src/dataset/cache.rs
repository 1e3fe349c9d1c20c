//! Files that came from a hub, those of data sets above all, under their digests, within a limit.
//!
//! Several agents may share the folder. A file that is in use has a shared lock, one that arrives an exclusive one, and what has
//! no lock may be removed when room is needed, what was used last goes last.

use std::fs::{self, File, FileTimes, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use omnilearn_datasets::{Checked, to_hex};
use sha2::{Digest, Sha256};

/// Why a file cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The limit.
    #[error(
        "{needed} more bytes are needed in the cache, which may have {bytes_max} and has {used} that are in use; give the agent a \
         larger --data-cache-max"
    )]
    NoRoom {
        /// Bytes that are to come.
        needed: u64,
        /// The limit.
        bytes_max: u64,
        /// Bytes that must stay.
        used: u64,
    },
    /// What came is something else.
    #[error("the hub sent other bytes than the digest {expected} says")]
    Digest {
        /// What it should be.
        expected: String,
    },
    /// The system.
    #[error("cannot write to the data cache {}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

/// The folder `data` in the agent's cache.
#[derive(Clone, Debug)]
pub struct DataCache {
    folder: PathBuf,
    bytes_max: u64,
    checked: Checked,
}

/// A whole file, which stays as long as it is open.
#[derive(Debug)]
pub struct Held {
    /// The file, locked.
    pub file: File,
    /// Where it is.
    pub path: PathBuf,
}

/// How a file begins to arrive.
#[derive(Debug)]
pub enum Begin {
    /// From what was there on.
    Arriving(Box<Arrival>),
    /// Another agent fetches it into the same folder.
    Elsewhere,
}

/// A file that arrives. What has come stays for another try when this is dropped.
#[derive(Debug)]
pub struct Arrival {
    file: File,
    path: PathBuf,
    whole: PathBuf,
    expected: [u8; 32],
    hash: Sha256,
    offset: u64,
}

fn error(path: &Path) -> impl FnOnce(io::Error) -> CacheError {
    let path = path.to_owned();
    move |cause| CacheError::Io { path, cause }
}

impl DataCache {
    /// In the agent's cache folder; `bytes_max` is for all files together.
    pub fn new(cache: &Path, bytes_max: u64) -> DataCache {
        DataCache { folder: cache.join("data"), bytes_max, checked: Checked::new(cache) }
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        self.folder.join(to_hex(digest))
    }

    /// A file that is here whole. One that is damaged is removed.
    pub fn open(&self, digest: &[u8; 32]) -> Option<Held> {
        let path = self.path(digest);
        let file = File::open(&path).ok()?;
        file.try_lock_shared().ok()?;
        if file.metadata().ok()?.nlink() == 0 {
            return None; // removed before it was locked
        }
        if let Err(damage) = self.checked.check(&path, &to_hex(digest)) {
            tracing::warn!(%damage, "cached data is fetched again");
            fs::remove_file(&path).ok();
            return None;
        }
        // When it was used last; the time of change stays, which tells whether it must be checked again.
        file.set_times(FileTimes::new().set_accessed(SystemTime::now())).ok();
        Some(Held { file, path })
    }

    /// Makes room for a file of this length and goes on where an earlier try ended. Files in `keep` are not removed.
    ///
    /// # Errors
    /// [`CacheError::NoRoom`] if it does not fit, [`CacheError::Io`].
    pub fn begin(&self, digest: &[u8; 32], bytes: u64, keep: &[[u8; 32]]) -> Result<Begin, CacheError> {
        fs::create_dir_all(&self.folder).map_err(error(&self.folder))?;
        let whole = self.path(digest);
        let path = whole.with_extension("part");
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(error(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Begin::Elsewhere),
            Err(TryLockError::Error(cause)) => return Err(error(&path)(cause)),
        }
        let data = file.metadata().map_err(error(&path))?;
        if whole.exists() {
            File::open(&whole).map_err(error(&whole))?; // or nobody could ever use it
            return Ok(Begin::Elsewhere);
        }
        if data.nlink() == 0 {
            return Ok(Begin::Elsewhere); // removed while it was opened
        }
        let there = if data.len() > bytes { 0 } else { data.len() };
        let mut arrival = Arrival { file, path, whole, expected: *digest, hash: Sha256::new(), offset: 0 };
        self.make_room(bytes - there, keep)?;
        arrival.resume(there)?;
        Ok(Begin::Arriving(Box::new(arrival)))
    }

    /// Removes what was used longest ago until `needed` more bytes fit.
    fn make_room(&self, needed: u64, keep: &[[u8; 32]]) -> Result<(), CacheError> {
        let kept: Vec<PathBuf> = keep.iter().map(|digest| self.path(digest)).collect();
        let entries = fs::read_dir(&self.folder).map_err(error(&self.folder))?.flatten();
        let mut files: Vec<(i64, i64, PathBuf, u64)> = entries
            .filter_map(|entry| {
                let data = entry.metadata().ok()?;
                Some((data.atime(), data.atime_nsec(), entry.path(), data.len()))
            })
            .collect();
        files.sort_unstable();
        let mut used: u64 = files.iter().map(|(.., bytes)| bytes).sum();
        for (.., path, bytes) in files {
            if used.saturating_add(needed) <= self.bytes_max {
                return Ok(());
            }
            // A lock that cannot be had is that of a file in use.
            let is_free =
                || File::open(&path).is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(&path).is_ok());
            if !kept.contains(&path) && is_free() {
                tracing::info!(path = %path.display(), bytes, "removed data that was not used for the longest time");
                used -= bytes;
            }
        }
        match used.saturating_add(needed) <= self.bytes_max {
            true => Ok(()),
            false => Err(CacheError::NoRoom { needed, bytes_max: self.bytes_max, used }),
        }
    }

    /// Keeps a file that has come whole.
    ///
    /// # Errors
    /// [`CacheError::Digest`] if it is another than was asked for; it is removed then.
    pub fn finish(&self, arrival: Arrival) -> Result<Held, CacheError> {
        let Arrival { file, path, whole, expected, hash, .. } = arrival;
        if hash.finalize()[..] != expected {
            fs::remove_file(&path).map_err(error(&path))?;
            return Err(CacheError::Digest { expected: to_hex(&expected) });
        }
        file.sync_all().and_then(|()| fs::rename(&path, &whole)).map_err(error(&whole))?;
        file.lock_shared().map_err(error(&whole))?;
        self.checked.remember(&whole, &to_hex(&expected));
        Ok(Held { file, path: whole })
    }
}

impl Arrival {
    /// First byte that is missing.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Digests what is there, so that the rest can follow.
    fn resume(&mut self, bytes: u64) -> Result<(), CacheError> {
        let failed = error(&self.path);
        let read = io::Read::take(&self.file, bytes);
        let copied = self.file.set_len(bytes).and_then(|()| io::copy(&mut { read }, &mut self.hash)).map_err(failed)?;
        self.offset = copied;
        Ok(())
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`CacheError::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CacheError> {
        self.file.write_all(bytes).map_err(error(&self.path))?;
        self.hash.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(bytes: &[u8]) -> [u8; 32] {
        Sha256::digest(bytes).into()
    }

    fn arrival(cache: &DataCache, bytes: &[u8]) -> Arrival {
        match cache.begin(&digest(bytes), bytes.len() as u64, &[]).unwrap() {
            Begin::Arriving(arrival) => *arrival,
            Begin::Elsewhere => panic!("nobody else is here"),
        }
    }

    fn keep(cache: &DataCache, bytes: &[u8]) -> Held {
        let mut arrival = arrival(cache, bytes);
        arrival.write(bytes).unwrap();
        cache.finish(arrival).unwrap()
    }

    #[test]
    fn what_was_cut_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DataCache::new(folder.path(), 1000);
        let bytes = b"0123456789";
        let mut first = arrival(&cache, bytes);
        first.write(&bytes[..4]).unwrap();
        drop(first);
        assert!(cache.open(&digest(bytes)).is_none());
        let mut second = arrival(&cache, bytes);
        assert_eq!(second.offset(), 4);
        second.write(&bytes[4..]).unwrap();
        cache.finish(second).unwrap();
        let held = cache.open(&digest(bytes)).unwrap();
        assert_eq!(fs::read(held.path).unwrap(), bytes);
    }

    #[test]
    fn other_bytes_are_removed_and_so_is_a_file_that_was_damaged_later() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DataCache::new(folder.path(), 1000);
        let mut wrong = arrival(&cache, b"expected");
        wrong.write(b"received").unwrap();
        assert!(matches!(cache.finish(wrong), Err(CacheError::Digest { .. })));
        assert_eq!(arrival(&cache, b"expected").offset(), 0);
        let path = keep(&cache, b"some data").path;
        fs::write(&path, b"more data!").unwrap();
        assert!(cache.open(&digest(b"some data")).is_none());
        assert!(!path.exists());
    }

    #[test]
    fn the_limit_takes_what_was_used_longest_ago_and_never_what_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DataCache::new(folder.path(), 100);
        let files: Vec<Vec<u8>> = (0..3u8).map(|byte| vec![byte; 30]).collect();
        let age = |index: usize, seconds: u64| {
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            let file = File::open(cache.path(&digest(&files[index]))).unwrap();
            file.set_times(FileTimes::new().set_accessed(time)).unwrap();
        };
        let in_use = keep(&cache, &files[0]);
        drop(keep(&cache, &files[1]));
        drop(keep(&cache, &files[2]));
        age(0, 1);
        age(1, 3);
        age(2, 2);
        drop(keep(&cache, &[9; 40]));
        let here = |index: usize| cache.path(&digest(&files[index])).exists();
        assert_eq!((here(0), here(1), here(2)), (true, true, false), "the third was used before the second");
        assert!(matches!(cache.begin(&[7; 32], 71, &[]), Err(CacheError::NoRoom { used: 30, .. })));
        assert!(!here(1) && in_use.path.exists());
        drop(in_use);
        assert!(cache.begin(&[7; 32], 71, &[digest(&files[0])]).is_err(), "it is kept by name");
        assert!(matches!(cache.begin(&[7; 32], 71, &[]), Ok(Begin::Arriving(_))));
        assert!(!here(0));
    }

    #[test]
    fn two_agents_do_not_fetch_one_file_twice() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DataCache::new(folder.path(), 1000);
        let mut first = arrival(&cache, b"data");
        assert!(matches!(cache.begin(&digest(b"data"), 4, &[]), Ok(Begin::Elsewhere)));
        first.write(b"data").unwrap();
        let _held = cache.finish(first).unwrap();
        assert!(cache.open(&digest(b"data")).is_some(), "both may use it");
    }
}
