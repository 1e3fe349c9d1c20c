//! The weight's gradient with output channels in vector lanes.

use super::{SHIFTED_DOT_BYTES, SHIFTED_WEIGHTS_MAX, padded_rows};
use crate::buffer::Buffer;
use crate::scratch::transpose;
use crate::shape::ConvShape;
use crate::simd::{Offsets, OuterSums};

/// Whether the weight's gradient is best summed with output channels in vector lanes.
pub(super) fn suits(shape: &ConvShape) -> bool {
    let weights = shape.group_out() * shape.taps();
    shape.dilation[1] == 1 && weights <= SHIFTED_WEIGHTS_MAX && OuterSums::suit(shape.group_out(), shape.kernel[1])
}

/// The weight's gradient, where the outputs fill vectors: each position's gradient, a vector over the output channels, times each
/// pixel that the position's window reads.
pub(super) fn weight_gradient(shape: &ConvShape, x: &[f32], gradient: &[f32], sum: &mut [f32]) {
    let padded = padded_rows(shape);
    let samples = x.len() / shape.in_elements();
    let together = (SHIFTED_DOT_BYTES / (4 * (padded.sample() + shape.out_elements()))).clamp(1, samples.max(1));
    let mut source = padded.buffer(together);
    let mut vectors = Buffer::new(together * shape.out_elements());
    let (width, outputs, pixels) = (padded.stride(), shape.group_out(), shape.out_pixels());
    let [stride_y, stride_x] = shape.stride;
    let position = |index: usize| {
        let (sample, pixel) = (index / pixels, index % pixels);
        sample * padded.sample() + pixel / shape.out_width * stride_y * width + pixel % shape.out_width * stride_x
    };
    let steps = Offsets::new((0..together * pixels).map(position).collect());
    let row = |index: usize| {
        let (channel, y) = (index / shape.kernel[0], index % shape.kernel[0]);
        channel * padded.plane() + y * shape.dilation[0] * width
    };
    let rows = Offsets::new((0..shape.group_in() * shape.kernel[0]).map(row).collect());
    let mut sums: Vec<OuterSums> =
        (0..shape.groups).map(|_| OuterSums::new(outputs, rows.len(), shape.kernel[1])).collect();
    let pairs = x.chunks(together * shape.in_elements()).zip(gradient.chunks(together * shape.out_elements()));
    for (x, gradient) in pairs {
        let samples = x.len() / shape.in_elements();
        for (sample, x) in x.chunks_exact(shape.in_elements()).enumerate() {
            padded.place(x, &mut source[sample * padded.sample()..]);
        }
        for (group, sums) in sums.iter_mut().enumerate() {
            for (gradient, vectors) in
                gradient.chunks_exact(shape.out_elements()).zip(vectors.chunks_exact_mut(outputs * pixels))
            {
                transpose(&gradient[group * outputs * pixels..][..outputs * pixels], pixels, vectors, outputs);
            }
            sums.add(&vectors, &source[group * shape.group_in() * padded.plane()..], &steps, samples * pixels, &rows);
        }
    }
    for (sums, sum) in sums.iter().zip(sum.chunks_exact_mut(outputs * shape.taps())) {
        sums.add_to(sum);
    }
}
