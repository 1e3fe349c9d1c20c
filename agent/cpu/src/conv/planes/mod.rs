//! Convolution of `[batch, channels, height, width]`, with any groups.
//!
//! Three ways, chosen by shape:
//!
//! - **Shifted sums**, for stride 1 and few weights: in a zero-padded plane of row length `w`, output pixel `(i, j)` is at
//!   `p = i w + j`, and tap `(y, x)` reads `p + y w + x`. So an output plane is a sum of shifted input planes, computed for
//!   all `p` at once from registers, and nothing is copied but the padding; the `w - width'` last positions of a row are
//!   wasted. The input's gradient is the same sum over the output's gradient with mirrored taps; the weight's is a dot
//!   product of the output's gradient with the shifted input.
//! - **Outer products**, for the weight's gradient where the output channels fill vectors: each position's gradient, a vector
//!   over channels, times each pixel of its window. Nothing is wasted.
//! - **Matrix product**, for everything else: each tap's pixels are gathered into the column of a matrix (im2col), for as
//!   many samples at once as make a product of a good size.
//!
//! Samples are split evenly over the pool's threads; each sums its part of the weight's gradient, added in order.

mod gathered;
mod outer;
mod shifted;

use super::{Gradients, Wanted};
use crate::Activation;
use crate::buffer::Buffer;
use crate::elementwise::{channel_sums, relu_in_place, sum_rows};
use crate::scratch::Rows;
use crate::shape::ConvShape;
use crate::threads::{for_each, map, parts, split};

/// Most weights of one group for which shifted sums are used: they are read anew for every tile of the output, from the
/// second-level cache.
const SHIFTED_WEIGHTS_MAX: usize = 48 << 10;

/// Bytes that one pass of the weight's gradient over several samples may touch, to stay near the first-level cache.
const SHIFTED_DOT_BYTES: usize = 48 << 10;

/// Multiplications, as work for [`parts`].
fn work(shape: &ConvShape) -> usize {
    shape.batch * shape.out_elements() * shape.taps() / 8
}

/// The convolution, plus bias, activated.
pub fn forward(shape: &ConvShape, x: &[f32], weight: &[f32], bias: Option<&[f32]>, activation: Activation) -> Buffer {
    let mut out = Buffer::new(shape.batch * shape.out_elements());
    let outputs = split(&mut out, shape.out_elements(), &parts(shape.batch, work(shape)));
    let plan = Plan::new(shape);
    let packed = matches!(plan, Plan::Shifted).then(|| shifted::pack_forward(shape, weight));
    for_each(outputs, |(first, out)| {
        let samples = out.len() / shape.out_elements();
        let x = &x[first * shape.in_elements()..][..samples * shape.in_elements()];
        match &packed {
            Some(packed) => shifted::forward(shape, x, packed, bias, out),
            None => gathered::forward(shape, x, weight, bias, out),
        }
        if activation == Activation::Relu {
            relu_in_place(out);
        }
    });
    out
}

/// Gradients from the gradient of what was not activated yet.
pub fn backward(shape: &ConvShape, x: &[f32], weight: &[f32], gradient: &[f32], wanted: Wanted) -> Gradients {
    let shifted = matches!(Plan::new(shape), Plan::Shifted);
    let samples = parts(shape.batch, work(shape));
    let x_gradient = wanted.x.then(|| {
        let mut out = Buffer::new(shape.batch * shape.in_elements());
        let packed = (shifted && shape.mirrored_padding().is_some()).then(|| shifted::pack_mirrored(shape, weight));
        for_each(split(&mut out, shape.in_elements(), &samples), |(first, out)| {
            let samples = out.len() / shape.in_elements();
            let gradient = &gradient[first * shape.out_elements()..][..samples * shape.out_elements()];
            match &packed {
                Some(packed) => shifted::input_gradient(shape, gradient, packed, out),
                None => gathered::input_gradient(shape, gradient, weight, out),
            }
        });
        out
    });
    let weight_gradient = wanted.weight.then(|| {
        let sums = map(samples, |(first, samples)| {
            let x = &x[first * shape.in_elements()..][..samples * shape.in_elements()];
            let gradient = &gradient[first * shape.out_elements()..][..samples * shape.out_elements()];
            let mut sum = Buffer::zeroed(weight.len());
            if outer::suits(shape) {
                outer::weight_gradient(shape, x, gradient, &mut sum);
            } else if shifted {
                shifted::weight_gradient(shape, x, gradient, &mut sum);
            } else {
                gathered::weight_gradient(shape, x, gradient, &mut sum);
            }
            sum
        });
        sum_rows(sums, weight.len())
    });
    let bias_gradient = wanted.bias.then(|| channel_sums(gradient, shape.out_channels, shape.out_pixels()));
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

/// Where each tap reads in planes of this size, for `channels` channels.
fn tap_offsets(shape: &ConvShape, channels: usize, plane: usize, width: usize) -> Vec<usize> {
    let [kernel_height, kernel_width] = shape.kernel;
    let [dilation_y, dilation_x] = shape.dilation;
    let taps = |channel| {
        (0..kernel_height).flat_map(move |y| {
            (0..kernel_width).map(move |x| channel * plane + y * dilation_y * width + x * dilation_x)
        })
    };
    (0..channels).flat_map(taps).collect()
}

fn padded_rows(shape: &ConvShape) -> Rows {
    Rows { planes: shape.in_channels, height: shape.height, width: shape.width, padding: shape.padding }
}
