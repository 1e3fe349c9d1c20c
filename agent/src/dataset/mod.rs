//! Data sets on this machine: found, checked against the catalogue, and read sample by sample.
//!
//! The files stay on disk: a batch is read where its samples lie, so a data set takes page cache, which the system gives
//! back when it needs it, and not the agent's memory.

mod files;
mod idx;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use omnilearn_wire::dataset::{self, DatasetSpec, IdxFile};

use self::idx::{Header, HeaderError};

/// Why a data set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// Not in the catalogue.
    #[error("data set `{name}` is not known to this agent; it knows {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Names in the catalogue.
        known: String,
    },
    /// A file is nowhere.
    #[error(
        "data set `{name}`: {file} (or {file}.gz) is in none of {searched}. {how_to_get}; or name its folder with --data"
    )]
    Missing {
        /// The data set.
        name: &'static str,
        /// The file.
        file: &'static str,
        /// Folders searched.
        searched: String,
        /// Where it comes from.
        how_to_get: &'static str,
    },
    /// A file is not what the catalogue says.
    #[error("{} is damaged or another file: its SHA-256 is {found}, expected {expected}; remove it and fetch it again", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// Digest of its uncompressed content.
        found: String,
        /// Digest in the catalogue.
        expected: &'static str,
    },
    /// A file's header.
    #[error("{}: {cause}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: HeaderError,
    },
    /// A label out of range.
    #[error("{}: label {label} of sample {sample}, but there are {classes} classes", path.display())]
    Label {
        /// The file.
        path: PathBuf,
        /// The label.
        label: u8,
        /// Which sample.
        sample: usize,
        /// Number of classes.
        classes: u32,
    },
    /// The system.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

/// A data set, ready to read. Clones share its files.
#[derive(Clone, Debug)]
pub struct Dataset {
    spec: &'static DatasetSpec,
    train: Split,
    test: Split,
}

impl Dataset {
    /// Finds, unpacks into `cache` where needed, and checks the files of a data set. `folders` are searched before the usual
    /// places, each by itself and with a folder of the data set's name.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn open(name: &str, folders: &[PathBuf], cache: &Path) -> Result<Dataset, DatasetError> {
        let spec = dataset::find(name).ok_or_else(|| DatasetError::Unknown {
            name: name.chars().take(64).collect(),
            known: dataset::CATALOGUE.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
        })?;
        let places = files::Places::new(spec, folders, cache);
        let train = Split::open(spec, &places, spec.train_images, spec.train_labels, spec.train_samples)?;
        let test = Split::open(spec, &places, spec.test_images, spec.test_labels, spec.test_samples)?;
        Ok(Dataset { spec, train, test })
    }

    /// What the catalogue says of it.
    pub fn spec(&self) -> &'static DatasetSpec {
        self.spec
    }

    /// Samples to learn from.
    pub fn train(&self) -> &Split {
        &self.train
    }

    /// Samples to test with.
    pub fn test(&self) -> &Split {
        &self.test
    }
}

/// One part of a data set.
#[derive(Clone, Debug)]
pub struct Split {
    images: Arc<File>,
    path: PathBuf,
    header_bytes: u64,
    sample_bytes: usize,
    labels: Vec<u8>,
    /// Normalised value of each pixel value: `(pixel / 255 - mean) / deviation`.
    normalised: [f32; 256],
}

impl Split {
    fn open(
        spec: &'static DatasetSpec,
        places: &files::Places<'_>,
        images: IdxFile,
        labels: IdxFile,
        samples: u32,
    ) -> Result<Split, DatasetError> {
        let [channels, height, width] = spec.shape;
        let image_shape =
            if channels == 1 { vec![samples, height, width] } else { vec![samples, channels, height, width] };
        let path = places.raw(images)?;
        let file = File::open(&path).map_err(|cause| DatasetError::Io { action: "open", path: path.clone(), cause })?;
        let header =
            Header::read(&file, &image_shape).map_err(|cause| DatasetError::Header { path: path.clone(), cause })?;

        let label_path = places.raw(labels)?;
        let label_io = |cause| DatasetError::Io { action: "read", path: label_path.clone(), cause };
        let label_file = File::open(&label_path).map_err(label_io)?;
        let label_header = Header::read(&label_file, &[samples])
            .map_err(|cause| DatasetError::Header { path: label_path.clone(), cause })?;
        let mut labels = vec![0; samples as usize];
        label_file.read_exact_at(&mut labels, label_header.bytes).map_err(label_io)?;
        if let Some(sample) = labels.iter().position(|&label| u32::from(label) >= spec.classes) {
            let label = labels[sample];
            return Err(DatasetError::Label { path: label_path, label, sample, classes: spec.classes });
        }
        let normalised = std::array::from_fn(|pixel| (pixel as f32 / 255.0 - spec.mean) / spec.deviation);
        let sample_bytes = (channels * height * width) as usize;
        Ok(Split { images: Arc::new(file), path, header_bytes: header.bytes, sample_bytes, labels, normalised })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Reads samples in the order given: pixels `[samples, channels, height, width]`, normalised, and labels `[samples]`.
    ///
    /// # Errors
    /// [`DatasetError::Io`] if the file cannot be read, or a sample does not exist.
    pub fn read(&self, samples: &[u32]) -> Result<(Vec<f32>, Vec<i32>), DatasetError> {
        let fail = |cause| DatasetError::Io { action: "read", path: self.path.clone(), cause };
        let mut pixels = Vec::with_capacity(samples.len() * self.sample_bytes);
        let mut labels = Vec::with_capacity(samples.len());
        let mut buffer = Vec::new();
        let mut rest = samples;
        while let Some(&first) = rest.first() {
            // Neighbours in the file are read at once: the test set in order is a few reads instead of one for each sample.
            const READ_BYTES: usize = 64 << 10;
            let run_max = (READ_BYTES / self.sample_bytes).max(1);
            let is_next = |(offset, sample): &(usize, &u32)| u64::from(**sample) == u64::from(first) + *offset as u64;
            let run = rest.iter().take(run_max).enumerate().take_while(is_next).count();
            let label = self.labels.get(first as usize..first as usize + run).ok_or_else(|| {
                fail(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("there is no sample {} of {}", self.len().max(first as usize), self.len()),
                ))
            })?;
            labels.extend(label.iter().map(|&label| i32::from(label)));
            buffer.resize(run * self.sample_bytes, 0);
            let offset = self.header_bytes + u64::from(first) * self.sample_bytes as u64;
            self.images.read_exact_at(&mut buffer, offset).map_err(fail)?;
            pixels.extend(buffer.iter().map(|&pixel| self.normalised[usize::from(pixel)]));
            rest = &rest[run..];
        }
        Ok((pixels, labels))
    }
}

#[cfg(test)]
mod tests;
