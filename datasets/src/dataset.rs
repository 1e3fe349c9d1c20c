//! Data sets that are ready to read, wherever they came from.

use std::fs::File;
use std::path::{Path, PathBuf};

use omnilearn_wire::dataset;

use crate::augment::Augmenter;
use crate::catalogue;
use crate::error::DatasetError;
use crate::fit::{Fit, FitError, Needs, Outline};
use crate::library::Library;
use crate::manifest::Manifest;
use crate::split::{Batch, Split};

/// A data set, ready to read. Clones share its files.
#[derive(Clone, Debug)]
pub struct Dataset {
    outline: Outline,
    train: Split,
    test: Split,
}

impl Dataset {
    /// A data set on this machine, by name. Each of `folders` may be a hub's library ([`Library`]), or hold the files of a data set of
    /// the catalogue, by themselves or in a folder of its name; the usual places come after them. What needs unpacking or
    /// checking is unpacked into `cache` or noted there.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn open(name: &str, folders: &[PathBuf], cache: &Path) -> Result<Dataset, DatasetError> {
        for folder in folders {
            let library = Library::at(folder);
            if let Some(found) = library.find(name)? {
                return library.open(&found.manifest);
            }
        }
        let spec = dataset::find(name).ok_or_else(|| DatasetError::Unknown {
            name: name.chars().take(64).collect(),
            known: dataset::CATALOGUE.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
        })?;
        let (train, test) = catalogue::open(spec, folders, cache)?;
        Ok(Dataset { outline: Outline::of_catalogue(spec), train, test })
    }

    /// A packed data set, from its files in the order training, test. Their content is not looked at: their digests are the
    /// caller's business.
    ///
    /// # Errors
    /// [`DatasetError::Length`] if a file is not as long as its records.
    pub fn packed(manifest: &Manifest, files: [(File, PathBuf); 2]) -> Result<Dataset, DatasetError> {
        let [(train, train_path), (test, test_path)] = files;
        let form = &manifest.form;
        let train = Split::packed(train, train_path, form.clone(), manifest.train.length)?;
        let test = Split::packed(test, test_path, form.clone(), manifest.test.length)?;
        Ok(Dataset { outline: manifest.outline(), train, test })
    }

    /// What is known of it.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// Training records as they lie in the file.
    pub fn train(&self) -> &Split {
        &self.train
    }

    /// Test records as they lie in the file.
    pub fn test(&self) -> &Split {
        &self.test
    }

    /// The samples as a kernel takes them.
    ///
    /// # Errors
    /// [`FitError`] if they are not for this kernel.
    pub fn samples(&self, needs: &Needs) -> Result<Samples, FitError> {
        let fit = self.outline.fit(needs)?;
        let part = |split: &Split, samples| Part { split: split.clone(), fit: fit.clone(), samples };
        let (train, test) = (part(&self.train, fit.train_samples), part(&self.test, fit.test_samples));
        Ok(Samples { image: self.outline.form.image(), fit, train, test })
    }
}

/// A data set in the shape that a kernel takes.
#[derive(Clone, Debug)]
pub struct Samples {
    fit: Fit,
    image: Option<[u32; 3]>,
    train: Part,
    test: Part,
}

impl Samples {
    /// Shapes and numbers.
    pub fn fit(&self) -> &Fit {
        &self.fit
    }

    /// Samples to learn from.
    pub fn train(&self) -> &Part {
        &self.train
    }

    /// Samples to test with.
    pub fn test(&self) -> &Part {
        &self.test
    }

    /// Channels, height and width, if samples are images.
    pub fn image(&self) -> Option<[u32; 3]> {
        self.image
    }
}

/// A split in the shape that a kernel takes.
#[derive(Clone, Debug)]
pub struct Part {
    split: Split,
    fit: Fit,
    samples: u32,
}

impl Part {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Reads samples in the order given, inputs normalised.
    ///
    /// # Errors
    /// [`DatasetError`] if the file cannot be read, or a sample does not exist.
    pub fn read(&self, samples: &[u32]) -> Result<Batch, DatasetError> {
        self.split.read(samples, &self.fit, None)
    }

    /// The same with each image changed as its seed says.
    ///
    /// # Errors
    /// As [`Part::read`].
    pub fn read_augmented(
        &self,
        samples: &[u32],
        augmenter: &Augmenter,
        seed: impl Fn(usize) -> u64,
    ) -> Result<Batch, DatasetError> {
        let mut change = |index: usize, image: &[u8], out: &mut Vec<u8>| augmenter.apply(seed(index), image, out);
        self.split.read(samples, &self.fit, Some(&mut change))
    }
}
