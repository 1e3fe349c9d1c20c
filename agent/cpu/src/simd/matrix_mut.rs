//! Exclusive borrows of parts of a matrix.

use std::marker::PhantomData;

/// A row-major matrix, exclusively borrowed: `rows` rows of `columns` elements that begin `stride` apart. Unlike a slice it can be
/// split by columns, so that threads write different channels of the same pixels.
pub(crate) struct MatrixMut<'a> {
    start: *mut f32,
    rows: usize,
    columns: usize,
    stride: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is an exclusive borrow of its elements, as `&mut [f32]` is.
unsafe impl Send for MatrixMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// A matrix in a slice.
    pub(crate) fn new(values: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> MatrixMut<'a> {
        assert!(columns <= stride, "rows overlap");
        assert!(rows == 0 || (rows - 1) * stride + columns <= values.len(), "the slice is too small for its rows");
        MatrixMut { start: values.as_mut_ptr(), rows, columns, stride, slice: PhantomData }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// The first element of a row. Valid for the row's `columns`, for as long as the borrow of `self`.
    #[inline(always)]
    pub(super) fn pointer(&mut self, row: usize) -> *mut f32 {
        debug_assert!(row < self.rows);
        // The place is inside the slice, if the row exists.
        self.start.wrapping_add(row * self.stride)
    }

    /// A row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "there is no such row");
        // SAFETY: `new` has checked that the row is inside the slice, and parts do not share elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.columns) }
    }

    /// Some rows and columns, borrowed from these.
    pub(crate) fn part(&mut self, (row, rows): (usize, usize), (column, columns): (usize, usize)) -> MatrixMut<'_> {
        assert!(row + rows <= self.rows && column + columns <= self.columns, "the part is not inside");
        let start = self.start.wrapping_add(row * self.stride + column);
        MatrixMut { start, rows, columns, stride: self.stride, slice: PhantomData }
    }

    /// Cuts the columns into these ranges (first, number), in ascending order.
    pub(crate) fn split_columns(self, ranges: &[(usize, usize)]) -> Vec<MatrixMut<'a>> {
        let mut end = 0;
        let part = |&(first, columns): &(usize, usize)| {
            assert!(first >= end && first + columns <= self.columns, "ranges overlap or are not inside");
            end = first + columns;
            let start = self.start.wrapping_add(first);
            MatrixMut { start, rows: self.rows, columns, stride: self.stride, slice: PhantomData }
        };
        ranges.iter().map(part).collect()
    }

    /// Cuts the rows into these ranges (first, number), in ascending order.
    pub(crate) fn split_rows(self, ranges: &[(usize, usize)]) -> Vec<MatrixMut<'a>> {
        let mut end = 0;
        let part = |&(first, rows): &(usize, usize)| {
            assert!(first >= end && first + rows <= self.rows, "ranges overlap or are not inside");
            end = first + rows;
            let start = self.start.wrapping_add(first * self.stride);
            MatrixMut { start, rows, columns: self.columns, stride: self.stride, slice: PhantomData }
        };
        ranges.iter().map(part).collect()
    }
}
