use super::super::super::fixtures::{Place, all, floats, integers, needs};
use super::super::super::{ArrayOptions, Options};
use super::super::npy::tests::npy;
use super::super::zip::tests::zip;

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn plain() -> Options {
    Options { normalise: false, ..Options::default() }
}

#[test]
fn a_zip_of_images_and_labels_is_taken_by_the_usual_names() {
    let place = Place::new();
    let files = [
        ("x_train.npy", npy("|u1", "(2, 2, 2)", &[0, 51, 102, 153, 204, 255, 0, 0]), true),
        ("y_train.npy", npy("<i8", "(2,)", &i64s(&[1, 0])), false),
        ("x_test.npy", npy("|u1", "(1, 2, 2)", &[255; 4]), true),
        ("y_test.npy", npy("<i8", "(1,)", &i64s(&[2])), false),
    ];
    let source = place.write("mnist.npz", zip(&files));
    place.import(&source, &plain()).unwrap();
    let dataset = place.open();
    assert_eq!(dataset.outline().form.image(), Some([1, 2, 2]), "images without channels have one");
    let [train, test] = all(&dataset, &needs((false, &[4]), (true, &[])));
    let expected = [0u8, 51, 102, 153, 204, 255, 0, 0].map(|byte| f32::from(byte) / 255.0);
    assert_eq!(floats(&train.inputs), expected);
    assert_eq!((integers(&train.targets), integers(&test.targets)), (&[1, 0][..], &[2][..]));
}

#[test]
fn a_folder_of_arrays_gives_regression_and_is_normalised_by_feature() {
    let place = Place::new();
    place.write("set/x.npy", npy("<f4", "(4, 2)", &f32s(&[1.0, 10.0, 3.0, 10.0, 1.0, 30.0, 3.0, 30.0])));
    place.write("set/y.npy", npy("<f4", "(4,)", &f32s(&[0.5, 1.5, 2.5, 3.5])));
    place.import(&place.path("set"), &Options { test_part: 0.0, ..Options::default() }).unwrap();
    let [train, test] = all(&place.open(), &needs((false, &[2]), (false, &[1])));
    assert_eq!(floats(&train.inputs), [-1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0]);
    assert_eq!(floats(&train.targets), [0.5, 1.5, 2.5, 3.5]);
    assert!(floats(&test.inputs).is_empty());
}

#[test]
fn channels_last_images_become_planes_and_keys_become_groups() {
    let place = Place::new();
    let pixels: Vec<u8> = (0..24).collect();
    let files = [
        ("pixels.npy", npy("|u1", "(2, 2, 2, 3)", &pixels), false),
        ("who.npy", npy("<i8", "(2,)", &i64s(&[70, 7])), false),
    ];
    let source = place.write("a.npz", zip(&files));
    let arrays = ArrayOptions {
        inputs: Some("pixels".to_owned()),
        keys: Some("who".to_owned()),
        channels_last: true,
        ..ArrayOptions::default()
    };
    let options = Options { arrays, test_part: 0.0, ..plain() };
    let manifest = place.import(&source, &options).unwrap().added.found.manifest;
    assert_eq!(manifest.groups, ["70", "7"]);
    let dataset = place.open();
    assert_eq!(dataset.train().strata().unwrap(), [(0, 0), (0, 1)]);
    let [train, _] = all(&dataset, &needs((false, &[3, 2, 2]), (false, &[3, 2, 2])));
    let first: Vec<f32> = [0u8, 3, 6, 9, 1, 4, 7, 10].iter().map(|&byte| f32::from(byte) / 255.0).collect();
    assert_eq!(floats(&train.inputs)[..8], first);
    assert_eq!(train.targets, train.inputs, "an autoencoder gives back its input");
}

#[test]
fn safetensors_hold_arrays_too() {
    let place = Place::new();
    let (x, y) = (f32s(&[1.0, 2.0, 3.0, 4.0]), i64s(&[1, 0]));
    let view = |dtype, shape: Vec<usize>, bytes| safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap();
    let tensors = [
        ("x", view(safetensors::Dtype::F32, vec![2, 2], &x[..])),
        ("y", view(safetensors::Dtype::I64, vec![2], &y[..])),
    ];
    let source = place.write("a.safetensors", safetensors::serialize(tensors, None).unwrap());
    place.import(&source, &Options { test_part: 0.0, ..plain() }).unwrap();
    let [train, _] = all(&place.open(), &needs((false, &[2]), (true, &[])));
    assert_eq!((floats(&train.inputs), integers(&train.targets)), (&[1.0, 2.0, 3.0, 4.0][..], &[1, 0][..]));
    let place = Place::new();
    let source = place.write("a.safetensors", [9, 0, 0, 0, 0, 0, 0, 0, b'{']);
    assert!(place.refused(&source, &plain()).contains("not a safetensors file"));
}

#[test]
fn a_vector_of_whole_numbers_is_a_stream_of_tokens() {
    let place = Place::new();
    let tokens: Vec<i64> = (0..20).map(|token| token * 100).collect();
    let source = place.write("tokens.npy", npy("<i8", "(20,)", &i64s(&tokens)));
    place.import(&source, &plain()).unwrap();
    let [train, _] = all(&place.open(), &needs((true, &[4]), (true, &[4])));
    assert_eq!(integers(&train.targets)[..4], [100, 200, 300, 400]);
    let form = place.open().outline().form.clone();
    assert!(matches!(form.input, crate::Input::Tokens { vocabulary: 1901, .. }), "{form:?}");
}

#[test]
fn each_kind_of_damage_is_named() {
    let refused = |files: &[(&str, Vec<u8>)], options: Options| {
        let place = Place::new();
        for (name, bytes) in files {
            place.write(&format!("set/{name}.npy"), bytes);
        }
        place.refused(&place.path("set"), &options)
    };
    let x = || ("x", npy("<f4", "(2, 1)", &f32s(&[1.0, 2.0])));
    for (files, expected) in [
        (vec![("x", npy("<f4", "(2, 1)", &f32s(&[1.0])))], "`x`: sample 1 of Some(2) cannot be read"),
        (vec![("x", npy("<f4", "(2, 1)", &f32s(&[1.0, f32::NAN])))], "sample 1 is not finite at index 0"),
        (vec![("x", npy("<f4", "(2,)", &f32s(&[1.0, 2.0])))], "a vector"),
        (vec![("x", npy("<f4", "(2, 4294967296, 4294967296)", &[]))], "more than"),
        (vec![x(), ("y", npy("<i8", "(3,)", &i64s(&[0; 3])))], "shape [3] for 2 samples"),
        (vec![x(), ("y", npy("<i8", "(2,)", &i64s(&[0, -1])))], "class -1"),
        (vec![x(), ("y", npy("<i8", "(2, 2)", &i64s(&[0; 4])))], "--regression"),
        (vec![x(), ("x_test", npy("<f4", "(1, 3)", &f32s(&[0.0; 3])))], "those to learn from have [1]"),
        (vec![("one", x().1), ("two", x().1)], "--inputs; there are one, two"),
    ] {
        let error = refused(&files, plain());
        assert!(error.contains(expected), "{error} has no {expected}");
    }
    let named = Options { arrays: ArrayOptions { inputs: Some("z".to_owned()), ..ArrayOptions::default() }, ..plain() };
    assert!(refused(&[x()], named).contains("there is no array `z`; there are x"));
}
