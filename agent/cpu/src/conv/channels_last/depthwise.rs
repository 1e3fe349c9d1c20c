//! Convolution in which each channel is a group: every tap is a product of two vectors over channels.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};

use super::Wanted;
use crate::Activation;
use crate::buffer::Buffer;
use crate::elementwise::{relu_in_place, repeat_row, sum_rows};
use crate::scratch::transpose;
use crate::shape::ConvShape;
use crate::threads::{for_each, map, parts, split};

/// `[taps, channels]` from `[channels, taps]`.
fn by_taps(shape: &ConvShape, weight: &[f32]) -> Buffer {
    let mut out = Buffer::new(weight.len());
    transpose(weight, shape.taps(), &mut out, shape.out_channels);
    out
}

/// Calls `visit(output pixel, input pixel, tap)` for each product of some samples, the taps of one output after another.
#[inline(always)]
fn products(shape: &ConvShape, samples: usize, mut visit: impl FnMut(usize, usize, usize)) {
    for pixel in 0..samples * shape.out_pixels() {
        let (sample, place) = (pixel / shape.out_pixels(), pixel % shape.out_pixels());
        let (row, column) = (place / shape.out_width * shape.stride[0], place % shape.out_width * shape.stride[1]);
        for y in 0..shape.kernel[0] {
            let in_row = (row + y * shape.dilation[0]).wrapping_sub(shape.padding[0]);
            if in_row >= shape.height {
                continue;
            }
            for x in 0..shape.kernel[1] {
                let in_column = (column + x * shape.dilation[1]).wrapping_sub(shape.padding[1]);
                if in_column < shape.width {
                    let in_pixel = (sample * shape.height + in_row) * shape.width + in_column;
                    visit(pixel, in_pixel, y * shape.kernel[1] + x);
                }
            }
        }
    }
}

/// The elements of a pixel or tap.
fn at(values: &[f32], index: usize, channels: usize) -> &[f32] {
    &values[index * channels..(index + 1) * channels]
}

#[inline(always)]
fn add_products(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out += a * b;
    }
}

#[with_simd]
fn forward_samples<S: Simd>(shape: &ConvShape, x: &[f32], taps: &[f32], out: &mut [f32]) {
    let channels = shape.out_channels;
    products(shape, out.len() / shape.out_elements(), |pixel, in_pixel, tap| {
        let out = &mut out[pixel * channels..(pixel + 1) * channels];
        add_products(out, at(x, in_pixel, channels), at(taps, tap, channels));
    });
}

#[with_simd]
fn input_gradient_samples<S: Simd>(shape: &ConvShape, gradient: &[f32], taps: &[f32], out: &mut [f32]) {
    let channels = shape.out_channels;
    products(shape, out.len() / shape.in_elements(), |pixel, in_pixel, tap| {
        let out = &mut out[in_pixel * channels..(in_pixel + 1) * channels];
        add_products(out, at(gradient, pixel, channels), at(taps, tap, channels));
    });
}

#[with_simd]
fn weight_gradient_samples<S: Simd>(shape: &ConvShape, x: &[f32], gradient: &[f32], sums: &mut [f32]) {
    let channels = shape.out_channels;
    products(shape, x.len() / shape.in_elements(), |pixel, in_pixel, tap| {
        let sums = &mut sums[tap * channels..(tap + 1) * channels];
        add_products(sums, at(gradient, pixel, channels), at(x, in_pixel, channels));
    });
}

/// Multiplications, as work for [`parts`].
fn work(shape: &ConvShape) -> usize {
    shape.batch * shape.out_elements() * shape.taps()
}

pub(super) fn forward(
    shape: &ConvShape,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    activation: Activation,
) -> Buffer {
    let taps = by_taps(shape, weight);
    let mut out = Buffer::new(shape.batch * shape.out_elements());
    let samples = parts(shape.batch, work(shape));
    for_each(split(&mut out, shape.out_elements(), &samples), |(first, out)| {
        match bias {
            Some(bias) => repeat_row(out, bias),
            None => out.fill(0.0),
        }
        forward_samples(shape, &x[first * shape.in_elements()..], &taps, out);
        if activation == Activation::Relu {
            relu_in_place(out);
        }
    });
    out
}

pub(super) fn backward(
    shape: &ConvShape,
    x: &[f32],
    weight: &[f32],
    gradient: &[f32],
    wanted: Wanted,
) -> (Option<Buffer>, Option<Buffer>) {
    let samples = parts(shape.batch, work(shape));
    let x_gradient = wanted.x.then(|| {
        let taps = by_taps(shape, weight);
        let mut out = Buffer::zeroed(shape.batch * shape.in_elements());
        for_each(split(&mut out, shape.in_elements(), &samples), |(first, out)| {
            input_gradient_samples(shape, &gradient[first * shape.out_elements()..], &taps, out);
        });
        out
    });
    let weight_gradient = wanted.weight.then(|| {
        let sums = map(samples, |(first, count)| {
            let mut sums = Buffer::zeroed(weight.len());
            let x = &x[first * shape.in_elements()..][..count * shape.in_elements()];
            weight_gradient_samples(shape, x, &gradient[first * shape.out_elements()..], &mut sums);
            sums
        });
        let total = sum_rows(sums, weight.len());
        let mut out = Buffer::new(weight.len());
        transpose(&total, shape.out_channels, &mut out, shape.taps());
        out
    });
    (x_gradient, weight_gradient)
}
