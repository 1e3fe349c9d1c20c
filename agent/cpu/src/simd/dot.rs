//! Dot products of planes with shifted planes: the weight's gradient of a convolution of stride 1.

use macerator::{Simd, with_simd};

use super::{Offsets, SLACK, lanes, load, splat, store, tile_columns, tile_rows};

/// `out[o][k] += sum_n sum_p rows[n][o][p] source[n][offsets[k] + p]` for `p` in `0..length`.
///
/// Rows are `row_stride` apart, samples `rows_sample` and `source_sample`. Elements of `rows` from `length` to the next multiple of [`SLACK`]
/// are zero, and the corresponding elements of `source` are finite.
pub(crate) struct ShiftedDot<'a> {
    /// The output's gradient.
    pub(crate) rows: &'a [f32],
    /// Between outputs.
    pub(crate) row_stride: usize,
    /// Between samples of `rows`.
    pub(crate) rows_sample: usize,
    /// The padded input.
    pub(crate) source: &'a [f32],
    /// Between samples of `source`.
    pub(crate) source_sample: usize,
    /// Samples.
    pub(crate) samples: usize,
    /// Positions.
    pub(crate) length: usize,
}

/// Sums of [`ShiftedDot`], one vector for each output and tap, so that they are added up across lanes only once, in the end.
pub(crate) struct LaneSums {
    values: Vec<f32>,
    outputs: usize,
    taps: usize,
}

impl LaneSums {
    /// Zeros.
    pub(crate) fn new(outputs: usize, taps: usize) -> LaneSums {
        let rows = tile_rows(outputs);
        LaneSums { values: vec![0.0; outputs.next_multiple_of(rows) * taps * lanes()], outputs, taps }
    }

    /// Calls `tile(first output, first tap, rows, taps, sums)` for each register tile, in the order of storage.
    fn for_each(
        values: &mut [f32],
        outputs: usize,
        taps: usize,
        mut tile: impl FnMut(usize, usize, usize, usize, &mut [f32]),
    ) {
        let rows = tile_rows(outputs);
        let columns = tile_columns(rows);
        let mut rest = values;
        for first_tap in (0..taps).step_by(columns) {
            let columns = columns.min(taps - first_tap);
            for first in (0..outputs).step_by(rows) {
                let (sums, tail) = rest.split_at_mut(rows * columns * lanes());
                tile(first, first_tap, rows, columns, sums);
                rest = tail;
            }
        }
    }

    /// Adds the sums to `out`, one row of taps an output.
    pub(crate) fn add_to(&mut self, out: &mut [f32]) {
        let (outputs, taps) = (self.outputs, self.taps);
        LaneSums::for_each(&mut self.values, outputs, taps, |first, first_tap, rows, columns, sums| {
            let mut sums = sums.chunks_exact(lanes());
            for output in first..first + rows {
                for (tap, sum) in (first_tap..first_tap + columns).zip(&mut sums) {
                    if output < outputs {
                        out[output * taps + tap] += sum.iter().sum::<f32>();
                    }
                }
            }
        });
    }
}

impl ShiftedDot<'_> {
    /// Adds to `sums`, with one offset a tap.
    pub(crate) fn add_to(&self, offsets: &Offsets, sums: &mut LaneSums) {
        if self.samples == 0 {
            return;
        }
        let last = self.samples - 1;
        assert_eq!(offsets.len(), sums.taps, "one offset a tap");
        assert!(
            self.source.len() >= last * self.source_sample + offsets.furthest + self.length + SLACK,
            "the source ends too early"
        );
        assert!(self.row_stride >= self.length.next_multiple_of(SLACK), "the rows are not padded");
        assert!(self.rows.len() >= last * self.rows_sample + sums.outputs * self.row_stride, "the rows end too early");
        let outputs = sums.outputs;
        LaneSums::for_each(&mut sums.values, outputs, offsets.len(), |first, first_tap, rows, taps, sums| {
            macro_rules! tile {
                ($rows:literal, $columns:literal) => {
                    dot_tile::<$rows, $columns>(self, first, outputs, &offsets.values[first_tap..], sums)
                };
            }
            match (rows, taps) {
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
        });
    }
}

/// One register tile of [`ShiftedDot::add_to`]: outputs from `first` on, and the first taps of `offsets`.
#[with_simd]
fn dot_tile<'a, S: Simd, const ROWS: usize, const TAPS: usize>(
    dot: &ShiftedDot<'a>,
    first: usize,
    outputs: usize,
    offsets: &[usize],
    stored: &mut [f32],
) {
    let lanes = S::lanes32();
    assert!(stored.len() == ROWS * TAPS * lanes, "the tile's sums");
    let mut sums = [[splat::<S>(0.0); TAPS]; ROWS];
    for row in 0..ROWS {
        for tap in 0..TAPS {
            // SAFETY: the assertion above.
            sums[row][tap] = unsafe { load::<S>(stored, (row * TAPS + tap) * lanes) };
        }
    }
    // A tile that reaches past the last output repeats its last row, and the surplus is dropped.
    let mut row_starts = [0; ROWS];
    for row in 0..ROWS {
        row_starts[row] = (first + row).min(outputs - 1) * dot.row_stride;
    }
    let (mut gradient, mut source) = (dot.rows, dot.source);
    let (mut sample, mut position) = (0, 0);
    // One loop over samples and positions, not two nested ones, for which the compiler would move all sums about.
    while sample < dot.samples {
        let mut values = [splat::<S>(0.0); TAPS];
        for tap in 0..TAPS {
            // SAFETY: `add_to` has checked that the source has `SLACK` elements after the last position of the last sample
            // at the furthest offset, and a vector is not longer.
            values[tap] = unsafe { load::<S>(source, offsets[tap] + position) };
        }
        for row in 0..ROWS {
            // SAFETY: `add_to` has checked that a row is as long as its positions, rounded up to `SLACK`.
            let gradient = unsafe { load::<S>(gradient, row_starts[row] + position) };
            for tap in 0..TAPS {
                sums[row][tap] = values[tap].mul_add(gradient, sums[row][tap]);
            }
        }
        position += lanes;
        if position >= dot.length {
            sample += 1;
            position = 0;
            gradient = dot.rows.get(sample * dot.rows_sample..).unwrap_or_default();
            source = dot.source.get(sample * dot.source_sample..).unwrap_or_default();
        }
    }
    for row in 0..ROWS {
        for tap in 0..TAPS {
            // SAFETY: the assertion above.
            unsafe { store::<S>(stored, (row * TAPS + tap) * lanes, sums[row][tap]) };
        }
    }
}
