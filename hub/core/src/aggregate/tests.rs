use omnilearn_wire::sampling::SplitMix64;
use proptest::prelude::*;

use super::*;

fn encode(codec: Codec, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec.encode_into(values, &mut bytes);
    bytes
}

fn draw(generator: &mut SplitMix64, count: usize) -> Vec<f32> {
    (0..count).map(|_| (generator.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

fn read(accumulator: &Accumulator, weight_sum: u32, elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    accumulator.mean(weight_sum).read(0, &mut out);
    out
}

/// Mean gradient of ½(w·x − y)² over the samples, for a linear model.
fn linear_gradient(weights: &[f64], samples: &[(Vec<f64>, f64)]) -> Vec<f64> {
    let mut gradient = vec![0.0; weights.len()];
    for (inputs, target) in samples {
        let error = weights.iter().zip(inputs).map(|(weight, input)| weight * input).sum::<f64>() - target;
        for (gradient, input) in gradient.iter_mut().zip(inputs) {
            *gradient += error * input / samples.len() as f64;
        }
    }
    gradient
}

#[test]
fn batches_of_7_16_and_41_give_the_gradient_of_all_64_samples() {
    let mut generator = SplitMix64::new(3);
    let mut number = || generator.next_u64() as f64 / u64::MAX as f64 - 0.5;
    let samples: Vec<(Vec<f64>, f64)> = (0..64).map(|_| ((0..5).map(|_| number()).collect(), number())).collect();
    let weights: Vec<f64> = (0..5).map(|_| number()).collect();
    let expected = linear_gradient(&weights, &samples);
    // Through the accumulator's own rounding and division, in f64, where the wire would have rounded to f32.
    let scale = exact_scale(64.0);
    for (index, expected) in expected.iter().enumerate() {
        let mut sum = [0i64];
        for batch in [&samples[..7], &samples[7..23], &samples[23..]] {
            let gradient = linear_gradient(&weights, batch)[index];
            add_exact(&mut sum, std::iter::once(gradient), batch.len() as f64 * scale, true);
        }
        let accumulator = Accumulator { sums: Sums::Exact(sum.to_vec()), ..Accumulator::new(&[1], 64) };
        let found = accumulator.mean(64).element(0);
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }
}

#[test]
fn the_order_of_arrival_does_not_show() {
    for exact_bytes_max in [usize::MAX, 0] {
        let mut generator = SplitMix64::new(5);
        let updates: Vec<(Vec<u8>, u32)> =
            [7, 16, 41, 64].iter().map(|&weight| (encode(Codec::F32, &draw(&mut generator, 500)), weight)).collect();
        let sum = |order: &[usize]| {
            let mut accumulator = Accumulator::with_limit(&[200, 300], 128, exact_bytes_max);
            for &index in order {
                let (bytes, weight) = &updates[index];
                accumulator.add_encoded(0, Codec::F32, bytes, *weight).unwrap();
            }
            read(&accumulator, 128, 500)
        };
        assert_eq!(sum(&[0, 1, 2, 3]), sum(&[3, 1, 0, 2]));
    }
}

#[test]
fn pieces_add_up_to_the_same_as_the_whole_in_both_codecs() {
    for (codec, exact_bytes_max) in
        [(Codec::F32, usize::MAX), (Codec::Bf16, usize::MAX), (Codec::F32, 0), (Codec::Bf16, 0)]
    {
        let values = draw(&mut SplitMix64::new(8), 1000);
        let bytes = encode(codec, &values);
        let tensors = [1, 299, 700];
        let mut whole = Accumulator::with_limit(&tensors, 50, exact_bytes_max);
        whole.add_encoded(0, codec, &bytes, 50).unwrap();
        let mut pieces = Accumulator::with_limit(&tensors, 50, exact_bytes_max);
        let mut start = 0;
        for count in [1, 250, 49, 1, 699] {
            let size = codec.element_bytes();
            pieces.add_encoded(start, codec, &bytes[start * size..(start + count) * size], 50).unwrap();
            start += count;
        }
        let found = read(&pieces, 50, 1000);
        assert_eq!(found, read(&whole, 50, 1000));
        let tolerance = if codec == Codec::Bf16 { 0.005 } else { 2e-8 };
        for (found, expected) in found.iter().zip(&values) {
            assert!((found - expected).abs() <= tolerance, "{found} is not {expected}");
        }
    }
}

#[test]
fn a_value_that_is_not_finite_leaves_the_sums_as_they_were() {
    for exact_bytes_max in [usize::MAX, 0] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut accumulator = Accumulator::with_limit(&[3, 3], 8, exact_bytes_max);
            accumulator.add_values(0, &[1.0; 6], 4).unwrap();
            let before = read(&accumulator, 4, 6);
            let result = accumulator.add_values(0, &[1.0, 1.0, 1.0, 1.0, bad, 1.0], 4);
            assert_eq!(result, Err(AddError::NotFinite { index: 4 }));
            assert_eq!(accumulator.add_values(1, &[-300_000.0], 4), Err(AddError::TooLarge { index: 1 }));
            assert_eq!(read(&accumulator, 4, 6), before);
        }
    }
}

#[test]
fn large_gradients_stay_exact_on_the_slow_path() {
    let mut accumulator = Accumulator::new(&[2], 3);
    accumulator.add_values(0, &[200_000.5, -1e-9], 1).unwrap();
    accumulator.add_values(0, &[-100_000.25, 1e-9], 2).unwrap();
    assert_eq!(accumulator.mean(3).element(0), 0.0);
    assert!((accumulator.mean(3).element(1) - 1e-9 / 3.0).abs() < 1e-13);
}

#[test]
fn a_compact_scale_is_raised_by_what_did_not_fit_and_then_follows_the_gradient() {
    let mut accumulator = Accumulator::with_limit(&[2, 1], 4, 0);
    assert_eq!(accumulator.add_values(0, &[0.5, 100.0, 0.5], 4), Err(AddError::Scale { index: 1 }));
    assert!(!accumulator.is_dirty(), "nothing was added");
    accumulator.clear();
    accumulator.add_values(0, &[0.5, 100.0, 0.5], 4).unwrap();
    assert_eq!(read(&accumulator, 4, 3), [0.5, 100.0, 0.5]);
    accumulator.clear();
    accumulator.add_values(0, &[1e-6, 1e-6, 1e-6], 4).unwrap();
    accumulator.clear();
    accumulator.add_values(0, &[1.234_567e-6, 1e-6, 1e-6], 4).unwrap();
    let found = read(&accumulator, 4, 3)[0];
    assert!((found - 1.234_567e-6).abs() < 1e-13, "{found}");
}

proptest! {
    #[test]
    fn no_weights_up_to_the_batch_overflow_a_sum(
        magnitude in prop_oneof![Just(EXACT_BOUND), Just(8.0f32), Just(1.0f32), Just(63.0f32)],
        batches in prop::collection::vec(1u32..2000, 1..20),
        compact in any::<bool>(),
    ) {
        prop_assume!(!compact || magnitude <= COMPACT_BOUND_FIRST);
        let total = batches.iter().sum();
        let mut accumulator = Accumulator::with_limit(&[2], total, if compact { 0 } else { usize::MAX });
        for &batch in &batches {
            accumulator.add_values(0, &[magnitude, -magnitude], batch).unwrap();
        }
        let found = read(&accumulator, total, 2);
        prop_assert!((found[0] - magnitude).abs() <= magnitude * 1e-6 && found[1] == -found[0]);
    }
}
