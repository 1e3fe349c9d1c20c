use std::path::Path;

use omnilearn_kernel_host::{OpenError, initialize};
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::{Augment, LocalSteps, Setting, SettingValue, Span};
use omnilearn_wire::partition::Partition;
use omnilearn_wire::{AssignmentId, JobId};

use super::parameters::PieceError;
use super::samples::SpanError;
use super::*;
use crate::dataset::cache::Held;

fn component(model: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../kernels/target/components/{model}.wasm"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask kernels`", path.display()))
}

fn dataset() -> Dataset {
    let cache = std::env::temp_dir().join("omnilearn-agent-tests");
    Dataset::open("fashion-mnist", &[], &cache).unwrap_or_else(|error| panic!("{error}"))
}

/// Values as they come from the hub.
fn frozen_file(values: &[f32]) -> FrozenFile {
    let mut bytes = Vec::new();
    Codec::F32.encode_into(values, &mut bytes);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    FrozenFile::new(Held { path: file.path().to_owned(), file: file.into_file() })
}

/// An offer of a kernel without settings, of which nothing is frozen.
fn offer_of(kernel: &Kernel) -> JobOffer {
    JobOffer {
        job: JobId(1),
        name: "test".to_owned(),
        kernel_digest: *kernel.digest(),
        kernel_bytes: 0,
        signatures: Vec::new(),
        settings: Vec::new(),
        dataset: "fashion-mnist".to_owned(),
        layout_digest: [0; 32],
        codec: Codec::F32,
        seed: 7,
        calibration_batches: vec![],
        batch_bounds: (1, 1024),
        manifest: None,
        augment: Augment::default(),
        partition: Partition::Shared,
        frozen: None,
    }
}

/// A model trained by one agent that is its own hub.
struct Alone {
    trainer: Trainer,
    /// All of its parameters, and those that it trains.
    split: Split,
    layout: omnilearn_wire::Layout,
    codec: Codec,
    parameters: Vec<f32>,
    buffers: Vec<f32>,
    version: Version,
}

impl Alone {
    fn new(model: &str, settings: &[(&str, i64)], codec: Codec) -> Alone {
        Alone::with_limits(model, settings, codec, Limits::default())
    }

    fn with_limits(model: &str, settings: &[(&str, i64)], codec: Codec, limits: Limits) -> Alone {
        Alone::with(model, settings, codec, limits, Augment::default())
    }

    fn with(model: &str, settings: &[(&str, i64)], codec: Codec, limits: Limits, augment: Augment) -> Alone {
        Alone::freezing(model, settings, codec, (limits, augment), &[])
    }

    /// Freezes the parameters whose names begin like one of `frozen`.
    fn freezing(
        model: &str,
        settings: &[(&str, i64)],
        codec: Codec,
        (limits, augment): (Limits, Augment),
        frozen: &[&str],
    ) -> Alone {
        let kernel = Kernel::open(&component(model)).unwrap();
        let integer =
            |&(name, value): &(&str, i64)| Setting { name: name.to_owned(), value: SettingValue::Integer(value) };
        let settings: Vec<Setting> = settings.iter().map(integer).collect();
        let description = kernel.describe(&settings).unwrap();
        let layout = description.layout().unwrap();
        let is_frozen = |name: &str| frozen.iter().any(|start| name.starts_with(start));
        let numbered = (0u32..).zip(layout.parameters());
        let numbers: Vec<u32> = numbered.filter(|(_, tensor)| is_frozen(&tensor.name)).map(|pair| pair.0).collect();
        let split = Split::new(layout.clone(), &numbers).unwrap();
        let (parameters, buffers) = initialize(&description, 7);
        let (parameters, frozen) = split.part(parameters);
        let (layout_digest, offered) = (layout.digest(), split.offered([0; 32]));
        let offer = JobOffer { settings, codec, augment, layout_digest, frozen: offered, ..offer_of(&kernel) };
        let files = JobFiles { dataset: dataset(), frozen: (!frozen.is_empty()).then(|| frozen_file(&frozen)) };
        let trainer = Trainer::new(&offer, &kernel, files, Engine::default(), limits).unwrap();
        let layout = split.trained().clone();
        let mut alone = Alone { trainer, split, layout, codec, parameters, buffers, version: Version(0) };
        alone.ship(1 << 20);
        alone
    }

    /// Sends the parameters in pieces of this length.
    fn ship(&mut self, piece: usize) {
        let mut stream = Vec::new();
        self.codec.encode_into(&self.parameters, &mut stream);
        Codec::F32.encode_into(&self.buffers, &mut stream);
        for (index, bytes) in stream.chunks(piece).enumerate() {
            let (offset, total) = ((index * piece) as u64, stream.len() as u64);
            self.trainer.take_parameters(ParameterPiece { version: self.version, offset, total, bytes }).unwrap();
        }
    }

    fn work(&self, spans: &[(u32, u32)]) -> Train {
        let spans = spans.iter().map(|&(start, end)| Span { epoch: 0, start, end }).collect();
        Train {
            job: JobId(1),
            assignment: AssignmentId(1),
            round: 0,
            version: self.version,
            spans,
            seed: 3,
            computation: Computation::Gradient,
        }
    }

    /// Gradients, new shared buffers and the report.
    fn step(&mut self, spans: &[(u32, u32)]) -> (Vec<f32>, Vec<f32>, StepReport) {
        self.compute(spans, Computation::Gradient)
    }

    fn compute(&mut self, spans: &[(u32, u32)], computation: Computation) -> (Vec<f32>, Vec<f32>, StepReport) {
        let mut stream = Vec::new();
        let work = Train { computation, ..self.work(spans) };
        let report = self.trainer.train(&work, &mut |bytes| {
            assert!(bytes.len() <= CHUNK_BYTES);
            stream.extend_from_slice(bytes);
            ControlFlow::Continue(())
        });
        let report = report.unwrap();
        assert_eq!(stream.len() as u64, self.trainer.stream_bytes());
        let (gradient, shared) = stream.split_at(self.layout.parameter_bytes(self.codec) as usize);
        let mut gradients = vec![0.0; self.layout.parameter_elements()];
        self.codec.decode_into(gradient, &mut gradients).unwrap();
        let mut buffers = vec![0.0; self.layout.buffer_elements()];
        Codec::F32.decode_into(shared, &mut buffers).unwrap();
        (gradients, buffers, report)
    }

    fn descend(&mut self, gradients: &[f32], buffers: Vec<f32>, rate: f32) {
        self.parameters.iter_mut().zip(gradients).for_each(|(parameter, gradient)| *parameter -= rate * gradient);
        self.buffers = buffers;
        self.version = self.version.next();
        self.ship(1 << 20);
    }

    fn error(&mut self, spans: &[(u32, u32)]) -> ComputeError {
        let work = self.work(spans);
        self.trainer.train(&work, &mut |_| ControlFlow::Continue(())).unwrap_err()
    }
}

fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = square(&mut a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    difference / square(&mut b.iter().map(|&b| f64::from(b)))
}

#[test]
fn lenet_learns_fashion_mnist() {
    let mut alone = Alone::new("lenet", &[], Codec::F32);
    let mut losses = Vec::new();
    for step in 0..120 {
        let (gradients, buffers, report) = alone.step(&[(step * 64, step * 64 + 64)]);
        alone.descend(&gradients, buffers, 0.1);
        losses.push(report.loss);
    }
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    assert!((2.0..2.6).contains(&losses[0]), "{}", losses[0]);
    assert!(mean(&losses[100..]) < 1.2, "{:?}", &losses[100..]);
    let work = Evaluate {
        job: JobId(1),
        assignment: AssignmentId(2),
        version: alone.version,
        start: 100,
        end: 1300,
        batch: 500,
    };
    let evaluation = alone.trainer.evaluate(&work).unwrap();
    assert_eq!(evaluation.samples, 1200);
    assert!(evaluation.loss_sum / 1200.0 < 1.2, "{evaluation:?}");
    assert!(evaluation.metric_sums[0] > 0.55 * 1200.0, "{evaluation:?}");
}

#[test]
fn unequal_batches_weighted_give_the_gradient_of_their_union() {
    for model in ["mlp", "lenet"] {
        let mut alone = Alone::new(model, &[], Codec::F32);
        let (whole, _, _) = alone.step(&[(100, 164)]);
        let mut sum = vec![0.0f64; whole.len()];
        let mut start = 100;
        for batch in [7, 16, 41] {
            let (part, _, _) = alone.step(&[(start, start + batch)]);
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(part) * f64::from(batch) / 64.0);
            start += batch;
        }
        let sum: Vec<f32> = sum.into_iter().map(|value| value as f32).collect();
        let difference = relative_difference(&sum, &whole);
        assert!(difference < 1e-5, "{model}: {difference}");
    }
}

#[test]
fn spans_may_be_split_without_changing_a_bit() {
    let mut alone = Alone::new("lenet", &[], Codec::F32);
    let whole = alone.step(&[(0, 30)]).0;
    assert_eq!(alone.step(&[(0, 11), (11, 29), (29, 30)]).0, whole);
}

#[test]
fn parameters_arrive_in_pieces_of_any_size() {
    for (codec, model) in [(Codec::F32, "lenet"), (Codec::Bf16, "resnet")] {
        let settings: &[(&str, i64)] = if model == "resnet" { &[("width", 4)] } else { &[] };
        let mut alone = Alone::new(model, settings, codec);
        let whole = alone.step(&[(0, 4)]).0;
        for piece in [1, 3, 4099] {
            alone.version = alone.version.next();
            alone.ship(piece);
            assert_eq!(alone.step(&[(0, 4)]).0, whole, "pieces of {piece}");
        }
    }
}

#[test]
fn shared_buffers_travel_and_come_back_updated() {
    let mut alone = Alone::new("resnet", &[("width", 4)], Codec::F32);
    assert!(!alone.buffers.is_empty());
    let (gradients, buffers, _) = alone.step(&[(0, 8)]);
    assert_ne!(buffers, alone.buffers);
    let work = |version| Evaluate { job: JobId(1), assignment: AssignmentId(2), version, start: 0, end: 10, batch: 10 };
    let before = alone.trainer.evaluate(&work(alone.version)).unwrap();
    alone.descend(&vec![0.0; gradients.len()], buffers, 0.0);
    let after = alone.trainer.evaluate(&work(alone.version)).unwrap();
    assert_ne!(before.loss_sum, after.loss_sum);
}

#[test]
fn first_steps_and_new_batch_sizes_are_marked_as_warm_up() {
    let mut alone = Alone::new("mlp", &[], Codec::F32);
    let sizes = [8, 8, 8, 9, 9, 8];
    let marks = sizes.map(|size| alone.step(&[(0, size)]).2.timings.unwrap().warm_up);
    assert_eq!(marks, [true, true, false, true, false, false]);
    let timings = alone.step(&[(0, 8)]).2.timings.unwrap();
    assert!(timings.load_s > 0.0 && timings.compute_s > 0.0 && timings.encode_s > 0.0);
}

#[test]
fn loss_or_gradient_that_is_not_finite_fails_the_step_only() {
    let mut alone = Alone::new("lenet", &[], Codec::F32);
    let good = alone.parameters.clone();
    alone.parameters[3] = f32::NAN;
    alone.version = alone.version.next();
    alone.ship(1 << 20);
    let error = alone.error(&[(0, 8)]);
    assert_eq!(error.failure, Failure::NotFinite, "{error}");
    alone.parameters = good;
    alone.version = alone.version.next();
    alone.ship(1 << 20);
    assert!(alone.step(&[(0, 8)]).2.loss.is_finite());
}

#[test]
fn batch_beyond_the_memory_limit_fails_and_a_smaller_one_still_works() {
    let limits = Limits { tensor_bytes: 3 << 20, ..Limits::default() };
    let mut alone = Alone::with_limits("lenet", &[], Codec::F32, limits);
    let error = alone.error(&[(0, 1000)]);
    assert_eq!(error.failure, Failure::Memory, "{error}");
    assert!(alone.step(&[(0, 4)]).2.loss.is_finite());
}

#[test]
fn work_for_other_parameters_or_samples_is_refused() {
    let mut alone = Alone::new("mlp", &[], Codec::F32);
    assert!(alone.error(&[(59_990, 60_001)]).message.contains("60000"));
    assert!(alone.error(&[]).message.contains("0 spans"));
    alone.version = Version(9);
    assert_eq!(alone.error(&[(0, 1)]).message, "needs parameters of version 9, has version 0");
}

#[test]
fn pieces_out_of_order_are_refused() {
    let alone = Alone::new("mlp", &[], Codec::F32);
    let mut stream = ParameterStream::new(alone.layout.clone(), Codec::F32);
    let (engine, total) = (Engine::default(), stream.bytes());
    let mut take = |version, offset, total, bytes: &[u8]| {
        stream
            .take(ParameterPiece { version: Version(version), offset, total, bytes }, &engine)
            .map(|complete| complete.is_some())
    };
    assert!(matches!(take(1, 0, total + 1, &[0; 4]), Err(PieceError::Length { .. })));
    assert_eq!(take(1, 0, total, &[0; 4]), Ok(false));
    assert!(matches!(take(1, 8, total, &[0; 4]), Err(PieceError::Order { .. })));
    assert!(matches!(take(2, 4, total, &[0; 4]), Err(PieceError::Order { .. })));
    assert!(matches!(take(1, 4, total, &vec![0; total as usize]), Err(PieceError::TooLong { .. })));
    assert_eq!(take(2, 0, total, &vec![0; total as usize]), Ok(true));
}

#[test]
fn spans_name_samples_of_the_permutation() {
    let mut epochs = Epochs::new(5, 100, None);
    let order = omnilearn_wire::sampling::permutation(5, 2, 100);
    let span = |epoch, start, end| Span { epoch, start, end };
    assert_eq!(epochs.samples(&[span(2, 10, 12), span(2, 0, 1)]).unwrap(), [order[10], order[11], order[0]]);
    for epoch in 0..4 {
        epochs.samples(&[span(epoch, 0, 100)]).unwrap();
    }
    assert_eq!(epochs.samples(&[span(0, 0, 101)]), Err(SpanError::Range { start: 0, end: 101, samples: 100 }));
    assert!(matches!(epochs.samples(&[span(0, 7, 7)]), Err(SpanError::Count { .. })));
}

#[test]
fn parts_follow_one_another_in_an_epoch() {
    let members = Partition::Even { parts: 3 }.members(5, 100, &[]).unwrap();
    let mut epochs = Epochs::new(5, 100, Some(members.clone()));
    let second = members[0].len() as u32;
    let span = Span { epoch: 7, start: second, end: second + members[1].len() as u32 };
    let mut samples = epochs.samples(&[span]).unwrap();
    let mut expected = members[1].clone();
    samples.sort_unstable();
    expected.sort_unstable();
    assert_eq!(samples, expected);
}

#[test]
fn augmented_steps_repeat_to_the_bit_and_evaluation_is_untouched() {
    let with = |augment| Alone::with("lenet", &[], Codec::F32, Limits::default(), augment);
    let (mut plain, mut first) = (with(Augment::default()), with(Augment { flip: true, crop_padding: 3 }));
    let mut second = with(Augment { flip: true, crop_padding: 3 });
    let gradient = first.step(&[(0, 16), (32, 40)]).0;
    assert_eq!(second.step(&[(0, 16), (32, 40)]).0, gradient, "whoever computes it");
    assert_ne!(plain.step(&[(0, 16), (32, 40)]).0, gradient);
    let work =
        Evaluate { job: JobId(1), assignment: AssignmentId(2), version: Version(0), start: 0, end: 100, batch: 50 };
    assert_eq!(first.trainer.evaluate(&work).unwrap(), plain.trainer.evaluate(&work).unwrap());
}

#[test]
fn kernel_that_is_no_component_is_refused() {
    assert_eq!(Kernel::open(b"#!/bin/sh").unwrap_err(), OpenError::NotComponent);
}

#[test]
fn gradient_that_nobody_wants_is_not_encoded_to_the_end() {
    let mut alone = Alone::new("resnet", &[("width", 64)], Codec::F32);
    let work = alone.work(&[(0, 1)]);
    let mut pieces = 0;
    alone
        .trainer
        .train(&work, &mut |_| {
            pieces += 1;
            ControlFlow::Break(())
        })
        .unwrap();
    assert_eq!(pieces, 1);
}

#[test]
fn a_time_is_filled_with_the_first_samples_and_their_mean_gradient() {
    let mut alone = Alone::new("lenet", &[], Codec::F32);
    let none = Computation::Timed { compute_s: 1e-6 };
    let (gradient, _, report) = alone.compute(&[(0, 40)], none);
    assert_eq!(report.samples, 4, "the first piece is always computed");
    assert_eq!(alone.step(&[(0, 4)]).0, gradient);
    let plenty = Computation::Timed { compute_s: 1e6 };
    alone.trainer.sample_s = Some(1e5 / 8.0); // pieces of 8
    let (gradient, _, report) = alone.compute(&[(0, 30), (50, 60)], plenty);
    let (whole, _, whole_report) = alone.step(&[(0, 30), (50, 60)]);
    assert_eq!(report.samples, 40);
    let difference = relative_difference(&gradient, &whole);
    assert!(difference < 1e-5, "{difference}");
    assert!((report.loss - whole_report.loss).abs() < 1e-5);
    assert_eq!(report.metric_sums, whole_report.metric_sums);
}

/// Where plain steps over these batches end.
fn descended(alone: &mut Alone, batches: &[(u32, u32)], rate: f32) -> Vec<f32> {
    for &batch in batches {
        let (gradient, buffers, _) = alone.step(&[batch]);
        alone.descend(&gradient, buffers, rate);
    }
    alone.parameters.clone()
}

#[test]
fn local_steps_push_what_plain_steps_over_the_same_batches_change() {
    let mut alone = Alone::new("resnet", &[("width", 4)], Codec::F32);
    let start = alone.parameters.clone();
    let local = LocalSteps { steps: 3, learning_rate: 0.05, momentum: 0.0, elastic: None };
    let (change, buffers, report) = alone.compute(&[(0, 24)], Computation::Local(local));
    assert_eq!(report.samples, 24);
    let end = descended(&mut alone, &[(0, 8), (8, 16), (16, 24)], 0.05);
    let expected: Vec<f32> = start.iter().zip(&end).map(|(start, end)| start - end).collect();
    let difference = relative_difference(&change, &expected);
    assert!(difference < 1e-4, "{difference}");
    let difference = relative_difference(&buffers, &alone.buffers);
    assert!(difference < 1e-4, "running statistics go on from step to step: {difference}");
}

#[test]
fn an_agent_keeps_its_own_parameters_and_moves_half_way_to_the_hubs() {
    let mut alone = Alone::new("lenet", &[], Codec::F32);
    let hub = alone.parameters.clone();
    let local = LocalSteps { steps: 2, learning_rate: 0.1, momentum: 0.0, elastic: Some(0.5) };
    let pushes = [(0, 16), (16, 32)].map(|span| alone.compute(&[span], Computation::Local(local)).0);
    // The same with plain steps from where the agent should be.
    let end = descended(&mut alone, &[(0, 8), (8, 16)], 0.1);
    let half_way: Vec<f32> = end.iter().zip(&hub).map(|(end, hub)| 0.5 * (end + hub)).collect();
    alone.parameters = half_way;
    alone.version = alone.version.next();
    alone.ship(1 << 20);
    let second_end = descended(&mut alone, &[(16, 24), (24, 32)], 0.1);
    for (push, end) in pushes.iter().zip([end, second_end]) {
        let expected: Vec<f32> = hub.iter().zip(&end).map(|(hub, end)| 0.5 * (hub - end)).collect();
        let difference = relative_difference(push, &expected);
        assert!(difference < 1e-4, "{difference}");
    }
}

#[test]
fn what_is_trained_has_the_gradient_that_it_has_when_nothing_is_frozen() {
    let settings: &[(&str, i64)] = &[("width", 4)];
    for (model, settings, frozen) in [
        ("lenet", &[][..], &["conv"][..]),   // the first layers, as usual
        ("lenet", &[], &["fc3", "conv2.w"]), // a gradient passes through what is frozen
        ("resnet", settings, &["conv1", "bn1", "layer1", "layer3"]),
    ] {
        let mut whole = Alone::new(model, settings, Codec::F32);
        let rest = (Limits::default(), Augment::default());
        let mut part = Alone::freezing(model, settings, Codec::F32, rest, frozen);
        assert!(part.layout.parameter_elements() < whole.layout.parameter_elements());
        assert_eq!(part.trainer.stream_bytes(), part.layout.stream_bytes(Codec::F32));
        let (inputs, targets) = part.trainer.load(part.trainer.dataset.train(), &[0, 1]).unwrap();
        let gradients = part.trainer.differentiate(inputs, targets, 1).unwrap().gradients;
        assert_eq!(gradients.len(), part.layout.parameters().len(), "none is computed for a frozen parameter");

        let (gradients, buffers, report) = whole.step(&[(0, 24)]);
        let (found, found_buffers, found_report) = part.step(&[(0, 24)]);
        let expected = part.split.part(gradients).0;
        let difference = relative_difference(&found, &expected);
        assert!(difference < 1e-6, "{model} without {frozen:?}: {difference}");
        assert!((found_report.loss - report.loss).abs() < 1e-6);
        assert_eq!(found_buffers, buffers, "running statistics follow the data, whatever is frozen");

        let work =
            Evaluate { job: JobId(1), assignment: AssignmentId(2), version: Version(0), start: 0, end: 64, batch: 32 };
        assert_eq!(part.trainer.evaluate(&work).unwrap(), whole.trainer.evaluate(&work).unwrap());
    }
}

#[test]
fn local_steps_and_a_coarse_codec_leave_frozen_parameters_alone() {
    let rest = || (Limits::default(), Augment::default());
    let mut coarse = Alone::freezing("lenet", &[], Codec::Bf16, rest(), &["conv"]);
    let mut alone = Alone::freezing("lenet", &[], Codec::F32, rest(), &["conv"]);
    let frozen = |alone: &Alone| alone.trainer.frozen.iter().map(Tensor::to_vec).collect::<Vec<_>>();
    let before = frozen(&alone);
    assert_eq!(frozen(&coarse), before, "their values are exact in any codec");
    coarse.step(&[(0, 8)]);
    let start = alone.parameters.clone();
    let local = LocalSteps { steps: 2, learning_rate: 0.05, momentum: 0.0, elastic: None };
    let change = alone.compute(&[(0, 16)], Computation::Local(local)).0;
    let end = descended(&mut alone, &[(0, 8), (8, 16)], 0.05);
    let expected: Vec<f32> = start.iter().zip(&end).map(|(start, end)| start - end).collect();
    let difference = relative_difference(&change, &expected);
    assert!(difference < 1e-4, "{difference}");
    assert_eq!(frozen(&alone), before);
}

#[test]
fn frozen_values_that_are_missing_or_too_few_decline_the_job() {
    let kernel = Kernel::open(&component("mlp")).unwrap();
    let layout = kernel.describe(&[]).unwrap().layout().unwrap();
    let split = Split::new(layout.clone(), &[0]).unwrap();
    let offer = JobOffer { frozen: split.offered([0; 32]), layout_digest: layout.digest(), ..offer_of(&kernel) };
    let declined = |offer: &JobOffer, frozen| {
        let files = JobFiles { dataset: dataset(), frozen };
        Trainer::new(offer, &kernel, files, Engine::default(), Limits::default()).err().unwrap()
    };
    assert_eq!(declined(&offer, None), "the values of the frozen parameters are missing");
    assert!(declined(&offer, Some(frozen_file(&[1.0]))).starts_with("cannot read frozen parameters from "));
    let wrong = |parameters| {
        let frozen = offer.frozen.clone().map(|frozen| omnilearn_wire::frozen::Frozen { parameters, ..frozen });
        JobOffer { frozen, ..offer.clone() }
    };
    let reason = declined(&wrong(vec![4]), None);
    assert_eq!(reason, "the job's frozen parameters: 4 is not the number of another one of the 4 parameters");
    assert!(declined(&wrong(vec![0, 1, 2, 3]), None).ends_with("nothing is left to train"));
}
