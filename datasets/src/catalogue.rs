//! Data sets of the catalogue where they lie as IDX files: every agent may have them from its system's packages.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use omnilearn_wire::dataset::{DatasetSpec, IdxFile};

use crate::error::DatasetError;
use crate::form::Form;
use crate::idx::Header;
use crate::places::Places;
use crate::split::Split;

/// Finds, unpacks where needed, and checks the files of a data set: training and test split.
///
/// # Errors
/// [`DatasetError`].
pub(crate) fn open(
    spec: &'static DatasetSpec,
    folders: &[PathBuf],
    cache: &Path,
) -> Result<(Split, Split), DatasetError> {
    let places = Places::new(spec, folders, cache);
    let train = split(spec, &places, (spec.train_images, spec.train_labels), spec.train_samples)?;
    let test = split(spec, &places, (spec.test_images, spec.test_labels), spec.test_samples)?;
    Ok((train, test))
}

/// One split: images stay in their file, labels are a byte each and are held.
pub(crate) fn split(
    spec: &'static DatasetSpec,
    places: &Places,
    (images, labels): (IdxFile, IdxFile),
    samples: u32,
) -> Result<Split, DatasetError> {
    let [channels, height, width] = spec.shape;
    let shape = if channels == 1 { vec![samples, height, width] } else { vec![samples, channels, height, width] };
    let path = places.raw(images)?;
    let file = File::open(&path).map_err(|cause| DatasetError::Io { action: "open", path: path.clone(), cause })?;
    let header = Header::read(&file, &shape).map_err(|cause| DatasetError::Header { path: path.clone(), cause })?;

    let label_path = places.raw(labels)?;
    let label_io = |cause| DatasetError::Io { action: "read", path: label_path.clone(), cause };
    let label_file = File::open(&label_path).map_err(label_io)?;
    let label_header = Header::read(&label_file, &[samples])
        .map_err(|cause| DatasetError::Header { path: label_path.clone(), cause })?;
    let mut labels = vec![0; samples as usize];
    label_file.read_exact_at(&mut labels, label_header.bytes).map_err(label_io)?;
    if let Some(sample) = labels.iter().position(|&label| u32::from(label) >= spec.classes) {
        let label = labels[sample].into();
        return Err(DatasetError::Label { path: label_path, label, sample, classes: spec.classes });
    }
    Ok(Split::images(file, path, Form::of_catalogue(spec), header.bytes, labels))
}

#[cfg(test)]
mod tests;
