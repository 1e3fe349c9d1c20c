use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use omnilearn_wire::dataset;

use super::*;
use crate::dataset::Dataset;
use crate::fit::{Fit, Need, Needs, Outline};
use crate::split::Values;

/// A catalogue entry of 3 images of 2 by 2 whose digests are those of the files that [`raw_images`] and `labels` give.
fn spec(images: &[u8], labels: &[u8]) -> &'static DatasetSpec {
    let file =
        |name: &'static str, bytes: &[u8]| IdxFile { name, sha256: format!("{:x}", Sha256::digest(bytes)).leak() };
    Box::leak(Box::new(DatasetSpec {
        name: "tiny",
        train_images: file("images", images),
        train_labels: file("labels", labels),
        shape: [1, 2, 2],
        classes: 3,
        mean: 0.5,
        deviation: 0.25,
        ..dataset::CATALOGUE[0]
    }))
}

fn idx(shape: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, shape.len() as u8];
    bytes.extend(shape.iter().flat_map(|dimension| dimension.to_be_bytes()));
    bytes.extend(elements);
    bytes
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

struct Folders {
    data: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Folders {
    fn new(files: &[(&str, Vec<u8>)]) -> Folders {
        let folders = Folders { data: tempfile::tempdir().unwrap(), cache: tempfile::tempdir().unwrap() };
        for (name, bytes) in files {
            fs::write(folders.data.path().join(name), bytes).unwrap();
        }
        folders
    }

    fn open(&self, spec: &'static DatasetSpec) -> Result<Split, DatasetError> {
        let folders = [self.data.path().to_owned()];
        let places = Places::new(spec, &folders, self.cache.path());
        split(spec, &places, (spec.train_images, spec.train_labels), 3)
    }
}

/// How a classifier is given the samples.
fn fit(spec: &'static DatasetSpec) -> Fit {
    let need = |integers, shape: &[u32]| Need { name: "need".to_owned(), integers, shape: shape.to_vec() };
    let needs = Needs { inputs: vec![need(false, &[1, 2, 2])], target: need(true, &[]) };
    Outline::of_catalogue(spec).fit(&needs).unwrap()
}

fn good() -> (Vec<u8>, Vec<u8>) {
    (idx(&[3, 2, 2], &[0, 51, 102, 153, 204, 255, 1, 2, 3, 4, 5, 6]), idx(&[3], &[2, 0, 1]))
}

#[test]
fn samples_are_read_in_the_order_asked_and_normalised() {
    let (images, labels) = good();
    let spec = spec(&images, &labels);
    let split = Folders::new(&[("images", images), ("labels", labels)]).open(spec).unwrap();
    let read = |samples: &[u32]| split.read(samples, &fit(spec), None);
    let batch = read(&[1, 0]).unwrap();
    assert_eq!(batch.targets, Values::I32(vec![0, 2]));
    let expected: Vec<f32> =
        [204u8, 255, 1, 2, 0, 51, 102, 153].iter().map(|&pixel| (f32::from(pixel) / 255.0 - 0.5) / 0.25).collect();
    assert_eq!(batch.inputs, Values::F32(expected));
    assert_eq!(read(&[0, 1, 2]).unwrap().targets, Values::I32(vec![2, 0, 1]));
    assert!(read(&[2, 3]).unwrap_err().to_string().contains("no sample 3 of 3"));
    assert_eq!(split.strata().unwrap(), [(2, 0), (0, 0), (1, 0)]);
}

#[test]
fn packed_files_are_unpacked_into_the_cache_once() {
    let (images, labels) = good();
    let folders = Folders::new(&[("images.gz", packed(&images)), ("labels.gz", packed(&labels))]);
    let spec = spec(&images, &labels);
    assert_eq!(folders.open(spec).unwrap().length(), 3);
    fs::remove_file(folders.data.path().join("images.gz")).unwrap();
    assert_eq!(folders.open(spec).unwrap().length(), 3);
    let leftovers = fs::read_dir(folders.cache.path().join("datasets/tiny")).unwrap().count();
    assert_eq!(leftovers, 2, "no temporary file stays");
}

#[test]
fn other_content_is_refused_by_its_digest() {
    let (images, labels) = good();
    let spec = spec(&images, &labels);
    let mut flipped = images.clone();
    flipped[20] ^= 1;
    for (name, bytes) in [("images", flipped.clone()), ("images.gz", packed(&flipped))] {
        let error = Folders::new(&[(name, bytes), ("labels", labels.clone())]).open(spec).unwrap_err();
        assert!(matches!(error, DatasetError::Digest { .. }), "{error}");
    }
}

#[test]
fn file_that_changes_after_it_was_checked_is_checked_again() {
    let (images, labels) = good();
    let spec = spec(&images, &labels);
    let folders = Folders::new(&[("images", images.clone()), ("labels", labels)]);
    folders.open(spec).unwrap();
    let mut longer = images;
    longer.push(0);
    fs::write(folders.data.path().join("images"), longer).unwrap();
    assert!(matches!(folders.open(spec).unwrap_err(), DatasetError::Digest { .. }));
}

#[test]
fn hostile_headers_are_refused() {
    let labels = good().1;
    for (images, named) in [
        (b"\x00\x00\x08".to_vec(), "header"),
        (b"PK\x03\x04 and more".to_vec(), "not an IDX file"),
        (idx(&[3, 2, 3], &[0; 18]), "[3, 2, 3]"),
        (idx(&[u32::MAX, u32::MAX, u32::MAX], &[0; 12]), "4294967295"),
        (idx(&[3, 2, 2], &[0; 11]), "27 bytes"),
        (vec![0, 0, 8, 255], "header"),
    ] {
        let spec = spec(&images, &labels);
        let error = Folders::new(&[("images", images), ("labels", labels.clone())]).open(spec).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn label_out_of_range_is_named() {
    let (images, _) = good();
    let labels = idx(&[3], &[0, 3, 1]);
    let spec = spec(&images, &labels);
    let error = Folders::new(&[("images", images), ("labels", labels)]).open(spec).unwrap_err();
    assert!(error.to_string().contains("label 3 of sample 1"), "{error}");
}

#[test]
fn missing_files_say_where_they_were_looked_for_and_how_to_get_them() {
    let folders = Folders::new(&[]);
    let error =
        Dataset::open("mnist", &[folders.data.path().to_owned()], folders.cache.path()).unwrap_err().to_string();
    assert!(error.contains("--data") && error.contains("npm") && error.contains("train-images-idx3-ubyte"), "{error}");
    let unknown = Dataset::open("fashion", &[], folders.cache.path()).unwrap_err().to_string();
    assert!(unknown.contains("fashion-mnist"), "{unknown}");
}
