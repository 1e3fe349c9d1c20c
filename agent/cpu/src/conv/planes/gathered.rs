//! Convolutions as products of matrices.

use super::{padded_rows, tap_offsets};
use crate::buffer::Buffer;
use crate::scratch::copy_rows;
use crate::shape::ConvShape;
use crate::simd::{Matrix, MatrixMut, Panels, Product};

/// Columns of the gathered matrix.
const COLUMNS: usize = 256;

/// How samples and output rows are grouped into products of about [`COLUMNS`] columns.
struct Tiles {
    /// Samples in one product; more than 1 only if whole images fit.
    samples: usize,
    /// Output rows in one product.
    rows: usize,
}

impl Tiles {
    fn new(shape: &ConvShape) -> Tiles {
        let pixels = shape.out_pixels();
        if pixels >= COLUMNS {
            Tiles { samples: 1, rows: (COLUMNS / shape.out_width).clamp(1, shape.out_height) }
        } else {
            Tiles { samples: COLUMNS / pixels, rows: shape.out_height }
        }
    }

    /// Calls `tile(first sample, samples, first row, rows)` for each tile.
    fn for_each(&self, shape: &ConvShape, batch: usize, mut tile: impl FnMut(usize, usize, usize, usize)) {
        for first in (0..batch).step_by(self.samples) {
            let samples = self.samples.min(batch - first);
            for row in (0..shape.out_height).step_by(self.rows) {
                tile(first, samples, row, self.rows.min(shape.out_height - row));
            }
        }
    }

    fn columns(&self, shape: &ConvShape) -> usize {
        self.samples * self.rows * shape.out_width
    }
}

/// A part of the gathered matrix: some output rows of one sample and group.
#[derive(Clone, Copy)]
struct Part {
    group: usize,
    /// First output row.
    row: usize,
    /// Output rows.
    rows: usize,
    /// First column in the matrix.
    column: usize,
    /// Columns of the matrix.
    columns: usize,
}

/// Copies the pixels that each tap reads, for a part of one padded sample, into `matrix`: one row a tap.
fn gather(shape: &ConvShape, padded: &[f32], part: Part, matrix: &mut [f32]) {
    let Part { group, row, rows, column, columns } = part;
    let [stride_y, stride_x] = shape.stride;
    let (width, out_width) = (shape.padded_width(), shape.out_width);
    let first_plane = group * shape.group_in() * shape.padded_height() * width;
    let offsets = tap_offsets(shape, shape.group_in(), shape.padded_height() * width, width);
    for (offset, matrix) in offsets.into_iter().zip(matrix.chunks_exact_mut(columns)) {
        let matrix = &mut matrix[column..][..rows * out_width];
        let source = &padded[first_plane + offset + row * stride_y * width..];
        if stride_x == 1 {
            copy_rows(source, stride_y * width, matrix, out_width, out_width, rows);
        } else {
            for (source, matrix) in source.chunks(stride_y * width).zip(matrix.chunks_exact_mut(out_width)) {
                source.iter().step_by(stride_x).zip(matrix).for_each(|(source, value)| *value = *source);
            }
        }
    }
}

/// The transpose of [`gather`]: adds each tap's column to the pixels that it came from.
fn scatter_add(shape: &ConvShape, matrix: &[f32], part: Part, padded: &mut [f32]) {
    let Part { group, row, rows, column, columns } = part;
    let [stride_y, stride_x] = shape.stride;
    let (width, out_width) = (shape.padded_width(), shape.out_width);
    let first_plane = group * shape.group_in() * shape.padded_height() * width;
    let offsets = tap_offsets(shape, shape.group_in(), shape.padded_height() * width, width);
    for (offset, matrix) in offsets.into_iter().zip(matrix.chunks_exact(columns)) {
        let matrix = &matrix[column..][..rows * out_width];
        let target = &mut padded[first_plane + offset + row * stride_y * width..];
        for (target, matrix) in target.chunks_mut(stride_y * width).zip(matrix.chunks_exact(out_width)) {
            if stride_x == 1 {
                target.iter_mut().zip(matrix).for_each(|(target, value)| *target += *value);
            } else {
                target.iter_mut().step_by(stride_x).zip(matrix).for_each(|(target, value)| *target += *value);
            }
        }
    }
}

pub(super) fn forward(shape: &ConvShape, x: &[f32], weight: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
    let (batch, taps, outputs, pixels) =
        (x.len() / shape.in_elements(), shape.taps(), shape.group_out(), shape.out_pixels());
    let tiles = Tiles::new(shape);
    let padded = padded_rows(shape);
    let mut source = padded.buffer(tiles.samples);
    let mut matrix = Buffer::new(taps * tiles.columns(shape));
    let mut product = Buffer::new(if tiles.samples > 1 { outputs * tiles.columns(shape) } else { 0 });
    tiles.for_each(shape, batch, |first, samples, row, rows| {
        if row == 0 {
            for sample in 0..samples {
                padded.place(&x[(first + sample) * shape.in_elements()..], &mut source[sample * padded.sample()..]);
            }
        }
        let tile = rows * shape.out_width;
        let columns = samples * tile;
        for group in 0..shape.groups {
            for sample in 0..samples {
                gather(
                    shape,
                    &source[sample * padded.sample()..],
                    Part { group, row, rows, column: sample * tile, columns },
                    &mut matrix,
                );
            }
            let weight = Matrix::rows(&weight[group * outputs * taps..][..outputs * taps], taps);
            let multiply = Product { a: weight, k: taps, accumulate: false };
            if tiles.samples == 1 {
                let out = &mut out[(first * shape.out_channels + group * outputs) * pixels + row * shape.out_width..];
                multiply.with_rows(&matrix, columns, &mut MatrixMut::new(out, outputs, columns, pixels));
            } else {
                multiply.with_rows(&matrix, columns, &mut MatrixMut::new(&mut product, outputs, columns, columns));
                for (output, product) in product.chunks_exact(columns).take(outputs).enumerate() {
                    for (sample, product) in product.chunks_exact(tile).enumerate() {
                        let start = ((first + sample) * shape.out_channels + group * outputs + output) * pixels;
                        out[start..start + pixels].copy_from_slice(product);
                    }
                }
            }
        }
    });
    if let Some(bias) = bias {
        for sample in out.chunks_exact_mut(shape.out_elements()) {
            for (out, bias) in sample.chunks_exact_mut(pixels).zip(bias) {
                out.iter_mut().for_each(|out| *out += bias);
            }
        }
    }
}

/// The output's gradient of one tile and group as a matrix `[outputs, columns]` and the stride of its rows: seen in place for one
/// sample, copied for several.
fn gradient_matrix<'a>(
    shape: &ConvShape,
    gradient: &'a [f32],
    group: usize,
    (first, samples, row, rows): (usize, usize, usize, usize),
    copy: &'a mut [f32],
) -> (&'a [f32], usize) {
    let (outputs, pixels) = (shape.group_out(), shape.out_pixels());
    if copy.is_empty() {
        let start = (first * shape.out_channels + group * outputs) * pixels + row * shape.out_width;
        return (&gradient[start..], pixels);
    }
    let tile = rows * shape.out_width;
    let columns = samples * tile;
    for (output, copy) in copy.chunks_exact_mut(columns).take(outputs).enumerate() {
        for (sample, copy) in copy.chunks_exact_mut(tile).enumerate() {
            let start = ((first + sample) * shape.out_channels + group * outputs + output) * pixels;
            copy.copy_from_slice(&gradient[start..start + pixels]);
        }
    }
    (copy, columns)
}

pub(super) fn input_gradient(shape: &ConvShape, gradient: &[f32], weight: &[f32], out: &mut [f32]) {
    let (batch, taps, outputs) = (out.len() / shape.in_elements(), shape.taps(), shape.group_out());
    let tiles = Tiles::new(shape);
    let padded = padded_rows(shape);
    let mut target = padded.buffer(tiles.samples);
    let mut matrix = Buffer::new(taps * tiles.columns(shape));
    let mut copy = Buffer::new(if tiles.samples > 1 { outputs * tiles.columns(shape) } else { 0 });
    tiles.for_each(shape, batch, |first, samples, row, rows| {
        if row == 0 {
            target.fill(0.0);
        }
        let tile = rows * shape.out_width;
        let columns = samples * tile;
        for group in 0..shape.groups {
            let gradient = gradient_matrix(shape, gradient, group, (first, samples, row, rows), &mut copy);
            let weight = Matrix::transposed(&weight[group * outputs * taps..][..outputs * taps], taps);
            let multiply = Product { a: weight, k: outputs, accumulate: false };
            multiply.with_rows(gradient.0, gradient.1, &mut MatrixMut::new(&mut matrix, taps, columns, columns));
            for sample in 0..samples {
                let part = Part { group, row, rows, column: sample * tile, columns };
                scatter_add(shape, &matrix, part, &mut target[sample * padded.sample()..]);
            }
        }
        if row + rows == shape.out_height {
            for sample in 0..samples {
                padded.take(&target[sample * padded.sample()..], &mut out[(first + sample) * shape.in_elements()..]);
            }
        }
    });
}

pub(super) fn weight_gradient(shape: &ConvShape, x: &[f32], gradient: &[f32], sum: &mut [f32]) {
    let (batch, taps, outputs) = (x.len() / shape.in_elements(), shape.taps(), shape.group_out());
    let tiles = Tiles::new(shape);
    let padded = padded_rows(shape);
    let mut source = padded.buffer(tiles.samples);
    let mut matrix = Buffer::new(taps * tiles.columns(shape));
    let mut copy = Buffer::new(if tiles.samples > 1 { outputs * tiles.columns(shape) } else { 0 });
    tiles.for_each(shape, batch, |first, samples, row, rows| {
        if row == 0 {
            for sample in 0..samples {
                padded.place(&x[(first + sample) * shape.in_elements()..], &mut source[sample * padded.sample()..]);
            }
        }
        let tile = rows * shape.out_width;
        let columns = samples * tile;
        for group in 0..shape.groups {
            let gradient = gradient_matrix(shape, gradient, group, (first, samples, row, rows), &mut copy);
            for sample in 0..samples {
                gather(
                    shape,
                    &source[sample * padded.sample()..],
                    Part { group, row, rows, column: sample * tile, columns },
                    &mut matrix,
                );
            }
            let packed = Panels { k: columns, n: taps }.pack(Matrix::transposed(&matrix, columns));
            let multiply = Product { a: Matrix::rows(gradient.0, gradient.1), k: columns, accumulate: true };
            let sum = &mut sum[group * outputs * taps..];
            multiply.with_panels(&packed, &mut MatrixMut::new(sum, outputs, taps, taps));
        }
    });
}
