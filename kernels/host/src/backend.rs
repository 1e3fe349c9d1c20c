//! What computes for a kernel: one method per operation of `wit/kernel.wit`, on tensors of the backend's own type.
//!
//! The agent implements this over Burn; the hub, which only describes kernels, uses [`NoTensors`]. This crate keeps the
//! handles, checks limits and turns an [`OpError`] into a trap, so a backend knows nothing of WebAssembly.

use omnilearn_wire::sampling::SplitMix64;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float; carries gradients.
    F32,
    /// Integer; never carries gradients.
    I32,
}

/// A misused operation. Becomes a trap whose text is this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{operation}` cannot take {operands}: {reason}")]
pub struct OpError {
    /// Name in `wit/kernel.wit`.
    pub operation: &'static str,
    /// Shapes and element types of the operands, such as `f32 [64, 1, 28, 28] and f32 [10, 10]`.
    pub operands: String,
    /// What does not fit.
    pub reason: String,
}

/// Result of an operation.
pub type OpResult<T> = Result<T, OpError>;

/// Geometry of a convolution; pairs are (height, width). See `conv2d-options` in `wit/kernel.wit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Step, in pixels.
    pub stride: [usize; 2],
    /// Zero pixels on both sides.
    pub padding: [usize; 2],
    /// Distance between taps, in pixels.
    pub dilation: [usize; 2],
    /// Channel groups.
    pub groups: usize,
}

/// Geometry of a pooling window; pairs are (height, width). See `pool2d-options` in `wit/kernel.wit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dOptions {
    /// Window, in pixels.
    pub kernel: [usize; 2],
    /// Step, in pixels.
    pub stride: [usize; 2],
    /// Padding on both sides, in pixels.
    pub padding: [usize; 2],
}

/// Operations with one operand and no parameters, `f32` to `f32` of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// `max(x, 0)`
    Relu,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `x Phi(x)`, exact form.
    Gelu,
}

/// Operations with two operands, `f32` to `f32`, with broadcasting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
}

/// Operations with one operand and one number, `f32` to `f32` of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// `x + value`
    Add(f32),
    /// `x * value`
    Mul(f32),
    /// `x ^ value`
    Pow(f32),
    /// `min(max(x, low), high)`
    Clamp(f32, f32),
}

/// Reductions; reduced dimensions stay with size 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Arithmetic mean.
    Mean,
}

/// The factors of `dropout`, one an element: 0 with this probability, else `1 / (1 - probability)`. Equal on every backend.
pub fn dropout_mask(probability: f32, seed: u64, elements: usize) -> Vec<f32> {
    let keep = 1.0 / (1.0 - probability);
    let mut generator = SplitMix64::new(seed);
    // The upper 24 bits as a number in 0 to below 1, exact in f32.
    let mut uniform = || (generator.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
    (0..elements).map(|_| if uniform() < probability { 0.0 } else { keep }).collect()
}

/// Tensor computation for kernels. Methods are documented in `wit/kernel.wit` under the same names; dimensions arrive
/// non-negative and in range, element types and ranks are the backend's to check.
pub trait TensorBackend: 'static {
    /// A tensor. Cloning shares storage.
    type Tensor: Clone + 'static;

    /// Dimensions, outermost first.
    fn shape(&self, x: &Self::Tensor) -> Vec<usize>;
    /// Element type.
    fn dtype(&self, x: &Self::Tensor) -> DType;

    /// See `from-f32`.
    #[expect(clippy::wrong_self_convention, reason = "named as in the interface; `self` is the device, not the source")]
    fn from_f32(&mut self, values: Vec<f32>, shape: &[usize]) -> OpResult<Self::Tensor>;
    /// See `from-i32`.
    #[expect(clippy::wrong_self_convention, reason = "named as in the interface; `self` is the device, not the source")]
    fn from_i32(&mut self, values: Vec<i32>, shape: &[usize]) -> OpResult<Self::Tensor>;
    /// See `full`.
    fn full(&mut self, value: f32, shape: &[usize]) -> OpResult<Self::Tensor>;

    /// See [`Unary`].
    fn unary(&mut self, op: Unary, x: &Self::Tensor) -> OpResult<Self::Tensor>;
    /// See [`Binary`].
    fn binary(&mut self, op: Binary, a: &Self::Tensor, b: &Self::Tensor) -> OpResult<Self::Tensor>;
    /// See [`Scalar`].
    fn scalar(&mut self, op: Scalar, x: &Self::Tensor) -> OpResult<Self::Tensor>;

    /// See `matmul`.
    fn matmul(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> OpResult<Self::Tensor>;
    /// See `linear`.
    fn linear(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Tensor,
        bias: Option<&Self::Tensor>,
    ) -> OpResult<Self::Tensor>;

    /// See `conv2d`.
    fn conv2d(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Tensor,
        bias: Option<&Self::Tensor>,
        options: Conv2dOptions,
    ) -> OpResult<Self::Tensor>;
    /// See `max-pool2d`.
    fn max_pool2d(&mut self, x: &Self::Tensor, options: Pool2dOptions) -> OpResult<Self::Tensor>;
    /// See `avg-pool2d`.
    fn avg_pool2d(&mut self, x: &Self::Tensor, options: Pool2dOptions) -> OpResult<Self::Tensor>;
    /// See `global-avg-pool2d`.
    fn global_avg_pool2d(&mut self, x: &Self::Tensor) -> OpResult<Self::Tensor>;
    /// See `batch-norm-train`: output, new running mean, new running variance.
    fn batch_norm_train(
        &mut self,
        x: &Self::Tensor,
        statistics: BatchNorm<'_, Self::Tensor>,
        momentum: f32,
    ) -> OpResult<[Self::Tensor; 3]>;
    /// See `batch-norm-eval`.
    fn batch_norm_eval(&mut self, x: &Self::Tensor, statistics: BatchNorm<'_, Self::Tensor>) -> OpResult<Self::Tensor>;

    /// See `layer-norm`.
    fn layer_norm(
        &mut self,
        x: &Self::Tensor,
        gamma: &Self::Tensor,
        beta: &Self::Tensor,
        epsilon: f32,
    ) -> OpResult<Self::Tensor>;
    /// See `embedding`.
    fn embedding(&mut self, table: &Self::Tensor, indices: &Self::Tensor) -> OpResult<Self::Tensor>;

    /// See `reshape`.
    fn reshape(&mut self, x: &Self::Tensor, shape: &[usize]) -> OpResult<Self::Tensor>;
    /// See `permute`.
    fn permute(&mut self, x: &Self::Tensor, axes: &[usize]) -> OpResult<Self::Tensor>;
    /// See `narrow`.
    fn narrow(&mut self, x: &Self::Tensor, dim: usize, start: usize, length: usize) -> OpResult<Self::Tensor>;
    /// See `concat`.
    fn concat(&mut self, tensors: &[Self::Tensor], dim: usize) -> OpResult<Self::Tensor>;

    /// See `sum` and `mean`; `dims` is sorted and without repeats, and empty means all, giving shape `[1]`.
    fn reduce(&mut self, reduction: Reduction, x: &Self::Tensor, dims: &[usize]) -> OpResult<Self::Tensor>;
    /// See `max`.
    fn max(&mut self, x: &Self::Tensor, dim: usize) -> OpResult<Self::Tensor>;
    /// See `argmax`.
    fn argmax(&mut self, x: &Self::Tensor, dim: usize) -> OpResult<Self::Tensor>;

    /// See `softmax`.
    fn softmax(&mut self, x: &Self::Tensor, dim: usize) -> OpResult<Self::Tensor>;
    /// See `log-softmax`.
    fn log_softmax(&mut self, x: &Self::Tensor, dim: usize) -> OpResult<Self::Tensor>;
    /// See `cross-entropy`.
    fn cross_entropy(&mut self, logits: &Self::Tensor, targets: &Self::Tensor) -> OpResult<Self::Tensor>;

    /// See `gather`.
    fn gather(&mut self, x: &Self::Tensor, dim: usize, index: &Self::Tensor) -> OpResult<Self::Tensor>;
    /// See `one-hot`.
    fn one_hot(&mut self, x: &Self::Tensor, classes: usize) -> OpResult<Self::Tensor>;
    /// See `equal`.
    fn equal(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> OpResult<Self::Tensor>;
    /// See `to-f32`.
    fn to_f32(&mut self, x: &Self::Tensor) -> OpResult<Self::Tensor>;

    /// See `dropout`.
    fn dropout(&mut self, x: &Self::Tensor, probability: f32, seed: u64) -> OpResult<Self::Tensor>;
    /// See `detach`.
    fn detach(&mut self, x: &Self::Tensor) -> OpResult<Self::Tensor>;
}

/// Operands of batch normalisation, each `[channels]`.
pub struct BatchNorm<'a, T> {
    /// Scale.
    pub gamma: &'a T,
    /// Shift.
    pub beta: &'a T,
    /// Running mean.
    pub running_mean: &'a T,
    /// Running variance.
    pub running_var: &'a T,
    /// Added to the variance.
    pub epsilon: f32,
}
