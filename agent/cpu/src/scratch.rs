//! Copies in another order: with a border, without one, transposed.

use super::buffer::Buffer;
use super::simd::SLACK;

/// Planes with a border of zeros.
pub(crate) struct Rows {
    /// Number of planes.
    pub(crate) planes: usize,
    /// Rows of a plane, without border.
    pub(crate) height: usize,
    /// Elements of a row, without border.
    pub(crate) width: usize,
    /// Rows and columns of the border, on each side.
    pub(crate) padding: [usize; 2],
}

impl Rows {
    /// Elements from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.width + 2 * self.padding[1]
    }

    /// Elements of a plane with its border.
    pub(crate) fn plane(&self) -> usize {
        (self.height + 2 * self.padding[0]) * self.stride()
    }

    /// Elements of all planes.
    pub(crate) fn sample(&self) -> usize {
        self.planes * self.plane()
    }

    /// Zeroed space for `samples` times all planes and what vectors may read past the end.
    pub(crate) fn buffer(&self, samples: usize) -> Buffer {
        // A row may start anywhere in the last one, hence one more row of slack.
        Buffer::zeroed(samples * self.sample() + self.stride() + 2 * SLACK)
    }

    /// Copies planes without border into a buffer, whose border is zero and stays so.
    pub(crate) fn place(&self, planes: &[f32], buffer: &mut [f32]) {
        let first = self.padding[0] * self.stride() + self.padding[1];
        let pairs = planes.chunks_exact(self.height * self.width).zip(buffer.chunks_exact_mut(self.plane()));
        for (plane, buffer) in pairs.take(self.planes) {
            copy_rows(plane, self.width, &mut buffer[first..], self.stride(), self.width, self.height);
        }
    }

    /// Copies planes out of a buffer, without the border.
    pub(crate) fn take(&self, buffer: &[f32], planes: &mut [f32]) {
        let first = self.padding[0] * self.stride() + self.padding[1];
        let pairs = planes.chunks_exact_mut(self.height * self.width).zip(buffer.chunks_exact(self.plane()));
        for (plane, buffer) in pairs.take(self.planes) {
            copy_rows(&buffer[first..], self.stride(), plane, self.width, self.width, self.height);
        }
    }
}

/// Copies `rows` rows of `width` elements between places with their own strides. Rows are short, so this is written
/// out in pieces that need no call.
#[inline]
pub(crate) fn copy_rows(
    source: &[f32],
    source_stride: usize,
    target: &mut [f32],
    target_stride: usize,
    width: usize,
    rows: usize,
) {
    for (source, target) in source.chunks(source_stride).zip(target.chunks_mut(target_stride)).take(rows) {
        let (source, target) = (&source[..width], &mut target[..width]);
        if width > 256 {
            target.copy_from_slice(source);
            continue;
        }
        let (sources, source) = source.as_chunks::<8>();
        let (targets, target) = target.as_chunks_mut::<8>();
        for (source, target) in sources.iter().zip(targets) {
            *target = *source;
        }
        let (sources, source) = source.as_chunks::<2>();
        let (targets, target) = target.as_chunks_mut::<2>();
        for (source, target) in sources.iter().zip(targets) {
            *target = *source;
        }
        if let (&[source], [target]) = (source, target) {
            *target = source;
        }
    }
}

/// `target[c][r] = source[r][c]`, with `columns` and `rows` the lengths of their rows.
pub(crate) fn transpose(source: &[f32], columns: usize, target: &mut [f32], rows: usize) {
    const BLOCK: usize = 16; // lines of the cache that are written to at once
    for first in (0..columns).step_by(BLOCK) {
        let block = BLOCK.min(columns - first);
        for (row, source) in source.chunks_exact(columns).enumerate() {
            let targets = target[first * rows + row..].iter_mut().step_by(rows);
            source[first..first + block].iter().zip(targets).for_each(|(source, target)| *target = *source);
        }
    }
}
