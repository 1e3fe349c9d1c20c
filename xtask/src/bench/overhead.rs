//! `cargo xtask bench overhead`: what a step costs through a kernel.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Context;

use crate::workspace::{Workspace, run as run_command};

/// Builds and runs the benchmark, with its own arguments.
///
/// # Errors
/// When something does not build or the benchmark fails.
pub(crate) fn run(workspace: &Workspace, arguments: &[OsString]) -> anyhow::Result<()> {
    crate::kernels::build(workspace.root())?;
    let programs = workspace.build(&["kernel-overhead"])?;
    let program = programs.first().context("cargo built nothing")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace.root());
    run_command(command)
}
