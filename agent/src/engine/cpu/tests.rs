//! The operators against plain loops in `f64`, for values and gradients.

use omnilearn_kernel_host::backend::{Conv2dOptions, Pool2dOptions};
use omnilearn_wire::sampling::SplitMix64;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::engine::enter_pool;

/// Sums of up to some hundred products of numbers below 1 in `f32`.
const TOLERANCE: f64 = 2e-5;

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut generator = SplitMix64::new(seed);
    (0..count).map(|_| (generator.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0).collect()
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

    assert_close(&conv::forward(shape, &x, &weight, Some(&bias)), &out, "output");
    let wanted = conv::Wanted { x: true, weight: true, bias: true };
    let found = conv::backward(shape, &x, &weight, &gradient, wanted);
    assert_close(&found.x.unwrap(), &x_gradient, "input gradient");
    assert_close(&found.weight.unwrap(), &weight_gradient, "weight gradient");
    assert_close(&found.bias.unwrap(), &bias_gradient, "bias gradient");
}

prop_compose! {
    fn conv_shape()(
        batch in 1usize..4,
        groups in 1usize..3,
        group_in in 1usize..5,
        group_out in 1usize..10,
        size in (1usize..20, 1usize..40),
        kernel in (1usize..6, 1usize..6),
        stride in (1usize..4, 1usize..4),
        padding in (0usize..4, 0usize..4),
        dilation in (1usize..3, 1usize..3),
        plain in any::<bool>(),
    ) -> Option<ConvShape> {
        // Half of the cases have stride 1, which takes another way.
        let stride = if plain { [1, 1] } else { [stride.0, stride.1] };
        let options = Conv2dOptions { stride, padding: [padding.0, padding.1], dilation: [dilation.0, dilation.1], groups };
        let x = [batch, groups * group_in, size.0, size.1];
        ConvShape::new(&x, &[groups * group_out, group_in, kernel.0, kernel.1], options).ok()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

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
            Pool2dOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] }
        } else {
            Pool2dOptions { kernel: [kernel.0, kernel.1], stride: [stride.0, stride.1], padding: [padding.0, padding.1] }
        };
        if let Ok(shape) = PoolShape::new(&[size.0, size.1, size.2, size.3], options) {
            check_pool(&shape, ties, seed);
        }
    }

    #[test]
    fn batch_norm_equals_its_definition(batch in 2usize..6, channels in 1usize..12, pixels in 4usize..70, seed in any::<u64>()) {
        check_norm(NormShape { batch, channels, pixels }, seed);
    }

    #[test]
    fn linear_equals_its_definition(batch in 1usize..20, inputs in 1usize..50, outputs in 1usize..40, seed in any::<u64>()) {
        check_linear(batch, inputs, outputs, seed);
    }
}

#[test]
fn convolutions_of_the_known_models_equal_their_definition() {
    let shape = |x: [usize; 4], weight: [usize; 4], stride, padding| {
        let options = Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 };
        ConvShape::new(&x, &weight, options).unwrap()
    };
    let shapes = [
        shape([9, 1, 28, 28], [6, 1, 5, 5], 1, 2),
        shape([9, 6, 14, 14], [16, 6, 5, 5], 1, 0),
        shape([2, 16, 32, 32], [16, 16, 3, 3], 1, 1),
        shape([3, 16, 9, 9], [24, 16, 3, 3], 2, 1),
        shape([5, 40, 4, 4], [40, 40, 3, 3], 1, 1),
        shape([5, 16, 8, 8], [32, 16, 1, 1], 2, 0),
    ];
    for shape in shapes {
        check_conv(&shape, 11);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads_but_for_rounding() {
    let options = Conv2dOptions { stride: [1; 2], padding: [2; 2], dilation: [1; 2], groups: 1 };
    let shape = ConvShape::new(&[7, 3, 12, 12], &[8, 3, 5, 5], options).unwrap();
    std::thread::scope(|scope| {
        for threads in [1, 2, 3] {
            scope.spawn(move || {
                enter_pool(threads.try_into().unwrap()).unwrap();
                assert_eq!(rayon::current_num_threads(), threads);
                check_conv(&shape, 5);
            });
        }
    });
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
    let (out, taps) = pool::max_forward(shape, &x);
    assert_close(&out, &expected, "maximum");
    assert_close(&pool::max_backward(shape, &x, &taps, &gradient), &x_gradient, "gradient");
}

#[test]
fn not_a_number_survives_pooling_and_relu() {
    let options = Pool2dOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] };
    let shape = PoolShape::new(&[1, 1, 2, 4], options).unwrap();
    for position in 0..8 {
        let mut x = vec![1.0; 8];
        x[position] = f32::NAN;
        assert!(pool::max_forward(&shape, &x).0[position % 4 / 2].is_nan(), "{position}");
        assert!(elementwise::relu(&x)[position].is_nan());
    }
}

fn check_norm(shape: NormShape, seed: u64) {
    let NormShape { batch, channels, pixels } = shape;
    // Far from zero, which a careless variance does not survive.
    let x: Vec<f32> = random(batch * channels * pixels, seed).iter().map(|value| value + 3.0).collect();
    let (gamma, beta, gradient) = (random(channels, seed ^ 1), random(channels, seed ^ 2), random(x.len(), seed ^ 3));
    let epsilon = 1e-3f32;
    let count = (batch * pixels) as f64;
    let channel_of = |index: usize| index / pixels % channels;
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

    let found = norm::forward(shape, &x, &gamma, &beta, epsilon);
    assert_close(&found.out, &out, "output");
    assert_close(&found.mean, &mean, "mean");
    assert_close(&found.variance, &variance, "variance");
    let found = norm::backward(shape, &x, &gradient, &gamma, (&found.mean, &found.variance), epsilon);
    assert_close(&found.beta, &beta_gradient, "shift gradient");
    assert_close(&found.gamma, &gamma_gradient, "scale gradient");
    assert_close(&found.x, &x_gradient, "input gradient");
}

fn check_linear(batch: usize, inputs: usize, outputs: usize, seed: u64) {
    let (x, weight, bias) =
        (random(batch * inputs, seed), random(inputs * outputs, seed ^ 1), random(outputs, seed ^ 2));
    let expected: Vec<f64> = (0..batch * outputs)
        .map(|index| {
            let (row, column) = (index / outputs, index % outputs);
            let product = |k: usize| f64::from(x[row * inputs + k]) * f64::from(weight[k * outputs + column]);
            f64::from(bias[column]) + (0..inputs).map(product).sum::<f64>()
        })
        .collect();
    let found = Flex::omnilearn_linear(
        tensor(x, &[batch, inputs]),
        tensor(weight, &[inputs, outputs]),
        tensor(bias, &[outputs]),
    );
    assert_close(values(&found), &expected, "output");
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
