//! Checkpoints of jobs in the state folder.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use omnilearn_hub_core::Snapshot;
use omnilearn_wire::{JobId, Version};

use crate::store::Store;
use crate::weights::{self, Tensors, WeightsError};

/// A job's weights at one version.
pub(crate) struct Checkpoint {
    /// Name of the job.
    pub(crate) name: String,
    pub(crate) tensors: Tensors,
    pub(crate) snapshot: Snapshot,
}

impl Checkpoint {
    fn write(self, job: JobId, path: &Path) -> Result<(), WeightsError> {
        let entries = [
            ("format", "pt".to_owned()), // what readers of safetensors look for
            ("job", job.to_string()),
            ("name", self.name),
            ("version", self.snapshot.version.to_string()),
            ("writer", concat!("omnilearn-hub ", env!("CARGO_PKG_VERSION")).to_owned()),
        ];
        let metadata = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        weights::write(path, &self.tensors, self.snapshot, metadata)
    }
}

/// Writes checkpoints one at a time, and never an older one over a newer.
pub(crate) struct Checkpoints {
    store: Store,
    saved: Mutex<HashMap<JobId, Version>>,
}

impl Checkpoints {
    pub(crate) fn new(store: Store) -> Checkpoints {
        Checkpoints { store, saved: Mutex::default() }
    }

    /// Writes a checkpoint. May block.
    pub(crate) fn save(&self, job: JobId, checkpoint: Checkpoint) -> Result<(), WeightsError> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let version = checkpoint.snapshot.version;
        if saved.get(&job).is_some_and(|saved| *saved >= version) {
            return Ok(());
        }
        checkpoint.write(job, &self.store.weights(job))?;
        saved.insert(job, version);
        Ok(())
    }
}

/// The weights of a running job as a file without a name, which is gone when it is closed. May block.
pub(crate) fn export(store: &Store, job: JobId, checkpoint: Checkpoint) -> std::io::Result<File> {
    static EXPORTS: AtomicU64 = AtomicU64::new(0);
    let number = EXPORTS.fetch_add(1, Ordering::Relaxed);
    let path = store.weights(job).with_extension(format!("export-{number}"));
    checkpoint.write(job, &path).map_err(std::io::Error::other)?;
    let file = File::open(&path);
    std::fs::remove_file(&path).ok();
    file
}
