//! Products of matrices from register tiles.
//!
//! A tile of the result is held in registers while one element of `a` after another, repeated in all lanes, is multiplied with
//! vectors of `b`. So rows of `b` must be contiguous: it is either row-major or has been packed into [`Panels`], strips of columns
//! as wide as a tile that are read from front to back. `a` may be row-major or transposed.

use macerator::{Simd, with_simd};

use super::{Lanes, MatrixMut, SLACK, lanes, splat, wide_register_file};
use crate::buffer::Buffer;
use crate::threads::{for_each, parts};

/// Rows of `b` that are multiplied at once: a strip of them stays in the first-level cache while the rows of `a` pass.
const DEPTH: usize = 192;

/// A matrix seen through a slice: element `(row, column)` is `values[row * row_stride + column * column_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// Storage.
    values: &'a [f32],
    /// Between rows, or columns if transposed; the other stride is 1.
    stride: usize,
    transposed: bool,
    /// From one tile of rows to the next; where it is not packed, what the strides say.
    tile: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major, rows this far apart.
    pub(crate) fn rows(values: &'a [f32], stride: usize) -> Matrix<'a> {
        Matrix { values, stride, transposed: false, tile: tile_rows() * stride }
    }

    /// The transpose of a row-major matrix, whose rows are this far apart.
    pub(crate) fn transposed(values: &'a [f32], stride: usize) -> Matrix<'a> {
        Matrix { values, stride, transposed: true, tile: tile_rows() }
    }

    /// What is left from this place on.
    fn from(self, row: usize, column: usize) -> Matrix<'a> {
        let start = if self.transposed { column * self.stride + row } else { row * self.stride + column };
        Matrix { values: &self.values[start..], ..self }
    }

    /// A copy in which a tile lies close together: side by side the elements of its rows if the matrix is transposed, one row after
    /// another if not.
    fn packed(self, rows: usize, columns: usize, copy: &mut [f32]) -> Matrix<'_> {
        if !self.transposed {
            let stride = DEPTH + SLACK;
            for (row, copy) in copy.chunks_exact_mut(stride).take(rows).enumerate() {
                copy[..columns].copy_from_slice(&self.values[row * self.stride..][..columns]);
            }
            return Matrix::rows(copy, stride);
        }
        let height = tile_rows();
        for (tile, copy) in copy.chunks_exact_mut(height * columns).take(rows.div_ceil(height)).enumerate() {
            let first = tile * height;
            let count = height.min(rows - first);
            for (column, copy) in copy.chunks_exact_mut(height).enumerate() {
                let values = &self.values[column * self.stride + first..][..count];
                match (values.first_chunk::<14>(), copy.first_chunk_mut::<14>()) {
                    // The usual height, without a call.
                    (Some(values), Some(copy)) => *copy = *values,
                    _ => copy[..count].copy_from_slice(values),
                }
            }
        }
        Matrix { values: copy, stride: height, tile: height * columns, ..self }
    }

    fn last(&self, rows: usize, columns: usize) -> usize {
        let (steps, rest) = if self.transposed { (columns, rows) } else { (rows, columns) };
        (steps - 1) * self.stride + rest - 1
    }
}

/// Columns of a strip.
pub(crate) fn strip_columns() -> usize {
    strip_vectors() * lanes()
}

/// Splits `n` columns, which together take about `work` operations, evenly over the threads, whole strips each: (first, number).
pub(crate) fn strip_parts(n: usize, work: usize) -> Vec<(usize, usize)> {
    let columns = strip_columns();
    let range = |(first, count)| (first * columns, n.min((first + count) * columns) - first * columns);
    parts(n.div_ceil(columns), work).into_iter().map(range).collect()
}

/// Rows of a register tile.
fn tile_rows() -> usize {
    if lanes() == 16 { 14 } else { 6 }
}

/// Vectors in a row of a strip.
fn strip_vectors() -> usize {
    if wide_register_file() && lanes() < 16 { 4 } else { 2 }
}

/// Sizes of a right operand that is packed into strips: strip after strip, each `k` rows of [`strip_columns`] elements.
/// What reaches past the last column is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// Rows.
    pub(crate) k: usize,
    /// Columns.
    pub(crate) n: usize,
}

impl Panels {
    /// Elements of all strips.
    pub(crate) fn elements(&self) -> usize {
        self.k * self.n.next_multiple_of(strip_columns())
    }

    /// Packs `source`, `[k, n]`.
    pub(crate) fn pack(self, source: Matrix<'_>) -> Buffer {
        let mut packed = Buffer::new(self.elements());
        let columns = strip_columns();
        for (strip, packed) in packed.chunks_exact_mut(self.k * columns).enumerate() {
            let first = strip * columns;
            let count = columns.min(self.n - first);
            if source.transposed {
                pack_transposed(&source.values[first * source.stride..], source.stride, count, packed, columns);
            } else {
                for (row, packed) in packed.chunks_exact_mut(columns).enumerate() {
                    packed[..count].copy_from_slice(&source.values[row * source.stride + first..][..count]);
                    packed[count..].fill(0.0);
                }
            }
        }
        packed
    }

    /// Packs a row-major `source`, whose columns are whole vectors, row by row: where rows are far apart, each is read in one go.
    fn pack_rows(self, source: &[f32], stride: usize, packed: &mut [f32]) {
        let (lanes, columns) = (lanes(), strip_columns());
        for row in 0..self.k {
            let source = &source[row * stride..][..self.n];
            for (vector, source) in source.chunks_exact(lanes).enumerate() {
                let at = vector * lanes / columns * self.k * columns + row * columns + vector * lanes % columns;
                copy_vector(source, &mut packed[at..at + lanes]);
            }
        }
    }
}

/// Copies a vector's elements. Of known lengths, so that no call is needed.
#[inline(always)]
fn copy_vector(source: &[f32], target: &mut [f32]) {
    let (sources, rest) = source.as_chunks::<4>();
    let (targets, target_rest) = target.as_chunks_mut::<4>();
    if let ([a, b, c, d], [e, f, g, h]) = (sources, &mut *targets) {
        (*e, *f, *g, *h) = (*a, *b, *c, *d);
        return;
    }
    targets.copy_from_slice(sources);
    target_rest.copy_from_slice(rest);
}

/// `packed[k][j] = source[j][k]` for the `count` first columns, zero for the others.
fn pack_transposed(source: &[f32], stride: usize, count: usize, packed: &mut [f32], columns: usize) {
    const BLOCK: usize = 16; // of each row at a time: a line of the cache
    let rows = packed.len() / columns;
    let (whole_rows, whole) = (rows / SQUARE * SQUARE, count / SQUARE * SQUARE);
    for start in (0..whole_rows).step_by(BLOCK) {
        for column in (0..whole).step_by(SQUARE) {
            for row in (start..whole_rows.min(start + BLOCK)).step_by(SQUARE) {
                let lines = std::array::from_fn(|line| {
                    *source[(column + line) * stride + row..].first_chunk().expect("a whole square")
                });
                for (line, values) in transposed(lines).iter().enumerate() {
                    packed[(row + line) * columns + column..][..SQUARE].copy_from_slice(values);
                }
            }
        }
    }
    for (row, packed) in packed.chunks_exact_mut(columns).enumerate() {
        let done = if row < whole_rows { whole } else { 0 };
        for column in done..count {
            packed[column] = source[column * stride + row];
        }
        packed[count..].fill(0.0);
    }
}

/// Sides of the squares in which values change places, four vectors of four: few enough for registers everywhere.
const SQUARE: usize = 4;

#[inline(always)]
fn transposed(lines: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] {
    std::array::from_fn(|column| lines.map(|line| line[column]))
}

/// `out = a b`, or `out += a b`: `a` is `[m, k]`, `b` is `[k, n]`, `out` is `[m, n]`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// Left operand.
    pub(crate) a: Matrix<'a>,
    /// Length of the sums.
    pub(crate) k: usize,
    /// Adds to `out` instead of overwriting it.
    pub(crate) accumulate: bool,
}

/// Whether rows so many elements apart fall on the same few sets of the first-level cache, where they displace each other.
fn collide(stride: usize) -> bool {
    stride >= 256 && stride.is_multiple_of(128)
}

/// Tiles of rows, and strips of columns, that are multiplied with each other while they stay in the second-level cache.
const BLOCK_TILES: usize = 27;
const BLOCK_STRIPS: usize = 16;

/// Part of a right operand: rows `stride` apart in strips `strip` apart.
struct Right<'a> {
    values: &'a [f32],
    stride: usize,
    strip: usize,
}

/// Multiplications that are as much work as an element that comes from memory, for [`parts`].
const PRODUCTS_PER_ELEMENT: usize = 16;

impl Product<'_> {
    /// With a right operand that has been packed as [`Panels`] of `k` and `n`.
    pub(crate) fn with_panels(self, packed: &[f32], out: &mut MatrixMut<'_>) {
        assert!(packed.len() >= Panels { k: self.k, n: out.columns() }.elements(), "the panels are too small");
        let strip = self.k * strip_columns();
        let columns = strip_columns();
        self.in_blocks(out, |first, (start, _), _, multiply| {
            let at = first / columns * strip + start * columns;
            multiply(Right { values: &packed[at..], stride: columns, strip });
        });
    }

    /// [`Product::with_panels`] on all threads, which share the rows, where it is worth waking them.
    pub(crate) fn shared_with_panels(self, packed: &[f32], out: MatrixMut<'_>) {
        let ranges = parts(out.rows(), out.rows() * out.columns() * self.k / PRODUCTS_PER_ELEMENT);
        let outs = ranges.iter().zip(out.split_rows(&ranges)).collect();
        for_each(outs, |(&(first, _), mut out): (&(usize, usize), MatrixMut<'_>)| {
            Product { a: self.a.from(first, 0), ..self }.with_panels(packed, &mut out);
        });
    }

    /// With a row-major right operand, rows `stride` apart.
    pub(crate) fn with_rows(self, b: &[f32], stride: usize, out: &mut MatrixMut<'_>) {
        let columns = strip_columns();
        // With one tile of rows, each element is read once only.
        let packs = out.rows() > tile_rows() && collide(stride);
        let whole = out.columns() / lanes() * lanes();
        if whole > 0 {
            let mut copy = Buffer::new(if packs { DEPTH * BLOCK_STRIPS * columns } else { 0 });
            let mut out = out.part((0, out.rows()), (0, whole));
            self.in_blocks(&mut out, |first, (start, k), count, multiply| {
                let b = &b[start * stride + first..];
                if packs {
                    Panels { k, n: count }.pack_rows(b, stride, &mut copy);
                    multiply(Right { values: &copy, stride: columns, strip: k * columns });
                } else {
                    multiply(Right { values: b, stride, strip: columns });
                }
            });
        }
        if whole < out.columns() {
            // The last columns do not fill a vector, which must not read into the next row's end.
            let count = out.columns() - whole;
            let packed = Panels { k: self.k, n: count }.pack(Matrix::rows(&b[whole..], stride));
            self.with_panels(&packed, &mut out.part((0, out.rows()), (whole, count)));
        }
    }

    /// Cuts a product into blocks that stay in the caches: calls `block(first column, (first row of the right operand, rows),
    /// columns, multiply)`, which calls `multiply` with that part of the right operand.
    fn in_blocks(
        self,
        out: &mut MatrixMut<'_>,
        mut block: impl FnMut(usize, (usize, usize), usize, &mut dyn FnMut(Right<'_>)),
    ) {
        let (m, n) = (out.rows(), out.columns());
        if m == 0 {
            return;
        }
        assert!(self.k > 0 && self.a.last(m, self.k) < self.a.values.len(), "the left operand is too small");
        let columns = strip_columns();
        let block_rows = BLOCK_TILES * tile_rows();
        let packs = m >= tile_rows() && collide(self.a.stride);
        let depth = self.k.div_ceil(self.k.div_ceil(DEPTH)); // blocks of equal depth
        let copied_rows = m.min(block_rows).next_multiple_of(tile_rows());
        let mut copy = Buffer::new(if packs { copied_rows * (DEPTH + SLACK) } else { 0 });
        for first in (0..n).step_by(BLOCK_STRIPS * columns) {
            let count = (BLOCK_STRIPS * columns).min(n - first);
            for start in (0..self.k).step_by(depth) {
                let k = depth.min(self.k - start);
                let accumulate = self.accumulate || start > 0;
                block(first, (start, k), count, &mut |right| {
                    for row in (0..m).step_by(block_rows) {
                        let rows = block_rows.min(m - row);
                        let mut a = self.a.from(row, start);
                        if packs {
                            a = a.packed(rows, k, &mut copy);
                        }
                        for (strip, offset) in (0..count).step_by(columns).enumerate() {
                            let mut out = out.part((row, rows), (first + offset, columns.min(count - offset)));
                            let b = &right.values[strip * right.strip..];
                            Product { a, k, accumulate }.strip(b, right.stride, &mut out);
                        }
                    }
                });
            }
        }
    }

    /// [`Product::with_rows`] on all threads, where it is worth waking them.
    pub(crate) fn shared_with_rows(self, b: &[f32], stride: usize, out: MatrixMut<'_>) {
        let (m, n) = (out.rows(), out.columns());
        let work = m * n * self.k / PRODUCTS_PER_ELEMENT;
        if n >= m {
            let ranges = strip_parts(n, work);
            let outs = ranges.iter().zip(out.split_columns(&ranges)).collect();
            for_each(outs, |(&(first, _), mut out): (&(usize, usize), MatrixMut<'_>)| {
                self.with_rows(&b[first..], stride, &mut out);
            });
        } else {
            let ranges = parts(m, work);
            let outs = ranges.iter().zip(out.split_rows(&ranges)).collect();
            for_each(outs, |(&(first, _), mut out): (&(usize, usize), MatrixMut<'_>)| {
                Product { a: self.a.from(first, 0), ..self }.with_rows(b, stride, &mut out);
            });
        }
    }

    /// Columns of the result, no more than a strip has. Rows of `b` have zeros up to the next whole vector.
    fn strip(self, b: &[f32], b_stride: usize, out: &mut MatrixMut<'_>) {
        let count = out.columns();
        let vectors = count.div_ceil(lanes());
        if count == vectors * lanes() {
            self.whole_vectors(vectors, b, b_stride, out);
            return;
        }
        let width = vectors * lanes();
        let mut wide = Buffer::new(out.rows() * width);
        let mut target = MatrixMut::new(&mut wide, out.rows(), width, width);
        Product { accumulate: false, ..self }.whole_vectors(vectors, b, b_stride, &mut target);
        for (row, wide) in wide.chunks_exact(width).enumerate() {
            for (out, wide) in out.row(row).iter_mut().zip(wide) {
                *out = if self.accumulate { *out + wide } else { *wide };
            }
        }
    }

    fn whole_vectors(self, vectors: usize, b: &[f32], b_stride: usize, out: &mut MatrixMut<'_>) {
        assert!((self.k - 1) * b_stride + vectors * lanes() <= b.len(), "the right operand is too small");
        assert!(vectors * lanes() == out.columns(), "columns are whole vectors");
        let Product { a, k, accumulate } = self;
        macro_rules! rows {
            ($rows:literal, $vectors:literal) => {
                if a.transposed {
                    tiles::<$rows, $vectors, true>(a, k, b, b_stride, out, accumulate)
                } else {
                    tiles::<$rows, $vectors, false>(a, k, b, b_stride, out, accumulate)
                }
            };
        }
        match (lanes() == 16, vectors) {
            (true, 1) => rows!(14, 1),
            (true, _) => rows!(14, 2),
            (false, 1) => rows!(6, 1),
            (false, 2) => rows!(6, 2),
            (false, 3) => rows!(6, 3),
            (false, _) => rows!(6, 4),
        }
    }
}

/// All rows of a strip of `VECTORS` vectors, tiles of `ROWS` rows and smaller ones for the rest.
#[with_simd]
fn tiles<'a, 'o, S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
    a: Matrix<'a>,
    k: usize,
    b: &[f32],
    b_stride: usize,
    out: &mut MatrixMut<'o>,
    accumulate: bool,
) {
    let (m, a_stride, out_stride) = (out.rows(), a.stride, out.stride());
    let mut row = 0;
    macro_rules! tile {
        ($rows:expr) => {
            while m - row >= $rows {
                // SAFETY: `in_blocks` and `whole_vectors` have checked that every operand has `m`, `k` and the vectors of a row.
                unsafe {
                    let within = row % ROWS * if TRANSPOSED { 1 } else { a_stride };
                    let a = a.values.as_ptr().add(row / ROWS * a.tile + within);
                    let out = out.pointer(row);
                    tile::<S, { $rows }, VECTORS, TRANSPOSED>(a, a_stride, k, b.as_ptr(), b_stride, out, out_stride, accumulate);
                }
                row += $rows;
            }
        };
    }
    tile!(ROWS);
    if ROWS > 8 {
        tile!(8);
    }
    tile!(4);
    tile!(2);
    tile!(1);
}

/// # Safety
/// `a` has `ROWS` rows and `k` columns, `b` has `k` rows of `VECTORS` vectors, and `out` has `ROWS` of them.
#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "the sizes of three matrices; a struct would be taken apart again at once"
)]
unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
    a: *const f32,
    a_stride: usize,
    k: usize,
    b: *const f32,
    b_stride: usize,
    out: *mut f32,
    out_stride: usize,
    accumulate: bool,
) {
    let lanes = S::lanes32();
    let mut sums = [[splat::<S>(0.0); VECTORS]; ROWS];
    // SAFETY: the caller's promise covers each access.
    unsafe {
        if accumulate {
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    sums[row][vector] = macerator::vload_unaligned(out.add(row * out_stride + vector * lanes));
                }
            }
        }
        for step in 0..k {
            let mut vectors: [Lanes<S>; VECTORS] = [splat::<S>(0.0); VECTORS];
            for vector in 0..VECTORS {
                vectors[vector] = macerator::vload_unaligned(b.add(step * b_stride + vector * lanes));
            }
            for row in 0..ROWS {
                let at = if TRANSPOSED { step * a_stride + row } else { row * a_stride + step };
                let value = splat::<S>(*a.add(at));
                for vector in 0..VECTORS {
                    sums[row][vector] = vectors[vector].mul_add(value, sums[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                macerator::vstore_unaligned(out.add(row * out_stride + vector * lanes), sums[row][vector]);
            }
        }
    }
}
