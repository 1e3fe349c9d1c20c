//! Weights that jobs begin with, under their digests in the state folder.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::digest;
use crate::given_weights::{GivenWeights, GivenWeightsError};
use crate::limits::GIVEN_WEIGHTS_BYTES_MAX;
use crate::store::Store;

/// What a file is called while it arrives.
const ARRIVING: &str = "new";

/// Why weights were not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("weights of {bytes} bytes are too long, at most {bytes_max} are taken")]
    TooLong { bytes: u64, bytes_max: u64 },
    #[error("the weights: {0}")]
    Weights(#[source] GivenWeightsError),
    #[error("cannot keep the weights: {0}")]
    Io(#[from] std::io::Error),
}

/// Refuses a length over [`GIVEN_WEIGHTS_BYTES_MAX`].
pub(crate) fn check_length(bytes: u64) -> Result<(), UploadError> {
    match bytes <= GIVEN_WEIGHTS_BYTES_MAX {
        true => Ok(()),
        false => Err(UploadError::TooLong { bytes, bytes_max: GIVEN_WEIGHTS_BYTES_MAX }),
    }
}

/// Weights that were sent to this hub.
#[derive(Clone)]
pub(crate) struct WeightsStore {
    store: Store,
}

impl WeightsStore {
    /// Takes away what a hub that ended in the middle of an upload left behind. May block.
    pub(crate) fn new(store: Store) -> WeightsStore {
        for entry in std::fs::read_dir(store.given_weights()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == ARRIVING) {
                std::fs::remove_file(entry.path()).ok(); // in the way of nothing but its own space
            }
        }
        WeightsStore { store }
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        self.store.given_weights().join(format!("{}.safetensors", digest::to_hex(digest)))
    }

    /// Weights, if this hub has them whole. Reads the file once; may block.
    pub(crate) fn open(&self, digest: &[u8; 32]) -> Option<GivenWeights> {
        let path = self.path(digest);
        if !path.exists() {
            return None;
        }
        let opened = GivenWeights::open(path, *digest).and_then(|mut weights| weights.verify().map(|()| weights));
        opened
            .inspect_err(|error| {
                tracing::error!(weights = digest::to_hex(digest), %error, "weights in the state folder are damaged");
            })
            .ok()
    }

    /// Begins a file of at most `bytes_max` bytes. May block.
    pub(crate) fn begin(&self, bytes_max: u64) -> std::io::Result<Upload> {
        static UPLOADS: AtomicU64 = AtomicU64::new(0);
        let number = UPLOADS.fetch_add(1, Ordering::Relaxed);
        let path = self.store.given_weights().join(format!("upload-{number}.{ARRIVING}"));
        let file = File::create(&path)?;
        Ok(Upload { store: self.clone(), path, file, digest: Sha256::new(), bytes: 0, bytes_max })
    }
}

/// Weights on their way into the state folder, under a name of their own that is gone when this is dropped.
pub(crate) struct Upload {
    store: WeightsStore,
    path: PathBuf,
    file: File,
    digest: Sha256,
    bytes: u64,
    bytes_max: u64,
}

impl Upload {
    /// Takes the next bytes. May block.
    pub(crate) fn write(&mut self, pieces: &[Bytes]) -> Result<(), UploadError> {
        for piece in pieces {
            self.bytes += piece.len() as u64;
            if self.bytes > self.bytes_max {
                return Err(UploadError::TooLong { bytes: self.bytes, bytes_max: self.bytes_max });
            }
            self.digest.update(piece);
            self.file.write_all(piece)?;
        }
        Ok(())
    }

    /// Keeps what has arrived, which is all, unless it is here already. Returns digest and length. May block.
    pub(crate) fn keep(mut self) -> Result<([u8; 32], u64), UploadError> {
        let digest = std::mem::take(&mut self.digest).finalize().into();
        GivenWeights::open(self.path.clone(), digest).map_err(UploadError::Weights)?;
        let path = self.store.path(&digest);
        // A file that is damaged makes way for the one that is whole.
        if self.store.open(&digest).is_none() {
            self.file.sync_all()?;
            std::fs::rename(&self.path, &path)?;
            if let Some(folder) = path.parent() {
                File::open(folder).and_then(|folder| folder.sync_all()).ok(); // not every file system can
            }
        }
        Ok((digest, self.bytes))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok(); // not there if it was kept
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use safetensors::tensor::Dtype;

    use super::*;
    use crate::given_weights::tests::{bytes_of, file};

    fn files(state: &Path) -> Vec<String> {
        let names = std::fs::read_dir(state.join("given-weights")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn send(weights: &WeightsStore, bytes: &[u8]) -> Result<[u8; 32], UploadError> {
        let mut upload = weights.begin(1_000).unwrap();
        for piece in bytes.chunks(7) {
            upload.write(&[Bytes::copy_from_slice(piece)])?;
        }
        upload.keep().map(|(digest, _)| digest)
    }

    #[test]
    fn weights_are_kept_once_under_their_digest_and_repaired_by_the_next_upload() {
        let folder = tempfile::tempdir().unwrap();
        let weights = WeightsStore::new(Store::open(folder.path(), "test").unwrap());
        let bytes = file(&[("a", Dtype::F32, &[1], bytes_of(&[1.0]))]);
        let digest = send(&weights, &bytes).unwrap();
        assert_eq!(digest, digest::sha256(&bytes));
        let name = format!("{}.safetensors", digest::to_hex(&digest));
        let path = folder.path().join("given-weights").join(&name);
        let written = || std::fs::metadata(&path).unwrap().modified().unwrap();
        let first = written();
        assert_eq!(send(&weights, &bytes).unwrap(), digest);
        assert_eq!((written(), files(folder.path())), (first, vec![name.clone()]));
        assert_eq!(weights.open(&digest).unwrap().names(), ["a"]);

        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(weights.open(&digest).is_none());
        send(&weights, &bytes).unwrap();
        assert!(weights.open(&digest).is_some());
        assert_eq!(files(folder.path()), [name]);
    }

    #[test]
    fn what_is_refused_or_breaks_off_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), "test").unwrap();
        let weights = WeightsStore::new(store.clone());
        let error = send(&weights, &[0; 2_000]).unwrap_err().to_string();
        assert_eq!(error, "weights of 1001 bytes are too long, at most 1000 are taken");
        let error = send(&weights, b"a file of another kind").unwrap_err();
        assert!(error.to_string().starts_with("the weights: not a safetensors file: "), "{error}");
        let mut upload = weights.begin(1_000).unwrap();
        upload.write(&[Bytes::from_static(b"half")]).unwrap();
        assert_eq!(files(folder.path()).len(), 1);
        drop(upload);
        assert_eq!(files(folder.path()), [""; 0]);

        // As after a crash.
        std::fs::write(folder.path().join("given-weights/upload-0.new"), b"half").unwrap();
        WeightsStore::new(store);
        assert_eq!(files(folder.path()), [""; 0]);
    }
}
