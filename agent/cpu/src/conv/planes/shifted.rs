//! Convolutions of stride 1 as sums of shifted planes.

use std::ops::Range;

use super::{SHIFTED_DOT_BYTES, tap_offsets};
use crate::buffer::Buffer;
use crate::scratch::{Rows, copy_rows};
use crate::shape::ConvShape;
use crate::simd::{LaneSums, Offsets, PackedWeights, SLACK, ShiftedDot, ShiftedSum, Vectors, lanes};

/// The packed weights of each group.
pub(super) fn pack_forward(shape: &ConvShape, weight: &[f32]) -> Vec<PackedWeights> {
    let (outputs, taps) = (shape.group_out(), shape.taps());
    weight
        .chunks_exact(outputs * taps)
        .map(|weight| PackedWeights::new(outputs, taps, |output, tap| weight[output * taps + tap]))
        .collect()
}

/// The weights of each group with inputs and outputs exchanged and the taps mirrored, one row of the window after another.
pub(super) fn pack_mirrored(shape: &ConvShape, weight: &[f32]) -> Vec<PackedWeights> {
    let (inputs, outputs, taps) = (shape.group_in(), shape.group_out(), shape.taps());
    let [kernel_height, kernel_width] = shape.kernel;
    let pack = |weight: &[f32]| {
        PackedWeights::new(inputs, outputs * kernel_height * kernel_width, |input, tap| {
            let (y, output, x) = (tap / kernel_width / outputs, tap / kernel_width % outputs, tap % kernel_width);
            let (y, x) = (kernel_height - 1 - y, kernel_width - 1 - x);
            weight[output * taps + (input * kernel_height + y) * kernel_width + x]
        })
    };
    weight.chunks_exact(outputs * taps).map(pack).collect()
}

pub(super) fn forward(shape: &ConvShape, x: &[f32], packed: &[PackedWeights], bias: Option<&[f32]>, out: &mut [f32]) {
    let padded = Rows { planes: shape.in_channels, height: shape.height, width: shape.width, padding: shape.padding };
    let mut source = padded.buffer(1);
    let (plane, width) = (padded.plane(), padded.stride());
    let length = (shape.out_height - 1) * width + shape.out_width;
    let stride = length.next_multiple_of(SLACK);
    let mut sums = Buffer::new(shape.group_out() * stride);
    let offsets = Offsets::new(tap_offsets(shape, shape.group_in(), plane, width));
    for (x, out) in x.chunks_exact(shape.in_elements()).zip(out.chunks_exact_mut(shape.out_elements())) {
        padded.place(x, &mut source);
        for (group, out) in out.chunks_exact_mut(shape.group_out() * shape.out_pixels()).enumerate() {
            let bias = bias.map(|bias| &bias[group * shape.group_out()..][..shape.group_out()]);
            let source = &source[group * shape.group_in() * plane..];
            ShiftedSum { source, offsets: &offsets, weights: &packed[group], bias }.flat(&mut sums, stride, length);
            for (sums, out) in sums.chunks_exact(stride).zip(out.chunks_exact_mut(shape.out_pixels())) {
                copy_rows(sums, width, out, shape.out_width, shape.out_width, shape.out_height);
            }
        }
    }
}

pub(super) fn input_gradient(shape: &ConvShape, gradient: &[f32], packed: &[PackedWeights], out: &mut [f32]) {
    let padding = shape.mirrored_padding().expect("checked by the caller");
    let padded = Rows { planes: shape.out_channels, height: shape.out_height, width: shape.out_width, padding };
    let mut source = padded.buffer(1);
    let (plane, width) = (padded.plane(), padded.stride());
    let [kernel_height, kernel_width] = shape.kernel;
    let tap = |index: usize| {
        let (y, output, x) =
            (index / kernel_width / shape.group_out(), index / kernel_width % shape.group_out(), index % kernel_width);
        output * plane + y * shape.dilation[0] * width + x * shape.dilation[1]
    };
    let offsets = Offsets::new((0..shape.group_out() * kernel_height * kernel_width).map(tap).collect());
    // Where a row fits one vector, rows are summed by themselves: less is wasted than between the rows of a plane, and
    // those rows of the window that lie in the padding are left out.
    let by_rows = shape.width <= lanes() && lanes() <= width;
    let length = (shape.height - 1) * width + shape.width;
    let (row_stride, stride) =
        if by_rows { (lanes(), shape.height * lanes()) } else { (width, length.next_multiple_of(SLACK)) };
    let mut sums = Buffer::new(shape.group_in() * stride);
    let blocks = if by_rows { row_blocks(shape, padding[0], packed[0].columns()) } else { Vec::new() };
    for (gradient, out) in gradient.chunks_exact(shape.out_elements()).zip(out.chunks_exact_mut(shape.in_elements())) {
        padded.place(gradient, &mut source);
        for (group, out) in out.chunks_exact_mut(shape.group_in() * shape.in_pixels()).enumerate() {
            let source = &source[group * shape.group_out() * plane..];
            let sum = ShiftedSum { source, offsets: &offsets, weights: &packed[group], bias: None };
            if by_rows {
                for block in &blocks {
                    let vectors = Vectors { start: block.row * width, step: width, count: block.rows };
                    let row_taps = shape.group_out() * kernel_width;
                    let taps = block.taps.start * row_taps..block.taps.end * row_taps;
                    sum.compute(vectors, taps, &mut sums[block.row * lanes()..], stride);
                }
            } else {
                sum.flat(&mut sums, stride, length);
            }
            for (sums, out) in sums.chunks_exact(stride).zip(out.chunks_exact_mut(shape.in_pixels())) {
                copy_rows(sums, row_stride, out, shape.width, shape.width, shape.height);
            }
        }
    }
}

/// Rows of the input's gradient that are computed together, with the rows of the mirrored window that they need.
struct RowBlock {
    row: usize,
    rows: usize,
    taps: Range<usize>,
}

/// Splits the rows into blocks of at most `rows_max`, smaller ones where that leaves out more of the window.
fn row_blocks(shape: &ConvShape, padding: usize, rows_max: usize) -> Vec<RowBlock> {
    let dilation = shape.dilation[0];
    // Row `r` reads row `r + y dilation` of the padded plane, of which `padding..padding + out_height` are not zero.
    let taps = |row: usize, rows: usize| {
        let start = padding.saturating_sub(row + rows - 1).div_ceil(dilation);
        let end = ((padding + shape.out_height).saturating_sub(row).div_ceil(dilation)).min(shape.kernel[0]);
        start.min(end)..end
    };
    let cost = |row: usize, rows: usize| rows * taps(row, rows).len();
    let mut blocks = Vec::new();
    let mut row = 0;
    while row < shape.height {
        let mut rows = rows_max.min(shape.height - row);
        while rows > 1 && cost(row, rows / 2) + cost(row + rows / 2, rows - rows / 2) < cost(row, rows) {
            rows /= 2;
        }
        // Fewer than two vectors at a time do not keep the processor busy.
        rows = rows.max(2.min(shape.height - row));
        blocks.push(RowBlock { row, rows, taps: taps(row, rows) });
        row += rows;
    }
    blocks
}

pub(super) fn weight_gradient(shape: &ConvShape, x: &[f32], gradient: &[f32], sum: &mut [f32]) {
    let padded = Rows { planes: shape.in_channels, height: shape.height, width: shape.width, padding: shape.padding };
    let width = padded.stride();
    let length = (shape.out_height - 1) * width + shape.out_width;
    let row_stride = length.next_multiple_of(SLACK);
    let gradient_sample = shape.out_channels * row_stride;
    let samples = x.len() / shape.in_elements();
    let together = (SHIFTED_DOT_BYTES / (4 * (padded.sample() + gradient_sample))).clamp(1, samples.max(1));
    let mut source = padded.buffer(together);
    let mut rows = Buffer::zeroed(together * gradient_sample);
    let offsets = Offsets::new(tap_offsets(shape, shape.group_in(), padded.plane(), width));
    let mut sums: Vec<LaneSums> = (0..shape.groups).map(|_| LaneSums::new(shape.group_out(), shape.taps())).collect();
    let pairs = x.chunks(together * shape.in_elements()).zip(gradient.chunks(together * shape.out_elements()));
    for (x, gradient) in pairs {
        let samples = x.len() / shape.in_elements();
        for (sample, x) in x.chunks_exact(shape.in_elements()).enumerate() {
            padded.place(x, &mut source[sample * padded.sample()..]);
        }
        for (gradient, rows) in gradient.chunks_exact(shape.out_pixels()).zip(rows.chunks_exact_mut(row_stride)) {
            copy_rows(gradient, shape.out_width, rows, width, shape.out_width, shape.out_height);
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
