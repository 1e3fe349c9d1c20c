//! Sums of shifted planes: a convolution of stride 1.

use std::ops::Range;

use macerator::{Simd, with_simd};

use super::{Offsets, ROWS_MAX, lanes, load, splat, store, tile_columns, tile_rows};

/// Weights in the order in which [`ShiftedSum`] reads them: for each tile of rows, for each tap, the tile's rows.
pub(crate) struct PackedWeights {
    values: Vec<f32>,
    rows: usize,
    outputs: usize,
    taps: usize,
}

impl PackedWeights {
    /// Packs `weight(output, tap)`.
    pub(crate) fn new(outputs: usize, taps: usize, weight: impl Fn(usize, usize) -> f32) -> PackedWeights {
        let rows = tile_rows(outputs);
        let mut values = vec![0.0; outputs.div_ceil(rows) * taps * rows];
        for (tile, values) in values.chunks_exact_mut(taps * rows).enumerate() {
            for (tap, values) in values.chunks_exact_mut(rows).enumerate() {
                for (row, value) in values.iter_mut().enumerate().take_while(|(row, _)| tile * rows + row < outputs) {
                    *value = weight(tile * rows + row, tap);
                }
            }
        }
        PackedWeights { values, rows, outputs, taps }
    }

    /// Vectors that are best computed together.
    pub(crate) fn columns(&self) -> usize {
        tile_columns(self.rows)
    }
}

/// `out[o][p] = bias[o] + sum_k weight[o][k] source[offsets[k] + p]`
#[derive(Clone, Copy)]
pub(crate) struct ShiftedSum<'a> {
    /// What is summed, with [`SLACK`] elements after the last that the formula reads.
    pub(crate) source: &'a [f32],
    /// One a tap.
    pub(crate) offsets: &'a Offsets,
    /// For each output and tap.
    pub(crate) weights: &'a PackedWeights,
    /// One an output.
    pub(crate) bias: Option<&'a [f32]>,
}

/// Where vectors lie in [`ShiftedSum::compute`]: `count` of them, the first at `p = start`.
#[derive(Clone, Copy)]
pub(crate) struct Vectors {
    /// Position of the first.
    pub(crate) start: usize,
    /// From the position of one to that of the next.
    pub(crate) step: usize,
    /// How many.
    pub(crate) count: usize,
}

impl ShiftedSum<'_> {
    /// Computes for `p` in `0..length`. Rows of `out` are `out_stride` apart, at least `length` rounded up to [`SLACK`]; what lies past
    /// `length` is garbage.
    pub(crate) fn flat(&self, out: &mut [f32], out_stride: usize, length: usize) {
        let vectors = Vectors { start: 0, step: lanes(), count: length.div_ceil(lanes()) };
        self.compute(vectors, 0..self.offsets.len(), out, out_stride);
    }

    /// Computes for one vector of positions after another, with these taps only. They are stored one after another in each row
    /// of `out`; rows are `out_stride` apart.
    pub(crate) fn compute(&self, vectors: Vectors, taps: Range<usize>, out: &mut [f32], out_stride: usize) {
        let ShiftedSum { source, offsets, weights, bias } = *self;
        let Vectors { start, step, count } = vectors;
        if count == 0 {
            return;
        }
        assert_eq!(offsets.len(), weights.taps, "one offset a tap");
        assert!(taps.start <= taps.end && taps.end <= weights.taps, "the taps are among the weights'");
        assert!(source.len() >= offsets.furthest + start + (count - 1) * step + lanes(), "the source ends too early");
        let fits = (weights.outputs - 1) * out_stride + count * lanes() <= out.len();
        assert!(out_stride >= count * lanes() && fits, "the output is too small");
        assert!(bias.is_none_or(|bias| bias.len() == weights.outputs), "one bias an output");
        let columns = tile_columns(weights.rows);
        let offsets = &offsets.values[taps.clone()];
        for column in (0..count).step_by(columns) {
            let columns = columns.min(count - column);
            let source = &source[start + column * step..];
            for (tile, tile_weights) in weights.values.chunks_exact(weights.taps * weights.rows).enumerate() {
                let tile_weights = &tile_weights[taps.start * weights.rows..taps.end * weights.rows];
                let first = tile * weights.rows;
                let rows = weights.rows.min(weights.outputs - first);
                let bias = bias.map_or(&[0.0; ROWS_MAX][..rows], |bias| &bias[first..first + rows]);
                let out = &mut out[first * out_stride + column * lanes()..];
                macro_rules! tile {
                    ($rows:literal, $columns:literal) => {
                        sum_tile::<$rows, $columns>(source, step, offsets, tile_weights, bias, out, out_stride)
                    };
                }
                match (weights.rows, columns) {
                    (8, 3) => tile!(8, 3),
                    (8, 2) => tile!(8, 2),
                    (8, _) => tile!(8, 1),
                    (6, 4) => tile!(6, 4),
                    (6, 3) => tile!(6, 3),
                    (6, 2) => tile!(6, 2),
                    (6, _) => tile!(6, 1),
                    (_, 3) => tile!(4, 3),
                    (_, 2) => tile!(4, 2),
                    (_, _) => tile!(4, 1),
                }
            }
        }
    }
}

/// One register tile of [`ShiftedSum::compute`]: `ROWS` outputs by `COLUMNS` vectors, `step` apart. A function of its own, so that
/// the compiler keeps the sums in registers.
#[with_simd]
fn sum_tile<S: Simd, const ROWS: usize, const COLUMNS: usize>(
    source: &[f32],
    step: usize,
    offsets: &[usize],
    weights: &[f32],
    bias: &[f32],
    out: &mut [f32],
    out_stride: usize,
) {
    let lanes = S::lanes32();
    let mut sums = [[splat::<S>(0.0); COLUMNS]; ROWS];
    for (sums, bias) in sums.iter_mut().zip(bias) {
        *sums = [splat::<S>(*bias); COLUMNS];
    }
    for (&offset, weights) in offsets.iter().zip(weights.as_chunks::<ROWS>().0) {
        let mut values = [splat::<S>(0.0); COLUMNS];
        for column in 0..COLUMNS {
            // SAFETY: `compute` has checked that the last vector at the furthest offset ends in the source.
            values[column] = unsafe { load::<S>(source, offset + column * step) };
        }
        for row in 0..ROWS {
            let weight = splat::<S>(weights[row]);
            for column in 0..COLUMNS {
                sums[row][column] = values[column].mul_add(weight, sums[row][column]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // A tile may reach past the last output.
        if row < bias.len() {
            for (column, &sum) in sums.iter().enumerate() {
                // SAFETY: `compute` has checked that the last vector of the last output ends in `out`.
                unsafe { store::<S>(out, row * out_stride + column * lanes, sum) };
            }
        }
    }
}
