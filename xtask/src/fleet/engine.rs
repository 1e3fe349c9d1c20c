//! `cargo xtask fleet engine`: a Docker engine of our own, on machines where no service runs one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;

use super::docker::output;
use super::process::Process;
use crate::datasets::cache_folder;
use crate::interrupt::Interrupt;
use crate::workspace::has_program;

/// Longest wait for the engine to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time that containers have to end with the engine, in seconds; below what [`Process`] leaves the engine itself.
const SHUTDOWN_S: &str = "3";

/// Longest path of a socket that the kernel takes, with the engine's own longest name behind it.
const FOLDER_BYTES_MAX: usize = 60;

/// Where the engine lives.
#[derive(Args, Debug)]
#[command(
    after_help = "It prints the DOCKER_HOST for your other commands and ends with Ctrl-C, its containers too. It touches \
    no firewall and has no\nnetwork of its own, so containers need one that is `internal`, as our compose files make it; and no \
    image can be pulled\nthrough it unless the machine can reach a registry."
)]
pub(crate) struct EngineArguments {
    /// Folder for images, containers and the socket; kept for the next time [default: ~/.cache/omnilearn/engine]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Runs the engine until an interrupt.
///
/// # Errors
/// When it cannot be started, or ends by itself.
pub(crate) fn run(arguments: &EngineArguments) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    if !rustix::process::geteuid().is_root() {
        bail!("an engine has to be started by root");
    }
    if !has_program("dockerd") {
        bail!("there is no `dockerd` here; Debian's package is docker.io");
    }
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => cache_folder()?.join("engine"),
    };
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let folder = folder.canonicalize().with_context(|| format!("finding {}", folder.display()))?;
    if folder.as_os_str().len() > FOLDER_BYTES_MAX {
        bail!("{} is too long a path for sockets below it; name a shorter one with --folder", folder.display());
    }
    let host = format!("unix://{}", folder.join("docker.sock").display());
    let mut command = Command::new("dockerd");
    command.arg("--data-root").arg(folder.join("data")).arg("--exec-root").arg(folder.join("exec"));
    command.arg("--pidfile").arg(folder.join("docker.pid")).args(["--host", &host]);
    command.args(["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"]);
    command.args(["--shutdown-timeout", SHUTDOWN_S]);
    let mut engine = Process::spawn("the engine", command, &folder.join("engine.log"))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        interrupt.sleep(Duration::from_millis(100))?;
        engine.check_running()?;
        let mut client = Command::new("docker");
        client.args(["--host", &host, "version", "--format", "{{.Server.Version}}"]);
        match output(client) {
            Ok(version) => {
                println!("DOCKER_HOST={host}");
                eprintln!("Docker engine {}; `export` the line above where you use it; Ctrl-C ends it", version.trim());
                break;
            }
            Err(error) if Instant::now() > deadline => return Err(error.context("the engine does not answer")),
            Err(_) => {}
        }
    }
    // The interrupt is what we wait for, so it is no error here.
    while interrupt.sleep(Duration::from_secs(1)).is_ok() {
        engine.check_running()?;
    }
    Ok(())
}
