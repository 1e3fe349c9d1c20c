//! Maximum pooling.

use macerator::{Simd, with_simd};
use rayon::prelude::*;

use super::scratch::parts;
use crate::engine::shape::PoolShape;

/// Maximum of each window, and where it was: the position in the window, row by row.
pub(crate) fn max_forward(shape: &PoolShape, x: &[f32]) -> (Vec<f32>, Vec<u16>) {
    let (pixels, out_pixels) = (shape.height * shape.width, shape.out_height * shape.out_width);
    let planes = shape.planes();
    let mut out = vec![0.0; planes * out_pixels];
    let mut taps = vec![0u16; planes * out_pixels];
    let share = planes.div_ceil(parts(planes).len().max(1)).max(1);
    let outputs = out.par_chunks_mut(share * out_pixels).zip(taps.par_chunks_mut(share * out_pixels));
    outputs.zip(x.par_chunks(share * pixels)).for_each(|((out, taps), x)| {
        let planes = out.chunks_exact_mut(out_pixels).zip(taps.chunks_exact_mut(out_pixels)).zip(x.chunks_exact(pixels));
        if shape.is_halving() {
            let mut columns = Columns::default();
            for ((out, taps), x) in planes {
                max_halving(x, shape.width, out, taps, &mut columns);
            }
        } else {
            for ((out, taps), x) in planes {
                max_plane(shape, x, out, taps);
            }
        }
    });
    (out, taps)
}

/// Windows of 2 x 2 without overlap: the larger of two rows, then the larger of two columns. Not-a-number wins and stays, so
/// that it is noticed; of equals, the first in the window's order.
#[with_simd]
fn max_halving<S: Simd>(x: &[f32], width: usize, out: &mut [f32], taps: &mut [u16], columns: &mut Columns) {
    columns.values.resize(x.len() / 2, 0.0);
    columns.below.resize(x.len() / 2, 0);
    let rows = columns.values.chunks_exact_mut(width).zip(columns.below.chunks_exact_mut(width));
    for (x, (values, below)) in x.chunks_exact(2 * width).zip(rows) {
        let (top, bottom) = x.split_at(width);
        for ((&a, &b), (value, below)) in top.iter().zip(bottom).zip(values.iter_mut().zip(below)) {
            let first = (a >= b) | a.is_nan();
            *value = if first { a } else { b };
            *below = if first { 0 } else { 2 };
        }
    }
    let pairs = columns.values.as_chunks::<2>().0.iter().zip(columns.below.as_chunks::<2>().0);
    for ((&[a, b], &[a_below, b_below]), (out, tap)) in pairs.zip(out.iter_mut().zip(taps)) {
        let first = (a > b) | ((a == b) & (a_below <= b_below)) | a.is_nan();
        *out = if first { a } else { b };
        *tap = if first { a_below } else { b_below + 1 };
    }
}

/// The larger of two rows, and 2 where it is the lower, else 0.
#[derive(Default)]
struct Columns {
    values: Vec<f32>,
    below: Vec<u16>,
}

fn max_plane(shape: &PoolShape, x: &[f32], out: &mut [f32], taps: &mut [u16]) {
    for (index, (out, tap)) in out.iter_mut().zip(taps).enumerate() {
        let mut best = f32::NEG_INFINITY;
        let mut best_tap = None;
        shape.window(index, |window_tap, pixel| {
            let value = x[pixel];
            if best_tap.is_none() || value > best || value.is_nan() {
                best = value;
                best_tap = Some(window_tap);
            }
        });
        *out = best;
        *tap = best_tap.unwrap_or(0) as u16;
    }
}

/// The gradient of the input of [`max_forward`].
pub(crate) fn max_backward(shape: &PoolShape, taps: &[u16], gradient: &[f32]) -> Vec<f32> {
    let (pixels, out_pixels) = (shape.height * shape.width, shape.out_height * shape.out_width);
    let planes = shape.planes();
    let mut out = vec![0.0; planes * pixels];
    let share = planes.div_ceil(parts(planes).len().max(1)).max(1);
    let inputs = taps.par_chunks(share * out_pixels).zip(gradient.par_chunks(share * out_pixels));
    out.par_chunks_mut(share * pixels).zip(inputs).for_each(|(out, (taps, gradient))| {
        let planes = out.chunks_exact_mut(pixels).zip(taps.chunks_exact(out_pixels)).zip(gradient.chunks_exact(out_pixels));
        for ((out, taps), gradient) in planes {
            if shape.is_halving() {
                max_halving_backward(out, shape.width, taps, gradient, shape.out_width);
            } else {
                for (index, (&tap, &gradient)) in taps.iter().zip(gradient).enumerate() {
                    out[shape.pixel(index, usize::from(tap))] += gradient;
                }
            }
        }
    });
    out
}

#[with_simd]
fn max_halving_backward<S: Simd>(out: &mut [f32], width: usize, taps: &[u16], gradient: &[f32], out_width: usize) {
    let rows = out.chunks_exact_mut(2 * width).zip(taps.chunks_exact(out_width)).zip(gradient.chunks_exact(out_width));
    for ((out, taps), gradient) in rows {
        let (top, bottom) = out.split_at_mut(width);
        let pairs = top.as_chunks_mut::<2>().0.iter_mut().zip(bottom.as_chunks_mut::<2>().0);
        for ((upper, lower), (&tap, &gradient)) in pairs.zip(taps.iter().zip(gradient)) {
            let at = |index| if tap == index { gradient } else { 0.0 };
            *upper = [at(0), at(1)];
            *lower = [at(2), at(3)];
        }
    }
}
