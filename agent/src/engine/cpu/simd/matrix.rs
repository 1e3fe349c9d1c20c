//! Products of matrices, by the `gemm` crate.

/// Products of a matrix multiplication from which on threads share it. A thread that has been woken for less spends more CPU
/// time on falling asleep again than it takes off the others, and under a quota that time is missing elsewhere.
const PARALLEL_PRODUCTS: usize = 32 << 20;

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
        let parallelism = if parallel && threads > 1 && m * n * k >= PARALLEL_PRODUCTS {
            gemm::Parallelism::Rayon(threads)
        } else {
            gemm::Parallelism::None
        };
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
