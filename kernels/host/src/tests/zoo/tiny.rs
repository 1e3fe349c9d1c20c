//! Every kernel at a size that the plain reference backend computes in no time.

use std::collections::BTreeSet;

use omnilearn_wire::message::{Setting, SettingValue};

use super::{KERNELS, integers, kernel, setting, text};
use crate::backend::DType;
use crate::reference::{Array, Reference};
use crate::{Batch, Description, Instance, Limits, Mode, Output, TensorSpec, initialize};

/// A small configuration of a kernel.
struct Tiny {
    kernel: &'static str,
    settings: Vec<Setting>,
    /// Shape of the outputs for one sample.
    output: Vec<usize>,
}

fn tiny(kernel: &'static str, settings: &[(&str, i64)], output: &[usize]) -> Tiny {
    Tiny { kernel, settings: integers(settings), output: output.to_vec() }
}

impl Tiny {
    /// The same for images of so many pixels on a side and three classes.
    fn image(kernel: &'static str, side: i64, settings: &[(&str, i64)]) -> Tiny {
        let mut tiny = tiny(kernel, settings, &[3]);
        tiny.settings.extend(integers(&[("image_height", side), ("image_width", side), ("classes", 3)]));
        tiny
    }

    fn with(mut self, setting: Setting) -> Tiny {
        self.settings.push(setting);
        self
    }

    fn ready(&self) -> (Instance<Reference>, Description) {
        let mut instance = kernel(self.kernel).instantiate(Reference, Limits::default()).unwrap();
        let description = instance.describe(&self.settings).unwrap();
        (instance, description)
    }
}

fn tiny_language_models() -> [Tiny; 2] {
    [
        tiny("lstm", &[("vocabulary", 5), ("tokens", 4), ("embedding", 3), ("hidden", 2), ("layers", 2)], &[4, 5]),
        tiny("gpt", &[("vocabulary", 5), ("tokens", 4), ("width", 6), ("heads", 2), ("layers", 2)], &[4, 5]),
    ]
}

/// Every kernel, and every form of those that have two.
fn tiny_kernels() -> Vec<Tiny> {
    let width = || setting("width", SettingValue::Number(0.1));
    let [lstm, gpt] = tiny_language_models();
    let [_, untied] = tiny_language_models();
    vec![
        tiny("linear_regression", &[("features", 3), ("outputs", 2)], &[2]),
        tiny("logistic_regression", &[("features", 3), ("classes", 3)], &[3]),
        Tiny::image("mlp", 6, &[("hidden", 5)]),
        Tiny::image("lenet", 12, &[]),
        Tiny::image("alexnet", 16, &[("width", 2), ("hidden", 5)]),
        // Of so many pixels 12 by 12 are left, which are then pooled.
        Tiny::image("alexnet", 416, &[("width", 1), ("hidden", 5)]).with(text("variant", "imagenet")),
        Tiny::image("vgg", 32, &[("width", 1)]),
        Tiny::image("vgg", 224, &[("width", 1), ("depth", 16), ("hidden", 4)]).with(text("head", "imagenet")),
        Tiny::image("resnet", 12, &[("width", 2)]),
        Tiny::image("resnet", 32, &[("width", 1), ("depth", 50)]).with(text("stem", "imagenet")),
        Tiny::image("mobilenet", 8, &[]).with(width()),
        Tiny::image("mobilenet", 33, &[]).with(width()).with(text("stem", "imagenet")),
        tiny("autoencoder", &[("channels", 2), ("length", 5), ("hidden", 4), ("code", 2)], &[2, 5]),
        lstm,
        gpt,
        untied.with(setting("tied", SettingValue::Flag(false))),
    ]
}

/// The next tensor of these values.
fn next(values: &mut impl Iterator<Item = f32>, shape: &[u32]) -> Array {
    let shape: Vec<usize> = shape.iter().map(|&dimension| dimension as usize).collect();
    Array::floats(values.take(shape.iter().product()).map(f64::from).collect(), &shape)
}

/// Samples that count up.
fn counting(spec: &TensorSpec, samples: usize) -> Array {
    let shape: Vec<usize> =
        [samples].into_iter().chain(spec.shape.iter().map(|&dimension| dimension as usize)).collect();
    let count = shape.iter().product::<usize>();
    match spec.dtype {
        DType::F32 => Array::floats((0..count).map(|i| (i as f64 * 0.7).sin()).collect(), &shape),
        DType::I32 => Array::ints((0..count).map(|i| (i % 3) as i32).collect(), &shape),
    }
}

fn batch(description: &Description, samples: usize, mode: Mode) -> Batch<Array> {
    let (parameters, buffers) = initialize(description, 5);
    let (mut parameters, mut buffers) = (parameters.into_iter(), buffers.into_iter());
    Batch {
        mode,
        parameters: description.parameters.iter().map(|parameter| next(&mut parameters, &parameter.shape)).collect(),
        buffers: description.buffers.iter().map(|buffer| next(&mut buffers, &buffer.shape)).collect(),
        inputs: description.inputs.iter().map(|spec| counting(spec, samples)).collect(),
        targets: (mode != Mode::Predict).then(|| counting(&description.target, samples)),
        seed: 9,
    }
}

#[test]
fn every_kernel_of_ours_learns_from_a_tiny_batch() {
    let kernels = tiny_kernels();
    assert_eq!(kernels.iter().map(|tiny| tiny.kernel).collect::<BTreeSet<_>>(), BTreeSet::from(KERNELS));
    for tiny in kernels {
        let (mut instance, description) = tiny.ready();
        let output = instance.forward(batch(&description, 2, Mode::Train)).unwrap();
        let Output { loss, outputs, buffers, metrics } = output;
        let (loss, metric) = (loss.unwrap().values()[0], metrics[0].values()[0]);
        assert!(loss.is_finite() && loss > 0.0, "{} {loss}", tiny.kernel);
        assert_eq!((outputs[0].shape()[0], &outputs[0].shape()[1..]), (2, &tiny.output[..]), "{}", tiny.kernel);
        assert_eq!(buffers.len(), description.buffers.len());
        match description.metrics[0].as_str() {
            "correct" => assert!((0.0..=2.0).contains(&metric), "{} {metric}", tiny.kernel),
            "squared_error" => assert!((metric - 2.0 * loss).abs() < 1e-12, "{} {metric}", tiny.kernel),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_squared_error_is_that_of_an_element() {
    let (mut instance, description) = tiny("linear_regression", &[("features", 3), ("outputs", 2)], &[2]).ready();
    let batch = batch(&description, 4, Mode::Evaluate);
    let targets = batch.targets.clone().unwrap();
    let output = instance.forward(batch).unwrap();
    let errors = output.outputs[0].values().iter().zip(targets.values());
    let mean = errors.map(|(prediction, target)| (prediction - target).powi(2)).sum::<f64>() / 8.0;
    assert!((output.loss.unwrap().values()[0] - mean).abs() < 1e-12);
}

#[test]
fn no_token_changes_the_predictions_before_it() {
    for tiny in tiny_language_models() {
        let (mut instance, description) = tiny.ready();
        let mut logits = |last| {
            let mut batch = batch(&description, 1, Mode::Predict);
            batch.inputs[0] = Array::ints(vec![0, 1, 2, last], &[1, 4]);
            instance.forward(batch).unwrap().outputs[0].values().to_vec() // [1, 4, 5]
        };
        let (one, other) = (logits(3), logits(4));
        assert_eq!(one[..15], other[..15], "{}", tiny.kernel);
        assert_ne!(one[15..], other[15..], "{}", tiny.kernel);
    }
}

#[test]
fn a_language_models_sample_counts_the_share_of_its_tokens() {
    let [_, gpt] = tiny_language_models();
    let (mut instance, description) = gpt.ready();
    let mut batch = batch(&description, 2, Mode::Evaluate);
    let logits =
        instance.forward(Batch { mode: Mode::Predict, targets: None, ..batch.clone() }).unwrap().outputs.remove(0);
    let largest = |row: &[f64]| (0..5).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i32;
    let mut targets: Vec<i32> = logits.values().chunks(5).map(largest).collect(); // [2, 4]
    targets[6] = (targets[6] + 1) % 5;
    batch.targets = Some(Array::ints(targets, &[2, 4]));
    assert_eq!(instance.forward(batch).unwrap().metrics[0].values(), [1.75]);
}

#[test]
fn an_lstm_computes_what_its_formula_says() {
    let settings = [("vocabulary", 5), ("tokens", 3), ("embedding", 2), ("hidden", 2), ("layers", 1)];
    let (mut instance, description) = tiny("lstm", &settings, &[3, 5]).ready();
    let batch = batch(&description, 1, Mode::Evaluate); // of tokens 0, 1 and 2
    let tensors: Vec<Vec<f64>> = batch.parameters.iter().map(|parameter| parameter.values().to_vec()).collect();
    let [embedding, weight_ih, weight_hh, bias_ih, bias_hh, head, head_bias] = &tensors[..] else { panic!() };
    let product = |matrix: &[f64], x: &[f64], row: usize| -> f64 { (0..2).map(|i| matrix[row * 2 + i] * x[i]).sum() };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let output = instance.forward(batch).unwrap();
    let (mut hidden, mut cell) = ([0.0; 2], [0.0; 2]);
    for (token, logits) in output.outputs[0].values().chunks(5).enumerate() {
        let x = &embedding[token * 2..][..2];
        let gates: Vec<f64> = (0..8)
            .map(|row| product(weight_ih, x, row) + bias_ih[row] + product(weight_hh, &hidden, row) + bias_hh[row])
            .collect();
        for unit in 0..2 {
            let [input, forget, candidate, output] = [0, 2, 4, 6].map(|gate| gates[gate + unit]);
            cell[unit] = sigmoid(forget) * cell[unit] + sigmoid(input) * candidate.tanh();
            hidden[unit] = sigmoid(output) * cell[unit].tanh();
        }
        for (row, found) in logits.iter().enumerate() {
            let expected = product(head, &hidden, row) + head_bias[row];
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
    }
}
