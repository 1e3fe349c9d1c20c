//! Data sets that no package has, in the state folder of a hub, as `omnilearn-hub dataset add` puts them there: the simulator,
//! hubs and agents read them from it.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::catalogue::Catalogue;
use super::definition::Definition;
use crate::datasets;
use crate::fleet::process::unconfigured;
use crate::workspace::Workspace;

/// CIFAR-10 in the catalogue of models.
const CIFAR10: &str = "cifar-10";

/// Names the folder with CIFAR-10, where it is not in the cache folder.
const CIFAR10_VARIABLE: &str = "OMNILEARN_CIFAR10";

/// A text in the catalogue of models: what people wrote in this repository, which is wherever this runs.
const TEXT: &str = "text";

/// A hub's state folder with data sets in it.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    state: PathBuf,
    sets: Vec<Added>,
}

/// A data set in it.
#[derive(Clone, Debug)]
struct Added {
    name: &'static str,
    /// Where it is from, for a report.
    note: String,
}

/// What a data set is made from.
#[derive(Debug)]
struct Source {
    paths: Vec<PathBuf>,
    /// Options of `dataset add`.
    options: &'static [&'static str],
    note: String,
}

/// Names of the data sets that the definitions' models are trained on.
pub(crate) fn wanted<'a>(definitions: &'a [Definition], catalogue: &'a Catalogue) -> BTreeSet<&'a str> {
    let models = definitions.iter().flat_map(|definition| &definition.cases).flat_map(|case| &case.models);
    models.filter_map(|name| Some(catalogue.models.get(name)?.dataset.as_str())).collect()
}

impl Library {
    /// Makes what is wanted and can be made; none if nothing of it is wanted. A set that is not on this machine is told of and
    /// left out: rows that need it will say so, too.
    ///
    /// # Errors
    /// When the hub's program does not build, or cannot write into the folder.
    pub(crate) fn make(
        workspace: &Workspace,
        wanted: &BTreeSet<&str>,
        state: PathBuf,
    ) -> anyhow::Result<Option<Library>> {
        let names: Vec<&'static str> = [CIFAR10, TEXT].into_iter().filter(|name| wanted.contains(name)).collect();
        if names.is_empty() {
            return Ok(None);
        }
        eprintln!("building the hub, which imports data sets (the first time takes several minutes)");
        let program = workspace.build(&["omnilearn-hub"])?.pop().context("cargo built no hub")?;
        fs::create_dir_all(&state).with_context(|| format!("creating {}", state.display()))?;
        let state = state.canonicalize().with_context(|| format!("finding {}", state.display()))?;
        let call = |arguments: &[&OsStr]| dataset(&program, &state, arguments);
        let there = names_listed(&call(&["list".as_ref(), "--json".as_ref()])?)?;
        let mut sets = Vec::new();
        for name in names {
            let source = match name {
                CIFAR10 => cifar10(),
                _ => text(workspace.root()),
            };
            let source = match source {
                Ok(source) => source,
                Err(reason) => {
                    eprintln!("note: {name}: {reason:#}");
                    continue;
                }
            };
            // The repository may have changed since; images do not, and take longer.
            let is_there = there.iter().any(|there| there == name);
            if is_there && name == TEXT {
                call(&["remove".as_ref(), name.as_ref()])?;
            }
            if !is_there || name == TEXT {
                eprintln!("adding {name}");
                let mut arguments: Vec<&OsStr> = vec!["add".as_ref(), name.as_ref()];
                arguments.extend(source.paths.iter().map(|path| path.as_os_str()));
                arguments.extend(source.options.iter().map(OsStr::new));
                call(&arguments)?;
            }
            sets.push(Added { name, note: source.note });
        }
        Ok(Some(Library { state, sets }))
    }

    /// The state folder.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Whether a data set is in it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.sets.iter().any(|set| set.name == name)
    }

    /// Where those of these data sets are from that are in it.
    pub(crate) fn notes(&self, wanted: &BTreeSet<&str>) -> Vec<String> {
        self.sets.iter().filter(|set| wanted.contains(set.name)).map(|set| set.note.clone()).collect()
    }
}

/// CIFAR-10 as its authors' binary files or as a folder of images.
fn cifar10() -> anyhow::Result<Source> {
    let folder = match env::var_os(CIFAR10_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => datasets::cache_folder()?.join("datasets/cifar-10-batches-bin"),
    };
    let source = |options, form: &str| Source {
        paths: vec![folder.clone()],
        options,
        note: format!("`{CIFAR10}` was added from {form}"),
    };
    if folder.join("test_batch.bin").is_file() {
        Ok(source(&["--kind", "cifar10"], "its binary version"))
    } else if folder.join("train").is_dir() && folder.join("test").is_dir() {
        let options = &["--kind", "images", "--size", "32"];
        Ok(source(options, "a folder of images, which are not the original pixels if they are JPEG files"))
    } else {
        bail!(
            "{} holds neither its binary version nor images in `train` and `test`; {CIFAR10_VARIABLE} may name another folder",
            folder.display()
        );
    }
}

/// Documentation and sources, in the order of their paths.
fn text(root: &Path) -> anyhow::Result<Source> {
    let mut paths = Vec::new();
    collect_text(root, &mut paths)?;
    paths.sort();
    let mut bytes = 0;
    for path in &paths {
        bytes += fs::metadata(path).with_context(|| format!("finding {}", path.display()))?.len();
    }
    let note = format!(
        "`{TEXT}` is the documentation and the Rust sources of this repository, {} files of {bytes} bytes",
        paths.len()
    );
    Ok(Source { paths, options: &["--kind", "text"], note })
}

/// Adds the folder's texts, but for what was built, what is hidden and what experiments found out.
fn collect_text(folder: &Path, paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let is_left_out = name.starts_with('.') || ["target", "results"].contains(&&*name);
        if path.is_dir() && !path.is_symlink() && !is_left_out {
            collect_text(&path, paths)?;
        } else if path.is_file() && path.extension().is_some_and(|ending| ending == "md" || ending == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}

/// `omnilearn-hub dataset …` on a state folder: what it printed.
fn dataset(program: &Path, state: &Path, arguments: &[&OsStr]) -> anyhow::Result<String> {
    let mut command = unconfigured(Command::new(program));
    command.arg("dataset").args(arguments).arg("--state").arg(state).stdin(Stdio::null());
    let output = command.output().context("starting omnilearn-hub")?;
    if !output.status.success() {
        let shown: Vec<_> = arguments.iter().take(2).map(|argument| argument.to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`omnilearn-hub dataset {}` failed: {}", shown.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The names in what `dataset list --json` prints.
fn names_listed(json: &str) -> anyhow::Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Listed {
        name: String,
    }
    let listed: Vec<Listed> = serde_json::from_str(json).context("reading the list of data sets")?;
    Ok(listed.into_iter().map(|set| set.name).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{catalogue, definition};
    use super::*;

    #[test]
    fn data_sets_are_those_of_the_models_that_are_trained() {
        assert_eq!(wanted(&[definition()], &catalogue()), BTreeSet::from(["fashion-mnist"]));
        let workspace = Workspace::find().unwrap();
        let none = Library::make(&workspace, &BTreeSet::from(["fashion-mnist"]), PathBuf::from("nowhere")).unwrap();
        assert!(none.is_none());
    }

    #[test]
    fn the_text_is_what_people_wrote_and_says_how_long_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for inner in ["docs/results", "hub/src", "target"] {
            fs::create_dir_all(root.join(inner)).unwrap();
        }
        let written = [("README.md", "four"), ("docs/b.md", "b"), ("hub/src/lib.rs", "seven77")];
        let others = [("docs/c.svg", "c"), ("docs/results/report.md", "r"), ("target/built.rs", "t")];
        for (name, text) in written.iter().chain(&others) {
            fs::write(root.join(name), text).unwrap();
        }
        let source = text(root).unwrap();
        assert_eq!(source.paths, written.map(|(name, _)| root.join(name)));
        assert!(source.note.ends_with("3 files of 12 bytes"), "{}", source.note);
    }

    #[test]
    fn names_are_read_from_the_hubs_list() {
        assert_eq!(
            names_listed(r#"[{"name": "text", "bytes": 9}, {"name": "cifar-10"}]"#).unwrap(),
            ["text", "cifar-10"]
        );
        assert!(names_listed("[]").unwrap().is_empty());
        assert!(names_listed("text").is_err());
    }
}
