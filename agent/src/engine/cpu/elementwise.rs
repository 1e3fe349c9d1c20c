//! Loops over single elements and channels. They are plain Rust, compiled for each instruction set.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};
use rayon::prelude::*;

/// Elements below which work is not worth handing to another thread.
const PARALLEL_ELEMENTS: usize = 64 << 10;

/// `max(x, 0)`; not-a-number stays, so that it is noticed.
pub(crate) fn relu(x: &[f32]) -> Vec<f32> {
    map_chunks(x, x, |x, _| relu_chunk(x))
}

#[with_simd]
fn relu_chunk<S: Simd>(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| if 0.0 > x { 0.0 } else { x }).collect()
}

/// The gradient where the output is positive, zero elsewhere.
pub(crate) fn relu_backward(out: &[f32], gradient: &[f32]) -> Vec<f32> {
    map_chunks(out, gradient, relu_backward_chunk)
}

#[with_simd]
fn relu_backward_chunk<S: Simd>(out: &[f32], gradient: &[f32]) -> Vec<f32> {
    out.iter().zip(gradient).map(|(&out, &gradient)| if out > 0.0 { gradient } else { 0.0 }).collect()
}

/// `work` on equal pieces of two slices, one for each thread, joined.
fn map_chunks(a: &[f32], b: &[f32], work: impl Fn(&[f32], &[f32]) -> Vec<f32> + Sync) -> Vec<f32> {
    let threads = rayon::current_num_threads();
    if threads == 1 || a.len() < PARALLEL_ELEMENTS {
        return work(a, b);
    }
    let mut out = vec![0.0; a.len()];
    let chunk = a.len().div_ceil(threads);
    let inputs = a.par_chunks(chunk).zip(b.par_chunks(chunk));
    out.par_chunks_mut(chunk).zip(inputs).for_each(|(out, (a, b))| out.copy_from_slice(&work(a, b)));
    out
}

/// Sum over batch and pixels of `[batch, channels, pixels]`.
pub(crate) fn channel_sums(x: &[f32], channels: usize, pixels: usize) -> Vec<f32> {
    let mut sums = vec![0.0; channels];
    channel_sums_chunk(&mut sums, x, pixels);
    sums
}

#[with_simd]
fn channel_sums_chunk<S: Simd>(sums: &mut [f32], x: &[f32], pixels: usize) {
    if pixels == 1 {
        for row in x.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
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
pub(crate) fn repeat_row(out: &mut [f32], row: &[f32]) {
    for out in out.chunks_exact_mut(row.len()) {
        out.copy_from_slice(row);
    }
}
