//! Builds the kernels, those in Rust and those in C, for WebAssembly and wraps them as components; begins new ones.

mod c;
mod new;
mod rust;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use wit_component::ComponentEncoder;

use crate::workspace::Workspace;

/// Where components come, from the workspace's root.
const COMPONENTS: &str = "kernels/target/components";

/// What to do with the kernels.
#[derive(Args, Debug)]
#[command(after_help = "docs/kernels.md says how to write a kernel.")]
pub(crate) struct KernelsArguments {
    #[command(subcommand)]
    command: Option<KernelsCommand>,
}

#[derive(Debug, Subcommand)]
enum KernelsCommand {
    /// Begins a kernel: makes the crate kernels/NAME, a small classifier that trains as it stands, and adds it to the
    /// members in kernels/Cargo.toml.
    #[command(after_help = "Afterwards, change kernels/NAME/src/lib.rs into the model that you want:\n  \
        settings!  what a job may choose\n  \
        build      names the parameters, once\n  \
        logits     computes a batch from them")]
    New {
        /// Name of the crate and, with `_` for `-`, of the component: small letters, digits and `-`, such as `tiny-net`.
        name: String,
    },
}

/// Builds all kernels, or begins one.
///
/// # Errors
/// See [`build`] and [`new::create`].
pub(crate) fn run(workspace: &Workspace, arguments: &KernelsArguments) -> Result<()> {
    match &arguments.command {
        None => {
            for component in build(workspace.root())? {
                println!("{}", component.display());
            }
        }
        Some(KernelsCommand::New { name }) => {
            new::create(&workspace.root().join("kernels"), name)?;
            println!("{}", new::next_steps(name));
        }
    }
    Ok(())
}

/// Builds every kernel into `kernels/target/components/NAME.wasm` and returns those paths: each member of the workspace
/// `kernels/` that is a `cdylib`, under its library's name, and each `kernels/c/NAME.c`. Cargo skips what is unchanged.
///
/// # Errors
/// No toolchain for WebAssembly and no way to install one, or a kernel that does not compile. Without a compiler for C, the
/// kernels in C are left out.
pub(crate) fn build(workspace: &Path) -> Result<Vec<PathBuf>> {
    let kernels = workspace.join("kernels");
    let target = target(workspace);
    let mut modules = rust::modules(rust::toolchain()?, &kernels, &target, None)?;
    // A folder of its own for each run, so that two at a time do not write the same files.
    let folder = tempfile::tempdir_in(&target).with_context(|| format!("could not write to {}", target.display()))?;
    modules.extend(c::modules(&kernels.join("c"), &workspace.join("wit"), folder.path())?);
    if let Some(name) = repeated(&modules) {
        bail!("two kernels have the name {}", name.display());
    }
    let components = workspace.join(COMPONENTS);
    modules.iter().map(|module| wrap(module, &components)).collect()
}

/// Where Cargo builds the kernels.
fn target(workspace: &Path) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => workspace.join(target).join("kernels"),
        None => workspace.join("kernels/target"),
    }
}

/// A file name that occurs twice.
fn repeated(modules: &[PathBuf]) -> Option<&OsStr> {
    let mut names: Vec<&OsStr> = modules.iter().filter_map(|module| module.file_name()).collect();
    names.sort();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// Wraps a core module as a component of the same file name; leaves an equal one untouched.
fn wrap(module: &Path, components: &Path) -> Result<PathBuf> {
    let bytes = fs::read(module).with_context(|| format!("could not read {}", module.display()))?;
    let encoded = ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .and_then(|mut encoder| encoder.encode())
        .with_context(|| format!("could not make a component of {}", module.display()))?;
    let component = components.join(module.file_name().context("a module has no file name")?);
    if fs::read(&component).is_ok_and(|present| present == encoded) {
        return Ok(component);
    }
    fs::create_dir_all(components).with_context(|| format!("could not create {}", components.display()))?;
    // Under a name of its own until it is whole, so that nobody reads half a component.
    let whole = component.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&whole, &encoded).with_context(|| format!("could not write {}", whole.display()))?;
    fs::rename(&whole, &component).with_context(|| format!("could not write {}", component.display()))?;
    Ok(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_two_kernels_have_is_found() {
        let paths = |names: [&str; 3]| names.map(|name| Path::new("/t").join(name).join("x.wasm")).to_vec();
        assert_eq!(repeated(&paths(["a", "b", "c"])), Some(OsStr::new("x.wasm")));
        assert_eq!(repeated(&["/t/a.wasm".into(), "/t/b.wasm".into()]), None);
    }
}
