//! Convolution by Winograd's F(2x2, 3x3).
//!
//! Tiles are worked on in blocks that stay in the second-level cache: transform, 16 products, transform back. Threads share the
//! samples; where the filters are large or the samples few they share the channels, so that no thread needs a copy of
//! the filters' gradient.

use super::Wanted;
use crate::Activation;
use crate::buffer::Buffer;
use crate::shape::ConvShape;
use crate::simd::winograd::{
    Filters, Images, OUTSIDE, POINTS, Terms, TilePlaces, Tiles, add_input_gradient, filter_gradients, plane,
    transform_filters, transform_input, transform_output, transform_output_gradient,
};
use crate::simd::{Matrix, MatrixMut, Product, SLACK, strip_columns, strip_parts};
use crate::threads::{for_each, map, parts, split, threads};

/// Bytes of transformed tiles that are worked on at once.
const BLOCK_BYTES: usize = 640 << 10;

/// Fewest and most tiles of a block: rows of the products, of which the filters are read anew for each block.
const BLOCK_TILES: [usize; 2] = [56, 112];

/// Most tiles of a block where the filters are large.
const LARGE_BLOCK_TILES: usize = 256;

/// Products of channels from which on the filters count as large: their transforms no longer fit the second-level cache.
const LARGE_FILTERS: usize = 256 * 256;

/// Tiles of a batch below which transforming the filters is not worth it.
const TILES_MIN: usize = 24;

/// Whether this is a good way to compute it.
pub(super) fn suits(shape: &ConvShape) -> bool {
    let tiles = shape.out_height.div_ceil(2) * shape.out_width.div_ceil(2);
    shape.kernel == [3, 3]
        && shape.stride == [1, 1]
        && shape.dilation == [1, 1]
        && shape.groups == 1
        && shape.in_channels.is_multiple_of(SLACK)
        && shape.out_channels.is_multiple_of(SLACK)
        && tiles * POINTS * 10 <= shape.out_pixels() * 9 * 8
        && tiles * shape.batch >= TILES_MIN
}

/// Where the tiles of a sample lie.
fn places(shape: &ConvShape) -> TilePlaces {
    let (rows, columns) = (shape.out_height.div_ceil(2), shape.out_width.div_ceil(2));
    let inside = |row: usize, column: usize, [height, width]: [usize; 2]| {
        if row < height && column < width { row * width + column } else { OUTSIDE }
    };
    let tiles = || (0..rows).flat_map(|row| (0..columns).map(move |column| (2 * row, 2 * column)));
    let input = |(row, column): (usize, usize)| {
        // Before the first pixel the numbers wrap, and lie outside just as well.
        let (row, column) = (row.wrapping_sub(shape.padding[0]), column.wrapping_sub(shape.padding[1]));
        let size = [shape.height, shape.width];
        std::array::from_fn(|point| inside(row.wrapping_add(point / 4), column.wrapping_add(point % 4), size))
    };
    let output = |(row, column): (usize, usize)| {
        std::array::from_fn(|point| inside(row + point / 2, column + point % 2, [shape.out_height, shape.out_width]))
    };
    TilePlaces { inputs: tiles().map(input).collect(), outputs: tiles().map(output).collect() }
}

/// Tiles that are worked on at once.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    count: usize,
    /// Tiles of the largest block, for which there is room.
    room: usize,
}

impl Block {
    /// Its tiles in images of so many pixels and channels.
    fn tiles(self, pixels: usize, channels: usize) -> Tiles {
        Tiles { first: self.first, count: self.count, pixels, channels, plane: plane(self.room * channels) }
    }
}

/// How so many tiles are cut into blocks of about equal size.
struct Blocks {
    tiles: usize,
    count: usize,
}

impl Blocks {
    fn new(shape: &ConvShape, tiles: usize) -> Blocks {
        let bytes = POINTS * (shape.in_channels + shape.out_channels) * size_of::<f32>();
        let [low, high] = BLOCK_TILES;
        let most = if large(shape) { LARGE_BLOCK_TILES } else { (BLOCK_BYTES / bytes).clamp(low, high) };
        Blocks { tiles, count: tiles.div_ceil(most).max(1) }
    }

    /// Tiles of the largest block.
    fn room(&self) -> usize {
        self.tiles.div_ceil(self.count)
    }

    /// Room for the transformed tiles of any block.
    fn buffer(&self, channels: usize) -> Buffer {
        points(self.room() * channels)
    }

    fn iter(&self) -> impl Iterator<Item = Block> {
        let start = |block: usize| block * self.tiles / self.count;
        (0..self.count).map(move |block| {
            let first = start(block);
            Block { first, count: start(block + 1) - first, room: self.room() }
        })
    }
}

fn large(shape: &ConvShape) -> bool {
    shape.in_channels * shape.out_channels >= LARGE_FILTERS
}

/// Whether threads share the channels rather than the samples.
fn shares_channels(shape: &ConvShape) -> bool {
    threads() > 1 && (large(shape) || shape.batch < threads())
}

/// Multiplications of the products, as work for [`parts`].
fn work(shape: &ConvShape, tiles: usize) -> usize {
    tiles * shape.batch * shape.in_channels * shape.out_channels
}

/// The filters in the order of the products: strips of `lanes`, for each all points.
fn transformed_filters(filters: Filters, weight: &[f32]) -> Buffer {
    let (columns, strip) = (strip_columns(), filters.strip());
    let strips = filters.lanes.div_ceil(columns);
    let mut transformed = Buffer::new(strips * strip);
    let parts = parts(strips, 2 * strips * strip);
    for_each(split(&mut transformed, strip, &parts), |(first, strips)| {
        for (index, out) in strips.chunks_exact_mut(strip).enumerate() {
            transform_filters(filters, (first + index) * columns, weight, out);
        }
    });
    transformed
}

/// All points' products of the tiles `left` with transformed filters, into the tiles `right`. The filters begin with the strip of
/// the first channel of `right`.
fn multiply((left, left_values): (Tiles, &[f32]), filters: (Filters, &[f32]), (right, out): (Tiles, &mut [f32])) {
    let (filters, filter_values) = filters;
    let (columns, depth) = (strip_columns(), left.channels);
    for (point, out) in out.chunks_exact_mut(right.plane).take(POINTS).enumerate() {
        let a = Matrix::rows(&left_values[point * left.plane..], depth);
        let mut out = MatrixMut::new(out, right.count, right.channels, right.channels);
        for (strip, first) in (0..right.channels).step_by(columns).enumerate() {
            let strip = &filter_values[strip * filters.strip() + point * filters.plane()..];
            let mut out = out.part((0, right.count), (first, columns.min(right.channels - first)));
            Product { a, k: depth, accumulate: false }.with_panels(strip, &mut out);
        }
    }
}

/// Room for so many elements of each point.
fn points(elements: usize) -> Buffer {
    Buffer::new(POINTS * plane(elements))
}

/// Samples and channels that a thread works on.
#[derive(Clone, Copy)]
struct Share {
    samples: (usize, usize),
    channels: (usize, usize),
}

/// The shares of an image with this many channels, in the order in which they lie.
fn shares(shape: &ConvShape, channels: usize, tiles: usize) -> Vec<Share> {
    if shares_channels(shape) {
        let share = |channels| Share { samples: (0, shape.batch), channels };
        strip_parts(channels, work(shape, tiles)).into_iter().map(share).collect()
    } else {
        let share = |samples| Share { samples, channels: (0, channels) };
        parts(shape.batch, work(shape, tiles)).into_iter().map(share).collect()
    }
}

/// Cuts an image with `pixels` a sample among the shares.
fn cut<'a>(values: &'a mut [f32], pixels: usize, channels: usize, shares: &[Share]) -> Vec<(Share, MatrixMut<'a>)> {
    let rows = values.len() / channels;
    let matrix = MatrixMut::new(values, rows, channels, channels);
    let by_channels = shares.iter().any(|share| share.channels.1 < channels);
    let parts = if by_channels {
        matrix.split_columns(&shares.iter().map(|share| share.channels).collect::<Vec<_>>())
    } else {
        let rows = |share: &Share| (share.samples.0 * pixels, share.samples.1 * pixels);
        matrix.split_rows(&shares.iter().map(rows).collect::<Vec<_>>())
    };
    shares.iter().copied().zip(parts).collect()
}

pub(super) fn forward(
    shape: &ConvShape,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    activation: Activation,
) -> Buffer {
    let (inputs, outputs) = (shape.in_channels, shape.out_channels);
    let places = places(shape);
    let per_sample = places.outputs.len();
    let filters = Filters { steps: inputs, step_stride: 9, lanes: outputs, lane_stride: 9 * inputs };
    let transformed = transformed_filters(filters, weight);
    let mut out = Buffer::new(shape.batch * shape.out_elements());
    let shares = cut(&mut out, shape.out_pixels(), outputs, &shares(shape, outputs, per_sample));
    for_each(shares, |(share, mut out)| {
        let tiles = share.samples.1 * per_sample;
        let x = &x[share.samples.0 * shape.in_elements()..][..share.samples.1 * shape.in_elements()];
        let (first_channel, channels) = share.channels;
        let strips = &transformed[first_channel / strip_columns() * filters.strip()..];
        let bias = bias.map(|bias| &bias[first_channel..first_channel + channels]);
        let blocks = Blocks::new(shape, tiles);
        let (mut left, mut products) = (blocks.buffer(inputs), blocks.buffer(channels));
        for block in blocks.iter() {
            let images = Images { values: x, stride: inputs };
            let in_tiles = block.tiles(shape.in_pixels(), inputs);
            transform_input(in_tiles, &places, images, &mut left);
            let tiles = block.tiles(shape.out_pixels(), channels);
            multiply((in_tiles, &left), (filters, strips), (tiles, &mut products));
            transform_output(tiles, &places, &products, bias, activation == Activation::Relu, &mut out);
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
    let work = Backward { shape, x, gradient, places: places(shape) };
    let mut x_gradient = wanted.x.then(|| Buffer::zeroed(shape.batch * shape.in_elements()));
    let filters = wanted.x.then(|| {
        let (inputs, outputs) = (shape.in_channels, shape.out_channels);
        let filters = Filters { steps: outputs, step_stride: 9 * inputs, lanes: inputs, lane_stride: 9 };
        (filters, transformed_filters(filters, weight))
    });
    let filters = filters.as_ref().map(|(filters, transformed)| (*filters, &transformed[..]));
    let weight_gradient = if shares_channels(shape) {
        if let (Some(x_gradient), Some(filters)) = (&mut x_gradient, filters) {
            work.input_by_channels(filters, x_gradient);
        }
        wanted.weight.then(|| work.weight_by_channels())
    } else {
        work.by_samples(filters, x_gradient.as_deref_mut(), wanted.weight)
    };
    (x_gradient, weight_gradient)
}

/// What all threads read in a backward pass.
struct Backward<'a> {
    shape: &'a ConvShape,
    x: &'a [f32],
    gradient: &'a [f32],
    places: TilePlaces,
}

impl Backward<'_> {
    /// Both gradients of a thread's samples from one transform of the output's gradient.
    fn by_samples(
        &self,
        filters: Option<(Filters, &[f32])>,
        x_gradient: Option<&mut [f32]>,
        weight_wanted: bool,
    ) -> Option<Buffer> {
        let shape = self.shape;
        let (inputs, outputs, per_sample) = (shape.in_channels, shape.out_channels, self.places.outputs.len());
        let shares = shares(shape, inputs, per_sample);
        let targets: Vec<Option<MatrixMut<'_>>> = match x_gradient {
            Some(out) => cut(out, shape.in_pixels(), inputs, &shares).into_iter().map(|(_, out)| Some(out)).collect(),
            None => shares.iter().map(|_| None).collect(),
        };
        let items = shares.into_iter().zip(targets).collect();
        let sums = map(items, |(share, mut out): (Share, Option<MatrixMut<'_>>)| {
            let (first_sample, samples) = share.samples;
            let x = &self.x[first_sample * shape.in_elements()..][..samples * shape.in_elements()];
            let gradient = &self.gradient[first_sample * shape.out_elements()..][..samples * shape.out_elements()];
            let tiles = samples * per_sample;
            let blocks = Blocks::new(shape, tiles);
            let (mut left, mut right) = (blocks.buffer(inputs), blocks.buffer(outputs));
            let mut sums = weight_wanted.then(|| points(inputs * outputs));
            for block in blocks.iter() {
                let (in_tiles, out_tiles) =
                    (block.tiles(shape.in_pixels(), inputs), block.tiles(shape.out_pixels(), outputs));
                let images = Images { values: gradient, stride: outputs };
                transform_output_gradient(out_tiles, &self.places, images, &mut right);
                if let Some(sums) = &mut sums {
                    transform_input(in_tiles, &self.places, Images { values: x, stride: inputs }, &mut left);
                    add_filter_products(in_tiles, &left, out_tiles, &right, block.first > 0, sums);
                }
                if let (Some(out), Some(filters)) = (&mut out, filters) {
                    multiply((out_tiles, &right), filters, (in_tiles, &mut left));
                    add_input_gradient(in_tiles, &self.places, &left, out);
                }
            }
            sums
        });
        weight_wanted.then(|| self.filter_gradient(&sums.iter().flatten().map(|sums| &sums[..]).collect::<Vec<_>>()))
    }

    /// Sums the threads' products and transforms them back.
    fn filter_gradient(&self, sums: &[&[f32]]) -> Buffer {
        let (inputs, outputs) = (self.shape.in_channels, self.shape.out_channels);
        let mut out = Buffer::new(outputs * inputs * 9);
        let strips = parts(outputs / SLACK, POINTS * inputs * outputs * sums.len());
        for_each(split(&mut out, SLACK * inputs * 9, &strips), |(first, out)| {
            filter_gradients(Terms(sums), inputs, outputs, first * SLACK, out);
        });
        out
    }

    /// The input's gradient, a range of input channels for each thread.
    fn input_by_channels(&self, (filters, transformed): (Filters, &[f32]), out: &mut [f32]) {
        let shape = self.shape;
        let (inputs, outputs, per_sample) = (shape.in_channels, shape.out_channels, self.places.outputs.len());
        let shares = cut(out, shape.in_pixels(), inputs, &shares(shape, inputs, per_sample));
        for_each(shares, |(share, mut out)| {
            let (first_channel, channels) = share.channels;
            let strips = &transformed[first_channel / strip_columns() * filters.strip()..];
            let tiles = shape.batch * per_sample;
            let blocks = Blocks::new(shape, tiles);
            let (mut right, mut products) = (blocks.buffer(outputs), blocks.buffer(channels));
            for block in blocks.iter() {
                let images = Images { values: self.gradient, stride: outputs };
                let out_tiles = block.tiles(shape.out_pixels(), outputs);
                transform_output_gradient(out_tiles, &self.places, images, &mut right);
                let tiles = block.tiles(shape.in_pixels(), channels);
                multiply((out_tiles, &right), (filters, strips), (tiles, &mut products));
                add_input_gradient(tiles, &self.places, &products, &mut out);
            }
        });
    }

    /// The weight's gradient, a range of output channels for each thread.
    fn weight_by_channels(&self) -> Buffer {
        let shape = self.shape;
        let (inputs, outputs, per_sample) = (shape.in_channels, shape.out_channels, self.places.outputs.len());
        let mut out = Buffer::new(outputs * inputs * 9);
        let ranges = strip_parts(outputs, work(shape, per_sample));
        let items = split(&mut out, inputs * 9, &ranges).into_iter().zip(ranges.iter()).collect();
        for_each(items, |((_, out), &(first_channel, channels)): ((usize, &mut [f32]), &(usize, usize))| {
            let tiles = shape.batch * per_sample;
            let blocks = Blocks::new(shape, tiles);
            let (mut left, mut right) = (blocks.buffer(inputs), blocks.buffer(channels));
            let mut sums = points(inputs * channels);
            for block in blocks.iter() {
                let (in_tiles, out_tiles) =
                    (block.tiles(shape.in_pixels(), inputs), block.tiles(shape.out_pixels(), channels));
                transform_input(in_tiles, &self.places, Images { values: self.x, stride: inputs }, &mut left);
                let images = Images { values: &self.gradient[first_channel..], stride: outputs };
                transform_output_gradient(out_tiles, &self.places, images, &mut right);
                add_filter_products(in_tiles, &left, out_tiles, &right, block.first > 0, &mut sums);
            }
            filter_gradients(Terms(&[&sums]), inputs, channels, 0, out);
        });
        out
    }
}

/// Adds, for each point, the products of the tiles' input and output channels to `sums`: 16 points of `[inputs, outputs]`.
fn add_filter_products(
    in_tiles: Tiles,
    left: &[f32],
    out_tiles: Tiles,
    right: &[f32],
    accumulate: bool,
    sums: &mut [f32],
) {
    let (inputs, outputs) = (in_tiles.channels, out_tiles.channels);
    for (point, sums) in sums.chunks_exact_mut(plane(inputs * outputs)).enumerate() {
        let a = Matrix::transposed(&left[point * in_tiles.plane..], inputs);
        let product = Product { a, k: in_tiles.count, accumulate };
        product.with_rows(
            &right[point * out_tiles.plane..],
            outputs,
            &mut MatrixMut::new(sums, inputs, outputs, outputs),
        );
    }
}
