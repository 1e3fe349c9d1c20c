//! The operators on Burn's CPU backend, without gradients.

use burn::backend::Flex;
use burn_flex::FlexTensor;
use omnilearn_cpu::conv::{channels_last, planes};
use omnilearn_cpu::layout::{Layout, exchanged};
use omnilearn_cpu::linear::LinearShape;
use omnilearn_cpu::norm::{NormShape, Operands};
use omnilearn_cpu::shape::PoolShape;
use omnilearn_cpu::{Activation, Buffer, elementwise, embedding, layer_norm, linear, loss, norm, pool};

use super::storage::{optional, sizes, tensor, values};
use super::{Convolution, CpuOperators, Normalisation, Pooling};

/// Sizes of a linear layer.
pub(super) fn linear_shape(x: &FlexTensor, weight: &FlexTensor) -> LinearShape {
    LinearShape { batch: sizes(x)[0], inputs: sizes(x)[1], outputs: sizes(weight)[0] }
}

/// Sizes of an operand of batch normalisation, of rank 2 or 4.
pub(super) fn norm_shape(x: &FlexTensor, layout: Layout) -> NormShape {
    match (sizes(x), layout) {
        (&[batch, height, width, channels], Layout::ChannelsLast) => {
            NormShape { batch, channels, pixels: height * width, layout }
        }
        (sizes, _) => NormShape { batch: sizes[0], channels: sizes[1], pixels: sizes[2..].iter().product(), layout },
    }
}

/// Shape of a pooling's output.
fn pooled_shape(shape: &PoolShape, layout: Layout) -> [usize; 4] {
    image_shape(layout, [shape.batch, shape.channels, shape.out_height, shape.out_width])
}

/// The dimensions of images in a layout, from batch, channels, height, width.
pub(super) fn image_shape(layout: Layout, [batch, channels, height, width]: [usize; 4]) -> [usize; 4] {
    match layout {
        Layout::Planes => [batch, channels, height, width],
        Layout::ChannelsLast => [batch, height, width, channels],
    }
}

/// Channels and pixels of images in a layout.
pub(super) fn channels_and_pixels(x: &FlexTensor, layout: Layout) -> (usize, usize) {
    let shape = norm_shape(x, layout);
    (shape.channels, shape.pixels)
}

/// Maximum pooling, with what its backward pass needs.
pub(super) fn max_pool(x: &FlexTensor, pooling: &Pooling) -> (FlexTensor, pool::Saved) {
    let (out, saved) = pool::max_forward(&pooling.shape, pooling.layout, values(x));
    (tensor(out, &pooled_shape(&pooling.shape, pooling.layout)), saved)
}

/// The loss and the probabilities.
pub(super) fn cross_entropy(logits: &FlexTensor, targets: &FlexTensor) -> (FlexTensor, Buffer) {
    let (loss, probabilities) = loss::cross_entropy(values(logits), targets.storage(), sizes(logits)[1]);
    (tensor(Buffer::copied(&[loss]), &[1]), probabilities)
}

/// Operands of batch normalisation in contiguous tensors.
pub(super) fn norm_operands<'a>(
    x: &'a FlexTensor,
    (mean, variance): &'a (FlexTensor, FlexTensor),
    gamma: &'a FlexTensor,
    beta: &'a FlexTensor,
    normalisation: &Normalisation,
) -> Operands<'a> {
    Operands {
        x: values(x),
        gamma: values(gamma),
        beta: values(beta),
        mean: values(mean),
        variance: values(variance),
        epsilon: normalisation.epsilon,
        activation: normalisation.activation,
    }
}

impl CpuOperators for Flex {
    fn omnilearn_conv2d(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, convolution: Convolution) -> FlexTensor {
        let (x, weight, bias) = (x.to_contiguous(), weight.to_contiguous(), bias.to_contiguous());
        let Convolution { shape, layout, activation } = convolution;
        let forward = match layout {
            Layout::Planes => planes::forward,
            Layout::ChannelsLast => channels_last::forward,
        };
        let out = forward(&shape, values(&x), values(&weight), optional(&bias), activation);
        tensor(out, &image_shape(layout, [shape.batch, shape.out_channels, shape.out_height, shape.out_width]))
    }

    fn omnilearn_linear(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, activation: Activation) -> FlexTensor {
        let (x, weight, bias) = (x.to_contiguous(), weight.to_contiguous(), bias.to_contiguous());
        let shape = linear_shape(&x, &weight);
        let out = linear::forward(shape, values(&x), values(&weight), optional(&bias), activation);
        tensor(out, &[shape.batch, shape.outputs])
    }

    fn omnilearn_relu(x: FlexTensor) -> FlexTensor {
        let x = x.to_contiguous();
        tensor(elementwise::relu(values(&x)), sizes(&x))
    }

    fn omnilearn_add_relu(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        let (a, b) = (a.to_contiguous(), b.to_contiguous());
        tensor(elementwise::add_relu(values(&a), values(&b)), sizes(&a))
    }

    fn omnilearn_max_pool2d(x: FlexTensor, pooling: Pooling) -> FlexTensor {
        max_pool(&x.to_contiguous(), &pooling).0
    }

    fn omnilearn_mean_pool2d(x: FlexTensor, pooling: Pooling) -> FlexTensor {
        let Pooling { shape, layout } = pooling;
        tensor(pool::mean_forward(&shape, layout, values(&x.to_contiguous())), &pooled_shape(&shape, layout))
    }

    fn omnilearn_global_mean_pool2d(x: FlexTensor, layout: Layout) -> FlexTensor {
        let x = x.to_contiguous();
        let (channels, pixels) = channels_and_pixels(&x, layout);
        tensor(pool::global_mean_forward(layout, channels, pixels, values(&x)), &[sizes(&x)[0], channels])
    }

    fn omnilearn_batch_statistics(x: FlexTensor, layout: Layout) -> (FlexTensor, FlexTensor) {
        let x = x.to_contiguous();
        let shape = norm_shape(&x, layout);
        let (mean, variance) = norm::statistics(shape, values(&x));
        (tensor(mean, &[shape.channels]), tensor(variance, &[shape.channels]))
    }

    fn omnilearn_batch_norm(
        x: FlexTensor,
        mean: FlexTensor,
        variance: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        normalisation: Normalisation,
    ) -> FlexTensor {
        let (x, gamma, beta) = (x.to_contiguous(), gamma.to_contiguous(), beta.to_contiguous());
        let statistics = (mean.to_contiguous(), variance.to_contiguous());
        let operands = norm_operands(&x, &statistics, &gamma, &beta, &normalisation);
        tensor(norm::forward(norm_shape(&x, normalisation.layout), operands), sizes(&x))
    }

    fn omnilearn_layer_norm(x: FlexTensor, gamma: FlexTensor, beta: FlexTensor, epsilon: f32) -> FlexTensor {
        let (x, gamma, beta) = (x.to_contiguous(), gamma.to_contiguous(), beta.to_contiguous());
        tensor(layer_norm::forward(values(&x), values(&gamma), values(&beta), epsilon), sizes(&x))
    }

    fn omnilearn_embedding(table: FlexTensor, indices: FlexTensor) -> FlexTensor {
        let (table, indices) = (table.to_contiguous(), indices.to_contiguous());
        let mut shape = sizes(&indices).to_vec();
        shape.push(sizes(&table)[1]);
        tensor(embedding::forward(values(&table), sizes(&table)[1], indices.storage()), &shape)
    }

    fn omnilearn_cross_entropy(logits: FlexTensor, targets: FlexTensor) -> FlexTensor {
        cross_entropy(&logits.to_contiguous(), &targets.to_contiguous()).0
    }

    fn omnilearn_exchange_layout(x: FlexTensor, from: Layout) -> FlexTensor {
        let x = x.to_contiguous();
        let (channels, pixels) = channels_and_pixels(&x, from);
        let shape = match (from, sizes(&x)) {
            (Layout::Planes, &[batch, channels, height, width]) => [batch, height, width, channels],
            (_, sizes) => [sizes[0], sizes[3], sizes[1], sizes[2]],
        };
        tensor(exchanged(from, channels, pixels, values(&x)), &shape)
    }
}
