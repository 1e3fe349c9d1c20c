//! CIFAR-10's binary version: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, in which a record is a label and 32
//! by 32 pixels, first all red ones, then green, then blue.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::{ImportError, Job};
use crate::form::{Element, Form, Input, Target};
use crate::pack::{Names, Packed, RecordTarget, Which};

const PIXELS: usize = 3 * 32 * 32;
const RECORDS: u64 = 10_000;
const CLASSES: u32 = 10;
/// Longest list of names that is read.
const NAMES_BYTES_MAX: u64 = 4096;

pub(super) fn import(job: &mut Job<'_>, source: &Path) -> Result<Packed, ImportError> {
    let form = Form {
        input: Input::Array { element: Element::U8, shape: vec![3, 32, 32], normalise: None },
        target: Target::Classes { count: CLASSES },
        grouped: false,
    };
    let mut packer = job.library.packer(form, job.normalising())?;
    let train = (1..=5).map(|number| (Which::Train, format!("data_batch_{number}.bin")));
    for (index, (which, name)) in train.chain([(Which::Test, "test_batch.bin".to_owned())]).enumerate() {
        let path = source.join(name);
        let file = File::open(&path).map_err(ImportError::io("open", &path))?;
        let (found, expected) =
            (file.metadata().map_err(ImportError::io("read", &path))?.len(), RECORDS * (PIXELS as u64 + 1));
        if found != expected {
            let problem = format!("{found} bytes, a file of CIFAR-10's binary version has {expected}");
            return Err(ImportError::damaged(&path, problem));
        }
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut record = [0; PIXELS + 1];
        for number in 0..RECORDS {
            file.read_exact(&mut record).map_err(ImportError::io("read", &path))?;
            let [label, pixels @ ..] = &record;
            if u32::from(*label) >= CLASSES {
                let problem = format!("record {number} has label {label}, there are {CLASSES} classes");
                return Err(ImportError::damaged(&path, problem));
            }
            packer.add(which, pixels, RecordTarget::Class((*label).into()), 0)?;
        }
        job.progress((index as u64 + 1) * RECORDS, Some(6 * RECORDS), "images");
    }
    Ok(packer.finish(job.name, Names { classes: class_names(source), groups: Vec::new() })?)
}

/// The names that come with the files; none if they do not.
fn class_names(source: &Path) -> Vec<String> {
    let mut text = String::new();
    let read = File::open(source.join("batches.meta.txt"))
        .and_then(|file| file.take(NAMES_BYTES_MAX).read_to_string(&mut text));
    let names: Vec<String> = text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if read.is_ok() && names.len() == CLASSES as usize { names } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Place, floats, integers, needs};
    use super::super::{Kind, Options};
    use super::*;

    fn batch(label: u8, pixel: u8) -> Vec<u8> {
        let mut record = vec![pixel; PIXELS + 1];
        record[0] = label;
        record.repeat(RECORDS as usize)
    }

    fn write(place: &Place) {
        for number in 1..=5u8 {
            place.write(&format!("cifar/data_batch_{number}.bin"), batch(number, 51 * number));
        }
        place.write("cifar/test_batch.bin", batch(9, 0));
        let names: Vec<String> = (0..10).map(|class| format!("class-{class}")).collect();
        place.write("cifar/batches.meta.txt", names.join("\n"));
    }

    #[test]
    fn six_files_become_two_splits_with_names() {
        let place = Place::new();
        write(&place);
        let imported = place.import(&place.path("cifar"), &Options::default()).unwrap();
        let manifest = &imported.added.found.manifest;
        assert_eq!((manifest.train.length, manifest.test.length), (50_000, 10_000));
        assert_eq!(manifest.classes[9], "class-9");
        let samples = place.open().samples(&needs((false, &[3, 32, 32]), (true, &[]))).unwrap();
        let batch = samples.train().read(&[0, 49_999, 20_000]).unwrap();
        assert_eq!(integers(&batch.targets), [1, 5, 3]);
        // Means are 0.6 in every channel, the deviation of 0.2, 0.4, .. 1.0 is 0.2828.
        let (first, last) = (floats(&batch.inputs)[0], floats(&batch.inputs)[PIXELS]);
        assert!((first + 2f32.sqrt()).abs() < 1e-5 && (last - 2f32.sqrt()).abs() < 1e-5, "{first} {last}");
    }

    #[test]
    fn each_kind_of_damage_is_named() {
        let place = Place::new();
        write(&place);
        let options = Options { kind: Some(Kind::Cifar10), ..Options::default() };
        let refused = || place.refused(&place.path("cifar"), &options);
        let file = place.path("cifar/data_batch_3.bin");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[1..]).unwrap();
        assert!(refused().contains("data_batch_3.bin: 30729999 bytes"), "{}", refused());
        let mut label = whole;
        label[(PIXELS + 1) * 7] = 10;
        std::fs::write(&file, &label).unwrap();
        assert!(refused().contains("record 7 has label 10"), "{}", refused());
        std::fs::remove_file(&file).unwrap();
        assert!(refused().contains("cannot open"), "{}", refused());
    }
}
