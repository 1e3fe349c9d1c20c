//! AlexNet in a variant for small images: 23,272,266 parameters.

use omnilearn_kernel_host::backend::{OpResult, TensorBackend};

use super::cursor::Cursor;
use super::{CLASSES, Layout};

pub(super) fn layout() -> Layout {
    let mut layout = Layout::default();
    for (inputs, outputs) in [(3, 64), (64, 192), (192, 384), (384, 256), (256, 256)] {
        layout.biased_convolution(inputs, outputs, 3);
    }
    for (inputs, outputs) in [(1024, 4096), (4096, 4096), (4096, CLASSES)] {
        layout.linear(inputs, outputs);
    }
    layout
}

pub(super) fn forward<B: TensorBackend>(cursor: &mut Cursor<'_, B>, images: &B::Tensor) -> OpResult<B::Tensor> {
    let x = cursor.convolution_relu(images, 2, 1)?; // [batch, 64, 16, 16]
    let x = cursor.max_pool(&x)?;
    let x = cursor.convolution_relu(&x, 1, 1)?; // [batch, 192, 8, 8]
    let x = cursor.max_pool(&x)?;
    let x = cursor.convolution_relu(&x, 1, 1)?; // [batch, 384, 4, 4]
    let x = cursor.convolution_relu(&x, 1, 1)?;
    let x = cursor.convolution_relu(&x, 1, 1)?; // [batch, 256, 4, 4]
    let x = cursor.max_pool(&x)?;
    let x = cursor.flatten(&x)?; // [batch, 1024]
    let x = cursor.linear_relu(&x)?;
    let x = cursor.linear_relu(&x)?;
    cursor.linear(&x)
}
