//! Outer products: the weight's gradient of a convolution whose output channels fill vectors.

use macerator::{Simd, with_simd};

use super::{Offsets, element, lanes, load, splat, store, wide_register_file};

/// `out[o][r][c] += sum_s vectors[s][o] source[steps[s] + rows[r] + c]` for `c` in `0..columns`: the same as [`ShiftedDot`] with
/// outputs in the lanes, so that no position is wasted and no sum crosses lanes. For outputs that fill vectors.
pub(crate) struct OuterSums {
    values: Vec<f32>,
    outputs: usize,
    rows: usize,
    columns: usize,
}

/// Taps of a row for which there are register tiles.
const OUTER_COLUMNS: [usize; 3] = [1, 3, 5];

/// Rows of a register tile of [`OuterSums`].
fn outer_rows(columns: usize) -> usize {
    match (wide_register_file(), columns) {
        (true, 5) => 5,
        (true, 3) => 8,
        (true, _) => 24,
        (false, 5) => 2,
        (false, 3) => 4,
        (false, _) => 12,
    }
}

impl OuterSums {
    /// Whether this is a good way to sum for so many outputs and taps of a row.
    pub(crate) fn suit(outputs: usize, columns: usize) -> bool {
        outputs.is_multiple_of(lanes()) && OUTER_COLUMNS.contains(&columns)
    }

    /// Zeros.
    pub(crate) fn new(outputs: usize, rows: usize, columns: usize) -> OuterSums {
        assert!(OuterSums::suit(outputs, columns), "outputs fill vectors");
        let values = vec![0.0; rows.next_multiple_of(outer_rows(columns)) * columns * outputs];
        OuterSums { values, outputs, rows, columns }
    }

    /// Adds the products of the first steps.
    pub(crate) fn add(&mut self, vectors: &[f32], source: &[f32], steps: &Offsets, steps_taken: usize, rows: &Offsets) {
        assert_eq!(rows.len(), self.rows, "one offset a row");
        assert!(source.len() >= steps.furthest + rows.furthest + self.columns, "the source ends too early");
        assert!(vectors.len() >= steps_taken * self.outputs, "the vectors end too early");
        let (steps, rows) = (&steps.values[..steps_taken], &rows.values);
        let tile_rows = outer_rows(self.columns);
        let tiles = self.values.chunks_exact_mut(tile_rows * self.columns * self.outputs);
        for (sums, rows) in tiles.zip(rows.chunks(tile_rows)) {
            for (lane, sums) in sums.chunks_exact_mut(tile_rows * self.columns * lanes()).enumerate() {
                let vectors = &vectors[lane * lanes()..];
                macro_rules! tile {
                    ($rows:literal, $columns:literal) => {
                        outer_tile::<$rows, $columns>(vectors, self.outputs, source, steps, rows, sums)
                    };
                }
                match (tile_rows, self.columns) {
                    (5, 5) => tile!(5, 5),
                    (8, 3) => tile!(8, 3),
                    (24, _) => tile!(24, 1),
                    (2, 5) => tile!(2, 5),
                    (4, 3) => tile!(4, 3),
                    (_, _) => tile!(12, 1),
                }
            }
        }
    }

    /// Adds the sums to `out`, `[outputs, rows, columns]`.
    pub(crate) fn add_to(&self, out: &mut [f32]) {
        let tile_rows = outer_rows(self.columns);
        let taps = self.rows * self.columns;
        for (tile, sums) in self.values.chunks_exact(tile_rows * self.columns * self.outputs).enumerate() {
            for (block, sums) in sums.chunks_exact(tile_rows * self.columns * lanes()).enumerate() {
                let first_tap = tile * tile_rows * self.columns;
                for (tap, sums) in (first_tap..taps).zip(sums.chunks_exact(lanes())) {
                    for (lane, sum) in sums.iter().enumerate() {
                        out[(block * lanes() + lane) * taps + tap] += sum;
                    }
                }
            }
        }
    }
}

/// One register tile of [`OuterSums::add`].
#[with_simd]
fn outer_tile<S: Simd, const ROWS: usize, const COLUMNS: usize>(
    vectors: &[f32],
    vector_stride: usize,
    source: &[f32],
    steps: &[usize],
    rows: &[usize],
    stored: &mut [f32],
) {
    let lanes = S::lanes32();
    assert!(stored.len() == ROWS * COLUMNS * lanes && !rows.is_empty(), "the tile's sums");
    let mut sums = [[splat::<S>(0.0); COLUMNS]; ROWS];
    // A tile that reaches past the last row repeats it, and the surplus is dropped.
    let mut row_starts = [0; ROWS];
    for row in 0..ROWS {
        row_starts[row] = rows[row.min(rows.len() - 1)];
        for column in 0..COLUMNS {
            // SAFETY: the assertion above.
            sums[row][column] = unsafe { load::<S>(stored, (row * COLUMNS + column) * lanes) };
        }
    }
    for (step, &offset) in steps.iter().enumerate() {
        // SAFETY: `add` has checked that there is a vector for every output and step.
        let vector = unsafe { load::<S>(vectors, step * vector_stride) };
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                // SAFETY: `add` has checked that the furthest step, row and column are in the source.
                let value = splat::<S>(unsafe { element(source, offset + row_starts[row] + column) });
                sums[row][column] = vector.mul_add(value, sums[row][column]);
            }
        }
    }
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            // SAFETY: the assertion above.
            unsafe { store::<S>(stored, (row * COLUMNS + column) * lanes, sums[row][column]) };
        }
    }
}
