//! Batch normalisation over `[batch, channels, pixels]`.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};
use rayon::prelude::*;

use super::elementwise::sum_plane;

/// Sizes of the operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormShape {
    /// Samples.
    pub(crate) batch: usize,
    /// Channels.
    pub(crate) channels: usize,
    /// Pixels of a plane; 1 for `[batch, channels]`.
    pub(crate) pixels: usize,
}

/// Output, mean and biased variance.
pub(crate) struct Normalised {
    /// Output.
    pub(crate) out: Vec<f32>,
    /// Mean of each channel.
    pub(crate) mean: Vec<f32>,
    /// Biased variance of each channel.
    pub(crate) variance: Vec<f32>,
}

/// `gamma (x - mean) / sqrt(variance + epsilon) + beta` with the batch's own statistics.
pub(crate) fn forward(shape: NormShape, x: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) -> Normalised {
    let NormShape { channels, pixels, .. } = shape;
    let statistics: Vec<(f32, f32)> =
        (0..channels).into_par_iter().with_min_len(8).map(|channel| statistics(shape, x, channel)).collect();
    let lines: Vec<[f32; 3]> = (0..channels)
        .map(|channel| {
            let (mean, variance) = statistics[channel];
            [mean, gamma[channel] / (variance + epsilon).sqrt(), beta[channel]]
        })
        .collect();
    let mut out = vec![0.0; x.len()];
    out.par_chunks_mut(channels * pixels)
        .zip(x.par_chunks(channels * pixels))
        .for_each(|(out, x)| affine(out, x, &lines, pixels));
    let (mean, variance) = statistics.into_iter().unzip();
    Normalised { out, mean, variance }
}

#[with_simd]
fn statistics<S: Simd>(shape: NormShape, x: &[f32], channel: usize) -> (f32, f32) {
    let NormShape { batch, channels, pixels } = shape;
    let plane = |sample: usize| &x[(sample * channels + channel) * pixels..][..pixels];
    let count = (batch * pixels) as f64;
    let mean = (0..batch).map(|sample| f64::from(sum_plane(plane(sample)))).sum::<f64>() / count;
    let mean = mean as f32;
    let squares = (0..batch).map(|sample| {
        let (chunks, rest) = plane(sample).as_chunks::<16>();
        let mut lanes = [0.0f32; 16];
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += (value - mean) * (value - mean);
            }
        }
        f64::from(lanes.iter().sum::<f32>() + rest.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>())
    });
    (mean, (squares.sum::<f64>() / count) as f32)
}

#[with_simd]
fn affine<S: Simd>(out: &mut [f32], x: &[f32], lines: &[[f32; 3]], pixels: usize) {
    for ((out, x), &[mean, scale, shift]) in out.chunks_exact_mut(pixels).zip(x.chunks_exact(pixels)).zip(lines) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = (x - mean) * scale + shift;
        }
    }
}

/// Gradients of input, scale and shift.
pub(crate) struct Gradients {
    /// Of the input.
    pub(crate) x: Vec<f32>,
    /// Of the scale.
    pub(crate) gamma: Vec<f32>,
    /// Of the shift.
    pub(crate) beta: Vec<f32>,
}

/// With `n` elements a channel, `h = (x - mean) / sqrt(variance + epsilon)` and the output's gradient `g`:
/// `dbeta = sum g`, `dgamma = sum g h`, `dx = gamma / sqrt(variance + epsilon) (g - dbeta / n - h dgamma / n)`.
pub(crate) fn backward(
    shape: NormShape,
    x: &[f32],
    gradient: &[f32],
    gamma: &[f32],
    (mean, variance): (&[f32], &[f32]),
    epsilon: f32,
) -> Gradients {
    let NormShape { batch, channels, pixels } = shape;
    let sums: Vec<(f32, f32)> = (0..channels)
        .into_par_iter()
        .with_min_len(8)
        .map(|channel| gradient_sums(shape, x, gradient, channel, mean[channel]))
        .collect();
    let count = (batch * pixels) as f32;
    let mut gamma_gradient = vec![0.0; channels];
    let mut beta_gradient = vec![0.0; channels];
    let mut lines = vec![[0.0f32; 4]; channels];
    for channel in 0..channels {
        let inverse = 1.0 / (variance[channel] + epsilon).sqrt();
        let (sum, sum_centred) = sums[channel];
        beta_gradient[channel] = sum;
        gamma_gradient[channel] = sum_centred * inverse;
        // dx = scale g + slope (x - mean) + shift
        let scale = gamma[channel] * inverse;
        let slope = -scale * inverse * inverse * sum_centred / count;
        lines[channel] = [mean[channel], scale, slope, -scale * sum / count];
    }
    let mut out = vec![0.0; x.len()];
    let sample = channels * pixels;
    let inputs = x.par_chunks(sample).zip(gradient.par_chunks(sample));
    out.par_chunks_mut(sample).zip(inputs).for_each(|(out, (x, gradient))| combine(out, x, gradient, &lines, pixels));
    Gradients { x: out, gamma: gamma_gradient, beta: beta_gradient }
}

/// `sum g` and `sum g (x - mean)` of one channel.
#[with_simd]
fn gradient_sums<S: Simd>(shape: NormShape, x: &[f32], gradient: &[f32], channel: usize, mean: f32) -> (f32, f32) {
    let NormShape { batch, channels, pixels } = shape;
    let (mut sum, mut sum_centred) = (0.0f64, 0.0f64);
    for sample in 0..batch {
        let start = (sample * channels + channel) * pixels;
        let (x, x_rest) = x[start..start + pixels].as_chunks::<16>();
        let (gradient, gradient_rest) = gradient[start..start + pixels].as_chunks::<16>();
        let mut lanes = [0.0f32; 16];
        let mut centred = [0.0f32; 16];
        for (x, gradient) in x.iter().zip(gradient) {
            for lane in 0..16 {
                lanes[lane] += gradient[lane];
                centred[lane] += gradient[lane] * (x[lane] - mean);
            }
        }
        for (lane, (x, gradient)) in x_rest.iter().zip(gradient_rest).enumerate() {
            lanes[lane] += gradient;
            centred[lane] += gradient * (x - mean);
        }
        sum += f64::from(lanes.iter().sum::<f32>());
        sum_centred += f64::from(centred.iter().sum::<f32>());
    }
    (sum as f32, sum_centred as f32)
}

#[with_simd]
fn combine<S: Simd>(out: &mut [f32], x: &[f32], gradient: &[f32], lines: &[[f32; 4]], pixels: usize) {
    let planes = out.chunks_exact_mut(pixels).zip(x.chunks_exact(pixels).zip(gradient.chunks_exact(pixels)));
    for ((out, (x, gradient)), &[mean, scale, slope, shift]) in planes.zip(lines) {
        for ((out, x), gradient) in out.iter_mut().zip(x).zip(gradient) {
            *out = gradient * scale + (x - mean) * slope + shift;
        }
    }
}
