//! Loops over single elements and channels. They are plain Rust, compiled for each instruction set.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};

use super::Activation;
use super::buffer::Buffer;
use super::threads::{for_each, map, parts, split};

/// `max(x, 0)`; not-a-number stays, so that it is noticed.
pub fn relu(x: &[f32]) -> Buffer {
    let mut out = Buffer::new(x.len());
    for_each(split(&mut out, 1, &parts(x.len(), x.len())), |(first, out)| relu_into(out, &x[first..]));
    out
}

/// [`relu`] where it stands.
pub fn relu_in_place(x: &mut [f32]) {
    let parts = parts(x.len(), x.len());
    for_each(split(x, 1, &parts), |(_, x)| relu_over(x));
}

#[inline(always)]
fn positive(x: f32) -> f32 {
    if 0.0 > x { 0.0 } else { x }
}

#[with_simd]
fn relu_into<S: Simd>(out: &mut [f32], x: &[f32]) {
    out.iter_mut().zip(x).for_each(|(out, &x)| *out = positive(x));
}

#[with_simd]
fn relu_over<S: Simd>(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = positive(*x));
}

/// Zeroes a gradient where the output of [`relu`] is not positive.
pub fn relu_backward(out: &[f32], gradient: &mut [f32]) {
    let parts = parts(out.len(), out.len());
    for_each(split(gradient, 1, &parts), |(first, gradient)| relu_backward_over(gradient, &out[first..]));
}

#[with_simd]
fn relu_backward_over<S: Simd>(gradient: &mut [f32], out: &[f32]) {
    gradient.iter_mut().zip(out).for_each(|(gradient, &out)| *gradient = if out > 0.0 { *gradient } else { 0.0 });
}

/// `max(a + b, 0)`
pub fn add_relu(a: &[f32], b: &[f32]) -> Buffer {
    let mut out = Buffer::new(a.len());
    for_each(split(&mut out, 1, &parts(a.len(), a.len())), |(first, out)| {
        add_relu_into(out, &a[first..], &b[first..]);
    });
    out
}

#[with_simd]
fn add_relu_into<S: Simd>(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = positive(a + b);
    }
}

/// Adds a bias to each row of so many columns, and activates.
pub(super) fn add_bias(rows: &mut [f32], columns: usize, bias: Option<&[f32]>, activation: Activation) {
    match (bias, activation) {
        (None, Activation::None) => {}
        (None, Activation::Relu) => relu_in_place(rows),
        (Some(bias), Activation::None) => add_bias_over::<false>(rows, columns, bias),
        (Some(bias), Activation::Relu) => add_bias_over::<true>(rows, columns, bias),
    }
}

#[with_simd]
fn add_bias_over<S: Simd, const RELU: bool>(rows: &mut [f32], columns: usize, bias: &[f32]) {
    for row in rows.chunks_exact_mut(columns) {
        for (value, bias) in row.iter_mut().zip(bias) {
            let sum = *value + bias;
            *value = if RELU { positive(sum) } else { sum };
        }
    }
}

/// Sum over batch and pixels of `[batch, channels, pixels]`; with one pixel, of the rows of `[batch, channels]`.
pub fn channel_sums(x: &[f32], channels: usize, pixels: usize) -> Buffer {
    let sample = channels * pixels;
    let sums = map(parts(x.len() / sample, x.len()), |(first, samples)| {
        let mut sums = Buffer::zeroed(channels);
        channel_sums_part(&mut sums, &x[first * sample..][..samples * sample], pixels);
        sums
    });
    sum_rows(sums, channels)
}

/// The sum of what threads have summed, `length` elements each.
pub(super) fn sum_rows(rows: Vec<Buffer>, length: usize) -> Buffer {
    let mut rows = rows.into_iter();
    let mut total = rows.next().unwrap_or_else(|| Buffer::zeroed(length));
    for row in rows {
        total.iter_mut().zip(row.iter()).for_each(|(total, value)| *total += value);
    }
    total
}

/// Rows that are summed before they are added to the total, which keeps rounding errors small.
const ROWS_TOGETHER: usize = 64;

#[with_simd]
fn channel_sums_part<S: Simd>(sums: &mut [f32], x: &[f32], pixels: usize) {
    if pixels == 1 {
        let mut block = Buffer::new(sums.len());
        for rows in x.chunks(ROWS_TOGETHER * sums.len()) {
            block.fill(0.0);
            for row in rows.chunks_exact(sums.len()) {
                block.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            sums.iter_mut().zip(block.iter()).for_each(|(sum, value)| *sum += value);
        }
        return;
    }
    for sample in x.chunks_exact(sums.len() * pixels) {
        for (sum, plane) in sums.iter_mut().zip(sample.chunks_exact(pixels)) {
            *sum += sum_plane(plane);
        }
    }
}

/// Sum in 16 lanes, so that it needs no order.
#[inline(always)]
pub(super) fn sum_plane(plane: &[f32]) -> f32 {
    let (chunks, rest) = plane.as_chunks::<16>();
    let mut lanes = [0.0f32; 16];
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, value)| *lane += value);
    }
    lanes.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

/// Fills each row of `out` with `row`.
pub(super) fn repeat_row(out: &mut [f32], row: &[f32]) {
    for out in out.chunks_exact_mut(row.len()) {
        out.copy_from_slice(row);
    }
}
