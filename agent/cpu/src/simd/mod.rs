//! The innermost loops, written once and compiled for AVX-512, AVX2, SSE, NEON and plain code; the widest that the
//! processor has is taken at run time. All `unsafe` code of the engine is in this module.
#![expect(unsafe_code, reason = "vector loads, stores and the matrix product take pointers")]
#![expect(
    clippy::needless_range_loop,
    reason = "loops over registers are unrolled whole, and read as what they are: indices of tiles"
)]

mod dot;
mod inner;
mod matrix_mut;
mod outer;
mod product;
mod sum;
pub(crate) mod winograd;

use std::sync::LazyLock;

use macerator::{Simd, Vector, with_simd};

pub(crate) use self::dot::{LaneSums, ShiftedDot};
pub(crate) use self::inner::inner_products;
pub(crate) use self::matrix_mut::MatrixMut;
pub(crate) use self::outer::OuterSums;
pub(crate) use self::product::{Matrix, Panels, Product, strip_columns, strip_parts};
pub(crate) use self::sum::{PackedWeights, ShiftedSum, Vectors};

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
pub(crate) fn lanes() -> usize {
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

/// The instruction set that is used, for people.
pub fn instruction_set() -> &'static str {
    #[with_simd]
    fn detected<S: Simd>() -> &'static str {
        std::any::type_name::<S>()
    }
    // Such as `macerator::backend::x86::v4::V4<…>`.
    let path = detected().split('<').next().unwrap_or_default();
    path.rsplit("::").next().unwrap_or(path)
}

/// A vector of `f32`.
type Lanes<S> = Vector<S, f32>;

/// The same number in every lane.
#[inline(always)]
fn splat<S: Simd>(value: f32) -> Lanes<S> {
    macerator::Scalar::splat(value)
}

/// `max(x, 0)`; not-a-number stays, so that it is noticed.
#[inline(always)]
fn relu<S: Simd>(x: Lanes<S>) -> Lanes<S> {
    let zero = splat::<S>(0.0);
    x.lt(zero).select(zero, x)
}

/// The vector that begins at this element.
///
/// # Safety
/// `at` plus the lanes of a vector is at most the number of values.
#[inline(always)]
unsafe fn load<S: Simd>(values: &[f32], at: usize) -> Lanes<S> {
    debug_assert!(at + S::lanes32() <= values.len());
    // SAFETY: the caller keeps the vector inside the slice.
    unsafe { macerator::vload_unaligned(values.as_ptr().add(at)) }
}

/// This element.
///
/// # Safety
/// `at` is less than the number of values.
#[inline(always)]
unsafe fn element(values: &[f32], at: usize) -> f32 {
    debug_assert!(at < values.len());
    // SAFETY: the caller keeps the element inside the slice.
    unsafe { *values.get_unchecked(at) }
}

/// Writes the vector that begins at this element.
///
/// # Safety
/// `at` plus the lanes of a vector is at most the number of values.
#[inline(always)]
unsafe fn store<S: Simd>(values: &mut [f32], at: usize, vector: Lanes<S>) {
    debug_assert!(at + S::lanes32() <= values.len());
    // SAFETY: the caller keeps the vector inside the slice.
    unsafe { macerator::vstore_unaligned(values.as_mut_ptr().add(at), vector) }
}

/// Where taps read, relative to a position.
pub(crate) struct Offsets {
    values: Vec<usize>,
    furthest: usize,
}

impl Offsets {
    /// One a tap.
    pub(crate) fn new(values: Vec<usize>) -> Offsets {
        Offsets { furthest: values.iter().copied().max().unwrap_or(0), values }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}
