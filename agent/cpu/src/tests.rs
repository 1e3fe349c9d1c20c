//! The operators against plain loops in `f64`, for values and gradients.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::conv::{Wanted, channels_last, planes};
use super::layout::Layout;
use super::linear::LinearShape;
use super::norm::{NormShape, Operands};
use super::shape::{ConvOptions, ConvShape, PoolOptions, PoolShape};
use super::*;

/// Sums of up to some hundred products of numbers below 1 in `f32`.
const TOLERANCE: f64 = 2e-5;

/// Numbers in -1 to 1 (SplitMix64).
fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..count).map(|_| (next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0).collect()
}

/// `[batch, pixels, channels]` from `[batch, channels, pixels]`.
fn to_channels_last(planes: &[f32], channels: usize, pixels: usize) -> Vec<f32> {
    let sample = |planes: &[f32]| -> Vec<f32> {
        (0..pixels * channels).map(|index| planes[index % channels * pixels + index / channels]).collect()
    };
    planes.chunks(channels * pixels).flat_map(sample).collect()
}

fn to_planes(last: &[f32], channels: usize, pixels: usize) -> Vec<f32> {
    to_channels_last(last, pixels, channels)
}

fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0f64, |scale, value| scale.max(value.abs()));
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(found) - expected).abs() <= TOLERANCE * scale,
            "{what}[{index}]: {found}, expected {expected}"
        );
    }
}

/// Calls `visit(output, input, weight)` for each product of a convolution.
fn products(shape: &ConvShape, mut visit: impl FnMut(usize, usize, usize)) {
    let [kernel_height, kernel_width] = shape.kernel;
    for sample in 0..shape.batch {
        for output in 0..shape.out_channels {
            let group = output / shape.group_out();
            for row in 0..shape.out_height {
                for column in 0..shape.out_width {
                    for input in 0..shape.group_in() {
                        for y in 0..kernel_height {
                            for x in 0..kernel_width {
                                let in_row =
                                    (row * shape.stride[0] + y * shape.dilation[0]).wrapping_sub(shape.padding[0]);
                                let in_column =
                                    (column * shape.stride[1] + x * shape.dilation[1]).wrapping_sub(shape.padding[1]);
                                if in_row < shape.height && in_column < shape.width {
                                    let channel = group * shape.group_in() + input;
                                    visit(
                                        ((sample * shape.out_channels + output) * shape.out_height + row)
                                            * shape.out_width
                                            + column,
                                        ((sample * shape.in_channels + channel) * shape.height + in_row) * shape.width
                                            + in_column,
                                        ((output * shape.group_in() + input) * kernel_height + y) * kernel_width + x,
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn check_conv(shape: &ConvShape, seed: u64) {
    let x = random(shape.batch * shape.in_elements(), seed);
    let weight = random(shape.out_channels * shape.taps(), seed ^ 1);
    let bias = random(shape.out_channels, seed ^ 2);
    let gradient = random(shape.batch * shape.out_elements(), seed ^ 3);

    let mut out: Vec<f64> =
        (0..gradient.len()).map(|index| f64::from(bias[index / shape.out_pixels() % shape.out_channels])).collect();
    let mut x_gradient = vec![0.0f64; x.len()];
    let mut weight_gradient = vec![0.0f64; weight.len()];
    products(shape, |output, input, tap| {
        out[output] += f64::from(x[input]) * f64::from(weight[tap]);
        x_gradient[input] += f64::from(gradient[output]) * f64::from(weight[tap]);
        weight_gradient[tap] += f64::from(gradient[output]) * f64::from(x[input]);
    });
    let mut bias_gradient = vec![0.0f64; bias.len()];
    for (index, &gradient) in gradient.iter().enumerate() {
        bias_gradient[index / shape.out_pixels() % shape.out_channels] += f64::from(gradient);
    }

    let wanted = Wanted { x: true, weight: true, bias: true };
    assert_close(&planes::forward(shape, &x, &weight, Some(&bias), Activation::None), &out, "output");
    let found = planes::backward(shape, &x, &weight, &gradient, wanted);
    assert_close(&found.x.unwrap(), &x_gradient, "input gradient");
    assert_close(&found.weight.unwrap(), &weight_gradient, "weight gradient");
    assert_close(&found.bias.unwrap(), &bias_gradient, "bias gradient");

    if shape.groups > 1 && !shape.is_depthwise() {
        return;
    }
    let (inputs, outputs) = (shape.in_channels, shape.out_channels);
    let x = to_channels_last(&x, inputs, shape.in_pixels());
    let gradient = to_channels_last(&gradient, outputs, shape.out_pixels());
    let found = channels_last::forward(shape, &x, &weight, Some(&bias), Activation::None);
    assert_close(&to_planes(&found, outputs, shape.out_pixels()), &out, "output, channels last");
    let activated = channels_last::forward(shape, &x, &weight, Some(&bias), Activation::Relu);
    assert!(activated.iter().zip(found.iter()).all(|(activated, found)| *activated == found.max(0.0)));
    let found = channels_last::backward(shape, &x, &weight, &gradient, wanted);
    let found_x = to_planes(&found.x.unwrap(), inputs, shape.in_pixels());
    assert_close(&found_x, &x_gradient, "input gradient, channels last");
    assert_close(&found.weight.unwrap(), &weight_gradient, "weight gradient, channels last");
    assert_close(&found.bias.unwrap(), &bias_gradient, "bias gradient, channels last");
    // Each alone, too: they are computed together where both are wanted.
    for wanted in [Wanted { x: false, ..wanted }, Wanted { weight: false, ..wanted }] {
        let found = channels_last::backward(shape, &x, &weight, &gradient, wanted);
        assert_eq!((found.x.is_some(), found.weight.is_some()), (wanted.x, wanted.weight));
        if let Some(found) = found.x {
            assert_close(&to_planes(&found, inputs, shape.in_pixels()), &x_gradient, "input gradient alone");
        }
        if let Some(found) = found.weight {
            assert_close(&found, &weight_gradient, "weight gradient alone");
        }
    }
}

prop_compose! {
    fn conv_shape()(
        batch in 1usize..4,
        channels in prop_oneof![
            (1usize..3, 1usize..5, 1usize..10),
            // What vectors and register tiles divide, and what they don't.
            (Just(1usize), prop_oneof![Just(16usize), Just(32), 1usize..40], prop_oneof![Just(16usize), Just(48), 1usize..70]),
            (1usize..40, Just(1usize), Just(1usize)),
        ],
        size in (1usize..14, 1usize..24),
        kernel in (1usize..6, 1usize..6),
        stride in (1usize..4, 1usize..4),
        padding in (0usize..4, 0usize..4),
        dilation in (1usize..3, 1usize..3),
        usual in prop_oneof![Just(None), Just(Some(1usize)), Just(Some(3))],
    ) -> Option<ConvShape> {
        let (groups, group_in, group_out) = channels;
        // Most cases have windows of 1 x 1 or 3 x 3 with stride 1, which take other ways.
        let (stride, kernel, dilation) = match usual {
            Some(size) => ([1, 1], (size, size), [1, 1]),
            None => ([stride.0, stride.1], kernel, [dilation.0, dilation.1]),
        };
        let options = ConvOptions { stride, padding: [padding.0, padding.1], dilation, groups };
        let x = [batch, groups * group_in, size.0, size.1];
        ConvShape::new(&x, &[groups * group_out, group_in, kernel.0, kernel.1], options).ok()
    }
}

proptest! {
    // 256 cases, or as many as the variable `PROPTEST_CASES` says.
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn convolution_equals_its_definition(shape in conv_shape(), seed in any::<u64>()) {
        if let Some(shape) = shape {
            check_conv(&shape, seed);
        }
    }

    #[test]
    fn max_pooling_equals_its_definition(
        size in (1usize..5, 1usize..4, 1usize..14, 1usize..40),
        kernel in (1usize..4, 1usize..4),
        stride in (1usize..4, 1usize..4),
        padding in (0usize..2, 0usize..2),
        halving in any::<bool>(),
        ties in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let options = if halving {
            PoolOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] }
        } else {
            PoolOptions { kernel: [kernel.0, kernel.1], stride: [stride.0, stride.1], padding: [padding.0, padding.1] }
        };
        if let Ok(shape) = PoolShape::new(&[size.0, size.1, size.2, size.3], options) {
            check_pool(&shape, ties, seed);
        }
    }

    #[test]
    fn batch_norm_equals_its_definition(batch in 2usize..6, channels in 1usize..12, pixels in 4usize..70, seed in any::<u64>()) {
        for layout in [Layout::Planes, Layout::ChannelsLast] {
            check_norm(NormShape { batch, channels, pixels, layout }, seed);
        }
    }

    #[test]
    fn layer_norm_equals_its_definition(rows in 1usize..40, features in 2usize..70, seed in any::<u64>()) {
        check_layer_norm(rows, features, seed);
    }

    #[test]
    fn linear_equals_its_definition(batch in 1usize..40, inputs in 1usize..300, outputs in 1usize..70, seed in any::<u64>()) {
        check_linear(LinearShape { batch, inputs, outputs }, seed);
    }
}

#[test]
fn convolutions_of_the_known_models_equal_their_definition() {
    let shape = |x: [usize; 4], weight: [usize; 4], stride, padding| {
        let options = ConvOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 };
        ConvShape::new(&x, &weight, options).unwrap()
    };
    let shapes = [
        shape([9, 1, 28, 28], [6, 1, 5, 5], 1, 2),
        shape([9, 6, 14, 14], [16, 6, 5, 5], 1, 0),
        shape([2, 16, 32, 32], [16, 16, 3, 3], 1, 1),
        shape([3, 16, 9, 9], [24, 16, 3, 3], 2, 1),
        shape([5, 40, 4, 4], [40, 40, 3, 3], 1, 1),
        shape([5, 16, 8, 8], [32, 16, 1, 1], 2, 0),
        shape([5, 64, 8, 8], [64, 64, 3, 3], 1, 1),
        shape([3, 256, 4, 4], [256, 256, 3, 3], 1, 1),
        shape([9, 32, 2, 2], [64, 32, 3, 3], 1, 1),
        shape([2, 3, 16, 16], [64, 3, 3, 3], 1, 1),
        shape([30, 64, 7, 7], [64, 64, 3, 3], 1, 1),
        shape([4, 300, 3, 3], [16, 300, 1, 1], 1, 0),
    ];
    for shape in shapes {
        check_conv(&shape, 11);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads_but_for_rounding() {
    let shape = |x: [usize; 4], weight: [usize; 4], padding| {
        let options = ConvOptions { stride: [1; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 };
        ConvShape::new(&x, &weight, options).unwrap()
    };
    let shapes = [
        shape([7, 8, 24, 24], [16, 8, 5, 5], 2),
        shape([7, 32, 12, 12], [64, 32, 3, 3], 1),
        shape([2, 256, 8, 8], [256, 256, 3, 3], 1),
        shape([5, 64, 16, 16], [64, 64, 1, 1], 0),
    ];
    std::thread::scope(|scope| {
        for threads in [1, 2, 3] {
            scope.spawn(move || {
                enter_pool(threads.try_into().unwrap()).unwrap();
                assert_eq!(super::threads(), threads);
                shapes.iter().for_each(|shape| check_conv(shape, 5));
            });
        }
    });
}

#[test]
fn the_instruction_set_is_the_one_that_is_asked_for() {
    // Set where a processor is emulated, so that nothing else is tested in its place.
    if let Ok(expected) = std::env::var("INSTRUCTION_SET") {
        assert_eq!(instruction_set(), expected);
    }
}

fn check_pool(shape: &PoolShape, ties: bool, seed: u64) {
    let mut x = random(shape.planes() * shape.height * shape.width, seed);
    if ties {
        x.iter_mut().for_each(|value| *value = (*value * 2.0).round());
    }
    let (out_pixels, pixels) = (shape.out_height * shape.out_width, shape.height * shape.width);
    let gradient = random(shape.planes() * out_pixels, seed ^ 1);
    let mut expected = Vec::new();
    let mut x_gradient = vec![0.0; x.len()];
    for (plane, (x, gradient)) in x.chunks_exact(pixels).zip(gradient.chunks_exact(out_pixels)).enumerate() {
        for (output, &gradient) in gradient.iter().enumerate() {
            // The first of the largest.
            let mut best: Option<usize> = None;
            shape.window(output, |_, pixel| {
                if best.is_none_or(|best| x[pixel] > x[best]) {
                    best = Some(pixel);
                }
            });
            expected.push(f64::from(x[best.unwrap()]));
            x_gradient[plane * pixels + best.unwrap()] += f64::from(gradient);
        }
    }
    let (out, saved) = pool::max_forward(shape, Layout::Planes, &x);
    assert_close(&out, &expected, "maximum");
    assert_close(&pool::max_backward(shape, &x, &out, &saved, &gradient), &x_gradient, "gradient");

    let mut mean = vec![0.0; expected.len()];
    let mut mean_gradient = vec![0.0; x.len()];
    for (index, mean) in mean.iter_mut().enumerate() {
        let (plane, output) = (index / out_pixels, index % out_pixels);
        let mut inside = Vec::new();
        shape.window(output, |_, pixel| inside.push(plane * pixels + pixel));
        *mean = inside.iter().map(|&pixel| f64::from(x[pixel])).sum::<f64>() / inside.len() as f64;
        inside.iter().for_each(|&pixel| mean_gradient[pixel] += f64::from(gradient[index]) / inside.len() as f64);
    }
    assert_close(&pool::mean_forward(shape, Layout::Planes, &x), &mean, "mean");
    assert_close(&pool::mean_backward(shape, Layout::Planes, &gradient), &mean_gradient, "gradient of the mean");

    let channels = shape.channels;
    let (x, gradient) = (to_channels_last(&x, channels, pixels), to_channels_last(&gradient, channels, out_pixels));
    let (out, saved) = pool::max_forward(shape, Layout::ChannelsLast, &x);
    assert_close(&to_planes(&out, channels, out_pixels), &expected, "maximum, channels last");
    let found = pool::max_backward(shape, &x, &out, &saved, &gradient);
    assert_close(&to_planes(&found, channels, pixels), &x_gradient, "gradient, channels last");
    let found = pool::mean_forward(shape, Layout::ChannelsLast, &x);
    assert_close(&to_planes(&found, channels, out_pixels), &mean, "mean, channels last");
    let found = pool::mean_backward(shape, Layout::ChannelsLast, &gradient);
    assert_close(&to_planes(&found, channels, pixels), &mean_gradient, "gradient of the mean, channels last");
}

#[test]
fn the_global_mean_is_that_of_one_window() {
    let (batch, channels, pixels) = (3, 20, 12);
    let x = random(batch * channels * pixels, 3);
    let mean: Vec<f64> =
        x.chunks(pixels).map(|plane| plane.iter().map(|&x| f64::from(x)).sum::<f64>() / pixels as f64).collect();
    let gradient = random(batch * channels, 4);
    let x_gradient: Vec<f64> = (0..x.len()).map(|index| f64::from(gradient[index / pixels]) / pixels as f64).collect();
    assert_close(&pool::global_mean_forward(Layout::Planes, channels, pixels, &x), &mean, "planes");
    let found = pool::global_mean_backward(Layout::Planes, channels, pixels, &gradient);
    assert_close(&found, &x_gradient, "gradient, planes");
    let last = to_channels_last(&x, channels, pixels);
    assert_close(&pool::global_mean_forward(Layout::ChannelsLast, channels, pixels, &last), &mean, "channels last");
    let found = pool::global_mean_backward(Layout::ChannelsLast, channels, pixels, &gradient);
    assert_close(&to_planes(&found, channels, pixels), &x_gradient, "gradient, channels last");
}

#[test]
fn not_a_number_survives_pooling_and_relu() {
    let options = PoolOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] };
    let shape = PoolShape::new(&[1, 1, 2, 4], options).unwrap();
    for position in 0..8 {
        let mut x = vec![1.0; 8];
        x[position] = f32::NAN;
        for layout in [Layout::Planes, Layout::ChannelsLast] {
            assert!(pool::max_forward(&shape, layout, &x).0[position % 4 / 2].is_nan(), "{position}");
        }
        assert!(elementwise::relu(&x)[position].is_nan());
        assert!(elementwise::add_relu(&x, &[1.0; 8])[position].is_nan());
    }
}

fn check_norm(shape: NormShape, seed: u64) {
    let NormShape { batch, channels, pixels, layout } = shape;
    // Far from zero, which a careless variance does not survive.
    let x: Vec<f32> = random(batch * channels * pixels, seed).iter().map(|value| value + 3.0).collect();
    let (gamma, beta, gradient) = (random(channels, seed ^ 1), random(channels, seed ^ 2), random(x.len(), seed ^ 3));
    let epsilon = 1e-3f32;
    let count = (batch * pixels) as f64;
    let channel_of = |index: usize| match layout {
        Layout::Planes => index / pixels % channels,
        Layout::ChannelsLast => index % channels,
    };
    let sums = |values: &dyn Fn(usize) -> f64| {
        let mut sums = vec![0.0; channels];
        (0..x.len()).for_each(|index| sums[channel_of(index)] += values(index));
        sums
    };
    let mean: Vec<f64> = sums(&|index| f64::from(x[index])).iter().map(|sum| sum / count).collect();
    let variance: Vec<f64> =
        sums(&|index| (f64::from(x[index]) - mean[channel_of(index)]).powi(2)).iter().map(|sum| sum / count).collect();
    let deviation: Vec<f64> = variance.iter().map(|variance| (variance + f64::from(epsilon)).sqrt()).collect();
    let hat = |index: usize| (f64::from(x[index]) - mean[channel_of(index)]) / deviation[channel_of(index)];
    let out: Vec<f64> = (0..x.len())
        .map(|index| f64::from(gamma[channel_of(index)]) * hat(index) + f64::from(beta[channel_of(index)]))
        .collect();
    let beta_gradient = sums(&|index| f64::from(gradient[index]));
    let gamma_gradient = sums(&|index| f64::from(gradient[index]) * hat(index));
    let x_gradient: Vec<f64> = (0..x.len())
        .map(|index| {
            let channel = channel_of(index);
            let centred = f64::from(gradient[index])
                - beta_gradient[channel] / count
                - hat(index) * gamma_gradient[channel] / count;
            f64::from(gamma[channel]) / deviation[channel] * centred
        })
        .collect();

    let (found_mean, found_variance) = norm::statistics(shape, &x);
    assert_close(&found_mean, &mean, "mean");
    assert_close(&found_variance, &variance, "variance");
    let plain = Operands {
        x: &x,
        gamma: &gamma,
        beta: &beta,
        mean: &found_mean,
        variance: &found_variance,
        epsilon,
        activation: Activation::None,
    };
    let relu = Operands { activation: Activation::Relu, ..plain };
    let found = norm::forward(shape, plain);
    assert_close(&found, &out, "output");
    let activated = norm::forward(shape, relu);
    assert!(activated.iter().zip(found.iter()).all(|(activated, found)| *activated == found.max(0.0)));
    let mut found_x = gradient.clone();
    let (found_gamma, found_beta) = norm::backward(shape, plain, true, &mut found_x);
    assert_close(&found_beta, &beta_gradient, "shift gradient");
    assert_close(&found_gamma, &gamma_gradient, "scale gradient");
    assert_close(&found_x, &x_gradient, "input gradient");
    // With statistics that do not depend on the batch, the line's slope.
    let mut found_x = gradient.clone();
    norm::backward(shape, plain, false, &mut found_x);
    let slope =
        |index: usize| f64::from(gradient[index]) * f64::from(gamma[channel_of(index)]) / deviation[channel_of(index)];
    assert_close(&found_x, &(0..x.len()).map(slope).collect::<Vec<_>>(), "input gradient, given statistics");
    // With an activation, it is the backward pass of the gradient that the activation lets through.
    let mut cut_off = gradient.clone();
    elementwise::relu_backward(&activated, &mut cut_off);
    let (expected_gamma, expected_beta) = norm::backward(shape, plain, true, &mut cut_off);
    let mut found_x = gradient;
    let (found_gamma, found_beta) = norm::backward(shape, relu, true, &mut found_x);
    assert_eq!((&found_gamma[..], &found_beta[..]), (&expected_gamma[..], &expected_beta[..]));
    assert_eq!(found_x, cut_off);
}

fn check_linear(shape: LinearShape, seed: u64) {
    let LinearShape { batch, inputs, outputs } = shape;
    let (x, weight) = (random(batch * inputs, seed), random(inputs * outputs, seed ^ 1));
    let (bias, gradient) = (random(outputs, seed ^ 2), random(batch * outputs, seed ^ 3));
    let mut out: Vec<f64> = (0..batch * outputs).map(|index| f64::from(bias[index % outputs])).collect();
    let (mut x_gradient, mut weight_gradient) = (vec![0.0; x.len()], vec![0.0; weight.len()]);
    for row in 0..batch {
        for input in 0..inputs {
            for output in 0..outputs {
                let [x, weight, gradient] =
                    [x[row * inputs + input], weight[output * inputs + input], gradient[row * outputs + output]]
                        .map(f64::from);
                out[row * outputs + output] += x * weight;
                x_gradient[row * inputs + input] += gradient * weight;
                weight_gradient[output * inputs + input] += gradient * x;
            }
        }
    }
    assert_close(&linear::forward(shape, &x, &weight, Some(&bias), Activation::None), &out, "output");
    let activated: Vec<f64> = out.iter().map(|value| value.max(0.0)).collect();
    assert_close(&linear::forward(shape, &x, &weight, Some(&bias), Activation::Relu), &activated, "activated output");
    assert_close(&linear::input_gradient(shape, &weight, &gradient), &x_gradient, "input gradient");
    assert_close(&linear::weight_gradient(shape, &x, &gradient), &weight_gradient, "weight gradient");
}

fn check_layer_norm(rows: usize, features: usize, seed: u64) {
    let x: Vec<f32> = random(rows * features, seed).iter().map(|value| value + 2.0).collect();
    let (gamma, beta, gradient) = (random(features, seed ^ 1), random(features, seed ^ 2), random(x.len(), seed ^ 3));
    let epsilon = 1e-3f32;
    let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<f64>>();
    let (mut out, mut x_gradient) = (Vec::new(), Vec::new());
    let (mut gamma_gradient, mut beta_gradient) = (vec![0.0; features], vec![0.0; features]);
    for (x, gradient) in x.chunks(features).zip(gradient.chunks(features)) {
        let (x, gradient) = (wide(x), wide(gradient));
        let count = features as f64;
        let mean = x.iter().sum::<f64>() / count;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
        let hat: Vec<f64> = x.iter().map(|x| (x - mean) * inverse).collect();
        let scaled: Vec<f64> = gradient.iter().zip(&gamma).map(|(g, gamma)| g * f64::from(*gamma)).collect();
        let mean_scaled = scaled.iter().sum::<f64>() / count;
        let mean_hat = scaled.iter().zip(&hat).map(|(scaled, hat)| scaled * hat).sum::<f64>() / count;
        for feature in 0..features {
            out.push(hat[feature] * f64::from(gamma[feature]) + f64::from(beta[feature]));
            x_gradient.push((scaled[feature] - mean_scaled - hat[feature] * mean_hat) * inverse);
            gamma_gradient[feature] += gradient[feature] * hat[feature];
            beta_gradient[feature] += gradient[feature];
        }
    }
    assert_close(&layer_norm::forward(&x, &gamma, &beta, epsilon), &out, "output");
    let found = layer_norm::backward(&x, &gamma, epsilon, &gradient);
    assert_close(&found.x, &x_gradient, "input gradient");
    assert_close(&found.gamma, &gamma_gradient, "scale gradient");
    assert_close(&found.beta, &beta_gradient, "shift gradient");
}

#[test]
fn embedding_sums_the_gradients_of_a_row_that_is_used_twice() {
    let table: Vec<f32> = (0..12).map(|value| value as f32).collect();
    let indices = [2, 0, 2];
    assert_eq!(&embedding::forward(&table, 3, &indices)[..], [6.0, 7.0, 8.0, 0.0, 1.0, 2.0, 6.0, 7.0, 8.0]);
    let gradient: Vec<f32> = (1..10).map(|value| value as f32).collect();
    let found = embedding::backward(4, 3, &indices, &gradient);
    assert_eq!(&found[..], [4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 8.0, 10.0, 12.0, 0.0, 0.0, 0.0]);
}

#[test]
fn cross_entropy_is_stable_and_its_gradient_is_right() {
    let logits = [1000.0, 999.0, -1000.0, 0.5, 0.25, -0.125];
    let targets = [1, 2];
    // -log softmax(row)[target], in f64
    let loss_of = |row: &[f64], target: usize| row.iter().map(|value| (value - row[target]).exp()).sum::<f64>().ln();
    let mean_loss = |logits: &[f64]| (loss_of(&logits[..3], 1) + loss_of(&logits[3..], 2)) / 2.0;
    let wide = logits.map(f64::from);
    let (loss, probabilities) = loss::cross_entropy(&logits, &targets, 3);
    assert!((f64::from(loss) - mean_loss(&wide)).abs() < 1e-6, "{loss}");
    let gradient = loss::cross_entropy_backward(probabilities, &targets, 3, 1.0);
    for index in 0..6 {
        let shifted = |by: f64| {
            let mut logits = wide;
            logits[index] += by;
            mean_loss(&logits)
        };
        let slope = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
        assert!((f64::from(gradient[index]) - slope).abs() < 1e-5, "{index}: {} {slope}", gradient[index]);
    }
}
