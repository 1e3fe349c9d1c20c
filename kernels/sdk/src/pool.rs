//! Layers without parameters that the tensor interface does not already offer in this short form.

use crate::{Pool2dOptions, Tensor};

fn square(kernel: u32, stride: u32) -> Pool2dOptions {
    Pool2dOptions { kernel: (kernel, kernel), stride: (stride, stride), padding: (0, 0) }
}

/// Maximum over windows of `kernel` by `kernel` pixels, `stride` apart.
pub fn max_pool2d(x: &Tensor, kernel: u32, stride: u32) -> Tensor {
    x.max_pool2d(square(kernel, stride))
}

/// Mean over windows of `kernel` by `kernel` pixels, `stride` apart.
pub fn avg_pool2d(x: &Tensor, kernel: u32, stride: u32) -> Tensor {
    x.avg_pool2d(square(kernel, stride))
}

/// Mean over the windows that cut height and width into `side` equal parts each, of which both must be multiples:
/// `[batch, channels, side, side]`.
pub fn avg_pool2d_to(x: Tensor, side: u32) -> Tensor {
    let shape = x.shape();
    let kernel = (shape[2] / side, shape[3] / side);
    if kernel == (1, 1) {
        return x;
    }
    x.avg_pool2d(Pool2dOptions { kernel, stride: kernel, padding: (0, 0) })
}

/// `[batch, a, b, ..] -> [batch, a * b * ..]`
pub fn flatten(x: &Tensor) -> Tensor {
    let shape = x.shape();
    let features = shape.iter().skip(1).product();
    x.reshape(&[shape[0], features])
}
