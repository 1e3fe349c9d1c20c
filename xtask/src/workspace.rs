//! The workspace, and Cargo as a tool within it.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// How variables begin that say which package cargo runs or builds.
const PACKAGE_VARIABLES: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The workspace that this tool was built in.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds it.
    ///
    /// # Errors
    /// When the sources are no longer where the tool was built.
    pub(crate) fn find() -> anyhow::Result<Self> {
        // Cargo sets the variable when it runs us; the path from the build serves a binary that is started by hand.
        let manifest =
            env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().context("xtask lies outside a workspace")?.to_owned();
        if !root.join("wit").is_dir() {
            bail!("{} is not the workspace of OmniLearn", root.display());
        }
        Ok(Self { root })
    }

    /// Its root folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The component of a kernel after `cargo xtask kernels`.
    pub(crate) fn component(&self, kernel: &str) -> PathBuf {
        self.root.join("kernels/target/components").join(format!("{kernel}.wasm"))
    }

    /// Cargo, in the root folder, without what the cargo that runs us says of our package. Build scripts that look at that (ring's does)
    /// would run anew whenever a build by hand follows one of ours, and hub and agent be compiled with them.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(|name| PACKAGE_VARIABLES.iter().any(|prefix| name.starts_with(prefix))) {
                command.env_remove(name);
            }
        }
        command
    }

    /// Where Cargo builds.
    pub(crate) fn target(&self) -> PathBuf {
        self.root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
    }

    /// Builds binaries in the development profile and returns their paths in the order of `binaries`. Cargo shows its
    /// progress on standard error. The whole workspace is selected, so that dependencies get the features that tests and
    /// lints build them with, and are not built twice.
    ///
    /// # Errors
    /// When the build fails.
    pub(crate) fn build(&self, binaries: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
        let mut command = self.cargo();
        // With the whole workspace selected, dependencies have the features that they have in tests, and are not built twice.
        command.args(["build", "--workspace"]);
        for binary in binaries {
            command.args(["--bin", binary]);
        }
        let executables = executables(command)?;
        let find = |binary: &&str| {
            let path = executables.iter().find(|(name, _)| name == binary).map(|(_, path)| path.clone());
            path.with_context(|| format!("cargo built no `{binary}`"))
        };
        binaries.iter().map(find).collect()
    }
}

/// Runs a cargo that builds something, with its progress on standard error, and returns names and paths of the programs.
///
/// # Errors
/// When the build fails.
pub(crate) fn executables(mut command: Command) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let shown = format!("{command:?}").replace('"', "");
    command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut executables = Vec::new();
    for line in BufReader::new(output).lines() {
        executables.extend(executable(&line.context("reading cargo's output")?));
    }
    let status = child.wait().context("waiting for cargo")?;
    if !status.success() {
        bail!("{shown} failed ({status})");
    }
    Ok(executables)
}

/// Name and path of the program that one of Cargo's messages announces.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let path = message.get("executable")?.as_str()?;
    let name = message.get("target")?.get("name")?.as_str()?;
    Some((name.to_owned(), PathBuf::from(path)))
}

/// Runs a command to its end with our own output.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub(crate) fn run(mut command: Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    let status = command.status().with_context(|| format!("starting {shown}"))?;
    if !status.success() {
        bail!("{shown} failed ({status})");
    }
    Ok(())
}

/// Whether a program of this name is on the path.
pub(crate) fn has_program(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"omnilearn-hub","kind":["bin"]},"executable":"/t/debug/omnilearn-hub"}"#;
        assert_eq!(executable(line), Some(("omnilearn-hub".to_owned(), PathBuf::from("/t/debug/omnilearn-hub"))));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","target":{"name":"x"},"executable":null}"#), None);
        assert_eq!(executable("warning: not JSON"), None);
    }

    #[test]
    fn the_workspace_is_found_from_the_sources() {
        let workspace = Workspace::find().unwrap();
        assert!(workspace.root().join("xtask/Cargo.toml").is_file());
        assert!(workspace.component("lenet").ends_with("kernels/target/components/lenet.wasm"));
    }
}
