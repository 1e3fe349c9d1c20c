use std::fmt::Write as _;

use super::super::fixtures::{Place, all, floats, integers, needs};
use super::super::{CsvOptions, Options};

fn options(csv: CsvOptions) -> Options {
    Options { csv, normalise: false, test_part: 0.25, ..Options::default() }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn rows_are_samples_with_values_or_classes() {
    let place = Place::new();
    let mut text = "name,width,height,price,kind\n".to_owned();
    for row in 0..8 {
        writeln!(text, "n{row}, {row}.5 ,{},{},{}", row * 2, row * 100, ["b", "a"][row % 2]).unwrap();
    }
    let source = place.write("a.csv", &text);
    let csv = CsvOptions { targets: names(&["price"]), ..CsvOptions::default() };
    let imported = place.import(&source, &options(csv)).unwrap();
    assert_eq!(imported.notes, ["inputs are the columns width, height"]);
    let [train, test] = all(&place.open(), &needs((false, &[2]), (false, &[1])));
    assert_eq!((floats(&train.targets).len(), floats(&test.targets).len()), (6, 2));
    for (inputs, target) in floats(&train.inputs).chunks(2).zip(floats(&train.targets)) {
        assert_eq!((inputs[0] - 0.5, inputs[1] / 2.0), (target / 100.0, target / 100.0));
    }

    let place = Place::new();
    let source = place.write("a.csv", &text);
    let csv = CsvOptions { label: Some("kind".to_owned()), columns: names(&["height"]), ..CsvOptions::default() };
    let manifest = place.import(&source, &options(csv)).unwrap().added.found.manifest;
    assert_eq!(manifest.classes, ["a", "b"]);
    let [train, _] = all(&place.open(), &needs((false, &[1]), (true, &[])));
    for (&height, &class) in floats(&train.inputs).iter().zip(integers(&train.targets)) {
        assert_eq!(class == 1, (height / 2.0) % 2.0 == 0.0, "b is in even rows");
    }
}

#[test]
fn classes_that_are_numbers_keep_their_order() {
    let place = Place::new();
    let source = place.write("a.csv", "x;label\n1;10\n2;9\n3;-1\n4;9\n");
    let csv = CsvOptions { label: Some("label".to_owned()), delimiter: b';', ..CsvOptions::default() };
    let manifest = place.import(&source, &options(csv)).unwrap().added.found.manifest;
    assert_eq!(manifest.classes, ["-1", "9", "10"]);
}

#[test]
fn windows_are_of_one_part_in_the_order_of_time() {
    let place = Place::new();
    let rows: String = (0..12).map(|row| format!("{row},{}\n", 100 + row)).collect();
    let source = place.write("a.csv", format!("a,b\n{rows}"));
    let csv = CsvOptions { length: Some(3), stride: 2, ..CsvOptions::default() };
    place.import(&source, &options(csv)).unwrap();
    let [train, test] = all(&place.open(), &needs((false, &[2, 3]), (false, &[2, 3])));
    // Rows 0 to 8 are to learn from.
    let window =
        |begin: i16| (0..2).flat_map(move |column| (begin..begin + 3).map(move |row| f32::from(row + 100 * column)));
    let expected: Vec<f32> = [0, 2, 4, 6].into_iter().flat_map(window).collect();
    assert_eq!(floats(&train.inputs), expected);
    assert_eq!(train.targets, train.inputs);
    assert_eq!(floats(&test.inputs), window(9).collect::<Vec<f32>>());
}

#[test]
fn a_forecast_is_of_the_row_after_the_window_and_windows_never_span_keys() {
    let place = Place::new();
    // The rows of two keys take turns.
    let rows: String = (0..6).map(|row| format!("p,{row}\nq,{}\n", row + 50)).collect();
    let source = place.write("a.csv", format!("who,value\n{rows}"));
    let csv = CsvOptions {
        length: Some(2),
        targets: names(&["value"]),
        key: Some("who".to_owned()),
        ..CsvOptions::default()
    };
    let imported = place.import(&source, &Options { test_part: 0.5, ..options(csv) }).unwrap();
    assert_eq!(imported.added.found.manifest.groups, ["p", "q"]);
    let dataset = place.open();
    let [train, test] = all(&dataset, &needs((false, &[1, 2]), (false, &[1])));
    assert_eq!((floats(&train.inputs), floats(&train.targets)), (&[0.0, 1.0, 50.0, 51.0][..], &[2.0, 52.0][..]));
    assert_eq!((floats(&test.inputs), floats(&test.targets)), (&[3.0, 4.0, 53.0, 54.0][..], &[5.0, 55.0][..]));
    assert_eq!(dataset.train().strata().unwrap(), [(0, 0), (0, 1)]);
}

#[test]
fn columns_are_normalised_by_the_training_samples() {
    let place = Place::new();
    let source = place.write("a.csv", "a,b\n0,7\n2,7\n0,7\n2,7\n50,50\n50,50\n");
    let csv = CsvOptions { length: Some(1), ..CsvOptions::default() };
    let options = Options { normalise: true, test_part: 0.33, ..options(csv) };
    place.import(&source, &options).unwrap();
    let [train, test] = all(&place.open(), &needs((false, &[2, 1]), (false, &[2, 1])));
    assert_eq!(floats(&train.inputs), [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0]);
    assert_eq!(floats(&test.inputs)[..2], [49.0, 43.0]);
}

#[test]
fn each_kind_of_damage_is_named_with_its_line_or_left_out() {
    for (text, expected) in [
        ("a,b\n1,2\n1,x\n", "line 3: `x` in column `b` is no number"),
        ("a,b\n1,2\n1,\n", "line 3: `` in column `b`"),
        ("a,b\n1,2\n1,NaN\n", "line 3"),
        ("a,b\n1,2\n1,2,3\n", "line 3"),
        ("a,b\n", "no column of numbers"),
        ("a,b\nx,y\n", "no column of numbers"),
        ("a,b\n1,\u{0}\n", "column"),
    ] {
        let place = Place::new();
        let source = place.write("a.csv", text);
        let csv = CsvOptions {
            columns: if text.contains('2') { names(&["a", "b"]) } else { Vec::new() },
            ..CsvOptions::default()
        };
        let result = place.import(&source, &options(csv));
        if text.contains('\u{0}') {
            assert!(result.unwrap().notes[0].contains(expected), "the other column is taken");
            continue;
        }
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error} has no {expected}");
    }
    let place = Place::new();
    let source = place.write("a.csv", "a\n1\nx\n3\n4,4\n5\n6\n");
    let csv = CsvOptions::default();
    let imported = place.import(&source, &Options { skip_damaged: true, ..options(csv) }).unwrap();
    assert_eq!(imported.skipped.count, 2);
    assert!(imported.skipped.first[0].contains("line 3"), "{:?}", imported.skipped);
    let manifest = imported.added.found.manifest;
    assert_eq!((manifest.train.length, manifest.test.length), (3, 1));
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let place = Place::new();
    let source = place.write("a.csv", "a,b\n1,2\n");
    let refused = |csv: CsvOptions| place.refused(&source, &options(csv));
    let missing = refused(CsvOptions { columns: names(&["c"]), ..CsvOptions::default() });
    assert!(missing.contains("no column `c`; it has a, b"), "{missing}");
    let both = CsvOptions { targets: names(&["a"]), label: Some("b".to_owned()), ..CsvOptions::default() };
    assert!(refused(both).contains("give one of them"));
    assert!(refused(CsvOptions { length: Some(0), ..CsvOptions::default() }).contains("at least 1"));
    let huge = CsvOptions { length: Some(u32::MAX), ..CsvOptions::default() };
    assert!(refused(huge).contains("--length"));
    let long = refused(CsvOptions { length: Some(5), ..CsvOptions::default() });
    assert!(long.contains("no training samples"), "{long}");
}
