//! Batch normalisation over `[batch, channels, pixels]` or `[pixels, channels]`.
//!
//! Both layouts are read once for the statistics and once for the result. The statistics are sums of differences from a pivot, the
//! channel's first element, in `f64` over blocks in `f32`: no cancellation where the mean is far from zero.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};

use super::Activation;
use super::buffer::Buffer;
use super::layout::Layout;
use super::threads::{for_each, map, parts, split};

/// Sizes of the operand.
#[derive(Clone, Copy, Debug)]
pub struct NormShape {
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Pixels of a plane; 1 for `[batch, channels]`.
    pub pixels: usize,
    /// How they lie; with one pixel, both are the same.
    pub layout: Layout,
}

impl NormShape {
    /// Elements of a sample.
    fn sample(&self) -> usize {
        self.channels * self.pixels
    }

    /// Elements.
    fn elements(&self) -> usize {
        self.batch * self.sample()
    }

    /// Elements of a channel.
    fn count(&self) -> f64 {
        (self.batch * self.pixels) as f64
    }

    fn channels_last(&self) -> bool {
        self.layout == Layout::ChannelsLast || self.pixels == 1
    }
}

/// Mean and biased variance of each channel.
pub fn statistics(shape: NormShape, x: &[f32]) -> (Buffer, Buffer) {
    let pivots = pivots(shape, x);
    let sums = sums(shape, |part| moments(shape, &x[part.0..part.0 + part.1], &pivots));
    let (mut mean, mut variance) = (Buffer::new(shape.channels), Buffer::new(shape.channels));
    for (channel, &[sum, squares]) in sums.iter().enumerate() {
        let offset = sum / shape.count();
        mean[channel] = (f64::from(pivots[channel]) + offset) as f32;
        variance[channel] = (squares / shape.count() - offset * offset).max(0.0) as f32;
    }
    (mean, variance)
}

/// What the output is computed from.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// Input.
    pub x: &'a [f32],
    /// Scale of each channel.
    pub gamma: &'a [f32],
    /// Shift of each channel.
    pub beta: &'a [f32],
    /// Mean of each channel.
    pub mean: &'a [f32],
    /// Biased variance of each channel.
    pub variance: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
    /// What the output goes through.
    pub activation: Activation,
}

/// `gamma (x - mean) / sqrt(variance + epsilon) + beta`, activated.
pub fn forward(shape: NormShape, operands: Operands<'_>) -> Buffer {
    let Operands { x, activation, .. } = operands;
    let lines = Lines::new(operands);
    let mut out = Buffer::new(x.len());
    let samples = parts(shape.batch, shape.elements());
    for_each(split(&mut out, shape.sample(), &samples), |(first, out)| {
        let x = &x[first * shape.sample()..][..out.len()];
        affine(shape, out, x, &lines, activation == Activation::Relu);
    });
    out
}

/// The line that each channel goes through: `(x - mean) scale + shift`.
struct Lines {
    mean: Buffer,
    scale: Buffer,
    shift: Buffer,
}

impl Lines {
    fn new(operands: Operands<'_>) -> Lines {
        let Operands { gamma, beta, mean, variance, epsilon, .. } = operands;
        let mut scale = Buffer::new(gamma.len());
        for ((scale, gamma), variance) in scale.iter_mut().zip(gamma).zip(variance) {
            *scale = gamma / (variance + epsilon).sqrt();
        }
        Lines { mean: Buffer::copied(mean), scale, shift: Buffer::copied(beta) }
    }

    /// Mean, scale and shift, of this length for the compiler to know.
    #[inline(always)]
    fn slices(&self, channels: usize) -> (&[f32], &[f32], &[f32]) {
        (&self.mean[..channels], &self.scale[..channels], &self.shift[..channels])
    }
}

/// The first element of each channel.
fn pivots(shape: NormShape, x: &[f32]) -> Buffer {
    let mut pivots = Buffer::new(shape.channels);
    let step = if shape.channels_last() { 1 } else { shape.pixels };
    pivots.iter_mut().zip(x.iter().step_by(step)).for_each(|(pivot, x)| *pivot = *x);
    pivots
}

/// The sum over all parts of what `part(first element, elements)` returns for each channel.
fn sums(shape: NormShape, part: impl Fn((usize, usize)) -> Vec<[f64; 2]> + Sync) -> Vec<[f64; 2]> {
    let elements = |(first, samples)| (first * shape.sample(), samples * shape.sample());
    let parts = map(parts(shape.batch, shape.elements()), |range| part(elements(range)));
    let mut parts = parts.into_iter();
    let mut total = parts.next().unwrap_or_else(|| vec![[0.0; 2]; shape.channels]);
    for part in parts {
        for (total, part) in total.iter_mut().zip(part) {
            total[0] += part[0];
            total[1] += part[1];
        }
    }
    total
}

/// Pixels that are summed in `f32` before they are added to the sums in `f64`.
const TOGETHER: usize = 64;

/// Sums two values an element, `value(element, its gradient, its channel)`, over a part that begins with a whole sample.
#[inline(always)]
fn sum_two(
    shape: NormShape,
    x: &[f32],
    gradient: &[f32],
    value: impl Fn(f32, f32, usize) -> [f32; 2],
) -> Vec<[f64; 2]> {
    let channels = shape.channels;
    let mut total = vec![[0.0f64; 2]; channels];
    if shape.channels_last() {
        let (mut first, mut second) = (Buffer::new(channels), Buffer::new(channels));
        for (x, gradient) in x.chunks(TOGETHER * channels).zip(gradient.chunks(TOGETHER * channels)) {
            first.fill(0.0);
            second.fill(0.0);
            for (x, gradient) in x.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
                let (first, second) = (&mut first[..channels], &mut second[..channels]);
                let (x, gradient) = (&x[..channels], &gradient[..channels]);
                for channel in 0..channels {
                    let [a, b] = value(x[channel], gradient[channel], channel);
                    first[channel] += a;
                    second[channel] += b;
                }
            }
            for ((total, first), second) in total.iter_mut().zip(first.iter()).zip(second.iter()) {
                total[0] += f64::from(*first);
                total[1] += f64::from(*second);
            }
        }
        return total;
    }
    let planes = x.chunks_exact(shape.pixels).zip(gradient.chunks_exact(shape.pixels));
    for (index, (x, gradient)) in planes.enumerate() {
        let channel = index % channels;
        let mut lanes = [[0.0f32; 16]; 2];
        let (whole, rest) = x.as_chunks::<16>();
        let (gradients, gradient_rest) = gradient.as_chunks::<16>();
        for (x, gradient) in whole.iter().zip(gradients) {
            for lane in 0..16 {
                let [a, b] = value(x[lane], gradient[lane], channel);
                lanes[0][lane] += a;
                lanes[1][lane] += b;
            }
        }
        for (lane, (x, gradient)) in rest.iter().zip(gradient_rest).enumerate() {
            let [a, b] = value(*x, *gradient, channel);
            lanes[0][lane] += a;
            lanes[1][lane] += b;
        }
        total[channel][0] += f64::from(lanes[0].iter().sum::<f32>());
        total[channel][1] += f64::from(lanes[1].iter().sum::<f32>());
    }
    total
}

/// For each channel `sum (x - pivot)` and `sum (x - pivot)^2`.
#[with_simd]
fn moments<S: Simd>(shape: NormShape, x: &[f32], pivots: &[f32]) -> Vec<[f64; 2]> {
    let pivots = &pivots[..shape.channels];
    sum_two(shape, x, x, |x, _, channel| {
        let offset = x - pivots[channel];
        [offset, offset * offset]
    })
}

/// Calls `each(output, elements, channel's index)` for each element, in loops that vectors fit.
#[inline(always)]
fn for_each_element(shape: NormShape, out: &mut [f32], mut each: impl FnMut(&mut f32, usize, usize)) {
    if shape.channels_last() {
        for (row, out) in out.chunks_exact_mut(shape.channels).enumerate() {
            for (channel, out) in out.iter_mut().enumerate() {
                each(out, row * shape.channels + channel, channel);
            }
        }
    } else {
        for (plane, out) in out.chunks_exact_mut(shape.pixels).enumerate() {
            let channel = plane % shape.channels;
            for (pixel, out) in out.iter_mut().enumerate() {
                each(out, plane * shape.pixels + pixel, channel);
            }
        }
    }
}

#[with_simd]
fn affine<S: Simd>(shape: NormShape, out: &mut [f32], x: &[f32], lines: &Lines, relu: bool) {
    let (mean, scale, shift) = lines.slices(shape.channels);
    let x = &x[..out.len()];
    if relu {
        for_each_element(shape, out, |out, at, channel| {
            let value = (x[at] - mean[channel]) * scale[channel] + shift[channel];
            *out = if 0.0 > value { 0.0 } else { value };
        });
    } else {
        for_each_element(shape, out, |out, at, channel| {
            *out = (x[at] - mean[channel]) * scale[channel] + shift[channel];
        });
    }
}

/// With `n` elements a channel, `h = (x - mean) / sqrt(variance + epsilon)` and the output's gradient `g`, zero where the activation
/// cut off: `dbeta = sum g`, `dgamma = sum g h`, and, if mean and variance are the batch's own,
/// `dx = gamma / sqrt(variance + epsilon) (g - dbeta / n - h dgamma / n)`, else its first term.
/// The input's gradient takes the place of `gradient`; returns those of scale and shift.
pub fn backward(
    shape: NormShape,
    operands: Operands<'_>,
    own_statistics: bool,
    gradient: &mut [f32],
) -> (Buffer, Buffer) {
    let Operands { x, gamma, variance, epsilon, activation, .. } = operands;
    let lines = Lines::new(operands);
    let samples = parts(shape.batch, shape.elements());
    let relu = activation == Activation::Relu;
    let read = &*gradient;
    let sums = sums(shape, |(first, count)| {
        gradient_sums(shape, &x[first..first + count], &read[first..first + count], &lines, relu)
    });
    let (mut beta_gradient, mut gamma_gradient) = (Buffer::new(shape.channels), Buffer::new(shape.channels));
    let (mut slope, mut shift) = (Buffer::new(shape.channels), Buffer::new(shape.channels));
    for (channel, &[sum, sum_centred]) in sums.iter().enumerate() {
        let inverse = 1.0 / (f64::from(variance[channel]) + f64::from(epsilon)).sqrt();
        beta_gradient[channel] = sum as f32;
        gamma_gradient[channel] = (sum_centred * inverse) as f32;
        // dx = scale g + slope (x - mean) + shift
        let scale = f64::from(gamma[channel]) * inverse * f64::from(u8::from(own_statistics));
        slope[channel] = (-scale * inverse * inverse * sum_centred / shape.count()) as f32;
        shift[channel] = (-scale * sum / shape.count()) as f32;
    }
    let pull = Pull { slope, shift };
    for_each(split(gradient, shape.sample(), &samples), |(first, gradient)| {
        combine(shape, gradient, &x[first * shape.sample()..], &lines, &pull, relu);
    });
    (gamma_gradient, beta_gradient)
}

/// What a channel's own statistics add to the input's gradient: `slope (x - mean) + shift`.
struct Pull {
    slope: Buffer,
    shift: Buffer,
}

/// For each channel `sum g` and `sum g (x - mean)`, where `g` is what the activation lets through of the gradient.
#[with_simd]
fn gradient_sums<S: Simd>(shape: NormShape, x: &[f32], gradient: &[f32], lines: &Lines, relu: bool) -> Vec<[f64; 2]> {
    let (mean, scale, shift) = lines.slices(shape.channels);
    if !relu {
        return sum_two(shape, x, gradient, |x, gradient, channel| [gradient, gradient * (x - mean[channel])]);
    }
    sum_two(shape, x, gradient, |x, gradient, channel| {
        let centred = x - mean[channel];
        let gradient = if centred * scale[channel] + shift[channel] > 0.0 { gradient } else { 0.0 };
        [gradient, gradient * centred]
    })
}

#[with_simd]
fn combine<S: Simd>(shape: NormShape, gradient: &mut [f32], x: &[f32], lines: &Lines, pull: &Pull, relu: bool) {
    let (mean, scale, shift) = lines.slices(shape.channels);
    let (slope, pull) = (&pull.slope[..shape.channels], &pull.shift[..shape.channels]);
    let x = &x[..gradient.len()];
    if !relu {
        for_each_element(shape, gradient, |gradient, at, channel| {
            *gradient = *gradient * scale[channel] + (x[at] - mean[channel]) * slope[channel] + pull[channel];
        });
        return;
    }
    for_each_element(shape, gradient, |gradient, at, channel| {
        let centred = x[at] - mean[channel];
        let passed = if centred * scale[channel] + shift[channel] > 0.0 { *gradient } else { 0.0 };
        *gradient = passed * scale[channel] + centred * slope[channel] + pull[channel];
    });
}
