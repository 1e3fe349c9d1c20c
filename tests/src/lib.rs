//! The cluster harness, native reference models, and end-to-end tests with real processes.

pub mod cluster;
pub mod conformance;
pub mod layer_rates;
pub mod mosquitto;
pub mod native;
pub mod overhead;
pub mod scripted;
pub mod timing;
pub mod train_step;
pub mod usage;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The repository's root.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the repository")
}

/// Path of a kernel's component.
pub fn component_path(name: &str) -> PathBuf {
    workspace().join("kernels/target/components").join(name).with_extension("wasm")
}

/// A kernel's component.
///
/// # Errors
/// If it is not built.
pub fn component(name: &str) -> Result<Vec<u8>> {
    let path = component_path(name);
    std::fs::read(&path).with_context(|| format!("{} is missing: run `cargo xtask kernels`", path.display()))
}
