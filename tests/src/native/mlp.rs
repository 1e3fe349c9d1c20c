//! A perceptron with one hidden layer: 203,530 parameters.

use omnilearn_kernel_host::backend::{OpResult, TensorBackend};

use super::cursor::Cursor;
use super::{CLASSES, Layout};

pub(super) fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.linear(784, 256);
    layout.linear(256, CLASSES);
    layout
}

pub(super) fn forward<B: TensorBackend>(cursor: &mut Cursor<'_, B>, images: &B::Tensor) -> OpResult<B::Tensor> {
    let x = cursor.flatten(images)?; // [batch, 784]
    let x = cursor.linear_relu(&x)?;
    cursor.linear(&x)
}
