//! Where a data set's files are. Packed files are unpacked into the cache once; a file whose digest was right is not
//! digested again until its length or time of change is another.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use omnilearn_wire::dataset::{DatasetSpec, IdxFile};
use sha2::{Digest, Sha256};

use super::DatasetError;

/// Where the system's packages put data sets.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/share/datasets", "/usr/local/share/datasets"];

/// Most bytes that a packed file may unpack to; a packed file that goes on for ever stops here.
const UNPACKED_BYTES_MAX: u64 = 4 << 30;

/// Where to look for the files of one data set.
pub(super) struct Places<'a> {
    spec: &'static DatasetSpec,
    folders: Vec<PathBuf>,
    cache: PathBuf,
    given: &'a Path,
}

impl<'a> Places<'a> {
    /// `folders` first, then the cache, then the system's.
    pub(super) fn new(spec: &'static DatasetSpec, folders: &[PathBuf], cache: &'a Path) -> Places<'a> {
        let own = cache.join("datasets").join(spec.name);
        let mut all: Vec<PathBuf> =
            folders.iter().flat_map(|folder| [folder.join(spec.name), folder.clone()]).collect();
        all.push(own.clone());
        all.extend(SYSTEM_FOLDERS.iter().map(|folder| Path::new(folder).join(spec.name)));
        Places { spec, folders: all, cache: own, given: cache }
    }

    /// Path of an uncompressed file whose digest is right.
    pub(super) fn raw(&self, file: IdxFile) -> Result<PathBuf, DatasetError> {
        let raw = self.folders.iter().map(|folder| folder.join(file.name)).find(|path| path.is_file());
        if let Some(path) = raw {
            self.check(&path, file)?;
            return Ok(path);
        }
        let packed =
            self.folders.iter().map(|folder| folder.join(format!("{}.gz", file.name))).find(|path| path.is_file());
        match packed {
            Some(packed) => self.unpack(&packed, file),
            None => Err(DatasetError::Missing {
                name: self.spec.name,
                file: file.name,
                searched: self.folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", "),
                how_to_get: self.spec.how_to_get,
            }),
        }
    }

    /// Unpacks into the cache under a temporary name, so that nobody sees half a file and several agents can do it at once.
    fn unpack(&self, packed: &Path, file: IdxFile) -> Result<PathBuf, DatasetError> {
        let fail = |action, path: &Path| {
            let path = path.to_owned();
            move |cause| DatasetError::Io { action, path, cause }
        };
        fs::create_dir_all(&self.cache).map_err(fail("create", &self.cache))?;
        let target = self.cache.join(file.name);
        let temporary = self.cache.join(format!(".{}.{}", file.name, unique()));
        let source = File::open(packed).map_err(fail("open", packed))?;
        let unpacked = (|| {
            let mut source = MultiGzDecoder::new(BufReader::new(source)).take(UNPACKED_BYTES_MAX);
            let mut hash = Tee { hash: Sha256::new(), file: File::create(&temporary)? };
            io::copy(&mut source, &mut hash)?;
            hash.file.sync_all()?;
            Ok(format!("{:x}", hash.hash.finalize()))
        })();
        let result = match unpacked {
            Ok(found) if found != file.sha256 => {
                Err(DatasetError::Digest { path: packed.to_owned(), found, expected: file.sha256 })
            }
            Ok(_) => fs::rename(&temporary, &target).map_err(fail("rename to", &target)),
            Err(cause) => Err(fail("unpack", packed)(cause)),
        };
        if result.is_err() {
            fs::remove_file(&temporary).ok();
        }
        result?;
        self.remember(&target, file);
        Ok(target)
    }

    fn check(&self, path: &Path, file: IdxFile) -> Result<(), DatasetError> {
        let fail = |cause| DatasetError::Io { action: "read", path: path.to_owned(), cause };
        if stamp(path, file)
            .is_some_and(|stamp| fs::read_to_string(self.marker(path)).is_ok_and(|known| known == stamp))
        {
            return Ok(());
        }
        let mut hash = Sha256::new();
        io::copy(&mut File::open(path).map_err(fail)?, &mut hash).map_err(fail)?;
        let found = format!("{:x}", hash.finalize());
        if found != file.sha256 {
            return Err(DatasetError::Digest { path: path.to_owned(), found, expected: file.sha256 });
        }
        self.remember(path, file);
        Ok(())
    }

    /// Notes that a file's digest is right. If that fails, it is digested again next time.
    fn remember(&self, path: &Path, file: IdxFile) {
        let marker = self.marker(path);
        if let (Some(stamp), Some(folder)) = (stamp(path, file), marker.parent()) {
            let temporary = marker.with_extension(unique());
            let written = fs::create_dir_all(folder).and_then(|()| fs::write(&temporary, stamp));
            written.and_then(|()| fs::rename(&temporary, &marker)).ok();
        }
    }

    fn marker(&self, path: &Path) -> PathBuf {
        let name = format!("{:x}", Sha256::digest(path.as_os_str().as_encoded_bytes()));
        self.given.join("checked").join(name)
    }
}

/// A suffix that nobody else uses: random, since agents in containers that share a cache all have the same process id. The
/// standard library seeds its hash maps from the operating system.
fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}", std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), number))
}

/// What a file was when its digest was right.
fn stamp(path: &Path, file: IdxFile) -> Option<String> {
    let data = fs::metadata(path).ok()?;
    Some(format!("{} {} {} {} {}", file.sha256, data.len(), data.mtime(), data.mtime_nsec(), data.ino()))
}

/// Writes to a file and digests what it writes.
struct Tee {
    hash: Sha256,
    file: File,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
