use zune_core::bit_depth::BitDepth;
use zune_core::colorspace::ColorSpace;
use zune_core::options::EncoderOptions;
use zune_png::PngEncoder;

use super::super::Options;
use super::super::fixtures::{Place, floats, integers, needs};
use super::*;

/// A blue JPEG of 4 by 2 pixels.
const BLUE: &str = "ffd8ffe000104a46494600010100000100010000ffdb0043000302020302020303030304030304050805050404050a070706080c0a0c0c0b0a0b0b0d0e12100d0e110e0b0b1016101113141515150c0f171816141812141514ffdb00430103040405040509050509140d0b0d1414141414141414141414141414141414141414141414141414141414141414141414141414141414141414141414141414ffc00011080002000403011100021101031101ffc40014000100000000000000000000000000000009ffc40014100100000000000000000000000000000000ffc4001501010100000000000000000000000000000609ffc40014110100000000000000000000000000000000ffda000c03010002110311003f003dd54c1dffd9";

/// A JPEG of 16 by 8 pixels, dark on the left and bright on the right, with EXIF data that says to turn it clockwise.
const TURNED: &str = "ffd8ffe000104a46494600010100000100010000ffe100224578696600004d4d002a00000008000101120003000000010006000000000000ffdb0043000302020302020303030304030304050805050404050a070706080c0a0c0c0b0a0b0b0d0e12100d0e110e0b0b1016101113141515150c0f171816141812141514ffc0000b080008001001011100ffc400150001010000000000000000000000000000090affc40014100100000000000000000000000000000000ffda0008010100003f002a9550ffd9";

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn png(width: usize, height: usize, colour: [u8; 3]) -> Vec<u8> {
    let pixels = colour.repeat(width * height);
    let options = EncoderOptions::default()
        .set_width(width)
        .set_height(height)
        .set_depth(BitDepth::Eight)
        .set_colorspace(ColorSpace::RGB);
    let mut bytes = Vec::new();
    PngEncoder::new(&pixels, options).encode(&mut bytes).unwrap();
    bytes
}

fn options() -> Options {
    let images = ImageOptions { size: (4, 2), grey: false };
    Options { images, normalise: false, test_part: 0.25, ..Options::default() }
}

fn write(place: &Place) {
    for number in 0..8 {
        place.write(&format!("pictures/red/{number}.png"), png(10 + number, 7, [255, 0, 0]));
        place.write(&format!("pictures/blue/{number}.JPG"), unhex(BLUE));
    }
    place.write("pictures/red/notes.txt", "not an image");
    place.write("pictures/red/._0.png", "of another system");
}

#[test]
fn folders_are_classes_and_a_part_of_each_is_drawn_for_testing() {
    let place = Place::new();
    write(&place);
    let imported = place.import(&place.path("pictures"), &options()).unwrap();
    let manifest = &imported.added.found.manifest;
    assert_eq!(manifest.classes, ["blue", "red"]);
    assert_eq!((manifest.train.length, manifest.test.length), (12, 4));
    assert_eq!(imported.notes, ["1 files that are neither PNG nor JPEG were left out"]);
    let samples = place.open().samples(&needs((false, &[3, 2, 4]), (true, &[]))).unwrap();
    let test = samples.test().read(&[0, 1, 2, 3]).unwrap();
    assert_eq!(integers(&test.targets), [0, 0, 1, 1]);
    let pixels = floats(&test.inputs);
    assert_eq!(pixels[48..56], [1.0; 8], "red is the first plane");
    assert_eq!(pixels[56..72], [0.0; 16]);
    assert!(pixels[16..24].iter().all(|&blue| blue > 0.97), "JPEG is nearly what it was: {:?}", &pixels[16..24]);
    assert!(place.import(&place.path("pictures"), &options()).unwrap().added.was_there, "the draw is seeded");
}

#[test]
fn train_and_test_folders_are_taken_as_they_are() {
    let place = Place::new();
    for name in ["train/a/1.png", "train/b/1.png", "test/b/deeper/1.png"] {
        place.write(&format!("set/{name}"), png(1, 1, [9; 3]));
    }
    let manifest = place.import(&place.path("set"), &options()).unwrap().added.found.manifest;
    assert_eq!((manifest.train.length, manifest.test.length, manifest.classes.len()), (2, 1, 2));
}

#[test]
fn images_are_turned_upright_and_made_grey() {
    let place = Place::new();
    place.write("set/a/1.jpg", unhex(TURNED));
    let images = ImageOptions { size: (2, 4), grey: true };
    place.import(&place.path("set"), &Options { images, ..options() }).unwrap();
    let samples = place.open().samples(&needs((false, &[1, 4, 2]), (true, &[]))).unwrap();
    let read = samples.train().read(&[0]).unwrap();
    let pixels = floats(&read.inputs);
    assert!(pixels[..2].iter().all(|&top| top < 0.05), "the left is now the top: {pixels:?}");
    assert!(pixels[6..].iter().all(|&bottom| bottom > 0.95), "{pixels:?}");
}

#[test]
fn a_damaged_file_is_named_or_left_out_and_counted() {
    let place = Place::new();
    write(&place);
    let whole = std::fs::read(place.path("pictures/red/3.png")).unwrap();
    place.write("pictures/red/3.png", &whole[..whole.len() / 2]);
    let error = place.refused(&place.path("pictures"), &options());
    assert!(error.contains("red/3.png") && error.contains("--skip-damaged"), "{error}");
    let skipping = Options { skip_damaged: true, ..options() };
    let imported = place.import(&place.path("pictures"), &skipping).unwrap();
    assert_eq!((imported.skipped.count, imported.skipped.first.len()), (1, 1));
    let manifest = imported.added.found.manifest;
    assert_eq!(manifest.train.length + manifest.test.length, 15);
}

#[test]
fn files_that_are_cut_or_changed_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    for whole in [png(5, 3, [1, 2, 3]), unhex(BLUE)] {
        std::fs::write(&path, &whole).unwrap();
        assert!(decode::decode(&path).is_ok());
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            for bytes in [&whole[..at], &changed] {
                std::fs::write(&path, bytes).unwrap();
                if let Ok(pixels) = decode::decode(&path) {
                    assert_eq!(pixels.bytes.len(), pixels.width * pixels.height * pixels.channels);
                }
            }
        }
    }
}

#[test]
fn an_image_that_claims_to_be_huge_is_refused_before_it_is_decoded() {
    let place = Place::new();
    let mut bomb = png(1, 1, [0; 3]);
    bomb[16..20].copy_from_slice(&30_000u32.to_be_bytes()); // width and height in the header
    bomb[20..24].copy_from_slice(&30_000u32.to_be_bytes());
    let mut crc = flate2::Crc::new();
    crc.update(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    place.write("set/a/bomb.png", bomb);
    let error = place.refused(&place.path("set"), &options());
    assert!(error.contains("bomb.png") && error.contains("too many"), "{error}");
}

#[test]
fn a_folder_without_classes_is_told_how_it_should_look() {
    let place = Place::new();
    place.write("set/a/readme", "");
    let error = place.refused(&place.path("set"), &options());
    assert!(error.contains("such as cat/1.png"), "{error}");
}
