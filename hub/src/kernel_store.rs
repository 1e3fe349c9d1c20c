//! Kernels under their digests: on disk, and the last one used in memory.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::digest;
use crate::store::Store;

/// Kernels that were submitted to this hub.
#[derive(Clone)]
pub(crate) struct KernelStore {
    store: Store,
    last: Arc<Mutex<Option<([u8; 32], Bytes)>>>,
}

impl KernelStore {
    pub(crate) fn new(store: Store) -> KernelStore {
        KernelStore { store, last: Arc::default() }
    }

    /// Keeps a component that was checked. May block.
    pub(crate) fn keep(&self, component: &[u8]) -> std::io::Result<[u8; 32]> {
        let digest = digest::sha256(component);
        let path = self.store.kernel(&digest);
        let _one_at_a_time = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !path.exists() {
            let temporary = path.with_extension("new");
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(component)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
        }
        Ok(digest)
    }

    /// A component, if this hub has it whole. May block.
    pub(crate) fn load(&self, digest: &[u8; 32]) -> Option<Bytes> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, component)) = last().as_ref()
            && known == digest
        {
            return Some(component.clone());
        }
        let component = Bytes::from(std::fs::read(self.store.kernel(digest)).ok()?);
        if digest::sha256(&component) != *digest {
            tracing::error!(kernel = digest::to_hex(digest), "a kernel in the state folder is damaged");
            return None;
        }
        *last() = Some((*digest, component.clone()));
        Some(component)
    }
}
