use super::*;
use crate::form::{Element, Input, Target};
use crate::pack::{Names, RecordTarget, Which};

fn add(library: &Library, name: &str, pixels: &[[u8; 4]]) -> Result<Added, LibraryError> {
    let input = Input::Array { element: Element::U8, shape: vec![1, 2, 2], normalise: None };
    let form = Form { input, target: Target::Classes { count: 1 }, grouped: false };
    let mut packer = library.packer(form, Normalising::Measured).unwrap();
    for (index, pixels) in pixels.iter().enumerate() {
        let which = if index == 0 { Which::Test } else { Which::Train };
        packer.add(which, pixels, RecordTarget::Class(index as u32 % 2), 0).unwrap();
    }
    library.keep(packer.finish(name, Names::default()).unwrap())
}

const PIXELS: [[u8; 4]; 3] = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]];

fn files(folder: &Path) -> usize {
    fs::read_dir(folder.join("files")).unwrap().count()
}

#[test]
fn a_data_set_is_kept_once_and_a_second_time_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let library = Library::at(folder.path());
    assert_eq!(library.find("a").unwrap(), None);
    assert!(library.list().unwrap().is_empty());
    let added = add(&library, "a", &PIXELS).unwrap();
    assert!(!added.was_there);
    assert!(add(&library, "a", &PIXELS).unwrap().was_there);
    assert_eq!(library.find("a").unwrap(), Some(added.found));
    assert!(matches!(add(&library, "a", &PIXELS[..2]), Err(LibraryError::Taken { .. })));
    assert_eq!(fs::read_dir(folder.path().join("arriving")).unwrap().count(), 0);
    assert_eq!(files(folder.path()), 3);
}

#[test]
fn files_are_shared_and_removed_with_the_last_that_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let library = Library::at(folder.path());
    add(&library, "a", &PIXELS).unwrap();
    add(&library, "b", &PIXELS).unwrap();
    assert_eq!(files(folder.path()), 4, "two manifests, one pair of splits");
    library.remove("a").unwrap();
    assert_eq!((files(folder.path()), library.list().unwrap()), (3, vec!["b".to_owned()]));
    library.remove("b").unwrap();
    assert_eq!(files(folder.path()), 0);
    assert!(matches!(library.remove("b"), Err(LibraryError::Unknown { .. })));
    assert!(matches!(library.remove("../x"), Err(LibraryError::Name(_))));
}

#[test]
fn verify_finds_a_flipped_byte_and_adding_again_repairs_it() {
    let folder = tempfile::tempdir().unwrap();
    let library = Library::at(folder.path());
    let found = add(&library, "a", &PIXELS).unwrap().found;
    let mut bytes = 0;
    library.verify("a", &mut |sound| bytes += sound).unwrap();
    assert_eq!(bytes, found.manifest.bytes());
    let path = library.file(&found.manifest.train.sha256);
    let mut damaged = fs::read(&path).unwrap();
    damaged[3] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let error = library.verify("a", &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains(&to_hex(&found.manifest.train.sha256)) && error.contains("add it again"), "{error}");
    library.remove("a").unwrap();
    add(&library, "a", &PIXELS).unwrap();
    library.verify("a", &mut |_| ()).unwrap();
    fs::write(library.file(&found.digest), b"{}").unwrap();
    assert!(matches!(library.find("a"), Err(LibraryError::Damaged { .. })));
}

#[test]
fn pieces_come_from_any_offset_and_only_of_files_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let library = Library::at(folder.path());
    let manifest = add(&library, "a", &PIXELS).unwrap().found.manifest;
    let (piece, total) = library.piece(&manifest.train.sha256, 8, 100).unwrap().unwrap();
    assert_eq!((total, piece), (16, vec![8, 9, 10, 11, 0, 0, 0, 0]));
    assert!(library.piece(&manifest.train.sha256, 99, 100).unwrap().unwrap().0.is_empty());
    assert_eq!(library.piece(&[0; 32], 0, 100).unwrap(), None);
}

#[test]
fn what_an_import_that_broke_off_left_is_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let library = Library::at(folder.path());
    fs::create_dir_all(library.arriving()).unwrap();
    fs::write(library.arriving().join("1-0"), b"half").unwrap();
    let busy = Arriving::create(&library.arriving()).unwrap();
    add(&library, "a", &PIXELS).unwrap();
    assert!(busy.path.exists(), "another import writes it");
    assert!(!library.arriving().join("1-0").exists());
}
