//! Kernels under their digests: on disk, and the last one used in memory.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use omnilearn_kernel_host::Kernel;

use crate::digest;
use crate::store::Store;

#[derive(Default)]
struct Memory {
    /// The component that was last asked for.
    component: Option<([u8; 32], Bytes)>,
    /// The kernel that was last submitted, for the job that comes right after it: compiling takes its time.
    opened: Option<(Kernel, u64)>,
}

/// Kernels that were submitted to this hub.
#[derive(Clone)]
pub(crate) struct KernelStore {
    store: Store,
    memory: Arc<Mutex<Memory>>,
}

impl KernelStore {
    pub(crate) fn new(store: Store) -> KernelStore {
        KernelStore { store, memory: Arc::default() }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a component that was checked. May block.
    pub(crate) fn keep(&self, component: &[u8], kernel: Kernel) -> std::io::Result<[u8; 32]> {
        let digest = *kernel.digest();
        let path = self.store.kernel(&digest);
        let mut memory = self.memory(); // for as long as the file is written, so that no two do
        if !path.exists() {
            let temporary = path.with_extension("new");
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(component)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
        }
        memory.opened = Some((kernel, component.len() as u64));
        Ok(digest)
    }

    /// A component, if this hub has it whole. May block.
    pub(crate) fn load(&self, digest: &[u8; 32]) -> Option<Bytes> {
        if let Some((known, component)) = &self.memory().component
            && known == digest
        {
            return Some(component.clone());
        }
        let component = Bytes::from(std::fs::read(self.store.kernel(digest)).ok()?);
        if digest::sha256(&component) != *digest {
            tracing::error!(kernel = digest::to_hex(digest), "a kernel in the state folder is damaged");
            return None;
        }
        self.memory().component = Some((*digest, component.clone()));
        Some(component)
    }

    /// A kernel and its component's length, if this hub has it whole. May block.
    pub(crate) fn open(&self, digest: &[u8; 32]) -> Option<(Kernel, u64)> {
        if let Some(opened) = self.memory().opened.take_if(|(kernel, _)| kernel.digest() == digest) {
            return Some(opened);
        }
        let component = self.load(digest)?;
        let kernel = Kernel::open(&component).ok()?; // it was opened before it was kept
        Some((kernel, component.len() as u64))
    }
}
