//! Maximum pooling of planes. The usual case, windows of 2 x 2 side by side, has loops of its own that need no positions.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use crate::buffer::Buffer;
use crate::shape::PoolShape;
use crate::threads::{for_each, parts, split};
use macerator::{Simd, with_simd};

/// Maximum of each window; and the position in the window where it was, row by row, unless [`PoolShape::is_halving`].
/// Not-a-number wins and stays, so that it is noticed.
pub(super) fn max_forward(shape: &PoolShape, x: &[f32]) -> (Buffer, Vec<u16>) {
    let (pixels, out_pixels) = (shape.in_pixels(), shape.out_pixels());
    let mut out = Buffer::new(shape.planes() * out_pixels);
    let planes = parts(shape.planes(), x.len());
    if shape.is_halving() {
        for_each(split(&mut out, out_pixels, &planes), |(first, out)| {
            halve(out, &x[first * pixels..][..out.len() * 4], shape.width);
        });
        return (out, Vec::new());
    }
    let mut taps = vec![0u16; shape.planes() * out_pixels];
    let taps_of_planes = split(&mut taps, out_pixels, &planes).into_iter().map(|(_, taps)| taps);
    let outputs = split(&mut out, out_pixels, &planes).into_iter().zip(taps_of_planes).collect();
    for_each(outputs, |((first, out), taps): ((usize, &mut [f32]), &mut [u16])| {
        let x = x[first * pixels..].chunks_exact(pixels);
        for ((out, taps), x) in out.chunks_exact_mut(out_pixels).zip(taps.chunks_exact_mut(out_pixels)).zip(x) {
            max_plane(shape, x, out, taps);
        }
    });
    (out, taps)
}

/// Pairs of rows that are worked on at once: enough for loops to be long, few enough to stay in the first-level cache.
const HALVING_ROWS: usize = 16;

/// The larger of two, or the one that is not a number.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if (a >= b) | a.is_nan() { a } else { b }
}

/// The larger of two rows, then the larger of two columns.
#[with_simd]
fn halve<S: Simd>(out: &mut [f32], x: &[f32], width: usize) {
    let mut columns = Buffer::new(HALVING_ROWS * width);
    for (out, x) in out.chunks_mut(HALVING_ROWS * width / 2).zip(x.chunks(2 * HALVING_ROWS * width)) {
        let columns = &mut columns[..x.len() / 2];
        for (x, columns) in x.chunks_exact(2 * width).zip(columns.chunks_exact_mut(width)) {
            let (top, bottom) = x.split_at(width);
            for ((&top, &bottom), column) in top.iter().zip(bottom).zip(columns) {
                *column = larger(top, bottom);
            }
        }
        let pairs = columns.as_chunks::<2>().0;
        out.iter_mut().zip(pairs).for_each(|(out, &[left, right])| *out = larger(left, right));
    }
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

/// The gradient of the input `x` of [`max_forward`]: each window's goes to its first largest pixel.
pub(super) fn max_backward(shape: &PoolShape, x: &[f32], taps: &[u16], gradient: &[f32]) -> Buffer {
    let (pixels, out_pixels) = (shape.in_pixels(), shape.out_pixels());
    let mut out = Buffer::new(shape.planes() * pixels);
    let planes = parts(shape.planes(), x.len());
    for_each(split(&mut out, pixels, &planes), |(first, out)| {
        let gradient = &gradient[first * out_pixels..];
        if shape.is_halving() {
            halve_backward(out, &x[first * pixels..][..out.len()], &gradient[..out.len() / 4], shape.width);
            return;
        }
        out.fill(0.0);
        let taps = taps[first * out_pixels..].chunks_exact(out_pixels);
        for ((out, taps), gradient) in out.chunks_exact_mut(pixels).zip(taps).zip(gradient.chunks_exact(out_pixels)) {
            for (index, (&tap, &gradient)) in taps.iter().zip(gradient).enumerate() {
                out[shape.pixel(index, usize::from(tap))] += gradient;
            }
        }
    });
    out
}

#[with_simd]
fn halve_backward<S: Simd>(out: &mut [f32], x: &[f32], gradient: &[f32], width: usize) {
    // Pairs of neighbours lie in one `u64` each, since the compiler makes vector loops of whole numbers only where it would
    // have to take pairs of floats apart.
    let mut columns = vec![0u64; HALVING_ROWS * width / 2];
    // 1 where the larger of two rows is the lower.
    let mut below = vec![0u64; HALVING_ROWS * width / 2];
    let blocks = out.chunks_mut(2 * HALVING_ROWS * width).zip(x.chunks(2 * HALVING_ROWS * width));
    for ((out, x), gradient) in blocks.zip(gradient.chunks(HALVING_ROWS * width / 2)) {
        let (columns, below) = (&mut columns[..x.len() / 4], &mut below[..x.len() / 4]);
        {
            let (columns, below) =
                (bytemuck::cast_slice_mut::<u64, f32>(columns), bytemuck::cast_slice_mut::<u64, u32>(below));
            let rows = columns.chunks_exact_mut(width).zip(below.chunks_exact_mut(width));
            for (x, (columns, below)) in x.chunks_exact(2 * width).zip(rows) {
                let (top, bottom) = x.split_at(width);
                for ((&top, &bottom), (column, below)) in top.iter().zip(bottom).zip(columns.iter_mut().zip(below)) {
                    let upper = top >= bottom;
                    *column = if upper { top } else { bottom };
                    *below = u32::from(!upper);
                }
            }
        }
        // The columns' places take their gradients. Of equals, the first in the window's order wins: an upper one, then the left.
        for ((pair, &below), &gradient) in columns.iter_mut().zip(below.iter()).zip(gradient) {
            let [left, right] = halves(*pair).map(f32::from_bits);
            let [left_below, right_below] = halves(below);
            let is_left = (left > right) | ((left == right) & (left_below <= right_below));
            *pair = u64::from(gradient.to_bits()) << if is_left == cfg!(target_endian = "little") { 0 } else { 32 };
        }
        let (columns, below) = (bytemuck::cast_slice::<u64, f32>(columns), bytemuck::cast_slice::<u64, u32>(below));
        for (out, (columns, below)) in
            out.chunks_exact_mut(2 * width).zip(columns.chunks_exact(width).zip(below.chunks_exact(width)))
        {
            let (top, bottom) = out.split_at_mut(width);
            for ((top, bottom), (&column, &below)) in top.iter_mut().zip(bottom).zip(columns.iter().zip(below)) {
                *top = if below == 0 { column } else { 0.0 };
                *bottom = if below == 0 { 0.0 } else { column };
            }
        }
    }
}

/// The two halves of a pair, in memory order.
#[inline(always)]
fn halves(pair: u64) -> [u32; 2] {
    let (low, high) = (pair as u32, (pair >> 32) as u32);
    if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
}
