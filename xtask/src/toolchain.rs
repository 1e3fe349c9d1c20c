//! Cargo for targets that this machine's Rust may lack: the user's own where it has the target, or else Debian's, which
//! builds the standard library from source.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

/// Debian's Rust, whose standard library comes as source and is built along.
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// What it is in.
pub(crate) const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
/// Oldest Debian Rust that builds the workspace.
const DEBIAN_MINOR_MIN: u32 = 95;

/// The user's cargo, with an environment that is fit for another target.
pub(crate) fn own() -> Command {
    // Cargo says which one started us; else the one in the path.
    clean(Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())))
}

/// Whether the user's Rust has this target's standard library.
pub(crate) fn has_target(target: &str) -> bool {
    output(Command::new("rustc").args(["--print", "target-libdir", "--target", target]))
        .is_some_and(|path| Path::new(&path).exists())
}

/// Debian's cargo, with these parts of the standard library built from source, for which a release compiler needs
/// `RUSTC_BOOTSTRAP`. The caller names the linker.
pub(crate) fn debian(libraries: &str) -> Command {
    let mut command = clean(Command::new(DEBIAN_CARGO));
    command.arg(format!("-Zbuild-std={libraries}"));
    command.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
    // Set by `cargo run` for the other toolchain's libraries.
    command.env_remove("LD_LIBRARY_PATH").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Whether it is installed, with the source, and new enough.
pub(crate) fn has_debian() -> bool {
    let minor = output(Command::new(DEBIAN_RUSTC).arg("--version"))
        .and_then(|version| version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()));
    let source = output(Command::new(DEBIAN_RUSTC).args(["--print", "sysroot"]))
        .is_some_and(|sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library/std").exists());
    minor.is_some_and(|minor| minor >= DEBIAN_MINOR_MIN) && source && Path::new(DEBIAN_CARGO).exists()
}

/// Runs a program and returns what it printed, if it could be run and succeeded.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Takes out of a cargo's environment what is meant for the build of this workspace and not for another target.
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
