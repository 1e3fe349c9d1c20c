//! Layers that take a model's tensors one after the other.

use omnilearn_kernel_host::backend::{BatchNorm, OpResult, Pool2dOptions, TensorBackend, Unary};

use super::convolution::options;

/// Running statistics become `0.9 old + 0.1 new`.
const MOMENTUM: f32 = 0.1;

const EPSILON: f32 = 1e-5;

/// The next layer's place among a model's tensors.
pub(super) struct Cursor<'a, B: TensorBackend> {
    pub(super) backend: &'a mut B,
    parameters: std::slice::Iter<'a, B::Tensor>,
    buffers: std::slice::Iter<'a, B::Tensor>,
    new_buffers: Vec<B::Tensor>,
}

impl<'a, B: TensorBackend> Cursor<'a, B> {
    pub(super) fn new(backend: &'a mut B, parameters: &'a [B::Tensor], buffers: &'a [B::Tensor]) -> Self {
        Cursor { backend, parameters: parameters.iter(), buffers: buffers.iter(), new_buffers: Vec::new() }
    }

    /// What the batch normalisations so far have made of their running statistics.
    pub(super) fn into_new_buffers(self) -> Vec<B::Tensor> {
        self.new_buffers
    }

    fn parameter(&mut self) -> &'a B::Tensor {
        self.parameters.next().expect("the layout has a parameter for each that a layer takes")
    }

    fn buffer(&mut self) -> &'a B::Tensor {
        self.buffers.next().expect("the layout has a buffer for each that a layer takes")
    }

    /// A convolution with a bias, then ReLU.
    pub(super) fn convolution_relu(&mut self, x: &B::Tensor, stride: usize, padding: usize) -> OpResult<B::Tensor> {
        let (weight, bias) = (self.parameter(), self.parameter());
        let y = self.backend.conv2d(x, weight, Some(bias), options(stride, padding))?;
        self.backend.unary(Unary::Relu, &y)
    }

    /// A convolution without bias, then batch normalisation.
    pub(super) fn convolution_norm(&mut self, x: &B::Tensor, stride: usize, padding: usize) -> OpResult<B::Tensor> {
        let weight = self.parameter();
        let y = self.backend.conv2d(x, weight, None, options(stride, padding))?;
        let (gamma, beta) = (self.parameter(), self.parameter());
        let (running_mean, running_var) = (self.buffer(), self.buffer());
        let statistics = BatchNorm { gamma, beta, running_mean, running_var, epsilon: EPSILON };
        let [y, mean, var] = self.backend.batch_norm_train(&y, statistics, MOMENTUM)?;
        self.new_buffers.extend([mean, var]);
        Ok(y)
    }

    /// The same, then ReLU.
    pub(super) fn convolution_norm_relu(
        &mut self,
        x: &B::Tensor,
        stride: usize,
        padding: usize,
    ) -> OpResult<B::Tensor> {
        let y = self.convolution_norm(x, stride, padding)?;
        self.backend.unary(Unary::Relu, &y)
    }

    /// The largest of each 2x2 pixels.
    pub(super) fn max_pool(&mut self, x: &B::Tensor) -> OpResult<B::Tensor> {
        self.backend.max_pool2d(x, Pool2dOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] })
    }

    /// `[batch, ...]` -> `[batch, features]`
    pub(super) fn flatten(&mut self, x: &B::Tensor) -> OpResult<B::Tensor> {
        let shape = self.backend.shape(x);
        self.backend.reshape(x, &[shape[0], shape[1..].iter().product()])
    }

    /// A linear layer with a bias.
    pub(super) fn linear(&mut self, x: &B::Tensor) -> OpResult<B::Tensor> {
        let (weight, bias) = (self.parameter(), self.parameter());
        self.backend.linear(x, weight, Some(bias))
    }

    /// The same, then ReLU.
    pub(super) fn linear_relu(&mut self, x: &B::Tensor) -> OpResult<B::Tensor> {
        let y = self.linear(x)?;
        self.backend.unary(Unary::Relu, &y)
    }
}
