//! The kernel in C, which shares nothing with those in Rust but the interface.

use super::{component_path, integer, kernel};
use crate::reference::{Array, Reference};
use crate::{Batch, Instance, Kernel, Limits, Mode};

/// The perceptron in C, if it could be built.
fn perceptron() -> Option<Kernel> {
    if component_path("perceptron").exists() {
        return Some(kernel("perceptron"));
    }
    println!("skipped: `cargo xtask kernels` has left out the kernel in C, since there is no clang for WebAssembly");
    None
}

/// An instance for images of two pixels, two hidden units and two classes.
fn small(kernel: &Kernel, limits: Limits) -> Instance<Reference> {
    let mut instance = kernel.instantiate(Reference, limits).unwrap();
    let settings = [("image_height", 1), ("image_width", 2), ("hidden", 2), ("classes", 2)];
    instance.describe(&settings.map(|(name, value)| integer(name, value))).unwrap();
    instance
}

/// As many samples as there are labels, the images `[1, 2]` and `[3, -1]` by turns.
fn batch(mode: Mode, labels: &[i32]) -> Batch<Array> {
    let samples = labels.len();
    let images = [1.0, 2.0, 3.0, -1.0].into_iter().cycle().take(2 * samples).collect();
    Batch {
        mode,
        parameters: vec![
            Array::floats(vec![1.0, 0.0, 0.5, -1.0], &[2, 2]),
            Array::floats(vec![0.0, 1.0], &[2]),
            Array::floats(vec![1.0, 0.0, 0.0, 2.0], &[2, 2]),
            Array::floats(vec![0.5, 0.0], &[2]),
        ],
        buffers: Vec::new(),
        inputs: vec![Array::floats(images, &[samples, 1, 1, 2])],
        targets: (mode != Mode::Predict).then(|| Array::ints(labels.to_vec(), &[samples])),
        seed: 0,
    }
}

#[test]
fn a_kernel_in_c_describes_the_same_model_as_its_twin_in_rust() {
    let Some(in_c) = perceptron() else { return };
    let in_rust = kernel("mlp");
    let mut settings = in_rust.settings().unwrap();
    settings.retain(|setting| setting.name != "dropout");
    assert_eq!(in_c.settings().unwrap(), settings);
    for given in [vec![], vec![integer("classes", 3), integer("channels", 64), integer("image_width", 4096)]] {
        assert_eq!(in_c.describe(&given).unwrap(), in_rust.describe(&given).unwrap());
    }
}

#[test]
fn a_kernel_in_c_refuses_a_setting_in_the_same_words() {
    let Some(in_c) = perceptron() else { return };
    for value in [0, 1, -1, i64::MIN, i64::MAX, 1 << 32, 100_001] {
        let refused = |kernel: &Kernel| kernel.describe(&[integer("classes", value)]).unwrap_err().to_string();
        assert_eq!(refused(&in_c), format!("kernel refused: setting `classes` is {value}, but must be in 2..=100000"));
        assert_eq!(refused(&in_c), refused(&kernel("mlp")));
    }
}

#[test]
fn a_kernel_in_c_computes_what_its_formula_says() {
    let Some(kernel) = perceptron() else { return };
    let mut instance = small(&kernel, Limits::default());
    // Of the first image, the hidden units are [1, relu(-0.5)] and the logits [1.5, 0]; of the second, [3, 3.5] and [3.5, 7].
    let logits = [1.5, 0.0, 3.5, 7.0];
    let loss = (f64::exp(-1.5).ln_1p() + f64::exp(3.5).ln_1p()) / 2.0;
    for mode in [Mode::Train, Mode::Evaluate] {
        let output = instance.forward(batch(mode, &[0, 0])).unwrap();
        assert_eq!(output.outputs, [Array::floats(logits.to_vec(), &[2, 2])]);
        let found = output.loss.unwrap().values()[0];
        assert!((found - loss).abs() < 1e-12, "{found} {loss}");
        assert_eq!(output.metrics, [Array::floats(vec![1.0], &[1])]);
        assert!(output.buffers.is_empty());
    }
    let output = instance.forward(batch(Mode::Predict, &[0, 0])).unwrap();
    assert_eq!(output.outputs, [Array::floats(logits.to_vec(), &[2, 2])]);
    assert!(output.loss.is_none() && output.metrics.is_empty());
}

#[test]
fn a_kernel_in_c_does_not_grow_over_thousands_of_batches() {
    let Some(kernel) = perceptron() else { return };
    // The two pages that it begins with, of which its stack takes one: too few if each pass left the smallest block, of 16
    // bytes, behind.
    let mut instance = small(&kernel, Limits { linear_memory_bytes: 2 << 16, ..Limits::default() });
    for pass in 0..5000 {
        let mode = [Mode::Train, Mode::Evaluate, Mode::Predict][pass % 3];
        instance.forward(batch(mode, &vec![1; 1 + pass % 5])).unwrap();
    }
}
