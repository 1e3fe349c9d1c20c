//! Builds the kernels for WebAssembly and wraps them as components.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use wit_component::ComponentEncoder;

use crate::toolchain::{self, DEBIAN_PACKAGES, output};

/// Crates under `kernels/` that become components of the same name.
const KERNELS: [&str; 3] = ["mlp", "lenet", "resnet"];
const TARGET: &str = "wasm32-unknown-unknown";

/// Builds every kernel into `kernels/target/components/NAME.wasm` and returns those paths. Cargo skips what is unchanged.
///
/// # Errors
/// No toolchain for WebAssembly and no way to install one, or a kernel that does not compile.
pub(crate) fn build(workspace: &Path) -> Result<Vec<PathBuf>> {
    let kernels = workspace.join("kernels");
    let target = match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => workspace.join(target).join("kernels"),
        None => kernels.join("target"),
    };
    let status = toolchain()?
        .current_dir(&kernels)
        .args(["build", "--quiet", "--locked", "--release", "--workspace", "--target", TARGET, "--target-dir"])
        .arg(&target)
        .status()
        .context("could not start cargo for the kernels")?;
    if !status.success() {
        bail!("the kernels did not compile");
    }
    let components = kernels.join("target/components");
    fs::create_dir_all(&components).with_context(|| format!("could not create {}", components.display()))?;
    let modules = target.join(TARGET).join("release");
    KERNELS
        .iter()
        .map(|name| wrap(&modules.join(format!("{name}.wasm")), &components.join(format!("{name}.wasm"))))
        .collect()
}

/// Wraps a core module as a component; leaves an equal one untouched.
fn wrap(module: &Path, component: &Path) -> Result<PathBuf> {
    let bytes = fs::read(module).with_context(|| format!("could not read {}", module.display()))?;
    let encoded = ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .and_then(|mut encoder| encoder.encode())
        .with_context(|| format!("could not make a component of {}", module.display()))?;
    if fs::read(component).is_ok_and(|present| present == encoded) {
        return Ok(component.to_owned());
    }
    // Under a name of its own until it is whole, so that nobody reads half a component.
    let whole = component.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&whole, &encoded).with_context(|| format!("could not write {}", whole.display()))?;
    fs::rename(&whole, component).with_context(|| format!("could not write {}", component.display()))?;
    Ok(component.to_owned())
}

/// A cargo that can build for [`TARGET`]: the user's own, if need be after `rustup target add`, or else Debian's.
fn toolchain() -> Result<Command> {
    if toolchain::has_target(TARGET) || rustup_adds_target() {
        return Ok(toolchain::own());
    }
    if !toolchain::has_debian() {
        install_debian()?;
    }
    debian()
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
    let sysroot =
        output(Command::new("rustc").args(["--print", "sysroot"])).context("could not run `rustc --print sysroot`")?;
    let host = output(Command::new("rustc").arg("-vV"))
        .and_then(|version| version.lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned)))
        .context("`rustc -vV` does not name its host")?;
    let linker = Path::new(&sysroot).join("lib/rustlib").join(&host).join("bin/rust-lld");
    if !linker.exists() {
        bail!("there is no linker for WebAssembly at {}: install Rust with rustup", linker.display());
    }
    let mut command = toolchain::debian("std,panic_abort");
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    Ok(command)
}
