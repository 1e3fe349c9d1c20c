//! Maximum pooling of `[batch, height, width, channels]`: a pixel's channels are compared together.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};

use crate::buffer::Buffer;
use crate::shape::PoolShape;
use crate::threads::{for_each, parts, split};

/// Elements that are read, as work for [`parts`].
fn work(shape: &PoolShape) -> usize {
    shape.planes() * shape.in_pixels()
}

pub(super) fn max_forward(shape: &PoolShape, x: &[f32]) -> Buffer {
    let sample = shape.channels * shape.out_pixels();
    let mut out = Buffer::new(shape.batch * sample);
    for_each(split(&mut out, sample, &parts(shape.batch, work(shape))), |(first, out)| {
        max_samples(shape, &x[first * shape.channels * shape.in_pixels()..], out);
    });
    out
}

/// Calls `visit(output pixel, input pixel, whether it is the window's first)` for each pixel of each window, windows one after another.
#[inline(always)]
fn windows(shape: &PoolShape, samples: usize, mut visit: impl FnMut(usize, usize, bool)) {
    for pixel in 0..samples * shape.out_pixels() {
        let first_pixel = pixel / shape.out_pixels() * shape.in_pixels();
        let mut is_first = true;
        shape.window(pixel % shape.out_pixels(), |_, in_pixel| {
            visit(pixel, first_pixel + in_pixel, is_first);
            is_first = false;
        });
    }
}

#[with_simd]
fn max_samples<S: Simd>(shape: &PoolShape, x: &[f32], out: &mut [f32]) {
    let channels = shape.channels;
    windows(shape, out.len() / (channels * shape.out_pixels()), |pixel, in_pixel, is_first| {
        let x = &x[in_pixel * channels..][..channels];
        let out = &mut out[pixel * channels..][..channels];
        if is_first {
            out.copy_from_slice(x);
        } else {
            for (out, &x) in out.iter_mut().zip(x) {
                // Not-a-number is not smaller than anything, and nothing is larger than it.
                *out = if (*out >= x) | out.is_nan() { *out } else { x };
            }
        }
    });
}

pub(super) fn max_backward(shape: &PoolShape, x: &[f32], out: &[f32], gradient: &[f32]) -> Buffer {
    let (sample, out_sample) = (shape.channels * shape.in_pixels(), shape.channels * shape.out_pixels());
    let mut x_gradient = Buffer::zeroed(shape.batch * sample);
    for_each(split(&mut x_gradient, sample, &parts(shape.batch, 2 * work(shape))), |(first, x_gradient)| {
        let x = &x[first * sample..][..x_gradient.len()];
        max_backward_samples(shape, x, &out[first * out_sample..], &gradient[first * out_sample..], x_gradient);
    });
    x_gradient
}

#[with_simd]
fn max_backward_samples<S: Simd>(shape: &PoolShape, x: &[f32], out: &[f32], gradient: &[f32], x_gradient: &mut [f32]) {
    let channels = shape.channels;
    // What of the window's gradient has found no pixel yet: all of it goes to the first that equals the maximum.
    let mut rest = Buffer::zeroed(channels);
    windows(shape, x.len() / (channels * shape.in_pixels()), |pixel, in_pixel, is_first| {
        let (x, x_gradient) =
            (&x[in_pixel * channels..][..channels], &mut x_gradient[in_pixel * channels..][..channels]);
        let out = &out[pixel * channels..][..channels];
        if is_first {
            rest.copy_from_slice(&gradient[pixel * channels..][..channels]);
        }
        for ((rest, x_gradient), (&x, &out)) in rest.iter_mut().zip(x_gradient).zip(x.iter().zip(out)) {
            let taken = if x == out { *rest } else { 0.0 };
            *x_gradient += taken;
            *rest = if x == out { 0.0 } else { *rest };
        }
    });
}
