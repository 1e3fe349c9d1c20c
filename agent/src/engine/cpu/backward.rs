//! The operators under Burn's differentiation: each runs forward, keeps what its backward pass needs, and registers that.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, AutodiffBackend, Flex};
use burn_flex::FlexTensor;
use omnilearn_cpu::conv::{Wanted, channels_last, planes};
use omnilearn_cpu::layout::{Layout, exchanged};
use omnilearn_cpu::{Activation, Buffer, elementwise, embedding, layer_norm, linear, loss, norm, pool};

use super::flex::{channels_and_pixels, cross_entropy, linear_shape, max_pool, norm_operands, norm_shape};
use super::storage::{self, sizes, tensor, values};
use super::{Convolution, CpuOperators, Normalisation, Pooling};

/// Changes a contiguous tensor where it lies if nobody else holds it, or else a copy.
fn changed<R>(mut tensor: FlexTensor, change: impl FnOnce(&mut [f32]) -> R) -> (FlexTensor, R) {
    if tensor.try_storage_mut::<f32>().is_none() {
        tensor = storage::tensor(Buffer::copied(values(&tensor)), sizes(&tensor));
    }
    let result = change(tensor.try_storage_mut().expect("the storage is nobody else's"));
    (tensor, result)
}

/// The output's gradient, zero where the activation cut off.
fn activated_gradient(gradient: FlexTensor, out: Option<&FlexTensor>) -> FlexTensor {
    let gradient = gradient.to_contiguous();
    match out {
        Some(out) => changed(gradient, |gradient| elementwise::relu_backward(values(out), gradient)).0,
        None => gradient,
    }
}

/// What [`activated_gradient`] needs of a forward pass.
fn activated(activation: Activation, out: &FlexTensor) -> Option<FlexTensor> {
    (activation == Activation::Relu).then(|| out.clone())
}

/// Convolution: input, weight, bias.
#[derive(Debug)]
struct Conv2dBackward;

impl Backward<Flex, 3> for Conv2dBackward {
    type State = (FlexTensor, FlexTensor, Option<FlexTensor>, Convolution);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let (x, weight, out, Convolution { shape, layout, .. }) = ops.state;
        let gradient = activated_gradient(gradients.consume::<Flex>(&ops.node), out.as_ref());
        let wanted = Wanted { x: x_node.is_some(), weight: weight_node.is_some(), bias: bias_node.is_some() };
        let backward = match layout {
            Layout::Planes => planes::backward,
            Layout::ChannelsLast => channels_last::backward,
        };
        let computed = backward(&shape, values(&x), values(&weight), values(&gradient), wanted);
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
    type State = (FlexTensor, FlexTensor, Option<FlexTensor>);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let (x, weight, out) = ops.state;
        let gradient = activated_gradient(gradients.consume::<Flex>(&ops.node), out.as_ref());
        let shape = linear_shape(&x, &weight);
        let gradient = values(&gradient);
        if let Some(node) = bias_node {
            gradients.register::<Flex>(node.id, tensor(linear::bias_gradient(shape, gradient), &[shape.outputs]));
        }
        if let Some(node) = weight_node {
            let computed = linear::weight_gradient(shape, values(&x), gradient);
            gradients.register::<Flex>(node.id, tensor(computed, sizes(&weight)));
        }
        if let Some(node) = x_node {
            let computed = linear::input_gradient(shape, values(&weight), gradient);
            gradients.register::<Flex>(node.id, tensor(computed, sizes(&x)));
        }
    }
}

#[derive(Debug)]
struct ReluBackward;

impl Backward<Flex, 1> for ReluBackward {
    type State = FlexTensor;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let gradient = activated_gradient(gradients.consume::<Flex>(&ops.node), Some(&ops.state));
        if let Some(node) = x_node {
            gradients.register::<Flex>(node.id, gradient);
        }
    }
}

#[derive(Debug)]
struct AddReluBackward;

impl Backward<Flex, 2> for AddReluBackward {
    type State = FlexTensor;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = activated_gradient(gradients.consume::<Flex>(&ops.node), Some(&ops.state));
        for node in ops.parents.into_iter().flatten() {
            gradients.register::<Flex>(node.id, gradient.clone());
        }
    }
}

#[derive(Debug)]
struct MaxPool2dBackward;

impl Backward<Flex, 1> for MaxPool2dBackward {
    type State = (FlexTensor, FlexTensor, pool::Saved, Pooling);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x, out, saved, pooling) = ops.state;
        if let Some(node) = x_node {
            let computed = pool::max_backward(&pooling.shape, values(&x), values(&out), &saved, values(&gradient));
            gradients.register::<Flex>(node.id, tensor(computed, sizes(&x)));
        }
    }
}

#[derive(Debug)]
struct MeanPool2dBackward;

impl Backward<Flex, 1> for MeanPool2dBackward {
    type State = (Vec<usize>, Pooling);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x_sizes, Pooling { shape, layout }) = ops.state;
        if let Some(node) = x_node {
            let computed = pool::mean_backward(&shape, layout, values(&gradient));
            gradients.register::<Flex>(node.id, tensor(computed, &x_sizes));
        }
    }
}

#[derive(Debug)]
struct GlobalMeanPool2dBackward;

impl Backward<Flex, 1> for GlobalMeanPool2dBackward {
    /// Sizes, channels and pixels of the input.
    type State = (Vec<usize>, (usize, usize), Layout);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x_sizes, (channels, pixels), layout) = ops.state;
        if let Some(node) = x_node {
            let computed = pool::global_mean_backward(layout, channels, pixels, values(&gradient));
            gradients.register::<Flex>(node.id, tensor(computed, &x_sizes));
        }
    }
}

/// Batch normalisation: input, scale, shift.
#[derive(Debug)]
struct BatchNormBackward;

impl Backward<Flex, 3> for BatchNormBackward {
    type State = (FlexTensor, (FlexTensor, FlexTensor), FlexTensor, FlexTensor, Normalisation);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, gamma_node, beta_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x, statistics, gamma, beta, normalisation) = ops.state;
        let shape = norm_shape(&x, normalisation.layout);
        let operands = norm_operands(&x, &statistics, &gamma, &beta, &normalisation);
        let (gradient, (gamma_gradient, beta_gradient)) =
            changed(gradient, |own| norm::backward(shape, operands, normalisation.own_statistics, own));
        if let Some(node) = beta_node {
            gradients.register::<Flex>(node.id, tensor(beta_gradient, &[shape.channels]));
        }
        if let Some(node) = gamma_node {
            gradients.register::<Flex>(node.id, tensor(gamma_gradient, &[shape.channels]));
        }
        if let Some(node) = x_node {
            gradients.register::<Flex>(node.id, gradient);
        }
    }
}

/// Layer normalisation: input, scale, shift.
#[derive(Debug)]
struct LayerNormBackward;

impl Backward<Flex, 3> for LayerNormBackward {
    type State = (FlexTensor, FlexTensor, f32);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, gamma_node, beta_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x, gamma, epsilon) = ops.state;
        let computed = layer_norm::backward(values(&x), values(&gamma), epsilon, values(&gradient));
        if let Some(node) = beta_node {
            gradients.register::<Flex>(node.id, tensor(computed.beta, sizes(&gamma)));
        }
        if let Some(node) = gamma_node {
            gradients.register::<Flex>(node.id, tensor(computed.gamma, sizes(&gamma)));
        }
        if let Some(node) = x_node {
            gradients.register::<Flex>(node.id, tensor(computed.x, sizes(&x)));
        }
    }
}

#[derive(Debug)]
struct EmbeddingBackward;

impl Backward<Flex, 1> for EmbeddingBackward {
    /// Sizes of the table, and the indices.
    type State = (Vec<usize>, FlexTensor);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [table_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (table_sizes, indices) = ops.state;
        if let Some(node) = table_node {
            let computed = embedding::backward(table_sizes[0], table_sizes[1], indices.storage(), values(&gradient));
            gradients.register::<Flex>(node.id, tensor(computed, &table_sizes));
        }
    }
}

#[derive(Debug)]
struct CrossEntropyBackward;

impl Backward<Flex, 1> for CrossEntropyBackward {
    type State = (Buffer, FlexTensor);

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

#[derive(Debug)]
struct ExchangeLayoutBackward;

impl Backward<Flex, 1> for ExchangeLayoutBackward {
    /// Sizes, channels and pixels of the input, and its layout.
    type State = (Vec<usize>, (usize, usize), Layout);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let (x_sizes, (channels, pixels), from) = ops.state;
        if let Some(node) = x_node {
            let computed = exchanged(from.other(), channels, pixels, values(&gradient));
            gradients.register::<Flex>(node.id, tensor(computed, &x_sizes));
        }
    }
}

/// Registers the backward pass, if the output is tracked.
macro_rules! track {
    ($backward:ident, $nodes:expr, $state:expr, $out:expr) => {
        match $backward.prepare::<C>($nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish($state, $out),
            OpsKind::UnTracked(prepared) => prepared.finish($out),
        }
    };
}

impl<C: CheckpointStrategy> CpuOperators for Autodiff<Flex, C> {
    fn omnilearn_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        convolution: Convolution,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let (x, weight) = (x.into_primitive().to_contiguous(), weight.into_primitive().to_contiguous());
        let out = Flex::omnilearn_conv2d(x.clone(), weight.clone(), bias.into_primitive(), convolution);
        track!(Conv2dBackward, nodes, (x, weight, activated(convolution.activation, &out), convolution), out)
    }

    fn omnilearn_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let (x, weight) = (x.into_primitive().to_contiguous(), weight.into_primitive().to_contiguous());
        let out = Flex::omnilearn_linear(x.clone(), weight.clone(), bias.into_primitive(), activation);
        track!(LinearBackward, nodes, (x, weight, activated(activation, &out)), out)
    }

    fn omnilearn_relu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let out = Flex::omnilearn_relu(x.into_primitive());
        track!(ReluBackward, nodes, out.clone(), out)
    }

    fn omnilearn_add_relu(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [a.node(), b.node()];
        let out = Flex::omnilearn_add_relu(a.into_primitive(), b.into_primitive());
        track!(AddReluBackward, nodes, out.clone(), out)
    }

    fn omnilearn_max_pool2d(x: FloatTensor<Self>, pooling: Pooling) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let x = x.into_primitive().to_contiguous();
        let (out, saved) = max_pool(&x, &pooling);
        track!(MaxPool2dBackward, nodes, (x, out.clone(), saved, pooling), out)
    }

    fn omnilearn_mean_pool2d(x: FloatTensor<Self>, pooling: Pooling) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let x = x.into_primitive();
        let x_sizes = sizes(&x).to_vec();
        let out = Flex::omnilearn_mean_pool2d(x, pooling);
        track!(MeanPool2dBackward, nodes, (x_sizes, pooling), out)
    }

    fn omnilearn_global_mean_pool2d(x: FloatTensor<Self>, layout: Layout) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let x = x.into_primitive();
        let state = (sizes(&x).to_vec(), channels_and_pixels(&x, layout), layout);
        let out = Flex::omnilearn_global_mean_pool2d(x, layout);
        track!(GlobalMeanPool2dBackward, nodes, state, out)
    }

    fn omnilearn_batch_statistics(x: FloatTensor<Self>, layout: Layout) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (mean, variance) = Flex::omnilearn_batch_statistics(x.into_primitive(), layout);
        (Self::from_inner(mean), Self::from_inner(variance))
    }

    fn omnilearn_batch_norm(
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        normalisation: Normalisation,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), gamma.node(), beta.node()];
        let (x, gamma, beta) = (
            x.into_primitive().to_contiguous(),
            gamma.into_primitive().to_contiguous(),
            beta.into_primitive().to_contiguous(),
        );
        let (mean, variance) = (mean.into_primitive().to_contiguous(), variance.into_primitive().to_contiguous());
        let statistics = (mean.clone(), variance.clone());
        let out = Flex::omnilearn_batch_norm(x.clone(), mean, variance, gamma.clone(), beta.clone(), normalisation);
        track!(BatchNormBackward, nodes, (x, statistics, gamma, beta, normalisation), out)
    }

    fn omnilearn_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f32,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), gamma.node(), beta.node()];
        let (x, gamma) = (x.into_primitive().to_contiguous(), gamma.into_primitive().to_contiguous());
        let out = Flex::omnilearn_layer_norm(x.clone(), gamma.clone(), beta.into_primitive(), epsilon);
        track!(LayerNormBackward, nodes, (x, gamma, epsilon), out)
    }

    fn omnilearn_embedding(table: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        let nodes = [table.node()];
        let (table, indices) = (table.into_primitive(), indices.to_contiguous());
        let state = (sizes(&table).to_vec(), indices.clone());
        let out = Flex::omnilearn_embedding(table, indices);
        track!(EmbeddingBackward, nodes, state, out)
    }

    fn omnilearn_cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        let nodes = [logits.node()];
        let targets = targets.to_contiguous();
        let (out, probabilities) = cross_entropy(&logits.into_primitive().to_contiguous(), &targets);
        track!(CrossEntropyBackward, nodes, (probabilities, targets), out)
    }

    fn omnilearn_exchange_layout(x: FloatTensor<Self>, from: Layout) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let x = x.into_primitive();
        let state = (sizes(&x).to_vec(), channels_and_pixels(&x, from), from);
        let out = Flex::omnilearn_exchange_layout(x, from);
        track!(ExchangeLayoutBackward, nodes, state, out)
    }
}
