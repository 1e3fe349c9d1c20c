//! Kernels in Rust: the crates of the workspace `kernels/`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::toolchain::{self, DEBIAN_PACKAGES, output};

/// What kernels are compiled for.
const TARGET: &str = "wasm32-unknown-unknown";

/// Builds the kernels of a workspace, or one of its packages, and returns the modules by name.
///
/// The lock file is followed and not required to be complete, so that a crate that is new in the workspace is added to it.
///
/// # Errors
/// A kernel that does not compile.
pub(super) fn modules(
    mut cargo: Command,
    kernels: &Path,
    target: &Path,
    package: Option<&str>,
) -> Result<Vec<PathBuf>> {
    cargo.current_dir(kernels).args(["build", "--quiet", "--release", "--target", TARGET]);
    match package {
        Some(package) => cargo.args(["--package", package]),
        None => cargo.arg("--workspace"),
    };
    cargo.arg("--target-dir").arg(target).arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut child = cargo.spawn().context("could not start cargo for the kernels")?;
    let messages = child.stdout.take().context("cargo has no output")?;
    let mut modules = Vec::new();
    for message in BufReader::new(messages).lines() {
        modules.extend(module(&message.context("could not read cargo's output")?));
    }
    if !child.wait().context("could not wait for cargo")?.success() {
        bail!("the kernels did not compile");
    }
    modules.sort();
    Ok(modules)
}

/// The module that one of Cargo's messages announces: of a `cdylib` that is not from a registry.
fn module(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let kinds = message.get("target")?.get("kind")?.as_array()?;
    if !message.get("package_id")?.as_str()?.starts_with("path+") || !kinds.iter().any(|kind| kind == "cdylib") {
        return None;
    }
    let mut files = message.get("filenames")?.as_array()?.iter().filter_map(|file| file.as_str().map(Path::new));
    files.find(|file| file.extension().is_some_and(|extension| extension == "wasm")).map(Path::to_owned)
}

/// A cargo that can build for WebAssembly: one that is here, if need be after `rustup target add`, or else Debian's, installed.
///
/// # Errors
/// When there is none and none can be installed; says what to install.
pub(super) fn toolchain() -> Result<Command> {
    if !toolchain::has_target(TARGET) && !rustup_adds_target() && !toolchain::has_debian() {
        install_debian()?;
    }
    present()?.context("the Rust that was installed cannot build for WebAssembly")
}

/// A cargo that can build for WebAssembly, if one is here.
///
/// # Errors
/// When Debian's is here and has no linker.
pub(super) fn present() -> Result<Option<Command>> {
    if toolchain::has_target(TARGET) {
        return Ok(Some(toolchain::own()));
    }
    if toolchain::has_debian() { debian().map(Some) } else { Ok(None) }
}

/// Fails at once where there is no rustup, or where it may not fetch.
fn rustup_adds_target() -> bool {
    output(Command::new("rustup").args(["target", "add", TARGET])).is_some() && toolchain::has_target(TARGET)
}

fn install_debian() -> Result<()> {
    let packages = DEBIAN_PACKAGES.join(" ");
    let advice = format!(
        "install the WebAssembly target: `rustup target add {TARGET}`, or on Debian `apt-get install {packages}`"
    );
    let root = output(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    if !root || output(Command::new("apt-get").arg("--version")).is_none() {
        bail!("{advice}");
    }
    eprintln!("installing {packages}");
    let installed = Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(DEBIAN_PACKAGES)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !installed || !toolchain::has_debian() {
        bail!("{advice}");
    }
    Ok(())
}

/// Debian's cargo; the linker is the one that rustup's toolchain brings.
fn debian() -> Result<Command> {
    let linker = rust_lld().context("there is no linker for WebAssembly: install Rust with rustup")?;
    let mut command = toolchain::debian("std,panic_abort");
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    Ok(command)
}

/// The linker in the toolchain of the user's Rust.
pub(super) fn rust_lld() -> Option<PathBuf> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "))?;
    let linker = Path::new(&sysroot).join("lib/rustlib").join(host).join("bin/rust-lld");
    linker.exists().then_some(linker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_read_from_cargos_messages() {
        let message = |package: &str, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{package}","target":{{"kind":["{kind}"],"name":"lenet"}},"filenames":["/t/release/liblenet.d","/t/release/lenet.wasm"],"fresh":true}}"#
            )
        };
        let ours = "path+file:///w/kernels/lenet#omnilearn-kernel-lenet@0.1.0";
        assert_eq!(module(&message(ours, "cdylib")), Some("/t/release/lenet.wasm".into()));
        assert_eq!(module(&message(ours, "lib")), None);
        assert_eq!(module(&message("registry+https://github.com/rust-lang/crates.io-index#a@1.0.0", "cdylib")), None);
        assert_eq!(module(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
