//! Kernels on their way from the hub, and the folder in which they are kept under their digest.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use omnilearn_datasets::unique;
use omnilearn_kernel_host::to_hex;
use omnilearn_wire::limits::KERNEL_BYTES_MAX;
use omnilearn_wire::message::JobOffer;
use sha2::{Digest, Sha256};
use tracing::warn;

/// The folder `kernels` in the agent's cache.
#[derive(Clone, Debug)]
pub(super) struct KernelStore {
    folder: PathBuf,
}

/// A folder that the agent needs and cannot write.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to the cache folder {}; name another with --cache", folder.display())]
pub struct CacheError {
    /// The folder.
    pub folder: PathBuf,
    /// What the operating system says.
    #[source]
    pub cause: io::Error,
}

/// Makes the cache folder if need be, and finds out now and not with the first job whether it can be written.
///
/// # Errors
/// [`CacheError`] if a file cannot be made and removed again.
pub fn writable(cache: &Path) -> Result<(), CacheError> {
    let folder = KernelStore::new(cache).folder;
    let probe = folder.join(format!(".write-test-{}", unique()));
    let attempt = || {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(&probe, b"omnilearn")?;
        std::fs::remove_file(&probe)
    };
    attempt().map_err(|cause| CacheError { folder: cache.to_owned(), cause })
}

impl KernelStore {
    /// The store in a cache folder that is [`writable`].
    pub(super) fn new(cache: &Path) -> KernelStore {
        KernelStore { folder: cache.join("kernels") }
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        self.folder.join(format!("{}.wasm", to_hex(digest)))
    }

    /// The kernel of this digest, if it is here and what its name says.
    pub(super) fn load(&self, digest: &[u8; 32]) -> Option<Bytes> {
        let path = self.path(digest);
        if path.metadata().ok()?.len() > KERNEL_BYTES_MAX {
            return None;
        }
        let kernel = std::fs::read(&path).ok()?;
        if Sha256::digest(&kernel)[..] == digest[..] {
            return Some(Bytes::from(kernel));
        }
        warn!(path = %path.display(), "cached kernel is damaged and fetched again");
        None
    }

    /// Keeps a kernel for the next time. A failure costs a download and nothing else.
    pub(super) fn store(&self, digest: &[u8; 32], kernel: &[u8]) {
        let path = self.path(digest);
        // Agents that share a folder write files of their own, and the last rename wins with the same content.
        let temporary = path.with_extension(format!("{}.tmp", unique()));
        let result = std::fs::write(&temporary, kernel).and_then(|()| std::fs::rename(&temporary, &path));
        if let Err(cause) = result {
            warn!(path = %path.display(), %cause, "cannot keep the kernel");
            let _ = std::fs::remove_file(&temporary); // perhaps it was never made
        }
    }
}

/// A kernel on its way. What has arrived outlives the connection.
#[derive(Debug)]
pub(super) struct Download {
    digest: [u8; 32],
    total: u64,
    bytes: Vec<u8>,
}

/// Why a kernel cannot be had.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KernelError {
    /// The job's kernel is larger than allowed, or empty.
    #[error("the kernel has {bytes} bytes, 1 to {KERNEL_BYTES_MAX} allowed")]
    Size { bytes: u64 },
    /// What came is not what the job names.
    #[error("the kernel that came has the digest {found} instead of {expected}")]
    Digest { found: String, expected: String },
}

/// A piece that is not the next one: the hub breaks the protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel piece at {offset} of {total} bytes, expected one at {expected} of {expected_total}")]
pub(super) struct WrongPiece {
    offset: u64,
    total: u64,
    expected: u64,
    expected_total: u64,
}

impl Download {
    /// Nothing has arrived yet.
    pub(super) fn new(offer: &JobOffer) -> Result<Download, KernelError> {
        let JobOffer { kernel_digest: digest, kernel_bytes: total, .. } = *offer;
        if total == 0 || total > KERNEL_BYTES_MAX {
            return Err(KernelError::Size { bytes: total });
        }
        Ok(Download { digest, total, bytes: Vec::new() })
    }

    /// Whether it is this kernel.
    pub(super) fn is_of(&self, digest: &[u8; 32]) -> bool {
        self.digest == *digest
    }

    /// First byte that is missing.
    pub(super) fn offset(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Takes the next piece; memory grows with what arrives, never with what is announced.
    pub(super) fn accept(&mut self, offset: u64, total: u64, piece: &[u8]) -> Result<(), WrongPiece> {
        let fits = offset.checked_add(piece.len() as u64).is_some_and(|end| end <= self.total);
        if offset != self.offset() || total != self.total || piece.is_empty() || !fits {
            return Err(WrongPiece { offset, total, expected: self.offset(), expected_total: self.total });
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Whether every byte is there.
    pub(super) fn is_complete(&self) -> bool {
        self.offset() == self.total
    }

    /// The kernel, once it is complete and is what the job names. Nothing of it is looked at before.
    pub(super) fn finish(self) -> Result<Bytes, KernelError> {
        let found = Sha256::digest(&self.bytes);
        if found[..] != self.digest[..] {
            return Err(KernelError::Digest { found: to_hex(&found), expected: to_hex(&self.digest) });
        }
        Ok(Bytes::from(self.bytes))
    }
}
