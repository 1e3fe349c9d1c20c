//! `cargo xtask fleet images`: images without a base image, from programs that are built outside.
//!
//! By default an image holds the very program that tests and the demo run, with the libraries and the loader that it needs
//! from this machine: nothing is built twice, and a comparison with plain processes compares nothing else. `--static` builds
//! the programs anew without libraries, which takes as long as the first build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use super::docker::{Docker, has_buildx, output};
use super::secrets::{self, SecretsArguments};
use crate::datasets::cache_folder;
use crate::kernels;
use crate::workspace::{Workspace, executables};

/// The images, which have the names of their programs.
const IMAGES: [&str; 2] = ["omnilearn-hub", "omnilearn-agent"];

/// The target of static programs: with glibc it has to be named, so that build scripts and macros stay dynamic.
const STATIC_TARGET: &str = "x86_64-unknown-linux-gnu";

/// How to build.
#[derive(Args, Debug)]
#[command(
    after_help = "Where base images can be pulled, `docker build -f devices/images/Containerfile --target hub -t \
    omnilearn-hub .`\n(and the same with `agent`) builds everything inside containers, and needs no Rust here."
)]
pub(crate) struct ImagesArguments {
    /// Build programs without libraries, in a build folder of their own (many minutes the first time)
    #[arg(long = "static")]
    is_static: bool,
    /// Where the secrets are or shall be.
    #[command(flatten)]
    secrets: SecretsArguments,
}

/// Builds both images, and makes secrets where there are none.
///
/// # Errors
/// When something does not build, or no engine answers.
pub(crate) fn run(workspace: &Workspace, arguments: &ImagesArguments) -> anyhow::Result<()> {
    Docker::find()?;
    eprintln!("building the kernels");
    kernels::build(workspace.root())?;
    eprintln!("building hub and agent (the first time takes several minutes)");
    let programs = workspace.build(&IMAGES)?;
    secrets::make(&secrets::folder(workspace, &arguments.secrets), &programs[0])?;
    build(workspace, &if arguments.is_static { build_static(workspace)? } else { programs })
}

/// Builds both images of these programs, the hub's first.
///
/// # Errors
/// When a file cannot be copied, or the engine fails.
pub(crate) fn build(workspace: &Workspace, programs: &[PathBuf]) -> anyhow::Result<()> {
    for (image, program) in IMAGES.iter().zip(programs) {
        eprintln!("building the image {image}");
        let folder = tempfile::Builder::new().prefix("omnilearn-image-").tempdir().context("making a folder")?;
        let root = folder.path().join("root");
        copy(program, &root.join("usr/bin").join(image))?;
        for library in libraries(program)? {
            copy(&library, &root.join(library.strip_prefix("/").unwrap_or(&library)))?;
        }
        if *image == IMAGES[0] {
            let components = workspace.component("lenet");
            let components = components.parent().context("the kernels lie in no folder")?;
            for entry in fs::read_dir(components).with_context(|| format!("reading {}", components.display()))? {
                let path = entry.context("reading a folder")?.path();
                if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|end| end == "wasm")) {
                    copy(&path, &root.join("kernels").join(name))?;
                }
            }
        }
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).with_context(|| format!("creating {}", empty.display()))?;
        let short = image.trim_start_matches("omnilearn-");
        let recipe = workspace.root().join("devices/images/scratch").join(short).with_extension("Containerfile");
        let mut command = Command::new("docker");
        command.args(["build", "--quiet", "--tag", image, "--file"]).arg(&recipe).arg(folder.path());
        if !has_buildx() {
            command.env("DOCKER_BUILDKIT", "0");
        }
        let id = output(command)?;
        // Standard output belongs to our caller's results.
        eprintln!("{image} is {}", id.trim());
    }
    Ok(())
}

/// Programs without libraries, the hub's first.
fn build_static(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    let mut command = workspace.cargo();
    command.env("RUSTFLAGS", "-C target-feature=+crt-static").env("CARGO_TARGET_DIR", cache_folder()?.join("static"));
    command.args(["build", "--release", "--target", STATIC_TARGET]);
    for image in IMAGES {
        command.args(["--package", image]);
    }
    let built = executables(command)?;
    let find = |image: &&str| {
        let program = built.iter().find(|(name, _)| name == image).map(|(_, path)| path.clone());
        program.with_context(|| format!("cargo built no `{image}`"))
    };
    IMAGES.iter().map(find).collect()
}

/// The shared libraries that a program is loaded with, and its loader.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut command = Command::new("ldd");
    command.arg(program);
    // It fails for a static program, and says so.
    let answer = command.output().context("starting ldd, which tells the libraries of a program")?;
    parse_libraries(&String::from_utf8_lossy(&answer.stdout))
}

fn parse_libraries(text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, path) = line.split_once(" => ").unwrap_or(("", line));
        if path.starts_with("not found") {
            bail!("the library {name} is not on this machine");
        }
        let path = path.split(" (").next().unwrap_or(path);
        if path.starts_with('/') {
            libraries.push(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let folder = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_read_and_what_the_kernel_provides_is_left_out() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = parse_libraries(text).unwrap();
        let expected =
            ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(parse_libraries("\tstatically linked\n").unwrap().is_empty());
        assert!(parse_libraries("\tlibodd.so => not found\n").unwrap_err().to_string().contains("libodd.so"));
    }
}
