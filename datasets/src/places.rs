//! Where the files of a data set of the catalogue are. Gzipped files are unpacked into the cache once.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use omnilearn_wire::dataset::{DatasetSpec, IdxFile};
use sha2::{Digest, Sha256};

use crate::checked::{Checked, unique};
use crate::error::DatasetError;

/// Where the system's packages put data sets.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/share/datasets", "/usr/local/share/datasets"];

/// Most bytes that a packed file may unpack to; a packed file that goes on for ever stops here.
const UNPACKED_BYTES_MAX: u64 = 4 << 30;

/// Where to look for the files of one data set.
pub(crate) struct Places {
    spec: &'static DatasetSpec,
    folders: Vec<PathBuf>,
    cache: PathBuf,
    checked: Checked,
}

impl Places {
    /// `folders` first, then the cache, then the system's.
    pub(crate) fn new(spec: &'static DatasetSpec, folders: &[PathBuf], cache: &Path) -> Places {
        let own = cache.join("datasets").join(spec.name);
        let mut all: Vec<PathBuf> =
            folders.iter().flat_map(|folder| [folder.join(spec.name), folder.clone()]).collect();
        all.push(own.clone());
        all.extend(SYSTEM_FOLDERS.iter().map(|folder| Path::new(folder).join(spec.name)));
        Places { spec, folders: all, cache: own, checked: Checked::new(cache) }
    }

    /// Path of an uncompressed file whose digest is right.
    pub(crate) fn raw(&self, file: IdxFile) -> Result<PathBuf, DatasetError> {
        let raw = self.folders.iter().map(|folder| folder.join(file.name)).find(|path| path.is_file());
        if let Some(path) = raw {
            self.checked.check(&path, file.sha256)?;
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
                Err(DatasetError::Digest { path: packed.to_owned(), found, expected: file.sha256.to_owned() })
            }
            Ok(_) => fs::rename(&temporary, &target).map_err(fail("rename to", &target)),
            Err(cause) => Err(fail("unpack", packed)(cause)),
        };
        if result.is_err() {
            fs::remove_file(&temporary).ok();
        }
        result?;
        self.checked.remember(&target, file.sha256);
        Ok(target)
    }
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
