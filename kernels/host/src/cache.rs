//! Compiled code on disk.
//!
//! An entry is named by the component's digest and by a hash over everything that decides whether its code runs here: the
//! engine's version, its settings and the CPU. Its first 32 bytes are the SHA-256 of the rest, so that a torn or damaged
//! entry is noticed before it is loaded.
#![expect(unsafe_code, reason = "loading compiled code is unsafe by nature; `load` says what makes it sound")]

use std::fs;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::signature::to_hex;

pub(crate) fn load_or_compile(
    engine: &Engine,
    bytes: &[u8],
    digest: &[u8; 32],
    folder: &Path,
) -> wasmtime::Result<Component> {
    let path = entry(engine, digest, folder);
    if let Some(component) = load(engine, &path) {
        return Ok(component);
    }
    let component = Component::from_binary(engine, bytes)?;
    if let Ok(code) = component.serialize() {
        // Without the entry the next start compiles again; there is nobody to whom that would be an error.
        let _ = store(&path, &code);
    }
    Ok(component)
}

/// Path of the entry for a component under this engine.
pub(crate) fn entry(engine: &Engine, digest: &[u8; 32], folder: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    let digest = to_hex(digest);
    folder.join(format!("{digest}-{:016x}.cwasm", hasher.finish()))
}

/// Whether nobody but this user, and root, can have written an entry.
#[cfg(unix)]
fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let own = |path: &Path| {
        let Ok(metadata) = path.symlink_metadata() else { return false };
        let trusted_owner = metadata.uid() == rustix::process::geteuid().as_raw() || metadata.uid() == 0;
        trusted_owner && metadata.mode() & 0o022 == 0 && !metadata.is_symlink()
    };
    own(path) && path.parent().is_some_and(own)
}

/// Folders of a user are that user's by default elsewhere.
#[cfg(not(unix))]
fn is_private(_path: &Path) -> bool {
    true
}

fn load(engine: &Engine, path: &Path) -> Option<Component> {
    if !is_private(path) {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let (sum, code) = bytes.split_at_checked(32)?;
    if Sha256::digest(code).as_slice() != sum {
        return None;
    }
    // SAFETY: `deserialize` requires code that `serialize` made. `store` wrote this file, in a folder that only this user can
    // write, which has been checked; the sum shows that it is whole and unchanged since; and the engine itself refuses
    // code of another version, other settings or another CPU.
    unsafe { Component::deserialize(engine, code) }.ok()
}

fn store(path: &Path, code: &[u8]) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = path.parent() {
        make_private_folder(folder)?;
    }
    // Under a name of its own until it is whole, so that nobody loads half an entry. The name is random, by a hash that the
    // operating system seeds: processes in containers that share the folder all have the same id.
    let name = RandomState::new().hash_one(SERIAL.fetch_add(1, Ordering::Relaxed));
    let whole = path.with_extension(format!("{name:016x}.tmp"));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options
        .open(&whole)
        .and_then(|mut file| file.write_all(Sha256::digest(code).as_slice()).and_then(|()| file.write_all(code)))
        .and_then(|()| fs::rename(&whole, path));
    if written.is_err() {
        let _ = fs::remove_file(&whole); // as good as it gets when the disk is full
    }
    written
}

fn make_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
