//! LeNet-5 with ReLU and maximum pooling: 61,706 parameters.

use omnilearn_kernel_host::backend::{OpResult, TensorBackend};

use super::cursor::Cursor;
use super::{CLASSES, Layout};

pub(super) fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.biased_convolution(1, 6, 5);
    layout.biased_convolution(6, 16, 5);
    for (inputs, outputs) in [(400, 120), (120, 84), (84, CLASSES)] {
        layout.linear(inputs, outputs);
    }
    layout
}

pub(super) fn forward<B: TensorBackend>(cursor: &mut Cursor<'_, B>, images: &B::Tensor) -> OpResult<B::Tensor> {
    let x = cursor.convolution_relu(images, 1, 2)?; // [batch, 6, 28, 28]
    let x = cursor.max_pool(&x)?; // [batch, 6, 14, 14]
    let x = cursor.convolution_relu(&x, 1, 0)?; // [batch, 16, 10, 10]
    let x = cursor.max_pool(&x)?; // [batch, 16, 5, 5]
    let x = cursor.flatten(&x)?; // [batch, 400]
    let x = cursor.linear_relu(&x)?;
    let x = cursor.linear_relu(&x)?;
    cursor.linear(&x)
}
