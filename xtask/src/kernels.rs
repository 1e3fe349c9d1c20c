//! Builds the kernels for WebAssembly and wraps them as components.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use wit_component::ComponentEncoder;

/// Crates under `kernels/` that become components of the same name.
const KERNELS: [&str; 3] = ["mlp", "lenet", "resnet"];
const TARGET: &str = "wasm32-unknown-unknown";
/// Debian's Rust, whose standard library comes as source and is built along.
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
/// Oldest Debian Rust that builds the kernels.
const DEBIAN_MINOR_MIN: u32 = 95;

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
    if has_target() || rustup_adds_target() {
        return Ok(clean(Command::new(tool("CARGO", "cargo"))));
    }
    if !debian_is_there() {
        install_debian()?;
    }
    debian()
}

/// The program that cargo says started us, or the one in the path.
fn tool(variable: &str, name: &str) -> std::ffi::OsString {
    env::var_os(variable).unwrap_or_else(|| name.into())
}

/// Runs a program and returns what it printed, if it could be run and succeeded.
fn output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn has_target() -> bool {
    output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]))
        .is_some_and(|path| Path::new(&path).exists())
}

/// Fails at once where there is no rustup, or where it may not fetch.
fn rustup_adds_target() -> bool {
    output(Command::new("rustup").args(["target", "add", TARGET])).is_some() && has_target()
}

/// Takes out of a cargo's environment what is meant for the build of this workspace and not for WebAssembly.
fn clean(mut command: Command) -> Command {
    for (name, _) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let ours =
            name.starts_with("CARGO_BUILD_") || name.starts_with("CARGO_TARGET_") || name.starts_with("CARGO_PROFILE_");
        if ours
            || matches!(
                name,
                "CARGO_ENCODED_RUSTFLAGS" | "RUSTFLAGS" | "RUSTC" | "RUSTC_WRAPPER" | "RUSTC_WORKSPACE_WRAPPER"
            )
        {
            command.env_remove(name);
        }
    }
    command
}

fn debian_is_there() -> bool {
    let minor = output(Command::new(DEBIAN_RUSTC).arg("--version"))
        .and_then(|version| version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()));
    let source = output(Command::new(DEBIAN_RUSTC).args(["--print", "sysroot"]))
        .is_some_and(|sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library/std").exists());
    minor.is_some_and(|minor| minor >= DEBIAN_MINOR_MIN) && source && Path::new(DEBIAN_CARGO).exists()
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
    if !installed || !debian_is_there() {
        bail!("{advice}");
    }
    Ok(())
}

/// Debian has no prebuilt standard library for the target that goes with this compiler, so it is built from source, for
/// which a release compiler needs `RUSTC_BOOTSTRAP`; the linker is the one that rustup's toolchain brings.
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
    let mut command = clean(Command::new(DEBIAN_CARGO));
    command.arg("-Zbuild-std=std,panic_abort");
    command.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    // Set by `cargo run` for the other toolchain's libraries.
    command.env_remove("LD_LIBRARY_PATH").env_remove("RUSTUP_TOOLCHAIN");
    Ok(command)
}
