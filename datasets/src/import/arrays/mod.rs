//! Arrays of NumPy (`.npy`, `.npz`, a folder of `.npy`) and safetensors. The first dimension counts samples; with a single vector of
//! whole numbers and no targets, its elements are tokens.

mod npy;
mod records;
mod safetensors;
mod zip;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::choose::has_ending;
use super::{ArrayOptions, ImportError, Job};
use crate::pack::Packed;

/// Names that arrays have by custom, in the order in which they are looked for.
const INPUTS: &[&str] =
    &["x_train", "train_x", "X_train", "train_images", "train_inputs", "x", "X", "inputs", "data", "images"];
const TARGETS: &[&str] =
    &["y_train", "train_y", "Y_train", "train_labels", "train_targets", "y", "Y", "targets", "labels"];
const TEST_INPUTS: &[&str] = &["x_test", "test_x", "X_test", "test_images", "test_inputs"];
const TEST_TARGETS: &[&str] = &["y_test", "test_y", "Y_test", "test_labels", "test_targets"];

/// Type of an array's elements in its file, all little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Source {
    fn bytes(self) -> usize {
        match self {
            Source::Bool | Source::U8 | Source::I8 => 1,
            Source::U16 | Source::I16 | Source::F16 | Source::Bf16 => 2,
            Source::U32 | Source::I32 | Source::F32 => 4,
            Source::U64 | Source::I64 | Source::F64 => 8,
        }
    }

    fn is_real(self) -> bool {
        matches!(self, Source::F16 | Source::Bf16 | Source::F32 | Source::F64)
    }
}

/// An array whose elements are read from first to last.
struct Array {
    path: PathBuf,
    name: String,
    element: Source,
    shape: Vec<u64>,
    reader: Box<dyn Read>,
}

impl Array {
    fn wrong(&self, problem: impl std::fmt::Display) -> ImportError {
        ImportError::damaged(&self.path, format!("array `{}`: {problem}", self.name))
    }
}

/// Where arrays are found by name.
enum Holder {
    /// Files by the name of their array.
    Files(BTreeMap<String, PathBuf>),
    Zip(zip::Zip),
    Safetensors(safetensors::Tensors),
}

impl Holder {
    fn open(source: &Path) -> Result<Holder, ImportError> {
        if source.is_dir() {
            let entries = std::fs::read_dir(source).map_err(ImportError::io("read", source))?;
            let files = entries.flatten().map(|entry| entry.path()).filter(|path| has_ending(path, &["npy"]));
            return Ok(Holder::Files(files.map(|path| (stem(&path), path)).collect()));
        }
        if has_ending(source, &["npz"]) {
            Ok(Holder::Zip(zip::Zip::open(source)?))
        } else if has_ending(source, &["safetensors"]) {
            Ok(Holder::Safetensors(safetensors::Tensors::open(source)?))
        } else {
            Ok(Holder::Files([(stem(source), source.to_owned())].into()))
        }
    }

    fn names(&self) -> Vec<String> {
        match self {
            Holder::Files(files) => files.keys().cloned().collect(),
            Holder::Zip(zip) => zip.names(),
            Holder::Safetensors(tensors) => tensors.names(),
        }
    }

    fn array(&self, name: &str) -> Result<Array, ImportError> {
        let missing =
            || ImportError::Options(format!("there is no array `{name}`; there are {}", self.names().join(", ")));
        match self {
            Holder::Files(files) => {
                let path = files.get(name).ok_or_else(missing)?;
                let file = File::open(path).map_err(ImportError::io("open", path))?;
                npy::read(path, name, Box::new(BufReader::with_capacity(1 << 18, file)))
            }
            Holder::Zip(zip) => {
                let reader = zip.entry(name)?.ok_or_else(missing)?;
                npy::read(zip.path(), name, reader)
            }
            Holder::Safetensors(tensors) => tensors.array(name)?.ok_or_else(missing),
        }
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The array that was named, or the first that has a name of custom.
fn choose(names: &[String], given: Option<&String>, custom: &[&str]) -> Option<String> {
    given
        .cloned()
        .or_else(|| custom.iter().find(|name| names.iter().any(|known| known == *name)).map(|&name| name.to_owned()))
}

pub(super) fn import(job: &mut Job<'_>, source: &Path) -> Result<Packed, ImportError> {
    let holder = Holder::open(source)?;
    let names = holder.names();
    let ArrayOptions { inputs, targets, test_inputs, test_targets, keys, .. } = &job.options.arrays;
    let only = || if let [only] = &names[..] { Some(only.clone()) } else { None };
    let inputs = choose(&names, inputs.as_ref(), INPUTS).or_else(only).ok_or_else(|| {
        ImportError::Options(format!(
            "which array are the inputs? Name it with --inputs; there are {}",
            names.join(", ")
        ))
    })?;
    let named = |given: Option<&String>, custom: &[&str]| choose(&names, given, custom).filter(|name| *name != inputs);
    let open = |name: Option<String>| name.map(|name| holder.array(&name)).transpose();
    let arrays = records::Arrays {
        targets: open(named(targets.as_ref(), TARGETS))?,
        test_inputs: open(named(test_inputs.as_ref(), TEST_INPUTS))?,
        test_targets: open(named(test_targets.as_ref(), TEST_TARGETS))?,
        keys: open(keys.clone())?,
        inputs: holder.array(&inputs)?,
    };
    records::pack(job, arrays)
}
