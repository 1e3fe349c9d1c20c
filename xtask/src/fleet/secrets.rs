//! `cargo xtask fleet secrets`: what the containers of a fleet have to know of each other, as files.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use super::compose_files;
use super::process::unconfigured;
use crate::workspace::Workspace;

/// The token that agents and users show to the hub.
pub(crate) const TOKEN: &str = "token";
/// The hub's secret key.
const KEY: &str = "hub.key";
/// Its public half, which agents trust.
const PUBLIC_KEY: &str = "hub.pub";

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Where to put the secrets.
#[derive(Args, Debug)]
#[command(
    after_help = "Nobody but you can enter the folder. Files in it can be read by all, since containers get them one by \
    one\nand their user is another one. Remove the folder to have new secrets made."
)]
pub(crate) struct SecretsArguments {
    /// Folder with the fleet's secrets [default: devices/compose/secrets]
    #[arg(long, value_name = "FOLDER", env = "OMNILEARN_SECRETS", hide_env_values = true)]
    pub(crate) secrets: Option<PathBuf>,
}

/// The folder that the arguments name.
pub(crate) fn folder(workspace: &Workspace, arguments: &SecretsArguments) -> PathBuf {
    arguments.secrets.clone().unwrap_or_else(|| compose_files::folder(workspace).join("secrets"))
}

/// Makes what is missing.
///
/// # Errors
/// When the hub's program does not build, or a file cannot be written.
pub(crate) fn run(workspace: &Workspace, arguments: &SecretsArguments) -> anyhow::Result<()> {
    let programs = workspace.build(&["omnilearn-hub"])?;
    let hub = programs.first().context("cargo built nothing")?;
    let folder = folder(workspace, arguments);
    let made = make(&folder, hub)?;
    println!(
        "{}: {}",
        folder.display(),
        if made { "a token and a key for the hub" } else { "the secrets are there already" }
    );
    Ok(())
}

/// Makes the secrets unless they are there. Returns whether it did.
///
/// # Errors
/// When a file cannot be written, or only some of the files are there.
pub(crate) fn make(folder: &Path, hub: &Path) -> anyhow::Result<bool> {
    let files = [TOKEN, KEY, PUBLIC_KEY].map(|name| folder.join(name));
    match files.iter().filter(|file| file.is_file()).count() {
        0 => {}
        3 => return Ok(false),
        _ => bail!(
            "{} holds only some of {TOKEN}, {KEY} and {PUBLIC_KEY}; remove it to have all made anew",
            folder.display()
        ),
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    mode(folder, 0o700)?;
    let [token, key, public] = files;
    let mut random = [0; TOKEN_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .context("reading random numbers")?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    write(&token, &text)?;
    let output =
        unconfigured(Command::new(hub)).args(["key", "new"]).arg(&key).output().context("starting omnilearn-hub")?;
    if !output.status.success() {
        bail!("`omnilearn-hub key new` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    mode(&key, 0o444)?;
    write(&public, String::from_utf8_lossy(&output.stdout).trim())?;
    Ok(true)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, format!("{text}\n")).with_context(|| format!("writing {}", path.display()))?;
    mode(path, 0o444)
}

fn mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("setting the mode of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that does what `omnilearn-hub key new FILE` does, as far as it matters here.
    fn program(folder: &Path) -> PathBuf {
        let path = folder.join("hub");
        fs::write(
            &path,
            "#!/bin/sh\n[ \"$1 $2\" = 'key new' ] && echo secret > \"$3\" && chmod 600 \"$3\" && echo public\n",
        )
        .unwrap();
        mode(&path, 0o755).unwrap();
        path
    }

    #[test]
    fn secrets_are_made_once_and_only_their_owner_can_enter_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (hub, secrets) = (program(folder.path()), folder.path().join("secrets"));
        assert!(make(&secrets, &hub).unwrap());
        assert_eq!(fs::metadata(&secrets).unwrap().permissions().mode() & 0o777, 0o700);
        let token = fs::read_to_string(secrets.join(TOKEN)).unwrap();
        assert_eq!(token.trim().len(), 2 * TOKEN_BYTES);
        assert_eq!(fs::read_to_string(secrets.join(PUBLIC_KEY)).unwrap(), "public\n");
        for name in [TOKEN, KEY, PUBLIC_KEY] {
            assert_eq!(fs::metadata(secrets.join(name)).unwrap().permissions().mode() & 0o777, 0o444, "{name}");
        }
        assert!(!make(&secrets, &hub).unwrap());
        assert_eq!(fs::read_to_string(secrets.join(TOKEN)).unwrap(), token);
        fs::remove_file(secrets.join(KEY)).unwrap();
        assert!(make(&secrets, &hub).unwrap_err().to_string().contains("only some"));
    }
}
