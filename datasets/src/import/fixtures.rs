//! What the tests of importers share.

use std::path::{Path, PathBuf};

use super::{ImportError, Imported, Options, import};
use crate::dataset::Dataset;
use crate::fit::{Need, Needs};
use crate::library::Library;
use crate::split::{Batch, Values};

/// A folder for sources and a library in it.
pub(super) struct Place {
    pub(super) folder: tempfile::TempDir,
    pub(super) library: Library,
}

impl Place {
    pub(super) fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let library = Library::at(&folder.path().join("library"));
        Place { folder, library }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, with the folders to it.
    pub(super) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(super) fn import(&self, source: &Path, options: &Options) -> Result<Imported, ImportError> {
        import(&self.library, "mine", &[source.to_owned()], options, &mut |_| ())
    }

    /// The message of an import that fails, after which nothing is left.
    pub(super) fn refused(&self, source: &Path, options: &Options) -> String {
        let error = self.import(source, options).unwrap_err().to_string();
        let arriving = std::fs::read_dir(self.path("library/arriving"));
        assert_eq!(arriving.map_or(0, Iterator::count), 0, "nothing is left");
        assert!(self.library.list().unwrap().is_empty());
        error
    }

    pub(super) fn open(&self) -> Dataset {
        let found = self.library.find("mine").unwrap().unwrap();
        self.library.open(&found.manifest).unwrap()
    }
}

/// What a kernel wants: an input and a target, each with its shape and whether it is whole numbers.
pub(super) fn needs(input: (bool, &[u32]), target: (bool, &[u32])) -> Needs {
    let need =
        |name: &str, (integers, shape): (bool, &[u32])| Need { name: name.to_owned(), integers, shape: shape.to_vec() };
    Needs { inputs: vec![need("input", input)], target: need("target", target) }
}

/// All samples of both splits.
pub(super) fn all(dataset: &Dataset, needs: &Needs) -> [Batch; 2] {
    let samples = dataset.samples(needs).unwrap();
    [samples.train(), samples.test()].map(|part| part.read(&(0..part.len() as u32).collect::<Vec<u32>>()).unwrap())
}

pub(super) fn floats(values: &Values) -> &[f32] {
    match values {
        Values::F32(values) => values,
        Values::I32(values) => panic!("whole numbers {values:?}"),
    }
}

pub(super) fn integers(values: &Values) -> &[i32] {
    match values {
        Values::I32(values) => values,
        Values::F32(values) => panic!("real numbers {values:?}"),
    }
}
