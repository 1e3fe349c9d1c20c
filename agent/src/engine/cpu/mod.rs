//! Our own operators for the CPU, registered with Burn through its extension interface.
//!
//! Burn's CPU backend, flex, has no weight gradient of its own for a convolution (it convolves with exchanged axes),
//! computes batch normalisation in about ten passes, and never fuses a bias. These operators are what makes an agent
//! as fast as its processor allows. Operands have been checked: shapes fit, targets are in range.

pub(crate) mod conv;
pub(crate) mod elementwise;
mod loss;
mod norm;
pub(crate) mod pool;
mod scratch;
mod simd;
#[cfg(test)]
mod tests;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, backend_extension};
use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};

use self::norm::NormShape;
use self::simd::{Matrix, Product};
use super::shape::{ConvShape, PoolShape};

/// Operators with their own backward pass.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait CpuOperators: Backend {
    /// Convolution with bias; a bias of no elements means none.
    fn omnilearn_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: ConvShape,
    ) -> FloatTensor<Self>;
    /// `x weight + bias`; a bias of no elements means none.
    fn omnilearn_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;
    /// `max(x, 0)`
    fn omnilearn_relu(x: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Maximum pooling.
    fn omnilearn_max_pool2d(x: FloatTensor<Self>, shape: PoolShape) -> FloatTensor<Self>;
    /// Batch normalisation in training: output, and mean and biased variance, which carry no gradient.
    fn omnilearn_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
    /// Mean cross entropy of logits `[batch, classes]`, `[1]`.
    fn omnilearn_cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self>;
}

/// A new tensor.
pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(Shape::from(shape.to_vec())), DType::F32)
}

/// The elements of a tensor that is contiguous and covers its storage.
fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.storage()
}

fn optional(tensor: &FlexTensor) -> Option<&[f32]> {
    Some(values(tensor)).filter(|values| !values.is_empty())
}

fn sizes(tensor: &FlexTensor) -> &[usize] {
    tensor.layout().shape().as_slice()
}

fn norm_shape(x: &FlexTensor) -> NormShape {
    let sizes = sizes(x);
    NormShape { batch: sizes[0], channels: sizes[1], pixels: sizes[2..].iter().product() }
}

fn max_pool(x: &FlexTensor, shape: &PoolShape) -> (FlexTensor, Vec<u16>) {
    let (out, taps) = pool::max_forward(shape, values(x));
    (tensor(out, &[shape.batch, shape.channels, shape.out_height, shape.out_width]), taps)
}

fn batch_norm(
    x: &FlexTensor,
    gamma: &FlexTensor,
    beta: &FlexTensor,
    epsilon: f32,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let shape = norm_shape(x);
    let normalised = norm::forward(shape, values(x), values(gamma), values(beta), epsilon);
    let channels = [shape.channels];
    (tensor(normalised.out, sizes(x)), tensor(normalised.mean, &channels), tensor(normalised.variance, &channels))
}

fn cross_entropy(logits: &FlexTensor, targets: &FlexTensor) -> (FlexTensor, Vec<f32>) {
    let (loss, probabilities) = loss::cross_entropy(values(logits), targets.storage(), sizes(logits)[1]);
    (tensor(vec![loss], &[1]), probabilities)
}

impl CpuOperators for Flex {
    fn omnilearn_conv2d(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, shape: ConvShape) -> FlexTensor {
        let (x, weight, bias) = (x.to_contiguous(), weight.to_contiguous(), bias.to_contiguous());
        let out = conv::forward(&shape, values(&x), values(&weight), optional(&bias));
        tensor(out, &[shape.batch, shape.out_channels, shape.out_height, shape.out_width])
    }

    fn omnilearn_linear(x: FlexTensor, weight: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (x, weight, bias) = (x.to_contiguous(), weight.to_contiguous(), bias.to_contiguous());
        let (batch, inputs, outputs) = (sizes(&x)[0], sizes(&x)[1], sizes(&weight)[1]);
        let mut out = vec![0.0; batch * outputs];
        let bias = optional(&bias);
        if let Some(bias) = bias {
            elementwise::repeat_row(&mut out, bias);
        }
        let product = Product { m: batch, n: outputs, k: inputs, accumulate: bias.is_some(), parallel: true };
        product.compute(Matrix::rows(values(&x), inputs), Matrix::rows(values(&weight), outputs), &mut out, outputs);
        tensor(out, &[batch, outputs])
    }

    fn omnilearn_relu(x: FlexTensor) -> FlexTensor {
        let x = x.to_contiguous();
        tensor(elementwise::relu(values(&x)), sizes(&x))
    }

    fn omnilearn_max_pool2d(x: FlexTensor, shape: PoolShape) -> FlexTensor {
        max_pool(&x.to_contiguous(), &shape).0
    }

    fn omnilearn_batch_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        epsilon: f32,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        batch_norm(&x.to_contiguous(), &gamma.to_contiguous(), &beta.to_contiguous(), epsilon)
    }

    fn omnilearn_cross_entropy(logits: FlexTensor, targets: FlexTensor) -> FlexTensor {
        cross_entropy(&logits.to_contiguous(), &targets.to_contiguous()).0
    }
}

/// Convolution: input, weight, bias.
#[derive(Debug)]
struct Conv2dBackward;

impl Backward<Flex, 3> for Conv2dBackward {
    type State = (FlexTensor, FlexTensor, ConvShape);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x, weight, shape) = ops.state;
        let wanted = conv::Wanted { x: x_node.is_some(), weight: weight_node.is_some(), bias: bias_node.is_some() };
        let computed = conv::backward(&shape, values(&x), values(&weight), values(&gradient), wanted);
        if let (Some(node), Some(bias)) = (bias_node, computed.bias) {
            gradients.register::<Flex>(node.id, tensor(bias, &[shape.out_channels]));
        }
        if let (Some(node), Some(gradient)) = (weight_node, computed.weight) {
            gradients.register::<Flex>(node.id, tensor(gradient, sizes(&weight)));
        }
        if let (Some(node), Some(gradient)) = (x_node, computed.x) {
            gradients.register::<Flex>(node.id, tensor(gradient, sizes(&x)));
        }
    }
}

/// Linear layer: input, weight, bias.
#[derive(Debug)]
struct LinearBackward;

impl Backward<Flex, 3> for LinearBackward {
    type State = (FlexTensor, FlexTensor);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x, weight) = ops.state;
        let (batch, inputs, outputs) = (sizes(&x)[0], sizes(&x)[1], sizes(&weight)[1]);
        if let Some(node) = bias_node {
            gradients.register::<Flex>(
                node.id,
                tensor(elementwise::channel_sums(values(&gradient), outputs, 1), &[outputs]),
            );
        }
        if let Some(node) = weight_node {
            let mut out = vec![0.0; inputs * outputs];
            let product = Product { m: inputs, n: outputs, k: batch, accumulate: false, parallel: true };
            product.compute(
                Matrix::transposed(values(&x), inputs),
                Matrix::rows(values(&gradient), outputs),
                &mut out,
                outputs,
            );
            gradients.register::<Flex>(node.id, tensor(out, &[inputs, outputs]));
        }
        if let Some(node) = x_node {
            let mut out = vec![0.0; batch * inputs];
            let product = Product { m: batch, n: inputs, k: outputs, accumulate: false, parallel: true };
            product.compute(
                Matrix::rows(values(&gradient), outputs),
                Matrix::transposed(values(&weight), outputs),
                &mut out,
                inputs,
            );
            gradients.register::<Flex>(node.id, tensor(out, &[batch, inputs]));
        }
    }
}

#[derive(Debug)]
struct ReluBackward;

impl Backward<Flex, 1> for ReluBackward {
    type State = FlexTensor;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        if let Some(node) = x_node {
            let out = elementwise::relu_backward(values(&ops.state), values(&gradient));
            gradients.register::<Flex>(node.id, tensor(out, sizes(&ops.state)));
        }
    }
}

#[derive(Debug)]
struct MaxPool2dBackward;

impl Backward<Flex, 1> for MaxPool2dBackward {
    type State = (FlexTensor, Vec<u16>, PoolShape);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x, taps, shape) = ops.state;
        if let Some(node) = x_node {
            let out = pool::max_backward(&shape, values(&x), &taps, values(&gradient));
            gradients.register::<Flex>(node.id, tensor(out, &[shape.batch, shape.channels, shape.height, shape.width]));
        }
    }
}

/// Batch normalisation: input, scale, shift.
#[derive(Debug)]
struct BatchNormBackward;

impl Backward<Flex, 3> for BatchNormBackward {
    type State = (FlexTensor, FlexTensor, [FlexTensor; 2], f32);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, gamma_node, beta_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x, gamma, [mean, variance], epsilon) = ops.state;
        let shape = norm_shape(&x);
        let statistics = (values(&mean), values(&variance));
        let computed = norm::backward(shape, values(&x), values(&gradient), values(&gamma), statistics, epsilon);
        if let Some(node) = beta_node {
            gradients.register::<Flex>(node.id, tensor(computed.beta, &[shape.channels]));
        }
        if let Some(node) = gamma_node {
            gradients.register::<Flex>(node.id, tensor(computed.gamma, &[shape.channels]));
        }
        if let Some(node) = x_node {
            gradients.register::<Flex>(node.id, tensor(computed.x, sizes(&x)));
        }
    }
}

#[derive(Debug)]
struct CrossEntropyBackward;

impl Backward<Flex, 1> for CrossEntropyBackward {
    type State = (Vec<f32>, FlexTensor);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [logits_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (probabilities, targets) = ops.state;
        if let Some(node) = logits_node {
            let batch = sizes(&targets)[0];
            let classes = probabilities.len() / batch;
            let out = loss::cross_entropy_backward(probabilities, targets.storage(), classes, values(&gradient)[0]);
            gradients.register::<Flex>(node.id, tensor(out, &[batch, classes]));
        }
    }
}

impl<C: CheckpointStrategy> CpuOperators for Autodiff<Flex, C> {
    fn omnilearn_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: ConvShape,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let (x, weight, bias) =
            (x.into_primitive().to_contiguous(), weight.into_primitive().to_contiguous(), bias.into_primitive());
        let out = Flex::omnilearn_conv2d(x.clone(), weight.clone(), bias, shape);
        match Conv2dBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((x, weight, shape), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        }
    }

    fn omnilearn_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let (x, weight, bias) =
            (x.into_primitive().to_contiguous(), weight.into_primitive().to_contiguous(), bias.into_primitive());
        let out = Flex::omnilearn_linear(x.clone(), weight.clone(), bias);
        match LinearBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((x, weight), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        }
    }

    fn omnilearn_relu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let out = Flex::omnilearn_relu(x.into_primitive());
        match ReluBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(out.clone(), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        }
    }

    fn omnilearn_max_pool2d(x: FloatTensor<Self>, shape: PoolShape) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let x = x.into_primitive().to_contiguous();
        let (out, taps) = max_pool(&x, &shape);
        match MaxPool2dBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((x, taps, shape), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        }
    }

    fn omnilearn_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [x.node(), gamma.node(), beta.node()];
        let (x, gamma, beta) = (
            x.into_primitive().to_contiguous(),
            gamma.into_primitive().to_contiguous(),
            beta.into_primitive().to_contiguous(),
        );
        let (out, mean, variance) = batch_norm(&x, &gamma, &beta, epsilon);
        let out = match BatchNormBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((x, gamma, [mean.clone(), variance.clone()], epsilon), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        };
        (out, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn omnilearn_cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        let nodes = [logits.node()];
        let targets = targets.to_contiguous();
        let (out, probabilities) = cross_entropy(&logits.into_primitive().to_contiguous(), &targets);
        match CrossEntropyBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((probabilities, targets), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        }
    }
}
