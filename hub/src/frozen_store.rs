//! Values of frozen parameters: a file under its digest in the state folder, from which agents fetch and exports copy, so that the
//! hub's memory holds none of it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use omnilearn_datasets::library;

use crate::digest;
use crate::store::Store;

/// What a file is called until it is whole.
const ARRIVING: &str = "new";

/// Values of frozen parameters on disk. Readable for as long as someone holds this, even when its name is gone.
#[derive(Clone, Debug)]
pub(crate) struct FrozenFile {
    file: Arc<File>,
    pub(crate) digest: [u8; 32],
}

impl FrozenFile {
    /// Fills `piece` with the bytes from `offset` on. May block.
    pub(crate) fn read(&self, piece: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.file.read_exact_at(piece, offset)
    }
}

/// The folder of such files, which has that of one job at a time.
#[derive(Clone)]
pub(crate) struct FrozenStore {
    store: Store,
}

impl FrozenStore {
    /// Takes away what jobs of an earlier hub left behind. May block.
    pub(crate) fn new(store: Store) -> FrozenStore {
        let frozen = FrozenStore { store };
        frozen.remove_others(None);
        frozen
    }

    /// Keeps values, in the encoding of [`Frozen`](omnilearn_wire::frozen::Frozen), in place of an earlier job's. May block.
    pub(crate) fn keep(&self, values: &[u8]) -> std::io::Result<FrozenFile> {
        let digest = digest::sha256(values);
        let path = self.store.frozen().join(digest::to_hex(&digest));
        let temporary = path.with_extension(ARRIVING);
        let mut file = File::create(&temporary)?;
        file.write_all(values)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        if let Some(folder) = path.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).ok(); // not every file system can
        }
        self.remove_others(Some(&digest));
        Ok(FrozenFile { file: Arc::new(File::open(&path)?), digest })
    }

    /// A piece of a file and the length of the whole; none if it is not here. May block.
    pub(crate) fn piece(
        &self,
        digest: &[u8; 32],
        offset: u64,
        bytes_max: usize,
    ) -> std::io::Result<Option<(Vec<u8>, u64)>> {
        library::piece(&self.store.frozen().join(digest::to_hex(digest)), offset, bytes_max)
    }

    fn remove_others(&self, kept: Option<&[u8; 32]>) {
        let kept = kept.map(digest::to_hex);
        for entry in std::fs::read_dir(self.store.frozen()).into_iter().flatten().flatten() {
            if entry.file_name().to_str() != kept.as_deref() {
                std::fs::remove_file(entry.path()).ok(); // in the way of nothing but its own space
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_until_the_next_jobs_and_can_be_read_as_long_as_someone_holds_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), "test").unwrap();
        let frozen = FrozenStore::new(store.clone());
        let names = || {
            let names = std::fs::read_dir(folder.path().join("frozen")).unwrap();
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let first = frozen.keep(b"01234567").unwrap();
        assert_eq!(names(), [digest::to_hex(&digest::sha256(b"01234567"))]);
        assert_eq!(frozen.piece(&first.digest, 2, 3).unwrap(), Some((b"234".to_vec(), 8)));
        assert_eq!(frozen.piece(&[1; 32], 0, 8).unwrap(), None);
        let second = frozen.keep(b"other").unwrap();
        assert_eq!(names(), [digest::to_hex(&second.digest)]);
        assert_eq!(frozen.piece(&first.digest, 0, 8).unwrap(), None);
        let mut piece = [0; 4];
        first.read(&mut piece, 4).unwrap();
        assert_eq!(&piece, b"4567");
        assert!(second.read(&mut piece, 4).is_err());
        FrozenStore::new(store);
        assert_eq!(names(), [""; 0]);
    }
}
