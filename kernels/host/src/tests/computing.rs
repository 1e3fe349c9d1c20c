use std::time::{Duration, Instant};

use super::scalar::{Scalars, Tensor};
use super::textual::{FULL, Textual};
use super::{integer, kernel};
use crate::{Batch, Description, Instance, Kernel, KernelError, Limit, Limits, Mode, Output, initialize};

/// A kernel's instance with a batch of `samples` that counts up.
fn ready(name: &'static str, samples: usize, mode: Mode) -> (Instance<Scalars>, Batch<Tensor>) {
    ready_with(&kernel(name), Limits::default(), samples, mode)
}

fn ready_with(kernel: &Kernel, limits: Limits, samples: usize, mode: Mode) -> (Instance<Scalars>, Batch<Tensor>) {
    let mut instance = kernel.instantiate(Scalars::default(), limits).unwrap();
    let settings = kernel.settings().unwrap();
    let small: Vec<_> = [("image_height", 12), ("image_width", 12), ("width", 2), ("hidden", 5), ("classes", 3)]
        .into_iter()
        .filter(|(name, _)| settings.iter().any(|setting| setting.name == *name))
        .map(|(name, value)| integer(name, value))
        .collect();
    let description = instance.describe(&small).unwrap();
    (instance, batch(&description, samples, mode))
}

fn batch(description: &Description, samples: usize, mode: Mode) -> Batch<Tensor> {
    let (parameters, buffers) = initialize(description, 5);
    let cut = |mut values: &[f32], shapes: Vec<&[u32]>| {
        let mut tensors = Vec::new();
        for shape in shapes {
            let shape: Vec<usize> = shape.iter().map(|&dimension| dimension as usize).collect();
            let (head, rest) = values.split_at(shape.iter().product());
            tensors.push(Tensor::f32(head.to_vec(), &shape));
            values = rest;
        }
        tensors
    };
    let input: Vec<usize> =
        [samples].into_iter().chain(description.inputs[0].shape.iter().map(|&dimension| dimension as usize)).collect();
    let count = input.iter().product::<usize>();
    Batch {
        mode,
        parameters: cut(&parameters, description.parameters.iter().map(|parameter| &parameter.shape[..]).collect()),
        buffers: cut(&buffers, description.buffers.iter().map(|buffer| &buffer.shape[..]).collect()),
        inputs: vec![Tensor::f32((0..count).map(|i| (i as f32 * 0.7).sin()).collect(), &input)],
        targets: (mode != Mode::Predict)
            .then(|| Tensor::i32((0..samples).map(|i| (i % 3) as i32).collect(), &[samples])),
        seed: 9,
    }
}

fn value(tensor: &Tensor) -> f32 {
    assert_eq!(tensor.shape(), [1]);
    tensor.values()[0]
}

#[test]
fn every_kernel_trains_evaluates_and_predicts() {
    for name in ["mlp", "lenet", "resnet"] {
        let (mut instance, batch) = ready(name, 4, Mode::Train);
        let trained = instance.forward(batch).unwrap();
        // Untrained, so that every class is about as likely as another.
        assert!((value(&trained.loss.unwrap()) - 3f32.ln()).abs() < 0.5, "{name}");
        assert_eq!(trained.outputs[0].shape(), [4, 3]);
        assert!((0.0..=4.0).contains(&value(&trained.metrics[0])));
        let description = instance.description().unwrap().clone();
        assert_eq!(trained.buffers.len(), description.buffers.len());

        let evaluated = instance.forward(self::batch(&description, 4, Mode::Evaluate)).unwrap();
        assert!(evaluated.loss.is_some() && evaluated.metrics.len() == 1 && evaluated.buffers.is_empty());
        let Output { loss, outputs, buffers, metrics } =
            instance.forward(self::batch(&description, 2, Mode::Predict)).unwrap();
        assert!(loss.is_none() && buffers.is_empty() && metrics.is_empty());
        assert_eq!(outputs[0].shape(), [2, 3]);
    }
}

#[test]
fn an_mlp_computes_what_its_formula_says() {
    let (mut instance, batch) = ready("mlp", 2, Mode::Evaluate);
    let tensors: Vec<Vec<f32>> = batch.parameters.iter().map(|parameter| parameter.values().to_vec()).collect();
    let inputs = batch.inputs[0].values().to_vec();
    let output = instance.forward(batch).unwrap();
    let layer = |x: &[f32], weight: &[f32], bias: &[f32]| -> Vec<f32> {
        let rows = weight.chunks(x.len()).zip(bias);
        rows.map(|(row, bias)| bias + row.iter().zip(x).map(|(weight, x)| weight * x).sum::<f32>()).collect()
    };
    for sample in 0..2 {
        let hidden = layer(&inputs[sample * 144..(sample + 1) * 144], &tensors[0], &tensors[1]);
        let hidden: Vec<f32> = hidden.into_iter().map(|x| x.max(0.0)).collect();
        let logits = layer(&hidden, &tensors[2], &tensors[3]);
        for (found, expected) in output.outputs[0].values()[sample * 3..].iter().zip(&logits) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
}

#[test]
fn running_statistics_move_by_a_tenth_in_training() {
    let (mut instance, batch) = ready("resnet", 4, Mode::Train);
    let description = instance.description().unwrap().clone();
    let output = instance.forward(batch).unwrap();
    for (buffer, tensor) in description.buffers.iter().zip(&output.buffers) {
        assert!(tensor.values().iter().any(|&value| value != buffer.initial), "{}", buffer.name);
        if buffer.name.ends_with("running_var") {
            assert!(tensor.values().iter().all(|&value| value >= 0.9), "{}", buffer.name);
        }
    }
}

#[test]
fn dropout_acts_in_training_only_and_follows_the_seed() {
    let kernel = kernel("mlp");
    let mut instance = kernel.instantiate(Scalars::default(), Limits::default()).unwrap();
    let half = super::setting("dropout", omnilearn_wire::message::SettingValue::Number(0.5));
    let description = instance.describe(&[half]).unwrap();
    let mut logits = |mode, seed| {
        instance.forward(Batch { seed, ..batch(&description, 2, mode) }).unwrap().outputs[0].values().to_vec()
    };
    assert_eq!(logits(Mode::Train, 1), logits(Mode::Train, 1));
    assert_ne!(logits(Mode::Train, 1), logits(Mode::Train, 2));
    assert_eq!(logits(Mode::Evaluate, 1), logits(Mode::Evaluate, 2));
}

#[test]
fn an_input_of_another_shape_traps_with_the_operation_and_the_shapes() {
    let (mut instance, mut batch) = ready("mlp", 2, Mode::Evaluate);
    let description = instance.description().unwrap().clone();
    batch.inputs[0] = Tensor::f32(vec![0.0; 200], &[2, 1, 10, 10]);
    let error = instance.forward(batch).unwrap_err();
    let message = "`linear` cannot take f32 [2, 100] and f32 [5, 144]: inner dimensions differ".to_owned();
    assert_eq!(error, KernelError::Trap { message });
    assert_eq!(instance.forward(self::batch(&description, 2, Mode::Evaluate)).unwrap_err(), KernelError::Spent);
    let mut instance = instance.restart().unwrap();
    instance.forward(self::batch(&description, 2, Mode::Evaluate)).unwrap();
}

#[test]
fn a_batch_with_tensors_missing_is_refused_before_the_kernel_sees_it() {
    let (mut instance, batch) = ready("mlp", 2, Mode::Train);
    let mut fewer = batch.clone();
    fewer.parameters.pop();
    assert_eq!(instance.forward(fewer).unwrap_err(), KernelError::Batch { part: "parameters", expected: 4, found: 3 });
    let without = Batch { targets: None, ..batch.clone() };
    assert_eq!(instance.forward(without).unwrap_err(), KernelError::Batch { part: "targets", expected: 1, found: 0 });
    instance.forward(batch).unwrap();
}

#[test]
fn tensor_bytes_are_limited_and_given_back() {
    // The small MLP has 144 x 5 + 5 + 5 x 3 + 3 = 743 parameters; to them come 2 x 144 pixels, 2 labels, and the pixels reshaped.
    let limits = Limits { tensor_bytes: 8 << 10, ..Limits::default() };
    let (mut instance, batch) = ready_with(&kernel("mlp"), limits, 2, Mode::Evaluate);
    for _ in 0..100 {
        instance.forward(batch.clone()).unwrap(); // what a call took does not count in the next
    }
    let limits = Limits { tensor_bytes: 5 << 10, ..Limits::default() };
    let (mut instance, batch) = ready_with(&kernel("mlp"), limits, 2, Mode::Evaluate);
    let error = instance.forward(batch).unwrap_err();
    assert_eq!(error, KernelError::Limit(Limit::TensorBytes { operation: "reshape", wanted: 5284, max: 5120 }));
}

#[test]
fn dropped_tensors_count_until_the_end_of_a_training_call() {
    // Evaluating drops the hidden layer before the logits are compared; training must assume that the graph keeps it.
    let kernel = kernel("mlp");
    let fits = |mode, tensor_bytes| {
        let (mut instance, batch) = ready_with(&kernel, Limits { tensor_bytes, ..Limits::default() }, 64, mode);
        instance.forward(batch).is_ok()
    };
    let (parameters, image, hidden, logits, batch) = (743, 144, 5, 3, 64);
    let everything = 4 * (parameters + batch * (1 + 2 * image + 2 * hidden + logits + 3) + 2); // 3: classes, reshaped, equal; 2: sums
    assert!(fits(Mode::Train, everything) && !fits(Mode::Train, everything - 1));
    assert!(fits(Mode::Evaluate, everything - 1));
}

#[test]
fn time_in_operations_is_limited() {
    let limits = Limits { host_time: std::time::Duration::ZERO, ..Limits::default() };
    let (mut instance, batch) = ready_with(&kernel("mlp"), limits, 2, Mode::Evaluate);
    assert!(matches!(
        instance.forward(batch).unwrap_err(),
        KernelError::Limit(Limit::HostTime { operation: "reshape", .. })
    ));
}

#[test]
fn operations_in_an_endless_loop_are_stopped_in_time() {
    let describe = "(loop (call $drop (call $full (f32.const 0) (i32.const 2080) (i32.const 2))) (br 0)) unreachable";
    let kernel = Kernel::open(&Textual { head: FULL, describe, ..Textual::default() }.component()).unwrap();
    let time = Duration::from_millis(100);
    let limits = Limits { host_time: time, kernel_time: time, ..Limits::default() };
    let mut instance = kernel.instantiate(Scalars::default(), limits).unwrap();
    let began = Instant::now();
    let error = instance.describe(&[]).unwrap_err();
    assert!(matches!(error, KernelError::Limit(Limit::HostTime { .. } | Limit::KernelTime { .. })), "{error}");
    // Either deadline, both of which run, and 200 ms.
    assert!(began.elapsed() < 2 * time + Duration::from_millis(200), "{:?}", began.elapsed());
}

#[test]
fn handles_are_limited() {
    let describe = "(loop (drop (call $full (f32.const 0) (i32.const 2080) (i32.const 2))) (br 0)) unreachable";
    let kernel = Kernel::open(&Textual { head: FULL, describe, ..Textual::default() }.component()).unwrap();
    let limits = Limits { handles: 100, ..Limits::default() };
    let mut instance = kernel.instantiate(Scalars::default(), limits).unwrap();
    assert_eq!(instance.describe(&[]).unwrap_err(), KernelError::Limit(Limit::Handles { max: 100 }));
}

#[test]
fn a_handle_kept_past_its_call_is_void() {
    // `settings` makes a tensor and keeps its handle; `describe` drops it and then makes one under the same number.
    let settings = "(global.set $kept (call $full (f32.const 0) (i32.const 2080) (i32.const 2))) i32.const 1024";
    let shape =
        r#"(import "omnilearn:kernel/tensor@0.1.0" "[method]tensor.relu" (func $relu (param i32) (result i32)))"#;
    let head: &str = Box::leak(format!("{shape}{FULL}(global $kept (mut i32) (i32.const 0))").into_boxed_str());
    let kernel =
        Kernel::open(&Textual { head, settings, describe: "(call $relu (global.get $kept))" }.component()).unwrap();
    let mut instance = kernel.instantiate(Scalars::default(), Limits::default()).unwrap();
    let message = "the kernel used a tensor handle of an earlier call".to_owned();
    assert_eq!(instance.describe(&[]).unwrap_err(), KernelError::Trap { message });
}

#[test]
fn a_backend_that_panics_is_a_failure_of_the_device() {
    let (mut instance, batch) = ready("lenet", 2, Mode::Predict);
    instance.backend_mut().panics = true;
    let error = instance.forward(batch).unwrap_err();
    assert_eq!(error, KernelError::Device { message: "`conv2d` panicked in the backend: asked to".to_owned() });
    assert!(instance.is_spent());
}
