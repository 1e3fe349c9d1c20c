//! Convolution of `[batch, height, width, channels]`.
//!
//! Three ways, chosen by shape:
//!
//! - **Winograd** F(2x2, 3x3), for windows of 3 x 3 with stride 1 and many channels: 16 multiplications for 36. Its rounding
//!   error, 2e-7 to 2e-6 of the largest value over ResNet-18's layers, is that of the plain sum.
//! - **Columns**, for everything else: the pixels under a window, one after another, are a row of a matrix (im2col), which is
//!   multiplied with the weight. A window of 1 x 1 needs no such matrix: it is the image.
//! - **Depthwise**, where each channel is a group: sums over taps, channels in the lanes.

mod columns;
mod depthwise;
mod winograd;

use super::{Gradients, Wanted};
use crate::Activation;
use crate::buffer::Buffer;
use crate::elementwise::channel_sums;
use crate::shape::ConvShape;

enum Plan {
    Winograd,
    Columns,
    Depthwise,
}

impl Plan {
    fn new(shape: &ConvShape) -> Plan {
        if shape.is_depthwise() {
            Plan::Depthwise
        } else if winograd::suits(shape) {
            Plan::Winograd
        } else {
            Plan::Columns
        }
    }
}

/// The convolution, plus bias, activated. One group, or depthwise.
pub fn forward(shape: &ConvShape, x: &[f32], weight: &[f32], bias: Option<&[f32]>, activation: Activation) -> Buffer {
    match Plan::new(shape) {
        Plan::Winograd => winograd::forward(shape, x, weight, bias, activation),
        Plan::Columns => columns::forward(shape, x, weight, bias, activation),
        Plan::Depthwise => depthwise::forward(shape, x, weight, bias, activation),
    }
}

/// Gradients from the gradient of what was not activated yet.
pub fn backward(shape: &ConvShape, x: &[f32], weight: &[f32], gradient: &[f32], wanted: Wanted) -> Gradients {
    let bias = wanted.bias.then(|| channel_sums(gradient, shape.out_channels, 1));
    let (x, weight) = match Plan::new(shape) {
        Plan::Winograd => winograd::backward(shape, x, weight, gradient, wanted),
        Plan::Columns => columns::backward(shape, x, weight, gradient, wanted),
        Plan::Depthwise => depthwise::backward(shape, x, weight, gradient, wanted),
    };
    Gradients { x, weight, bias }
}
