//! Our own operators for the CPU (the crate `omnilearn-cpu`), registered with Burn through its extension interface.
//!
//! Burn's CPU backend, flex, has no weight gradient of its own for a convolution (it convolves with exchanged axes),
//! computes batch normalisation in about ten passes, and never fuses an activation. Operands have been checked: shapes
//! fit, targets are in range. Images in the layout [`Layout::ChannelsLast`] are tensors of shape `[batch, height, width, channels]`.

mod backward;
mod flex;
mod storage;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use omnilearn_cpu::Activation;
use omnilearn_cpu::layout::Layout;
use omnilearn_cpu::shape::{ConvShape, PoolShape};

pub(crate) use self::storage::tensor;

/// What a convolution is told beside its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution {
    /// Sizes.
    pub(crate) shape: ConvShape,
    /// Layout of input and output.
    pub(crate) layout: Layout,
    /// Applied to the output.
    pub(crate) activation: Activation,
}

/// What a pooling is told beside its operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pooling {
    /// Sizes.
    pub(crate) shape: PoolShape,
    /// Layout of input and output.
    pub(crate) layout: Layout,
}

/// What batch normalisation is told beside its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normalisation {
    /// Layout of an input of rank 4.
    pub(crate) layout: Layout,
    /// Added to the variance.
    pub(crate) epsilon: f32,
    /// Mean and variance are the input's own, so that they depend on it.
    pub(crate) own_statistics: bool,
    /// Applied to the output.
    pub(crate) activation: Activation,
}

/// Operators with their own backward pass.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait CpuOperators: Backend {
    /// Convolution with bias, activated; a bias of no elements means none.
    fn omnilearn_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self>;
    /// `x weight + bias`, activated; a bias of no elements means none.
    fn omnilearn_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;
    /// `max(x, 0)`
    fn omnilearn_relu(x: FloatTensor<Self>) -> FloatTensor<Self>;
    /// `max(a + b, 0)` of equal shapes.
    fn omnilearn_add_relu(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Maximum pooling.
    fn omnilearn_max_pool2d(x: FloatTensor<Self>, pooling: Pooling) -> FloatTensor<Self>;
    /// Pooling by the mean.
    fn omnilearn_mean_pool2d(x: FloatTensor<Self>, pooling: Pooling) -> FloatTensor<Self>;
    /// Mean over all pixels, `[batch, channels]`.
    fn omnilearn_global_mean_pool2d(x: FloatTensor<Self>, layout: Layout) -> FloatTensor<Self>;
    /// Mean and biased variance of each channel, `[channels]`, which carry no gradient.
    fn omnilearn_batch_statistics(x: FloatTensor<Self>, layout: Layout) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// `gamma (x - mean) / sqrt(variance + epsilon) + beta`, activated. Mean and variance carry no gradient of their own; that of
    /// `x` takes them into account where they are its own.
    fn omnilearn_batch_norm(
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        normalisation: Normalisation,
    ) -> FloatTensor<Self>;
    /// Layer normalisation over the last dimension, with scale and shift of its size.
    fn omnilearn_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f32,
    ) -> FloatTensor<Self>;
    /// Rows of a table `[rows, features]` at indices of any shape: `[.., features]`.
    fn omnilearn_embedding(table: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self>;
    /// Mean cross entropy of logits `[batch, classes]`, `[1]`.
    fn omnilearn_cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self>;
    /// Images of rank 4 in the other layout than `from`.
    fn omnilearn_exchange_layout(x: FloatTensor<Self>, from: Layout) -> FloatTensor<Self>;
}
