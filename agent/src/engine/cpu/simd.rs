//! The innermost loops, written once and compiled for AVX-512, AVX2, SSE, NEON and plain code; the widest that the
//! processor has is taken at run time. This is the only file of the engine with `unsafe` code.
#![expect(unsafe_code, reason = "vector loads, stores and the matrix product take pointers")]

use std::sync::LazyLock;

use macerator::{Simd, Vector, with_simd};

/// Most rows in one register tile.
const ROWS_MAX: usize = 8;

/// Lengths are rounded up to this, the most elements of any vector; the surplus is read or written, never used.
pub(crate) const SLACK: usize = 16;

/// Rows of a register tile for this many outputs: of the sizes that fit the processor's registers, the one that wastes least.
pub(crate) fn tile_rows(outputs: usize) -> usize {
    let sizes: &[usize] = if wide_register_file() { &[8, 6] } else { &[4, 6] };
    let waste = |&rows: &usize| outputs.div_ceil(rows) * rows - outputs;
    sizes.iter().copied().min_by_key(waste).unwrap_or(4)
}

/// Vectors in a row of a register tile, so that sums and operands fit the registers.
fn tile_columns(rows: usize) -> usize {
    match (wide_register_file(), rows) {
        (true, 8) => 3,
        (true, _) => 4,
        (false, 4) => 3,
        (false, 6) => 2,
        (false, _) => 1,
    }
}

/// Whether there are 32 vector registers, as with AVX-512 and NEON, or 16.
fn wide_register_file() -> bool {
    cfg!(target_arch = "aarch64") || lanes() == 16
}

/// Elements of a vector.
fn lanes() -> usize {
    #[with_simd]
    fn detected<S: Simd>() -> usize {
        S::lanes32()
    }
    static LANES: LazyLock<usize> = LazyLock::new(|| {
        let lanes = detected();
        assert!(lanes <= SLACK, "a vector is longer than known");
        lanes
    });
    *LANES
}

#[inline(always)]
fn load<S: Simd>(values: &[f32], at: usize) -> Vector<S, f32> {
    debug_assert!(at + S::lanes32() <= values.len());
    // SAFETY: every caller has checked that `at` plus one vector is in bounds before its loops; see there.
    unsafe { macerator::vload_unaligned(values.as_ptr().add(at)) }
}

#[inline(always)]
fn element(values: &[f32], at: usize) -> f32 {
    debug_assert!(at < values.len());
    // SAFETY: as for `load`.
    unsafe { *values.get_unchecked(at) }
}

#[inline(always)]
fn store<S: Simd>(values: &mut [f32], at: usize, vector: Vector<S, f32>) {
    debug_assert!(at + S::lanes32() <= values.len());
    // SAFETY: as for `load`.
    unsafe { macerator::vstore_unaligned(values.as_mut_ptr().add(at), vector) }
}

/// Weights in the order in which [`shifted_sum`] reads them: for each tile of rows, for each tap, the tile's rows.
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
}

/// `out[o][p] = bias[o] + sum_k weight[o][k] source[offsets[k] + p]` for `p` in `0..length`.
///
/// Rows of `out` are `out_stride` apart, at least `length` rounded up to [`SLACK`]; elements past `length` are garbage.
/// `source` has [`SLACK`] elements after the last that the formula reads.
pub(crate) fn shifted_sum(source: &[f32], offsets: &[usize], weights: &PackedWeights, bias: Option<&[f32]>, out: &mut [f32], out_stride: usize, length: usize) {
    let furthest = offsets.iter().copied().max().unwrap_or(0);
    assert_eq!(offsets.len(), weights.taps, "one offset a tap");
    assert!(source.len() >= furthest + length + SLACK, "the source ends too early");
    assert!(out_stride >= length.next_multiple_of(SLACK) && out.len() >= weights.outputs * out_stride, "the output is too small");
    assert!(bias.is_none_or(|bias| bias.len() == weights.outputs), "one bias an output");
    let lanes = lanes();
    let columns = tile_columns(weights.rows);
    let mut start = 0;
    while start < length {
        let vectors = (length - start).div_ceil(lanes).min(columns);
        for (tile, tile_weights) in weights.values.chunks_exact(weights.taps * weights.rows).enumerate() {
            let first = tile * weights.rows;
            let rows = weights.rows.min(weights.outputs - first);
            let mut tile_bias = [0.0; ROWS_MAX];
            if let Some(bias) = bias {
                tile_bias[..rows].copy_from_slice(&bias[first..first + rows]);
            }
            let out = &mut out[first * out_stride + start..];
            macro_rules! tile {
                ($rows:literal, $columns:literal) => {
                    sum_tile::<$rows, $columns>(source, start, offsets, tile_weights, &tile_bias, out, out_stride, rows)
                };
            }
            match (weights.rows, vectors) {
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
        start += vectors * lanes;
    }
}

/// One register tile of [`shifted_sum`]: `ROWS` outputs by `COLUMNS` vectors, from position `start` on. A function of its own,
/// so that the compiler keeps the sums in registers.
#[with_simd]
#[expect(clippy::too_many_arguments, reason = "the body of a loop nest, inlined")]
fn sum_tile<S: Simd, const ROWS: usize, const COLUMNS: usize>(
    source: &[f32],
    start: usize,
    offsets: &[usize],
    weights: &[f32],
    bias: &[f32; ROWS_MAX],
    out: &mut [f32],
    out_stride: usize,
    rows: usize,
) {
    let lanes = S::lanes32();
    let mut sums = [[0.0f32.splat_to::<S>(); COLUMNS]; ROWS];
    for row in 0..ROWS {
        sums[row] = [bias[row].splat_to::<S>(); COLUMNS];
    }
    for (&offset, weights) in offsets.iter().zip(weights.as_chunks::<ROWS>().0) {
        // In bounds: at most `length` rounded up to a vector is read from `offset` on, and the source has `SLACK` more.
        let mut values = [0.0f32.splat_to::<S>(); COLUMNS];
        for column in 0..COLUMNS {
            values[column] = load::<S>(source, offset + start + column * lanes);
        }
        for row in 0..ROWS {
            let weight = weights[row].splat_to::<S>();
            for column in 0..COLUMNS {
                sums[row][column] = values[column].mul_add(weight, sums[row][column]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        if row < rows {
            for (column, &sum) in sums.iter().enumerate() {
                // In bounds: a row of `out` holds `length` rounded up to `SLACK`.
                store::<S>(out, row * out_stride + column * lanes, sum);
            }
        }
    }
}

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
    fn for_each(values: &mut [f32], outputs: usize, taps: usize, mut tile: impl FnMut(usize, usize, usize, usize, &mut [f32])) {
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
    pub(crate) fn add_to(&self, offsets: &[usize], sums: &mut LaneSums) {
        if self.samples == 0 {
            return;
        }
        let furthest = offsets.iter().copied().max().unwrap_or(0);
        let last = self.samples - 1;
        assert_eq!(offsets.len(), sums.taps, "one offset a tap");
        assert!(self.source.len() >= last * self.source_sample + furthest + self.length + SLACK, "the source ends too early");
        assert!(self.row_stride >= self.length.next_multiple_of(SLACK), "the rows are not padded");
        assert!(self.rows.len() >= last * self.rows_sample + sums.outputs * self.row_stride, "the rows end too early");
        let outputs = sums.outputs;
        LaneSums::for_each(&mut sums.values, outputs, offsets.len(), |first, first_tap, rows, taps, sums| {
            macro_rules! tile {
                ($rows:literal, $columns:literal) => {
                    dot_tile::<$rows, $columns>(self, first, outputs, &offsets[first_tap..], sums)
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
    let mut sums = [[0.0f32.splat_to::<S>(); TAPS]; ROWS];
    for row in 0..ROWS {
        for tap in 0..TAPS {
            sums[row][tap] = load::<S>(stored, (row * TAPS + tap) * lanes);
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
        // In bounds: `add_to` has checked both ends, with `SLACK` to spare.
        let mut values = [0.0f32.splat_to::<S>(); TAPS];
        for tap in 0..TAPS {
            values[tap] = load::<S>(source, offsets[tap] + position);
        }
        for row in 0..ROWS {
            let gradient = load::<S>(gradient, row_starts[row] + position);
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
            store::<S>(stored, (row * TAPS + tap) * lanes, sums[row][tap]);
        }
    }
}

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

    /// Adds the products of every step.
    pub(crate) fn add(&mut self, vectors: &[f32], source: &[f32], steps: &[usize], rows: &[usize]) {
        let furthest = |offsets: &[usize]| offsets.iter().copied().max().unwrap_or(0);
        assert_eq!(rows.len(), self.rows, "one offset a row");
        assert!(source.len() >= furthest(steps) + furthest(rows) + self.columns, "the source ends too early");
        assert!(vectors.len() >= steps.len() * self.outputs, "the vectors end too early");
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
    let mut sums = [[0.0f32.splat_to::<S>(); COLUMNS]; ROWS];
    // A tile that reaches past the last row repeats it, and the surplus is dropped.
    let mut row_starts = [0; ROWS];
    for row in 0..ROWS {
        row_starts[row] = rows[row.min(rows.len() - 1)];
        for column in 0..COLUMNS {
            sums[row][column] = load::<S>(stored, (row * COLUMNS + column) * lanes);
        }
    }
    for (step, &offset) in steps.iter().enumerate() {
        // In bounds, here and below: `add` has checked both ends.
        let vector = load::<S>(vectors, step * vector_stride);
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                let value = element(source, offset + row_starts[row] + column).splat_to::<S>();
                sums[row][column] = vector.mul_add(value, sums[row][column]);
            }
        }
    }
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            store::<S>(stored, (row * COLUMNS + column) * lanes, sums[row][column]);
        }
    }
}

trait SplatTo: Sized {
    fn splat_to<S: Simd>(self) -> Vector<S, f32>;
}

impl SplatTo for f32 {
    #[inline(always)]
    fn splat_to<S: Simd>(self) -> Vector<S, f32> {
        macerator::Scalar::splat::<S>(self)
    }
}

/// A matrix seen through a slice: element `(row, column)` is `values[row * row_stride + column * column_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// Storage.
    pub(crate) values: &'a [f32],
    /// Between rows.
    pub(crate) row_stride: usize,
    /// Between columns.
    pub(crate) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major with this many columns.
    pub(crate) fn rows(values: &'a [f32], columns: usize) -> Matrix<'a> {
        Matrix { values, row_stride: columns, column_stride: 1 }
    }

    /// The transpose of a row-major matrix with this many columns.
    pub(crate) fn transposed(values: &'a [f32], columns: usize) -> Matrix<'a> {
        Matrix { values, row_stride: 1, column_stride: columns }
    }

    fn last(&self, rows: usize, columns: usize) -> usize {
        (rows - 1) * self.row_stride + (columns - 1) * self.column_stride
    }
}

/// `out = a b`, or `out += a b`: `a` is `[m, k]`, `b` is `[k, n]`, `out` is `[m, n]` with rows `out_stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    /// Rows of the result.
    pub(crate) m: usize,
    /// Columns of the result.
    pub(crate) n: usize,
    /// Length of the sums.
    pub(crate) k: usize,
    /// Adds to `out` instead of overwriting it.
    pub(crate) accumulate: bool,
    /// Uses the thread pool.
    pub(crate) parallel: bool,
}

impl Product {
    /// Computes the product.
    pub(crate) fn compute(self, a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32], out_stride: usize) {
        let Product { m, n, k, accumulate, parallel } = self;
        if m == 0 || n == 0 || k == 0 {
            return;
        }
        assert!(a.last(m, k) < a.values.len() && b.last(k, n) < b.values.len(), "an operand is too small");
        assert!(out_stride >= n && (m - 1) * out_stride + n <= out.len(), "the result is too small");
        let threads = rayon::current_num_threads();
        let parallelism = if parallel && threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
        // SAFETY: the assertions keep every element that the strides reach inside its slice, and rows of `out` do not overlap.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                out.as_mut_ptr(),
                1,
                out_stride as isize,
                accumulate,
                a.values.as_ptr(),
                a.column_stride as isize,
                a.row_stride as isize,
                b.values.as_ptr(),
                b.column_stride as isize,
                b.row_stride as isize,
                1.0f32,
                1.0f32,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}
