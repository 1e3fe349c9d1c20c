//! Convolution of `[batch, channels, height, width]`.
//!
//! Two ways, chosen by shape:
//!
//! - **Shifted sums**, for stride 1 and few weights: in a zero-padded plane of row length `w`, output pixel `(i, j)` is at
//!   `p = i w + j`, and tap `(y, x)` reads `p + y w + x`. So an output plane is a sum of shifted input planes, computed for all `p`
//!   at once from registers, and nothing is copied but the padding; the `w - width'` last positions of a row are wasted.
//!   The input's gradient is the same sum over the output's gradient with mirrored taps; the weight's is a dot product
//!   of the output's gradient with the shifted input.
//! - **Matrix product**, for everything else: each tap's pixels are gathered into the column of a matrix (im2col), for as many
//!   samples at once as make a product of a good size.
//!
//! Samples are split evenly over the pool's threads; each sums its part of the weight's gradient, added in order.

use rayon::prelude::*;

use super::scratch::{Rows, parts};
use super::simd::{LaneSums, Matrix, OuterSums, PackedWeights, Product, SLACK, ShiftedDot, shifted_sum};
use crate::engine::shape::ConvShape;

/// Most weights of one group for which shifted sums are used: they are read anew for every tile of the output, from the
/// second-level cache.
const SHIFTED_WEIGHTS_MAX: usize = 48 << 10;

/// Bytes that one pass of the weight's gradient over several samples may touch, to stay near the first-level cache.
const SHIFTED_DOT_BYTES: usize = 48 << 10;

/// Columns of the gathered matrix.
const COLUMNS: usize = 256;

/// The convolution itself.
pub(crate) fn forward(shape: &ConvShape, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![0.0; shape.batch * shape.out_elements()];
    let outputs = split(&mut out, shape.out_elements(), shape.batch);
    let plan = Plan::new(shape);
    let packed = matches!(plan, Plan::Shifted).then(|| pack_forward(shape, weight));
    outputs.into_par_iter().for_each(|(first, out)| {
        let samples = out.len() / shape.out_elements();
        let x = &x[first * shape.in_elements()..][..samples * shape.in_elements()];
        match &packed {
            Some(packed) => shifted_forward(shape, x, packed, bias, out),
            None => gathered_forward(shape, x, weight, bias, out),
        }
    });
    out
}

/// Gradients of input, weight and bias, where wanted.
pub(crate) struct Gradients {
    /// Of the input.
    pub(crate) x: Option<Vec<f32>>,
    /// Of the weight.
    pub(crate) weight: Option<Vec<f32>>,
    /// Of the bias.
    pub(crate) bias: Option<Vec<f32>>,
}

/// What [`backward`] is to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The input's gradient.
    pub(crate) x: bool,
    /// The weight's gradient.
    pub(crate) weight: bool,
    /// The bias's gradient.
    pub(crate) bias: bool,
}

/// Gradients from the output's gradient.
pub(crate) fn backward(shape: &ConvShape, x: &[f32], weight: &[f32], gradient: &[f32], wanted: Wanted) -> Gradients {
    let shifted = matches!(Plan::new(shape), Plan::Shifted);
    let x_gradient = wanted.x.then(|| {
        let mut out = vec![0.0; shape.batch * shape.in_elements()];
        let outputs = split(&mut out, shape.in_elements(), shape.batch);
        let packed = (shifted && shape.mirrored_padding().is_some()).then(|| pack_mirrored(shape, weight));
        outputs.into_par_iter().for_each(|(first, out)| {
            let samples = out.len() / shape.in_elements();
            let gradient = &gradient[first * shape.out_elements()..][..samples * shape.out_elements()];
            match &packed {
                Some(packed) => shifted_input_gradient(shape, gradient, packed, out),
                None => gathered_input_gradient(shape, gradient, weight, out),
            }
        });
        out
    });
    let weight_gradient = wanted.weight.then(|| {
        let sums = parts(shape.batch).into_par_iter().map(|(first, samples)| {
            let x = &x[first * shape.in_elements()..][..samples * shape.in_elements()];
            let gradient = &gradient[first * shape.out_elements()..][..samples * shape.out_elements()];
            let mut sum = vec![0.0; weight.len()];
            if outer_suits(shape) {
                outer_weight_gradient(shape, x, gradient, &mut sum);
            } else if shifted {
                shifted_weight_gradient(shape, x, gradient, &mut sum);
            } else {
                gathered_weight_gradient(shape, x, gradient, &mut sum);
            }
            sum
        });
        let mut sums = sums.collect::<Vec<_>>().into_iter();
        let mut total = sums.next().unwrap_or_default();
        for sum in sums {
            total.iter_mut().zip(sum).for_each(|(total, value)| *total += value);
        }
        total
    });
    let bias_gradient = wanted.bias.then(|| super::elementwise::channel_sums(gradient, shape.out_channels, shape.out_pixels()));
    Gradients { x: x_gradient, weight: weight_gradient, bias: bias_gradient }
}

enum Plan {
    Shifted,
    Gathered,
}

impl Plan {
    fn new(shape: &ConvShape) -> Plan {
        let weights = shape.out_channels / shape.groups * shape.taps();
        let useful = shape.out_width * 10 >= shape.padded_width() * 6; // at most 40 % of a row wasted
        if shape.stride == [1, 1] && weights <= SHIFTED_WEIGHTS_MAX && useful { Plan::Shifted } else { Plan::Gathered }
    }
}

/// Splits `values` by samples for the threads: (first sample, its part).
fn split(values: &mut [f32], sample: usize, batch: usize) -> Vec<(usize, &mut [f32])> {
    let mut rest = values;
    let mut split = Vec::new();
    for (first, samples) in parts(batch) {
        let (part, tail) = rest.split_at_mut(samples * sample);
        split.push((first, part));
        rest = tail;
    }
    split
}

// Shifted sums

/// The packed weights of each group.
fn pack_forward(shape: &ConvShape, weight: &[f32]) -> Vec<PackedWeights> {
    let (outputs, taps) = (shape.group_out(), shape.taps());
    weight.chunks_exact(outputs * taps).map(|weight| PackedWeights::new(outputs, taps, |output, tap| weight[output * taps + tap])).collect()
}

/// The weights of each group with inputs and outputs exchanged and the taps mirrored.
fn pack_mirrored(shape: &ConvShape, weight: &[f32]) -> Vec<PackedWeights> {
    let (inputs, outputs, taps) = (shape.group_in(), shape.group_out(), shape.taps());
    let window = shape.kernel[0] * shape.kernel[1];
    let pack = |weight: &[f32]| {
        PackedWeights::new(inputs, outputs * window, |input, tap| {
            let (output, tap) = (tap / window, tap % window);
            weight[output * taps + input * window + (window - 1 - tap)]
        })
    };
    weight.chunks_exact(outputs * taps).map(pack).collect()
}

/// Where each tap reads in planes of this size, for `channels` channels.
fn tap_offsets(shape: &ConvShape, channels: usize, plane: usize, width: usize) -> Vec<usize> {
    let [kernel_height, kernel_width] = shape.kernel;
    let [dilation_y, dilation_x] = shape.dilation;
    let taps = |channel| {
        (0..kernel_height).flat_map(move |y| (0..kernel_width).map(move |x| channel * plane + y * dilation_y * width + x * dilation_x))
    };
    (0..channels).flat_map(taps).collect()
}

fn shifted_forward(shape: &ConvShape, x: &[f32], packed: &[PackedWeights], bias: Option<&[f32]>, out: &mut [f32]) {
    let padded = Rows { planes: shape.in_channels, height: shape.height, width: shape.width, padding: shape.padding };
    let mut source = padded.buffer(1);
    let (plane, width) = (padded.plane(), padded.stride());
    let length = (shape.out_height - 1) * width + shape.out_width;
    let stride = length.next_multiple_of(SLACK);
    let mut sums = vec![0.0; shape.group_out() * stride];
    let offsets = tap_offsets(shape, shape.group_in(), plane, width);
    for (x, out) in x.chunks_exact(shape.in_elements()).zip(out.chunks_exact_mut(shape.out_elements())) {
        padded.place(x, &mut source);
        for (group, out) in out.chunks_exact_mut(shape.group_out() * shape.out_pixels()).enumerate() {
            let bias = bias.map(|bias| &bias[group * shape.group_out()..][..shape.group_out()]);
            shifted_sum(&source[group * shape.group_in() * plane..], &offsets, &packed[group], bias, &mut sums, stride, length);
            for (sums, out) in sums.chunks_exact(stride).zip(out.chunks_exact_mut(shape.out_pixels())) {
                super::scratch::copy_rows(sums, width, out, shape.out_width, shape.out_width, shape.out_height);
            }
        }
    }
}

fn shifted_input_gradient(shape: &ConvShape, gradient: &[f32], packed: &[PackedWeights], out: &mut [f32]) {
    let padding = shape.mirrored_padding().expect("checked by the caller");
    let padded = Rows { planes: shape.out_channels, height: shape.out_height, width: shape.out_width, padding };
    let mut source = padded.buffer(1);
    let (plane, width) = (padded.plane(), padded.stride());
    let length = (shape.height - 1) * width + shape.width;
    let stride = length.next_multiple_of(SLACK);
    let mut sums = vec![0.0; shape.group_in() * stride];
    let offsets = tap_offsets(shape, shape.group_out(), plane, width);
    for (gradient, out) in gradient.chunks_exact(shape.out_elements()).zip(out.chunks_exact_mut(shape.in_elements())) {
        padded.place(gradient, &mut source);
        for (group, out) in out.chunks_exact_mut(shape.group_in() * shape.in_pixels()).enumerate() {
            shifted_sum(&source[group * shape.group_out() * plane..], &offsets, &packed[group], None, &mut sums, stride, length);
            for (sums, out) in sums.chunks_exact(stride).zip(out.chunks_exact_mut(shape.in_pixels())) {
                super::scratch::copy_rows(sums, width, out, shape.width, shape.width, shape.height);
            }
        }
    }
}

fn shifted_weight_gradient(shape: &ConvShape, x: &[f32], gradient: &[f32], sum: &mut [f32]) {
    let padded = Rows { planes: shape.in_channels, height: shape.height, width: shape.width, padding: shape.padding };
    let width = padded.stride();
    let length = (shape.out_height - 1) * width + shape.out_width;
    let row_stride = length.next_multiple_of(SLACK);
    let gradient_sample = shape.out_channels * row_stride;
    let samples = x.len() / shape.in_elements();
    let together = (SHIFTED_DOT_BYTES / (4 * (padded.sample() + gradient_sample))).clamp(1, samples.max(1));
    let mut source = padded.buffer(together);
    let mut rows = vec![0.0; together * gradient_sample];
    let offsets = tap_offsets(shape, shape.group_in(), padded.plane(), width);
    let mut sums: Vec<LaneSums> = (0..shape.groups).map(|_| LaneSums::new(shape.group_out(), shape.taps())).collect();
    let pairs = x.chunks(together * shape.in_elements()).zip(gradient.chunks(together * shape.out_elements()));
    for (x, gradient) in pairs {
        let samples = x.len() / shape.in_elements();
        for (sample, x) in x.chunks_exact(shape.in_elements()).enumerate() {
            padded.place(x, &mut source[sample * padded.sample()..]);
        }
        for (gradient, rows) in gradient.chunks_exact(shape.out_pixels()).zip(rows.chunks_exact_mut(row_stride)) {
            super::scratch::copy_rows(gradient, shape.out_width, rows, width, shape.out_width, shape.out_height);
        }
        for (group, sums) in sums.iter_mut().enumerate() {
            let dot = ShiftedDot {
                rows: &rows[group * shape.group_out() * row_stride..],
                row_stride,
                rows_sample: gradient_sample,
                source: &source[group * shape.group_in() * padded.plane()..],
                source_sample: padded.sample(),
                samples,
                length,
            };
            dot.add_to(&offsets, sums);
        }
    }
    for (sums, sum) in sums.iter_mut().zip(sum.chunks_exact_mut(shape.group_out() * shape.taps())) {
        sums.add_to(sum);
    }
}

// Outer products

/// Whether the weight's gradient is best summed with output channels in vector lanes.
fn outer_suits(shape: &ConvShape) -> bool {
    let weights = shape.group_out() * shape.taps();
    shape.dilation[1] == 1 && weights <= SHIFTED_WEIGHTS_MAX && OuterSums::suit(shape.group_out(), shape.kernel[1])
}

/// The weight's gradient, where the outputs fill vectors: each position's gradient, a vector over the output channels, times each
/// pixel that the position's window reads.
fn outer_weight_gradient(shape: &ConvShape, x: &[f32], gradient: &[f32], sum: &mut [f32]) {
    let padded = padded_rows(shape);
    let samples = x.len() / shape.in_elements();
    let together = (SHIFTED_DOT_BYTES / (4 * (padded.sample() + shape.out_elements()))).clamp(1, samples.max(1));
    let mut source = padded.buffer(together);
    let mut vectors = vec![0.0; together * shape.out_elements()];
    let (width, outputs, pixels) = (padded.stride(), shape.group_out(), shape.out_pixels());
    let [stride_y, stride_x] = shape.stride;
    let position = |index: usize| {
        let (sample, pixel) = (index / pixels, index % pixels);
        sample * padded.sample() + pixel / shape.out_width * stride_y * width + pixel % shape.out_width * stride_x
    };
    let steps: Vec<usize> = (0..together * pixels).map(position).collect();
    let row = |index: usize| {
        let (channel, y) = (index / shape.kernel[0], index % shape.kernel[0]);
        channel * padded.plane() + y * shape.dilation[0] * width
    };
    let rows: Vec<usize> = (0..shape.group_in() * shape.kernel[0]).map(row).collect();
    let mut sums: Vec<OuterSums> = (0..shape.groups).map(|_| OuterSums::new(outputs, rows.len(), shape.kernel[1])).collect();
    let pairs = x.chunks(together * shape.in_elements()).zip(gradient.chunks(together * shape.out_elements()));
    for (x, gradient) in pairs {
        let samples = x.len() / shape.in_elements();
        for (sample, x) in x.chunks_exact(shape.in_elements()).enumerate() {
            padded.place(x, &mut source[sample * padded.sample()..]);
        }
        for (group, sums) in sums.iter_mut().enumerate() {
            for (gradient, vectors) in gradient.chunks_exact(shape.out_elements()).zip(vectors.chunks_exact_mut(outputs * pixels)) {
                transpose(&gradient[group * outputs * pixels..][..outputs * pixels], pixels, vectors, outputs);
            }
            sums.add(&vectors, &source[group * shape.group_in() * padded.plane()..], &steps[..samples * pixels], &rows);
        }
    }
    for (sums, sum) in sums.iter().zip(sum.chunks_exact_mut(outputs * shape.taps())) {
        sums.add_to(sum);
    }
}

/// `target[c][r] = source[r][c]`, with `columns` and `rows` the lengths of their rows.
fn transpose(source: &[f32], columns: usize, target: &mut [f32], rows: usize) {
    const BLOCK: usize = 16; // lines of the cache that are written to at once
    for first in (0..columns).step_by(BLOCK) {
        let block = BLOCK.min(columns - first);
        for (row, source) in source.chunks_exact(columns).enumerate() {
            let targets = target[first * rows + row..].iter_mut().step_by(rows);
            source[first..first + block].iter().zip(targets).for_each(|(source, target)| *target = *source);
        }
    }
}

// Matrix product

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

/// Copies the pixels that each tap of `group` reads, for output rows `row..row + rows` of one padded sample, into `matrix`:
/// one row a tap, `columns` long, from column `first_column` on.
fn gather(shape: &ConvShape, padded: &[f32], group: usize, row: usize, rows: usize, matrix: &mut [f32], columns: usize, first_column: usize) {
    let [stride_y, stride_x] = shape.stride;
    let (width, out_width) = (shape.padded_width(), shape.out_width);
    let first_plane = group * shape.group_in() * shape.padded_height() * width;
    let offsets = tap_offsets(shape, shape.group_in(), shape.padded_height() * width, width);
    for (offset, matrix) in offsets.into_iter().zip(matrix.chunks_exact_mut(columns)) {
        let matrix = &mut matrix[first_column..][..rows * out_width];
        let source = &padded[first_plane + offset + row * stride_y * width..];
        if stride_x == 1 {
            super::scratch::copy_rows(source, stride_y * width, matrix, out_width, out_width, rows);
        } else {
            for (source, matrix) in source.chunks(stride_y * width).zip(matrix.chunks_exact_mut(out_width)) {
                source.iter().step_by(stride_x).zip(matrix).for_each(|(source, value)| *value = *source);
            }
        }
    }
}

/// The transpose of [`gather`]: adds each tap's column to the pixels that it came from.
fn scatter_add(shape: &ConvShape, matrix: &[f32], columns: usize, first_column: usize, group: usize, row: usize, rows: usize, padded: &mut [f32]) {
    let [stride_y, stride_x] = shape.stride;
    let (width, out_width) = (shape.padded_width(), shape.out_width);
    let first_plane = group * shape.group_in() * shape.padded_height() * width;
    let offsets = tap_offsets(shape, shape.group_in(), shape.padded_height() * width, width);
    for (offset, matrix) in offsets.into_iter().zip(matrix.chunks_exact(columns)) {
        let matrix = &matrix[first_column..][..rows * out_width];
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

fn padded_rows(shape: &ConvShape) -> Rows {
    Rows { planes: shape.in_channels, height: shape.height, width: shape.width, padding: shape.padding }
}

fn gathered_forward(shape: &ConvShape, x: &[f32], weight: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
    let (batch, taps, outputs, pixels) = (x.len() / shape.in_elements(), shape.taps(), shape.group_out(), shape.out_pixels());
    let tiles = Tiles::new(shape);
    let padded = padded_rows(shape);
    let mut source = padded.buffer(tiles.samples);
    let mut matrix = vec![0.0; taps * tiles.columns(shape)];
    let mut product = vec![0.0; if tiles.samples > 1 { outputs * tiles.columns(shape) } else { 0 }];
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
                gather(shape, &source[sample * padded.sample()..], group, row, rows, &mut matrix, columns, sample * tile);
            }
            let weight = Matrix::rows(&weight[group * outputs * taps..][..outputs * taps], taps);
            let multiply = Product { m: outputs, n: columns, k: taps, accumulate: false, parallel: false };
            if tiles.samples == 1 {
                let out = &mut out[(first * shape.out_channels + group * outputs) * pixels + row * shape.out_width..];
                multiply.compute(weight, Matrix::rows(&matrix, columns), out, pixels);
            } else {
                multiply.compute(weight, Matrix::rows(&matrix, columns), &mut product, columns);
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

/// The output's gradient of one tile and group as a matrix `[outputs, columns]`: seen in place for one sample, copied for several.
fn gradient_matrix<'a>(
    shape: &ConvShape,
    gradient: &'a [f32],
    group: usize,
    (first, samples, row, rows): (usize, usize, usize, usize),
    copy: &'a mut [f32],
) -> Matrix<'a> {
    let (outputs, pixels) = (shape.group_out(), shape.out_pixels());
    if copy.is_empty() {
        let start = (first * shape.out_channels + group * outputs) * pixels + row * shape.out_width;
        return Matrix::rows(&gradient[start..], pixels);
    }
    let tile = rows * shape.out_width;
    let columns = samples * tile;
    for (output, copy) in copy.chunks_exact_mut(columns).take(outputs).enumerate() {
        for (sample, copy) in copy.chunks_exact_mut(tile).enumerate() {
            let start = ((first + sample) * shape.out_channels + group * outputs + output) * pixels;
            copy.copy_from_slice(&gradient[start..start + pixels]);
        }
    }
    Matrix::rows(copy, columns)
}

fn gathered_input_gradient(shape: &ConvShape, gradient: &[f32], weight: &[f32], out: &mut [f32]) {
    let (batch, taps, outputs) = (out.len() / shape.in_elements(), shape.taps(), shape.group_out());
    let tiles = Tiles::new(shape);
    let padded = padded_rows(shape);
    let mut target = padded.buffer(tiles.samples);
    let mut matrix = vec![0.0; taps * tiles.columns(shape)];
    let mut copy = vec![0.0; if tiles.samples > 1 { outputs * tiles.columns(shape) } else { 0 }];
    tiles.for_each(shape, batch, |first, samples, row, rows| {
        if row == 0 {
            target.fill(0.0);
        }
        let tile = rows * shape.out_width;
        let columns = samples * tile;
        for group in 0..shape.groups {
            let gradient = gradient_matrix(shape, gradient, group, (first, samples, row, rows), &mut copy);
            let weight = Matrix::transposed(&weight[group * outputs * taps..][..outputs * taps], taps);
            let multiply = Product { m: taps, n: columns, k: outputs, accumulate: false, parallel: false };
            multiply.compute(weight, gradient, &mut matrix, columns);
            for sample in 0..samples {
                scatter_add(shape, &matrix, columns, sample * tile, group, row, rows, &mut target[sample * padded.sample()..]);
            }
        }
        if row + rows == shape.out_height {
            for sample in 0..samples {
                padded.take(&target[sample * padded.sample()..], &mut out[(first + sample) * shape.in_elements()..]);
            }
        }
    });
}

fn gathered_weight_gradient(shape: &ConvShape, x: &[f32], gradient: &[f32], sum: &mut [f32]) {
    let (batch, taps, outputs) = (x.len() / shape.in_elements(), shape.taps(), shape.group_out());
    let tiles = Tiles::new(shape);
    let padded = padded_rows(shape);
    let mut source = padded.buffer(tiles.samples);
    let mut matrix = vec![0.0; taps * tiles.columns(shape)];
    let mut copy = vec![0.0; if tiles.samples > 1 { outputs * tiles.columns(shape) } else { 0 }];
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
                gather(shape, &source[sample * padded.sample()..], group, row, rows, &mut matrix, columns, sample * tile);
            }
            let multiply = Product { m: outputs, n: taps, k: columns, accumulate: true, parallel: false };
            multiply.compute(gradient, Matrix::transposed(&matrix, columns), &mut sum[group * outputs * taps..], taps);
        }
    });
}
