//! Convolution as a product of matrices: a row for each output pixel with what its window reads, tap after tap, times the weight as
//! `[taps, in, out]`.

use super::Wanted;
use crate::Activation;
use crate::buffer::Buffer;
use crate::elementwise::{relu_in_place, repeat_row};
use crate::shape::ConvShape;
use crate::simd::{Matrix, MatrixMut, Panels, Product, strip_columns};
use crate::threads::{for_each, map, parts, split};

/// Bytes of the matrix of windows that is worked on at once.
const BLOCK_BYTES: usize = 384 << 10;

/// Fewest and most rows of it: sums over rows are read and written once a block.
const BLOCK_ROWS: [usize; 2] = [112, 448];

/// Elements of a pixel's window.
fn window(shape: &ConvShape) -> usize {
    shape.kernel[0] * shape.kernel[1] * shape.in_channels
}

/// Whether the matrix of windows is the image itself.
fn is_pointwise(shape: &ConvShape) -> bool {
    shape.kernel == [1, 1] && shape.stride == [1, 1] && shape.padding == [0, 0]
}

fn block_rows(shape: &ConvShape) -> usize {
    let [low, high] = BLOCK_ROWS;
    (BLOCK_BYTES / (window(shape) * size_of::<f32>())).clamp(low, high)
}

/// The output pixels of so many samples in blocks: (first, number).
fn blocks(shape: &ConvShape, pixels: usize) -> impl Iterator<Item = (usize, usize)> {
    let rows = block_rows(shape);
    (0..pixels).step_by(rows).map(move |first| (first, rows.min(pixels - first)))
}

/// Calls `visit(place in the window, place in the image, elements)` for each run of pixels of an output pixel's window that
/// lie side by side; `None` for those in the padding.
#[inline(always)]
fn runs(shape: &ConvShape, pixel: usize, mut visit: impl FnMut(usize, Option<usize>, usize)) {
    let [kernel_height, kernel_width] = shape.kernel;
    let channels = shape.in_channels;
    let (sample, pixel) = (pixel / shape.out_pixels(), pixel % shape.out_pixels());
    let (row, column) = (pixel / shape.out_width * shape.stride[0], pixel % shape.out_width * shape.stride[1]);
    // Side by side in the image are taps without dilation.
    let together = if shape.dilation[1] == 1 { kernel_width } else { 1 };
    for y in 0..kernel_height {
        let in_row = (row + y * shape.dilation[0]).wrapping_sub(shape.padding[0]);
        for x in (0..kernel_width).step_by(together) {
            let place = (y * kernel_width + x) * channels;
            let first = (column + x * shape.dilation[1]) as isize - shape.padding[1] as isize;
            // The part of the run that is inside.
            let before = (-first).clamp(0, together as isize) as usize;
            let end = (shape.width as isize - first).clamp(before as isize, together as isize) as usize;
            if in_row >= shape.height || before == end {
                visit(place, None, together * channels);
                continue;
            }
            if before > 0 {
                visit(place, None, before * channels);
            }
            let column = (first + before as isize) as usize;
            let start = ((sample * shape.height + in_row) * shape.width + column) * channels;
            visit(place + before * channels, Some(start), (end - before) * channels);
            if end < together {
                visit(place + end * channels, None, (together - end) * channels);
            }
        }
    }
}

/// Rows of the matrix of windows for output pixels from `first` on.
fn gather(shape: &ConvShape, x: &[f32], first: usize, rows: &mut [f32]) {
    for (index, row) in rows.chunks_exact_mut(window(shape)).enumerate() {
        runs(shape, first + index, |place, start, count| match start {
            Some(start) => row[place..place + count].copy_from_slice(&x[start..start + count]),
            None => row[place..place + count].fill(0.0),
        });
    }
}

/// The transpose of [`gather`]: adds rows to the pixels that they came from.
fn scatter_add(shape: &ConvShape, rows: &[f32], first: usize, x: &mut [f32]) {
    for (index, row) in rows.chunks_exact(window(shape)).enumerate() {
        runs(shape, first + index, |place, start, count| {
            if let Some(start) = start {
                x[start..start + count].iter_mut().zip(&row[place..place + count]).for_each(|(x, value)| *x += value);
            }
        });
    }
}

/// The weight as `[taps in, out]`, or its transpose, in strips.
fn pack(shape: &ConvShape, weight: &[f32], transposed: bool) -> Buffer {
    let outputs = shape.out_channels;
    let sizes =
        if transposed { Panels { k: outputs, n: window(shape) } } else { Panels { k: window(shape), n: outputs } };
    let columns = strip_columns();
    let mut packed = Buffer::new(sizes.elements());
    let strips = parts(sizes.n.div_ceil(columns), 4 * packed.len());
    for_each(split(&mut packed, sizes.k * columns, &strips), |(first, strips)| {
        for (index, strip) in strips.chunks_exact_mut(sizes.k * columns).enumerate() {
            let first = (first + index) * columns;
            let count = columns.min(sizes.n - first);
            if count < columns {
                strip.fill(0.0);
            }
            if transposed {
                pack_transposed(shape, weight, first, count, strip);
            } else {
                pack_strip(shape, weight, first, count, strip);
            }
        }
    });
    packed
}

/// Input channels that are packed at once, so that what is written stays in the first-level cache.
const INPUTS_TOGETHER: usize = 16;

/// The strip `[taps in, out]` that begins with output channel `first`.
fn pack_strip(shape: &ConvShape, weight: &[f32], first: usize, count: usize, strip: &mut [f32]) {
    let (taps, inputs, columns) = (shape.kernel[0] * shape.kernel[1], shape.in_channels, strip_columns());
    for start in (0..inputs).step_by(INPUTS_TOGETHER) {
        let together = INPUTS_TOGETHER.min(inputs - start);
        for column in 0..count {
            let filters = &weight[((first + column) * inputs + start) * taps..][..together * taps];
            for (input, filter) in filters.chunks_exact(taps).enumerate() {
                for (tap, value) in filter.iter().enumerate() {
                    strip[(tap * inputs + start + input) * columns + column] = *value;
                }
            }
        }
    }
}

/// The strip `[out, taps in]` that begins with this place in the window.
fn pack_transposed(shape: &ConvShape, weight: &[f32], first: usize, count: usize, strip: &mut [f32]) {
    let (taps, inputs, columns) = (shape.kernel[0] * shape.kernel[1], shape.in_channels, strip_columns());
    for (filter, row) in weight.chunks_exact(inputs * taps).zip(strip.chunks_exact_mut(columns)) {
        let (mut tap, mut input) = (first / inputs, first % inputs);
        let mut row = &mut row[..count];
        while !row.is_empty() {
            // The places of one tap.
            let (values, rest) = row.split_at_mut(row.len().min(inputs - input));
            let filter = filter[input * taps + tap..].iter().step_by(taps);
            values.iter_mut().zip(filter).for_each(|(value, weight)| *value = *weight);
            (tap, input, row) = (tap + 1, 0, rest);
        }
    }
}

/// Multiplications, as work for [`parts`].
fn work(shape: &ConvShape) -> usize {
    shape.batch * shape.out_elements() * window(shape) / 16
}

pub(super) fn forward(
    shape: &ConvShape,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    activation: Activation,
) -> Buffer {
    let (depth, outputs) = (window(shape), shape.out_channels);
    let packed = pack(shape, weight, false);
    let mut out = Buffer::new(shape.batch * shape.out_elements());
    let pixels = parts(shape.batch * shape.out_pixels(), work(shape));
    for_each(split(&mut out, outputs, &pixels), |(first_pixel, out)| {
        let pixels = out.len() / outputs;
        let pointwise = is_pointwise(shape);
        let mut rows = Buffer::new(if pointwise { 0 } else { block_rows(shape).min(pixels) * depth });
        for (first, count) in blocks(shape, pixels) {
            let out = &mut out[first * outputs..][..count * outputs];
            let first = first_pixel + first;
            if !pointwise {
                gather(shape, x, first, &mut rows[..count * depth]);
            }
            let a = if pointwise { &x[first * depth..] } else { &rows[..] };
            if let Some(bias) = bias {
                repeat_row(out, bias);
            }
            let product = Product { a: Matrix::rows(a, depth), k: depth, accumulate: bias.is_some() };
            product.with_panels(&packed, &mut MatrixMut::new(out, count, outputs, outputs));
            if activation == Activation::Relu {
                relu_in_place(out);
            }
        }
    });
    out
}

pub(super) fn backward(
    shape: &ConvShape,
    x: &[f32],
    weight: &[f32],
    gradient: &[f32],
    wanted: Wanted,
) -> (Option<Buffer>, Option<Buffer>) {
    let (depth, outputs) = (window(shape), shape.out_channels);
    let pointwise = is_pointwise(shape);
    let samples = parts(shape.batch, 2 * work(shape));
    let packed = wanted.x.then(|| pack(shape, weight, true));
    let mut x_gradient = wanted.x.then(|| Buffer::zeroed(shape.batch * shape.in_elements()));
    let targets: Vec<Option<&mut [f32]>> = match &mut x_gradient {
        Some(out) => split(out, shape.in_elements(), &samples).into_iter().map(|(_, out)| Some(out)).collect(),
        None => samples.iter().map(|_| None).collect(),
    };
    let items = samples.iter().copied().zip(targets).collect();
    let sums = map(items, |((first_sample, samples), mut out): ((usize, usize), Option<&mut [f32]>)| {
        let x = &x[first_sample * shape.in_elements()..][..samples * shape.in_elements()];
        let gradient = &gradient[first_sample * shape.out_elements()..][..samples * shape.out_elements()];
        let pixels = samples * shape.out_pixels();
        let mut rows = Buffer::new(if pointwise { 0 } else { block_rows(shape).min(pixels) * depth });
        let mut sums = wanted.weight.then(|| Buffer::new(depth * outputs));
        for (first, count) in blocks(shape, pixels) {
            let gradient = &gradient[first * outputs..][..count * outputs];
            if let Some(sums) = &mut sums {
                if !pointwise {
                    gather(shape, x, first, &mut rows[..count * depth]);
                }
                let a = if pointwise { &x[first * depth..] } else { &rows[..] };
                let product = Product { a: Matrix::transposed(a, depth), k: count, accumulate: first > 0 };
                product.with_rows(gradient, outputs, &mut MatrixMut::new(sums, depth, outputs, outputs));
            }
            if let (Some(out), Some(packed)) = (&mut out, &packed) {
                let product = Product { a: Matrix::rows(gradient, outputs), k: outputs, accumulate: false };
                let target = if pointwise { &mut out[first * depth..] } else { &mut rows[..] };
                product.with_panels(packed, &mut MatrixMut::new(target, count, depth, depth));
                if !pointwise {
                    scatter_add(shape, &rows[..count * depth], first, out);
                }
            }
        }
        sums
    });
    let weight_gradient = wanted.weight.then(|| {
        let sums: Vec<&[f32]> = sums.iter().flatten().map(|sums| &sums[..]).collect();
        unpack(shape, &sums)
    });
    (x_gradient, weight_gradient)
}

/// Output channels that are unpacked at once.
const OUTPUTS_TOGETHER: usize = 64;

/// The sum of some `[taps in, out]` as `[out, in, taps]`.
fn unpack(shape: &ConvShape, sums: &[&[f32]]) -> Buffer {
    let (taps, inputs, outputs) = (shape.kernel[0] * shape.kernel[1], shape.in_channels, shape.out_channels);
    let mut out = Buffer::new(outputs * inputs * taps);
    let ranges = parts(outputs, 4 * out.len() * sums.len());
    for_each(split(&mut out, inputs * taps, &ranges), |(first, out)| {
        let count = out.len() / (inputs * taps);
        // Blocks of outputs whose filters stay in the first-level cache while their inputs are written one after another.
        for block in (0..count).step_by(OUTPUTS_TOGETHER) {
            for input in 0..inputs {
                for tap in 0..taps {
                    let place = (tap * inputs + input) * outputs + first;
                    for output in block..count.min(block + OUTPUTS_TOGETHER) {
                        let sum: f32 = sums.iter().map(|sums| sums[place + output]).sum();
                        out[(output * inputs + input) * taps + tap] = sum;
                    }
                }
            }
        }
    });
    out
}
