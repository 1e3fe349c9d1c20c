//! IDX files, as those of MNIST: four files of images and labels, plain or gzipped. A data set that has the name of one in the
//! catalogue must be that one, and is normalised as the catalogue says, so that it is the same whoever has it from where.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use omnilearn_wire::dataset;
use sha2::{Digest, Sha256};

use super::{ImportError, Job, check_record};
use crate::form::{Element, Form, Input, Normalise, Target};
use crate::pack::{Names, Normalising, Packed, RecordTarget, Which};

/// Images and labels of each split, as MNIST names them.
const FILES: [(Which, &str, &str); 2] = [
    (Which::Train, "train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    (Which::Test, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
];

/// Most dimensions of an IDX file that are looked at.
const RANK_MAX: u8 = 4;

pub(super) fn import(job: &mut Job<'_>, source: &Path) -> Result<Packed, ImportError> {
    let spec = dataset::find(job.name);
    let mut packer = None;
    let mut shape_before: Option<Vec<u32>> = None;
    for (index, (which, image_name, label_name)) in FILES.into_iter().enumerate() {
        let mut images = Idx::open(source, image_name)?;
        let mut labels = Idx::open(source, label_name)?;
        let whole = images.shape.clone();
        let (&count, sample) = whole.split_first().ok_or_else(|| images.wrong("no dimensions"))?;
        if labels.shape != [count] {
            let problem = format!("{:?} labels for {count} images", labels.shape);
            return Err(labels.wrong(problem));
        }
        let mut shape = check_record(sample, 1).map_err(|problem| images.wrong(problem))?;
        if shape.len() == 2 {
            shape.insert(0, 1); // one channel
        }
        if shape_before.as_ref().is_some_and(|before| *before != shape) {
            let problem = format!("images of shape {shape:?}, those to learn from have {shape_before:?}");
            return Err(images.wrong(problem));
        }
        shape_before = Some(shape.clone());
        let packer = match &mut packer {
            Some(packer) => packer,
            empty => {
                let normalising = match spec {
                    Some(spec) => {
                        Normalising::Given(Normalise { mean: vec![spec.mean], deviation: vec![spec.deviation] })
                    }
                    None => job.normalising(),
                };
                let form = Form {
                    input: Input::Array { element: Element::U8, shape, normalise: None },
                    target: Target::Classes { count: spec.map_or(1, |spec| spec.classes) },
                    grouped: false,
                };
                empty.insert(job.library.packer(form, normalising)?)
            }
        };
        let mut pixels = vec![0; sample.iter().product::<u64>() as usize];
        for number in 0..count {
            let mut label = [0];
            images.read(&mut pixels)?;
            labels.read(&mut label)?;
            packer.add(which, &pixels, RecordTarget::Class(label[0].into()), 0)?;
            if number % 1000 == 999 {
                job.progress(number + 1, Some(count), ["training images", "test images"][index]);
            }
        }
        let expected = spec.map(|spec| match which {
            Which::Train => (spec.train_images.sha256, spec.train_labels.sha256),
            Which::Test => (spec.test_images.sha256, spec.test_labels.sha256),
        });
        images.end(expected.map(|(images, _)| images))?;
        labels.end(expected.map(|(_, labels)| labels))?;
    }
    let packer = packer.ok_or_else(|| ImportError::damaged(source, "no images"))?;
    Ok(packer.finish(job.name, Names::default())?)
}

/// An IDX file that is read from its beginning to its end.
struct Idx {
    path: PathBuf,
    reader: Box<dyn Read>,
    hash: Sha256,
    shape: Vec<u64>,
}

impl Idx {
    fn open(folder: &Path, name: &str) -> Result<Idx, ImportError> {
        let plain = folder.join(name);
        let (path, reader): (PathBuf, Box<dyn Read>) = match File::open(&plain) {
            Ok(file) => (plain, Box::new(BufReader::with_capacity(1 << 18, file))),
            Err(_) => {
                let path = folder.join(format!("{name}.gz"));
                let file = File::open(&path).map_err(ImportError::io("open", &path))?;
                (path, Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(BufReader::new(file)))))
            }
        };
        let mut idx = Idx { path, reader, hash: Sha256::new(), shape: Vec::new() };
        let mut magic = [0; 4];
        idx.read(&mut magic)?;
        let [0, 0, 8, rank @ 1..=RANK_MAX] = magic else {
            return Err(idx.wrong(format!("not an IDX file of unsigned bytes: it begins with {magic:02x?}")));
        };
        for _ in 0..rank {
            let mut dimension = [0; 4];
            idx.read(&mut dimension)?;
            idx.shape.push(u32::from_be_bytes(dimension).into());
        }
        Ok(idx)
    }

    fn wrong(&self, problem: impl Into<String>) -> ImportError {
        ImportError::damaged(&self.path, problem)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), ImportError> {
        match self.reader.read_exact(bytes) {
            Ok(()) => self.hash.update(&*bytes),
            Err(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(self.wrong(format!("ends before its {:?} elements do", self.shape)));
            }
            Err(cause) => return Err(ImportError::io("read", &self.path)(cause)),
        }
        Ok(())
    }

    /// Checks that nothing follows, and the digest.
    fn end(mut self, sha256: Option<&str>) -> Result<(), ImportError> {
        let mut more = [0];
        if self.reader.read(&mut more).map_err(ImportError::io("read", &self.path))? > 0 {
            return Err(self.wrong(format!("goes on after its {:?} elements", self.shape)));
        }
        let found = format!("{:x}", self.hash.clone().finalize());
        match sha256 {
            Some(expected) if expected != found => Err(self.wrong(format!(
                "not the file of the data set that has this name: its SHA-256 is {found} and not {expected}; take another name"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::super::fixtures::{Place, all, floats, integers, needs};
    use super::super::{Options, import};

    fn idx(shape: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, shape.len() as u8];
        bytes.extend(shape.iter().flat_map(|dimension| dimension.to_be_bytes()));
        bytes.extend(elements);
        bytes
    }

    fn write(place: &Place) {
        place.write("idx/train-images-idx3-ubyte", idx(&[3, 1, 2], &[0, 255, 255, 0, 0, 255]));
        place.write("idx/train-labels-idx1-ubyte", idx(&[3], &[2, 0, 1]));
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&idx(&[1, 1, 2], &[51, 51])).unwrap();
        place.write("idx/t10k-images-idx3-ubyte.gz", packed.finish().unwrap());
        place.write("idx/t10k-labels-idx1-ubyte", idx(&[1], &[1]));
    }

    #[test]
    fn plain_and_packed_files_are_read() {
        let place = Place::new();
        write(&place);
        place.import(&place.path("idx"), &Options::default()).unwrap();
        let [train, test] = all(&place.open(), &needs((false, &[1, 1, 2]), (true, &[])));
        assert_eq!(floats(&train.inputs), [-1.0, 1.0, 1.0, -1.0, -1.0, 1.0]);
        assert_eq!((integers(&train.targets), integers(&test.targets)), (&[2, 0, 1][..], &[1][..]));
        assert!((floats(&test.inputs)[0] + 0.6).abs() < 1e-6);
    }

    #[test]
    fn a_name_of_the_catalogue_is_for_its_files_only() {
        let place = Place::new();
        write(&place);
        let error =
            import(&place.library, "mnist", &[place.path("idx")], &Options::default(), &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("take another name"), "{error}");
    }

    #[test]
    fn each_kind_of_damage_is_named() {
        for (name, bytes, expected) in [
            ("train-images-idx3-ubyte", b"PK\x03\x04".to_vec(), "not an IDX file"),
            ("train-images-idx3-ubyte", idx(&[3, 1, 2], &[0; 5]), "ends before"),
            ("train-images-idx3-ubyte", idx(&[3, 1, 2], &[0; 7]), "goes on after"),
            ("train-images-idx3-ubyte", idx(&[3, u32::MAX, u32::MAX], &[0; 7]), "more than"),
            ("train-labels-idx1-ubyte", idx(&[2], &[0; 2]), "[2] labels for 3 images"),
            ("t10k-images-idx3-ubyte", idx(&[1, 2, 2], &[0; 4]), "[1, 2, 2]"),
            ("t10k-labels-idx1-ubyte", vec![0, 0], "ends before"),
        ] {
            let place = Place::new();
            write(&place);
            place.write(&format!("idx/{name}"), bytes);
            let error = place.refused(&place.path("idx"), &Options::default());
            assert!(error.contains(expected) && error.contains(name), "{error}");
        }
    }
}
