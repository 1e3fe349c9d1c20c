//! The transforms of Winograd's convolution F(2x2, 3x3), vectors over channels.
//!
//! An output tile of 2 x 2 pixels is `A^T [(G g G^T) * (B^T d B)] A` of a 3 x 3 filter `g` and a 4 x 4 tile `d` of the input, where
//! `*` multiplies element by element: 16 products instead of 36. With many channels the products of all tiles are 16
//! products of matrices. Gradients are the adjoint of each step in reverse order.
//! (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016, section 4.1.)

use macerator::{Simd, with_simd};

use super::{Lanes, MatrixMut, SLACK, lanes, load, splat, store, strip_columns};

/// Elements of a transformed tile.
pub(crate) const POINTS: usize = 16;

/// The place of a pixel that lies in the padding.
pub(crate) const OUTSIDE: usize = usize::MAX;

/// From one point to the next of transformed tiles with so many elements a point. All points of a tile are written together, and
/// without a little room between them they would fall on the same set of the cache.
pub(crate) fn plane(elements: usize) -> usize {
    elements.next_multiple_of(SLACK) + SLACK
}

/// Where the tiles of one sample lie: indices of pixels, or [`OUTSIDE`].
pub(crate) struct TilePlaces {
    /// 4 x 4 pixels of the input.
    pub(crate) inputs: Vec<[usize; POINTS]>,
    /// 2 x 2 pixels of the output.
    pub(crate) outputs: Vec<[usize; 4]>,
}

/// Consecutive tiles of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// The first, counted from the first sample's first.
    pub(crate) first: usize,
    /// How many.
    pub(crate) count: usize,
    /// Pixels of an image.
    pub(crate) pixels: usize,
    /// Channels, whole vectors of them.
    pub(crate) channels: usize,
    /// From one point of the transformed tiles to the next; within it, tiles follow each other.
    pub(crate) plane: usize,
}

impl Tiles {
    /// Asserts that the images have the tiles' pixels, and that there is room for the transformed tiles.
    fn check(&self, image_pixels: usize, per_sample: usize, transformed: usize) {
        assert!(self.channels.is_multiple_of(lanes()), "channels fill vectors");
        assert!(
            (self.first + self.count).div_ceil(per_sample) * self.pixels <= image_pixels,
            "the images are too small"
        );
        assert!(
            self.count * self.channels <= self.plane && POINTS * self.plane <= transformed,
            "the transformed tiles are too small"
        );
    }

    /// Of the tile with this index: which one of its sample, and the sample's first pixel.
    #[inline(always)]
    fn place(&self, index: usize, per_sample: usize) -> (usize, usize) {
        let tile = self.first + index;
        (tile % per_sample, tile / per_sample * self.pixels)
    }
}

/// Images of which some channels are read: pixels `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Images<'a> {
    /// From the first channel that is read.
    pub(crate) values: &'a [f32],
    /// Channels of a pixel.
    pub(crate) stride: usize,
}

impl Images<'_> {
    /// Pixels that have this many channels.
    fn pixels(&self, channels: usize) -> usize {
        if self.values.len() < channels { 0 } else { (self.values.len() - channels) / self.stride + 1 }
    }
}

/// Applies a transform to the columns, then to the rows of a square of vectors.
#[inline(always)]
fn transformed<S: Simd, const N: usize, const M: usize>(
    square: [[Lanes<S>; N]; N],
    line: impl Fn([Lanes<S>; N]) -> [Lanes<S>; M],
) -> [[Lanes<S>; M]; M] {
    let mut half = [[splat::<S>(0.0); N]; M];
    for column in 0..N {
        let mut values = [splat::<S>(0.0); N];
        for row in 0..N {
            values[row] = square[row][column];
        }
        let values = line(values);
        for row in 0..M {
            half[row][column] = values[row];
        }
    }
    let mut whole = [[splat::<S>(0.0); M]; M];
    for row in 0..M {
        whole[row] = line(half[row]);
    }
    whole
}

/// `B^T d`
#[inline(always)]
fn input_line<S: Simd>([d0, d1, d2, d3]: [Lanes<S>; 4]) -> [Lanes<S>; 4] {
    [d0 - d2, d1 + d2, d2 - d1, d1 - d3]
}

/// `B v`
#[inline(always)]
fn input_gradient_line<S: Simd>([v0, v1, v2, v3]: [Lanes<S>; 4]) -> [Lanes<S>; 4] {
    [v0, v1 - v2 + v3, v1 + v2 - v0, splat::<S>(0.0) - v3]
}

/// `A^T m`
#[inline(always)]
fn output_line<S: Simd>([m0, m1, m2, m3]: [Lanes<S>; 4]) -> [Lanes<S>; 2] {
    [m0 + m1 + m2, m1 - m2 - m3]
}

/// `A g`
#[inline(always)]
fn output_gradient_line<S: Simd>([g0, g1]: [Lanes<S>; 2]) -> [Lanes<S>; 4] {
    [g0, g0 + g1, g0 - g1, splat::<S>(0.0) - g1]
}

/// `G g`
#[inline(always)]
fn weight_line<S: Simd>([g0, g1, g2]: [Lanes<S>; 3]) -> [Lanes<S>; 4] {
    let half = splat::<S>(0.5);
    let ends = (g0 + g2) * half;
    let middle = g1 * half;
    [g0, ends + middle, ends - middle, g2]
}

/// `G^T u`
#[inline(always)]
fn weight_gradient_line<S: Simd>([u0, u1, u2, u3]: [Lanes<S>; 4]) -> [Lanes<S>; 3] {
    let half = splat::<S>(0.5);
    let sum = (u1 + u2) * half;
    [u0 + sum, (u1 - u2) * half, sum + u3]
}

/// A vector of each of these pixels of the sample that begins with pixel `start`, zeros for those in the padding.
///
/// # Safety
/// Each pixel has a vector from `channel` on.
#[inline(always)]
unsafe fn pixels<S: Simd, const N: usize>(
    images: Images<'_>,
    places: &[usize],
    start: usize,
    channel: usize,
) -> [[Lanes<S>; N]; N] {
    let mut square = [[splat::<S>(0.0); N]; N];
    for row in 0..N {
        for column in 0..N {
            let place = places[row * N + column];
            if place != OUTSIDE {
                // SAFETY: the caller's promise.
                square[row][column] = unsafe { load::<S>(images.values, (start + place) * images.stride + channel) };
            }
        }
    }
    square
}

/// `B^T d B` of each tile of the input.
#[with_simd]
pub(crate) fn transform_input<'a, S: Simd>(tiles: Tiles, places: &TilePlaces, x: Images<'a>, out: &mut [f32]) {
    tiles.check(x.pixels(tiles.channels), places.inputs.len(), out.len());
    for index in 0..tiles.count {
        let (tile, start) = tiles.place(index, places.inputs.len());
        for channel in (0..tiles.channels).step_by(S::lanes32()) {
            // SAFETY: checked above; places are inside a sample, and channels are whole vectors.
            unsafe {
                let values = pixels::<S, 4>(x, &places.inputs[tile], start, channel);
                let values = transformed::<S, 4, 4>(values, input_line::<S>);
                for point in 0..POINTS {
                    let at = point * tiles.plane + index * tiles.channels + channel;
                    store::<S>(out, at, values[point / 4][point % 4]);
                }
            }
        }
    }
}

/// `A^T m A` of each tile, plus `bias`, activated: pixels of the output.
#[with_simd]
pub(crate) fn transform_output<'a, S: Simd>(
    tiles: Tiles,
    places: &TilePlaces,
    products: &[f32],
    bias: Option<&'a [f32]>,
    relu: bool,
    out: &mut MatrixMut<'a>,
) {
    tiles.check(out.rows(), places.outputs.len(), products.len());
    assert!(out.columns() == tiles.channels, "a column for each channel");
    assert!(bias.is_none_or(|bias| bias.len() == tiles.channels), "a bias for each channel");
    let zero = splat::<S>(0.0);
    for index in 0..tiles.count {
        let (tile, start) = tiles.place(index, places.outputs.len());
        for channel in (0..tiles.channels).step_by(S::lanes32()) {
            let mut values = [[zero; 4]; 4];
            for point in 0..POINTS {
                let at = point * tiles.plane + index * tiles.channels + channel;
                // SAFETY: checked above.
                values[point / 4][point % 4] = unsafe { load::<S>(products, at) };
            }
            let values = transformed::<S, 4, 2>(values, output_line::<S>);
            // SAFETY: checked above.
            let bias = bias.map_or(zero, |bias| unsafe { load::<S>(bias, channel) });
            for pixel in 0..4 {
                let place = places.outputs[tile][pixel];
                if place != OUTSIDE {
                    let mut value = values[pixel / 2][pixel % 2] + bias;
                    if relu {
                        value = super::relu::<S>(value);
                    }
                    // SAFETY: checked above; places are inside a sample.
                    unsafe { macerator::vstore_unaligned(out.pointer(start + place).add(channel), value) };
                }
            }
        }
    }
}

/// `A g A^T` of each tile of the output's gradient.
#[with_simd]
pub(crate) fn transform_output_gradient<'a, S: Simd>(
    tiles: Tiles,
    places: &TilePlaces,
    gradient: Images<'a>,
    out: &mut [f32],
) {
    tiles.check(gradient.pixels(tiles.channels), places.outputs.len(), out.len());
    for index in 0..tiles.count {
        let (tile, start) = tiles.place(index, places.outputs.len());
        for channel in (0..tiles.channels).step_by(S::lanes32()) {
            // SAFETY: checked above; places are inside a sample, and channels are whole vectors.
            unsafe {
                let values = pixels::<S, 2>(gradient, &places.outputs[tile], start, channel);
                let values = transformed::<S, 2, 4>(values, output_gradient_line::<S>);
                for point in 0..POINTS {
                    let at = point * tiles.plane + index * tiles.channels + channel;
                    store::<S>(out, at, values[point / 4][point % 4]);
                }
            }
        }
    }
}

/// Adds `B v B^T` of each tile to the input's gradient.
#[with_simd]
pub(crate) fn add_input_gradient<'a, S: Simd>(
    tiles: Tiles,
    places: &TilePlaces,
    products: &[f32],
    out: &mut MatrixMut<'a>,
) {
    tiles.check(out.rows(), places.inputs.len(), products.len());
    assert!(out.columns() == tiles.channels, "a column for each channel");
    for index in 0..tiles.count {
        let (tile, start) = tiles.place(index, places.inputs.len());
        for channel in (0..tiles.channels).step_by(S::lanes32()) {
            let mut values = [[splat::<S>(0.0); 4]; 4];
            for point in 0..POINTS {
                let at = point * tiles.plane + index * tiles.channels + channel;
                // SAFETY: checked above.
                values[point / 4][point % 4] = unsafe { load::<S>(products, at) };
            }
            let values = transformed::<S, 4, 4>(values, input_gradient_line::<S>);
            for point in 0..POINTS {
                let place = places.inputs[tile][point];
                if place != OUTSIDE {
                    // SAFETY: checked above; places are inside a sample.
                    unsafe {
                        let at = out.pointer(start + place).add(channel);
                        let sum = macerator::vload_unaligned::<S, f32>(at) + values[point / 4][point % 4];
                        macerator::vstore_unaligned(at, sum);
                    }
                }
            }
        }
    }
}

/// How filters lie: filter `(step, lane)` of 3 x 3 elements begins at `step * step_stride + lane * lane_stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filters {
    /// Rows of the products' right operand.
    pub(crate) steps: usize,
    /// Between them.
    pub(crate) step_stride: usize,
    /// Columns of the products' right operand, whole vectors of them.
    pub(crate) lanes: usize,
    /// Between them.
    pub(crate) lane_stride: usize,
}

impl Filters {
    /// Elements of one strip of transformed filters: for each point, for each step, the strip's columns.
    pub(crate) fn strip(&self) -> usize {
        POINTS * self.plane()
    }

    /// From one point of a strip to the next.
    pub(crate) fn plane(&self) -> usize {
        plane(self.steps * strip_columns())
    }
}

/// `G g G^T` of each filter, for the strip that begins with column `first`.
#[with_simd]
pub(crate) fn transform_filters<S: Simd>(filters: Filters, first: usize, weight: &[f32], out: &mut [f32]) {
    let lanes = S::lanes32();
    let columns = strip_columns();
    assert!(out.len() == filters.strip() && filters.lanes.is_multiple_of(lanes), "a strip");
    let end = filters.lanes.min(first + columns);
    if end < first + columns {
        out.fill(0.0);
    }
    let mut gathered = [[0.0; SLACK]; 9];
    for step in 0..filters.steps {
        for lane in (first..end).step_by(lanes) {
            for offset in 0..lanes {
                let start = step * filters.step_stride + (lane + offset) * filters.lane_stride;
                let filter: &[f32; 9] = weight[start..].first_chunk().expect("a filter");
                for tap in 0..9 {
                    gathered[tap][offset] = filter[tap];
                }
            }
            let mut values = [[splat::<S>(0.0); 3]; 3];
            for tap in 0..9 {
                // SAFETY: a row has as many elements as the longest vector.
                values[tap / 3][tap % 3] = unsafe { load::<S>(&gathered[tap], 0) };
            }
            let values = transformed::<S, 3, 4>(values, weight_line::<S>);
            for point in 0..POINTS {
                let at = point * filters.plane() + step * columns + lane - first;
                // SAFETY: the strip's length was checked, and the columns are whole vectors.
                unsafe { store::<S>(out, at, values[point / 4][point % 4]) };
            }
        }
    }
}

/// Terms of a sum.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a>(pub(crate) &'a [&'a [f32]]);

/// Outputs whose filters are written side by side.
const FILTERS_TOGETHER: usize = 64;

/// `G^T u G` of the sum of `terms`, each of 16 points of `[inputs, outputs]`, [`plane`] apart, for the outputs from `first` on:
/// filters `[outputs, inputs, 3, 3]`.
#[with_simd]
pub(crate) fn filter_gradients<'a, S: Simd>(
    terms: Terms<'a>,
    inputs: usize,
    outputs: usize,
    first: usize,
    out: &mut [f32],
) {
    let lanes = S::lanes32();
    let count = out.len() / (9 * inputs);
    let plane = plane(inputs * outputs);
    assert!(terms.0.iter().all(|term| term.len() >= POINTS * plane), "the products are too small");
    assert!(first + count <= outputs && count.is_multiple_of(lanes), "whole vectors of outputs");
    let mut gathered = [[0.0; SLACK]; 9];
    for block in (0..count).step_by(FILTERS_TOGETHER) {
        for input in 0..inputs {
            for lane in (block..count.min(block + FILTERS_TOGETHER)).step_by(lanes) {
                let mut values = [[splat::<S>(0.0); 4]; 4];
                for point in 0..POINTS {
                    let at = point * plane + input * outputs + first + lane;
                    for term in terms.0 {
                        // SAFETY: checked above.
                        values[point / 4][point % 4] += unsafe { load::<S>(term, at) };
                    }
                }
                let values = transformed::<S, 4, 3>(values, weight_gradient_line::<S>);
                for tap in 0..9 {
                    // SAFETY: a row has as many elements as the longest vector.
                    unsafe { store::<S>(&mut gathered[tap], 0, values[tap / 3][tap % 3]) };
                }
                for offset in 0..lanes {
                    let start = ((lane + offset) * inputs + input) * 9;
                    let filter: &mut [f32; 9] = out[start..].first_chunk_mut().expect("a filter");
                    for tap in 0..9 {
                        filter[tap] = gathered[tap][offset];
                    }
                }
            }
        }
    }
}
