//! Kernels in C: the files of `kernels/c/`, compiled by clang against bindings that are generated from `wit/kernel.wit`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::{Resolve, WorldId, WorldItem};

use super::rust::rust_lld;
use crate::toolchain::output;
use crate::workspace;

/// Freestanding C: no library but the few functions in `kernels/c/runtime/`, so that nothing is imported but tensors.
const COMPILE: [&str; 5] = ["--target=wasm32-unknown-unknown", "-std=c99", "-Os", "-ffreestanding", "-nostdlibinc"];
const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Wpedantic"];
/// The stack is below everything else, so that one that overflows traps rather than writes over data. 64 KiB are plenty: a
/// kernel does not recurse.
const LINK: [&str; 6] = ["--no-entry", "--gc-sections", "--strip-all", "--stack-first", "-z", "stack-size=65536"];

/// Builds each `SOURCES/NAME.c` into `FOLDER/NAME.wasm` and returns those modules by name. Where clang is missing there are
/// none, and a line on standard error says what to install.
///
/// # Errors
/// A kernel that does not compile or link.
pub(super) fn modules(sources: &Path, wit: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let kernels = files_in_c(sources)?;
    if kernels.is_empty() {
        return Ok(Vec::new());
    }
    if !clang_knows_wasm() {
        eprintln!(
            "left out {}, which needs a clang for WebAssembly: on Debian, `apt-get install clang`",
            kernels
                .iter()
                .filter_map(|path| path.file_stem())
                .map(|name| name.to_string_lossy())
                .collect::<Vec<_>>()
                .join(", ")
        );
        return Ok(Vec::new());
    }
    let runtime = sources.join("runtime");
    let compile = |source: &Path, warnings: &[&str]| {
        let object = folder.join(source.file_name().context("a source has no file name")?).with_extension("o");
        let mut clang = Command::new("clang");
        clang.args(COMPILE).args(warnings).arg("-I").arg(&runtime).arg("-I").arg(folder).arg("-c").arg(source);
        clang.arg("-o").arg(&object);
        workspace::run(clang)?;
        anyhow::Ok(object)
    };
    let (bindings, types) = bind(wit, folder)?;
    let mut common = vec![types, compile(&bindings, &[])?];
    for source in files_in_c(&runtime)? {
        common.push(compile(&source, &WARNINGS)?);
    }
    let module = |source: &PathBuf| {
        let object = compile(source, &WARNINGS)?;
        let module = object.with_extension("wasm");
        let mut linker = linker();
        linker.args(LINK).args(&common).arg(&object).arg("-o").arg(&module);
        workspace::run(linker)?;
        Ok(module)
    };
    kernels.iter().map(module).collect()
}

/// The files of a folder that end in `.c`, by name.
fn files_in_c(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    paths.sort();
    Ok(paths)
}

/// Not every clang has the target: Apple's has not.
fn clang_knows_wasm() -> bool {
    output(Command::new("clang").arg("--print-targets")).is_some_and(|targets| targets.contains("wasm32"))
}

/// The linker that rustup's toolchain brings, which is one for many formats, or else that of LLVM.
fn linker() -> Command {
    let Some(lld) = rust_lld() else { return Command::new("wasm-ld") };
    let mut command = Command::new(lld);
    command.args(["-flavor", "wasm"]);
    command
}

/// Generates `kernel.h` and `kernel.c` in a folder, and an object that says which world a module is of. Returns the paths of
/// `kernel.c` and of the object.
fn bind(wit: &Path, folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit).with_context(|| format!("could not read {}", wit.display()))?;
    let world = resolve.select_world(&[package], Some("kernel"))?;
    let options = wit_bindgen_c::Opts { rename: short_names(&resolve, world), ..wit_bindgen_c::Opts::default() };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).context("could not generate bindings for C")?;
    for (name, contents) in files.iter() {
        let path = folder.join(name);
        fs::write(&path, contents).with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok((folder.join("kernel.c"), folder.join("kernel_component_type.o")))
}

/// Calls each interface by its own name in C, without package and version: `tensor_..` and `exports_model_..`.
fn short_names(resolve: &Resolve, world: WorldId) -> Vec<(String, String)> {
    let world = &resolve.worlds[world];
    let short = |(key, item): (&_, &WorldItem)| {
        let WorldItem::Interface { id, .. } = item else { return None };
        Some((resolve.name_world_key(key), resolve.interfaces[*id].name.clone()?))
    };
    world.imports.iter().chain(&world.exports).filter_map(short).collect()
}
