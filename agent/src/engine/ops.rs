//! The operations of `wit/kernel.wit` on the engine's tensors.
//!
//! Everything is checked here first, because Burn panics on misuse and a kernel is not to bring its agent down.

use burn::backend::ops::{ActivationOps, BoolTensorOps, FloatTensorOps, IntTensorOps, ModuleOps};
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::ops::ConvOptions as BurnConvOptions;
use burn::tensor::{BoolDType, FloatDType, IntDType, Shape, Slice};
use omnilearn_cpu::Activation;
use omnilearn_cpu::conv::preferred_layout;
use omnilearn_cpu::layout::Layout;
use omnilearn_cpu::shape::{ConvOptions, ConvShape, PoolOptions, PoolShape};
use omnilearn_kernel_host::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpResult, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
    dropout_mask,
};

use super::check::Call;
use super::cpu::{Convolution, CpuOperators, Normalisation, Pooling};
use super::{Engine, Operators, Tensor};

fn unary_name(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "neg",
        Unary::Abs => "abs",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Relu => "relu",
        Unary::Sigmoid => "sigmoid",
        Unary::Tanh => "tanh",
        Unary::Gelu => "gelu",
    }
}

fn arithmetic(op: Binary, a: DispatchTensor, b: DispatchTensor) -> DispatchTensor {
    match op {
        Binary::Add => Dispatch::float_add(a, b),
        Binary::Sub => Dispatch::float_sub(a, b),
        Binary::Mul => Dispatch::float_mul(a, b),
        Binary::Div => Dispatch::float_div(a, b),
    }
}

fn reshaped(tensor: DispatchTensor, shape: &[usize]) -> DispatchTensor {
    Dispatch::float_reshape(tensor, Shape::from(shape.to_vec()))
}

/// The primitive with leading dimensions of 1, up to this rank.
fn with_rank(tensor: &Tensor, rank: usize) -> DispatchTensor {
    let missing = rank - tensor.shape().len();
    if missing == 0 {
        return tensor.row_major();
    }
    let shape: Vec<usize> = std::iter::repeat_n(1, missing).chain(tensor.shape().iter().copied()).collect();
    match tensor.dtype() {
        DType::F32 => reshaped(tensor.row_major(), &shape),
        DType::I32 => Dispatch::int_reshape(tensor.row_major(), Shape::from(shape)),
    }
}

/// `[channels]` as `[1, channels, 1, 1]`, as long as the rank asks.
fn channel_shape(rank: usize, channels: usize) -> Vec<usize> {
    (0..rank).map(|dim| if dim == 1 { channels } else { 1 }).collect()
}

impl Engine {
    fn admit(&self, call: &Call<'_>, shape: &[usize]) -> OpResult<()> {
        call.shape(shape, self.elements_max).map(|_| ())
    }

    fn owns(&self) -> bool {
        self.operators == Operators::Own
    }

    fn optional(&self, tensor: Option<&Tensor>) -> DispatchTensor {
        tensor.map_or_else(|| self.nothing.clone(), Tensor::row_major)
    }

    /// Checks the operands of batch normalisation; the number of channels.
    fn check_norm(call: &Call<'_>, x: &Tensor, statistics: &BatchNorm<'_, Tensor>) -> OpResult<usize> {
        call.floats()?;
        let &([_, channels] | [_, channels, _, _]) = x.shape() else {
            return Err(call.error("the input needs rank 2 or 4"));
        };
        let operands = [statistics.gamma, statistics.beta, statistics.running_mean, statistics.running_var];
        call.require(operands.iter().all(|tensor| tensor.shape() == [channels]), || {
            format!("scale, shift and statistics need shape [{channels}]")
        })?;
        call.require(statistics.epsilon >= 0.0, || format!("epsilon {} is negative", statistics.epsilon))?;
        Ok(channels)
    }

    /// Batch normalisation by our operator.
    fn normalised(
        &self,
        x: &Tensor,
        (mean, variance): (DispatchTensor, DispatchTensor),
        (gamma, beta): (DispatchTensor, DispatchTensor),
        epsilon: f32,
        own_statistics: bool,
    ) -> Tensor {
        let layout = x.layout();
        let shape = x.shape().to_vec();
        let x = x.primitive();
        Tensor::deferred(shape, layout, move |activation| {
            let normalisation = Normalisation { layout, epsilon, own_statistics, activation };
            let (mean, variance) = (mean.clone(), variance.clone());
            Dispatch::omnilearn_batch_norm(x.clone(), mean, variance, gamma.clone(), beta.clone(), normalisation)
        })
    }
}

/// A pooling's sizes, checked.
fn pool_shape(call: &Call<'_>, x: &Tensor, options: Pool2dOptions) -> OpResult<PoolShape> {
    let Pool2dOptions { kernel, stride, padding } = options;
    PoolShape::new(x.shape(), PoolOptions { kernel, stride, padding }).map_err(|reason| call.error(reason))
}

/// A pooling's result.
fn pooled_image(primitive: DispatchTensor, shape: &PoolShape, layout: Layout) -> Tensor {
    Tensor::image(primitive, vec![shape.batch, shape.channels, shape.out_height, shape.out_width], layout)
}

impl TensorBackend for Engine {
    type Tensor = Tensor;

    fn shape(&self, x: &Tensor) -> Vec<usize> {
        x.shape().to_vec()
    }

    fn dtype(&self, x: &Tensor) -> DType {
        x.dtype()
    }

    fn from_f32(&mut self, values: Vec<f32>, shape: &[usize]) -> OpResult<Tensor> {
        let call = Call::new("from-f32", &[]);
        let elements = call.shape(shape, self.elements_max)?;
        call.require(values.len() == elements, || format!("{} values for shape {shape:?}", values.len()))?;
        Ok(self.floats(values, shape))
    }

    fn from_i32(&mut self, values: Vec<i32>, shape: &[usize]) -> OpResult<Tensor> {
        let call = Call::new("from-i32", &[]);
        let elements = call.shape(shape, self.elements_max)?;
        call.require(values.len() == elements, || format!("{} values for shape {shape:?}", values.len()))?;
        Ok(self.ints(values, shape))
    }

    fn full(&mut self, value: f32, shape: &[usize]) -> OpResult<Tensor> {
        let elements = Call::new("full", &[]).shape(shape, self.elements_max)?;
        Ok(self.floats(vec![value; elements], shape))
    }

    fn unary(&mut self, op: Unary, x: &Tensor) -> OpResult<Tensor> {
        Call::new(unary_name(op), &[x]).floats()?;
        if let (Unary::Relu, Some(fused)) = (op, x.fused_relu()) {
            return Ok(fused);
        }
        let operand = x;
        let x = operand.primitive();
        Ok(operand.with_value(match op {
            Unary::Neg => Dispatch::float_neg(x),
            Unary::Abs => Dispatch::float_abs(x),
            Unary::Exp => Dispatch::float_exp(x),
            Unary::Log => Dispatch::float_log(x),
            Unary::Sqrt => Dispatch::float_sqrt(x),
            Unary::Relu if self.owns() => Dispatch::omnilearn_relu(x),
            Unary::Relu => Dispatch::relu(x),
            Unary::Sigmoid => Dispatch::sigmoid(x),
            Unary::Tanh => Dispatch::float_tanh(x),
            Unary::Gelu => Dispatch::gelu(x),
        }))
    }

    fn binary(&mut self, op: Binary, a: &Tensor, b: &Tensor) -> OpResult<Tensor> {
        let operands = [a, b];
        let name = match op {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
        };
        let call = Call::new(name, &operands);
        call.floats()?;
        let shape = call.broadcast(a.shape(), b.shape())?;
        self.admit(&call, &shape)?;
        if a.shape() == b.shape() {
            // Element by element, in whatever order both lie.
            let (layout, left, right) = (a.layout(), a.primitive(), b.in_layout(a.layout()));
            if op == Binary::Add && self.owns() {
                return Ok(Tensor::deferred(shape, layout, move |activation| match activation {
                    Activation::None => Dispatch::float_add(left.clone(), right.clone()),
                    Activation::Relu => Dispatch::omnilearn_add_relu(left.clone(), right.clone()),
                }));
            }
            return Ok(a.with_value(arithmetic(op, left, right)));
        }
        Ok(Tensor::float(arithmetic(op, with_rank(a, shape.len()), with_rank(b, shape.len()))))
    }

    fn scalar(&mut self, op: Scalar, x: &Tensor) -> OpResult<Tensor> {
        let operands = [x];
        let name = match op {
            Scalar::Add(_) => "add-scalar",
            Scalar::Mul(_) => "mul-scalar",
            Scalar::Pow(_) => "pow-scalar",
            Scalar::Clamp(..) => "clamp",
        };
        let call = Call::new(name, &operands);
        call.floats()?;
        let operand = x;
        let x = operand.primitive();
        Ok(operand.with_value(match op {
            Scalar::Add(value) => Dispatch::float_add_scalar(x, value.into()),
            Scalar::Mul(value) => Dispatch::float_mul_scalar(x, value.into()),
            Scalar::Pow(exponent) => Dispatch::float_powf_scalar(x, exponent.into()),
            Scalar::Clamp(low, high) => {
                call.require(low <= high, || format!("the limits {low} and {high} are not in order"))?;
                Dispatch::float_clamp(x, low.into(), high.into())
            }
        }))
    }

    fn matmul(&mut self, a: &Tensor, b: &Tensor) -> OpResult<Tensor> {
        let operands = [a, b];
        let call = Call::new("matmul", &operands);
        call.floats()?;
        let ([a_leading @ .., m, k], [b_leading @ .., k_other, n]) = (a.shape(), b.shape()) else {
            return Err(call.error("both operands need rank 2 or more"));
        };
        call.require(k == k_other, || format!("inner sizes {k} and {k_other} differ"))?;
        let mut shape = call.broadcast(a_leading, b_leading)?;
        shape.extend([m, n]);
        self.admit(&call, &shape)?;
        Ok(Tensor::float(Dispatch::float_matmul(with_rank(a, shape.len()), with_rank(b, shape.len()))))
    }

    fn linear(&mut self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> OpResult<Tensor> {
        let operands: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
        let call = Call::new("linear", &operands);
        call.floats()?;
        let (&[batch, inputs], &[outputs, weight_inputs]) = (x.shape(), weight.shape()) else {
            return Err(call.error("input and weight need rank 2"));
        };
        call.require(inputs == weight_inputs, || {
            format!("the input has {inputs} features, the weight {weight_inputs}")
        })?;
        call.require(bias.is_none_or(|bias| bias.shape() == [outputs]), || {
            format!("the bias needs shape [{outputs}]")
        })?;
        self.admit(&call, &[batch, outputs])?;
        let (x, weight) = (x.row_major(), weight.row_major());
        if !self.owns() {
            let weight = Dispatch::float_swap_dims(weight, 0, 1);
            return Ok(Tensor::float(Dispatch::linear(x, weight, bias.map(Tensor::row_major))));
        }
        let bias = self.optional(bias);
        Ok(Tensor::deferred(vec![batch, outputs], Layout::Planes, move |activation| {
            Dispatch::omnilearn_linear(x.clone(), weight.clone(), bias.clone(), activation)
        }))
    }

    fn conv2d(
        &mut self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: Conv2dOptions,
    ) -> OpResult<Tensor> {
        let operands: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
        let call = Call::new("conv2d", &operands);
        call.floats()?;
        let Conv2dOptions { stride, padding, dilation, groups } = options;
        let shape = ConvShape::new(x.shape(), weight.shape(), ConvOptions { stride, padding, dilation, groups })
            .map_err(|reason| call.error(reason))?;
        let outputs = shape.out_channels;
        call.require(bias.is_none_or(|bias| bias.shape() == [outputs]), || {
            format!("the bias needs shape [{outputs}]")
        })?;
        self.admit(&call, &[shape.batch, outputs, shape.out_height, shape.out_width])?;
        // The padded input, too, is made.
        self.admit(&call, &[shape.in_channels, shape.padded_height(), shape.padded_width()])?;
        let weight = weight.row_major();
        if !self.owns() {
            let padding = padding.map(|padding| (padding, padding));
            let options = BurnConvOptions { stride, padding, dilation, groups };
            return Ok(Tensor::float(Dispatch::conv2d(x.row_major(), weight, bias.map(Tensor::row_major), options)));
        }
        let layout = preferred_layout(&shape);
        let (x, bias) = (x.in_layout(layout), self.optional(bias));
        let out = vec![shape.batch, outputs, shape.out_height, shape.out_width];
        Ok(Tensor::deferred(out, layout, move |activation| {
            let convolution = Convolution { shape, layout, activation };
            Dispatch::omnilearn_conv2d(x.clone(), weight.clone(), bias.clone(), convolution)
        }))
    }

    fn max_pool2d(&mut self, x: &Tensor, options: Pool2dOptions) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("max-pool2d", &operands);
        call.floats()?;
        let shape = pool_shape(&call, x, options)?;
        if !self.owns() {
            let PoolShape { kernel, stride, padding, .. } = shape;
            let out = Dispatch::max_pool2d(x.row_major(), kernel, stride, padding, [1, 1], false);
            return Ok(Tensor::float(out));
        }
        let pooled = Dispatch::omnilearn_max_pool2d(x.primitive(), Pooling { shape, layout: x.layout() });
        Ok(pooled_image(pooled, &shape, x.layout()))
    }

    fn avg_pool2d(&mut self, x: &Tensor, options: Pool2dOptions) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("avg-pool2d", &operands);
        call.floats()?;
        let shape = pool_shape(&call, x, options)?;
        if !self.owns() {
            let PoolShape { kernel, stride, padding, .. } = shape;
            return Ok(Tensor::float(Dispatch::avg_pool2d(x.row_major(), kernel, stride, padding, false, false)));
        }
        let pooled = Dispatch::omnilearn_mean_pool2d(x.primitive(), Pooling { shape, layout: x.layout() });
        Ok(pooled_image(pooled, &shape, x.layout()))
    }

    fn global_avg_pool2d(&mut self, x: &Tensor) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("global-avg-pool2d", &operands);
        call.floats()?;
        let &[batch, channels, height, width] = x.shape() else { return Err(call.error("the input needs rank 4")) };
        if self.owns() {
            return Ok(Tensor::float(Dispatch::omnilearn_global_mean_pool2d(x.primitive(), x.layout())));
        }
        let flat = reshaped(x.row_major(), &[batch, channels, height * width]);
        Ok(Tensor::float(reshaped(Dispatch::float_mean_dim(flat, 2), &[batch, channels])))
    }

    fn batch_norm_train(
        &mut self,
        x: &Tensor,
        statistics: BatchNorm<'_, Tensor>,
        momentum: f32,
    ) -> OpResult<[Tensor; 3]> {
        let operands = [x, statistics.gamma, statistics.beta, statistics.running_mean, statistics.running_var];
        let call = Call::new("batch-norm-train", &operands);
        let channels = Self::check_norm(&call, x, &statistics)?;
        call.require((0.0..=1.0).contains(&momentum), || format!("momentum {momentum} is not in 0 to 1"))?;
        let count = x.elements() / channels;
        call.require(count > 1, || "a variance needs more than one element a channel".into())?;
        let (gamma, beta) = (statistics.gamma.row_major(), statistics.beta.row_major());
        let (out, mean, variance) = if self.owns() {
            let (mean, variance) = Dispatch::omnilearn_batch_statistics(x.primitive(), x.layout());
            let given = (mean.clone(), variance.clone());
            (self.normalised(x, given, (gamma, beta), statistics.epsilon, true), mean, variance)
        } else {
            let normalised = Dispatch::batch_norm_train(x.row_major(), gamma, beta, f64::from(statistics.epsilon));
            (Tensor::float(normalised.output), normalised.mean, normalised.variance)
        };
        let unbiased = count as f32 / (count - 1) as f32;
        let running = |running: &Tensor, batch: DispatchTensor, factor: f32| {
            let batch = Tensor::float(batch);
            let mixed = running.with_floats(|running| {
                batch.with_floats(|batch| {
                    let mix = |(&running, &batch): (&f32, &f32)| (1.0 - momentum) * running + momentum * factor * batch;
                    running.iter().zip(batch).map(mix).collect()
                })
            });
            self.floats(mixed, &[channels])
        };
        let mean = running(statistics.running_mean, mean, 1.0);
        let variance = running(statistics.running_var, variance, unbiased);
        Ok([out, mean, variance])
    }

    fn batch_norm_eval(&mut self, x: &Tensor, statistics: BatchNorm<'_, Tensor>) -> OpResult<Tensor> {
        let operands = [x, statistics.gamma, statistics.beta, statistics.running_mean, statistics.running_var];
        let call = Call::new("batch-norm-eval", &operands);
        let channels = Self::check_norm(&call, x, &statistics)?;
        let BatchNorm { gamma, beta, running_mean, running_var, epsilon } = statistics;
        // Given statistics are constants to our operator.
        if self.owns() && !running_mean.is_tracked() && !running_var.is_tracked() {
            let given = (running_mean.row_major(), running_var.row_major());
            return Ok(self.normalised(x, given, (gamma.row_major(), beta.row_major()), epsilon, false));
        }
        // scale = gamma / sqrt(variance + epsilon), out = (x - mean) scale + beta
        let variance = Dispatch::float_add_scalar(running_var.row_major(), epsilon.into());
        let scale = Dispatch::float_div(gamma.row_major(), Dispatch::float_sqrt(variance));
        let shape = channel_shape(x.shape().len(), channels);
        let centred = Dispatch::float_sub(x.row_major(), reshaped(running_mean.row_major(), &shape));
        let scaled = Dispatch::float_mul(centred, reshaped(scale, &shape));
        Ok(Tensor::float(Dispatch::float_add(scaled, reshaped(beta.row_major(), &shape))))
    }

    fn layer_norm(&mut self, x: &Tensor, gamma: &Tensor, beta: &Tensor, epsilon: f32) -> OpResult<Tensor> {
        let operands = [x, gamma, beta];
        let call = Call::new("layer-norm", &operands);
        call.floats()?;
        let features = *x.shape().last().ok_or_else(|| call.error("the input needs a dimension"))?;
        call.require(gamma.shape() == [features] && beta.shape() == [features], || {
            format!("scale and shift need shape [{features}]")
        })?;
        call.require(epsilon >= 0.0, || format!("epsilon {epsilon} is negative"))?;
        let (gamma, beta) = (gamma.row_major(), beta.row_major());
        if self.owns() {
            return Ok(Tensor::float(Dispatch::omnilearn_layer_norm(x.row_major(), gamma, beta, epsilon)));
        }
        let last = x.shape().len() - 1;
        let x = x.row_major();
        let centred = Dispatch::float_sub(x.clone(), Dispatch::float_mean_dim(x, last));
        let variance = Dispatch::float_mean_dim(Dispatch::float_mul(centred.clone(), centred.clone()), last);
        let deviation = Dispatch::float_sqrt(Dispatch::float_add_scalar(variance, epsilon.into()));
        let mut row = vec![1; last];
        row.push(features);
        let scaled = Dispatch::float_mul(Dispatch::float_div(centred, deviation), reshaped(gamma, &row));
        Ok(Tensor::float(Dispatch::float_add(scaled, reshaped(beta, &row))))
    }

    fn embedding(&mut self, table: &Tensor, indices: &Tensor) -> OpResult<Tensor> {
        let operands = [table, indices];
        let call = Call::new("embedding", &operands);
        call.require(table.dtype() == DType::F32 && indices.dtype() == DType::I32, || {
            "the table must be f32 and the indices i32".into()
        })?;
        let &[rows, features] = table.shape() else { return Err(call.error("the table needs rank 2")) };
        call.in_range("index", indices, rows)?;
        let shape: Vec<usize> = indices.shape().iter().copied().chain([features]).collect();
        self.admit(&call, &shape)?;
        if self.owns() {
            return Ok(Tensor::float(Dispatch::omnilearn_embedding(table.row_major(), indices.row_major())));
        }
        let flat = Dispatch::int_reshape(indices.row_major(), Shape::from(vec![indices.elements()]));
        Ok(Tensor::float(reshaped(Dispatch::float_select(table.row_major(), 0, flat), &shape)))
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("reshape", &operands);
        let elements = call.shape(shape, usize::MAX)?;
        call.require(elements == x.elements(), || format!("shape {shape:?} has {elements} elements"))?;
        Ok(match x.dtype() {
            DType::F32 => Tensor::float(reshaped(x.row_major(), shape)),
            DType::I32 => Tensor::int(Dispatch::int_reshape(x.row_major(), Shape::from(shape.to_vec()))),
        })
    }

    fn permute(&mut self, x: &Tensor, axes: &[usize]) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("permute", &operands);
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        call.require(sorted.into_iter().eq(0..x.shape().len()), || {
            format!("{axes:?} is not a permutation of its dimensions")
        })?;
        Ok(match x.dtype() {
            DType::F32 => Tensor::float(Dispatch::float_permute(x.row_major(), axes)),
            DType::I32 => Tensor::int(Dispatch::int_permute(x.row_major(), axes)),
        })
    }

    fn narrow(&mut self, x: &Tensor, dim: usize, start: usize, length: usize) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("narrow", &operands);
        let size = *x.shape().get(dim).ok_or_else(|| call.error(format!("there is no dimension {dim}")))?;
        let end = start.checked_add(length).filter(|&end| length > 0 && end <= size);
        let end = end.ok_or_else(|| call.error(format!("{length} elements from {start} on are not in 0..{size}")))?;
        let range = |(index, &size): (usize, &usize)| {
            let (start, end) = if index == dim { (start, end) } else { (0, size) };
            Slice::new(start as isize, Some(end as isize), 1)
        };
        let slices: Vec<Slice> = x.shape().iter().enumerate().map(range).collect();
        Ok(match x.dtype() {
            DType::F32 => Tensor::float(Dispatch::float_slice(x.row_major(), &slices)),
            DType::I32 => Tensor::int(Dispatch::int_slice(x.row_major(), &slices)),
        })
    }

    fn concat(&mut self, tensors: &[Tensor], dim: usize) -> OpResult<Tensor> {
        let operands: Vec<&Tensor> = tensors.iter().take(8).collect();
        let call = Call::new("concat", &operands);
        let [first, rest @ ..] = tensors else { return Err(call.error("there must be at least one tensor")) };
        call.require(dim < first.shape().len(), || format!("there is no dimension {dim}"))?;
        let fits = |tensor: &Tensor| {
            let sizes = tensor.shape().iter().zip(first.shape()).enumerate();
            tensor.dtype() == first.dtype()
                && tensor.shape().len() == first.shape().len()
                && sizes.into_iter().all(|(index, (a, b))| index == dim || a == b)
        };
        call.require(rest.iter().all(fits), || format!("shapes and types may differ in dimension {dim} only"))?;
        let mut shape = first.shape().to_vec();
        let total = tensors.iter().try_fold(0usize, |total, tensor| total.checked_add(tensor.shape()[dim]));
        shape[dim] = total.ok_or_else(|| call.error("the result is larger than allowed"))?;
        self.admit(&call, &shape)?;
        let primitives = tensors.iter().map(Tensor::row_major).collect();
        Ok(match first.dtype() {
            DType::F32 => Tensor::float(Dispatch::float_cat(primitives, dim)),
            DType::I32 => Tensor::int(Dispatch::int_cat(primitives, dim)),
        })
    }

    fn reduce(&mut self, reduction: Reduction, x: &Tensor, dims: &[usize]) -> OpResult<Tensor> {
        let operands = [x];
        let name = match reduction {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
        };
        let call = Call::new(name, &operands);
        call.floats()?;
        call.require(dims.iter().all(|&dim| dim < x.shape().len()), || format!("there are no dimensions {dims:?}"))?;
        let mut sum = x.row_major();
        let count: usize = if dims.is_empty() {
            sum = reshaped(Dispatch::float_sum(sum), &[1]);
            x.elements()
        } else {
            for &dim in dims {
                sum = Dispatch::float_sum_dim(sum, dim);
            }
            dims.iter().map(|&dim| x.shape()[dim]).product()
        };
        Ok(Tensor::float(match reduction {
            Reduction::Sum => sum,
            Reduction::Mean => Dispatch::float_mul_scalar(sum, (1.0 / count as f32).into()),
        }))
    }

    fn max(&mut self, x: &Tensor, dim: usize) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("max", &operands);
        call.floats()?;
        call.require(dim < x.shape().len(), || format!("there is no dimension {dim}"))?;
        Ok(Tensor::float(Dispatch::float_max_dim(x.row_major(), dim)))
    }

    fn argmax(&mut self, x: &Tensor, dim: usize) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("argmax", &operands);
        call.floats()?;
        call.require(dim < x.shape().len(), || format!("there is no dimension {dim}"))?;
        Ok(Tensor::int(Dispatch::float_argmax(x.constant(), dim, IntDType::I32)))
    }

    fn softmax(&mut self, x: &Tensor, dim: usize) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("softmax", &operands);
        call.floats()?;
        call.require(dim < x.shape().len(), || format!("there is no dimension {dim}"))?;
        Ok(Tensor::float(Dispatch::softmax(x.row_major(), dim)))
    }

    fn log_softmax(&mut self, x: &Tensor, dim: usize) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("log-softmax", &operands);
        call.floats()?;
        call.require(dim < x.shape().len(), || format!("there is no dimension {dim}"))?;
        Ok(Tensor::float(Dispatch::log_softmax(x.row_major(), dim)))
    }

    fn cross_entropy(&mut self, logits: &Tensor, targets: &Tensor) -> OpResult<Tensor> {
        let operands = [logits, targets];
        let call = Call::new("cross-entropy", &operands);
        call.require(logits.dtype() == DType::F32 && targets.dtype() == DType::I32, || {
            "logits must be f32 and targets i32".into()
        })?;
        let &[batch, classes] = logits.shape() else { return Err(call.error("logits need rank 2")) };
        call.require(targets.shape() == [batch], || format!("targets need shape [{batch}]"))?;
        call.in_range("target", targets, classes)?;
        if self.owns() {
            return Ok(Tensor::float(Dispatch::omnilearn_cross_entropy(logits.row_major(), targets.row_major())));
        }
        let log_probabilities = Dispatch::log_softmax(logits.row_major(), 1);
        let index = Dispatch::int_reshape(targets.row_major(), Shape::from(vec![batch, 1]));
        let sum = Dispatch::float_sum(Dispatch::float_gather(1, log_probabilities, index));
        Ok(Tensor::float(reshaped(Dispatch::float_mul_scalar(sum, (-1.0 / batch as f32).into()), &[1])))
    }

    fn gather(&mut self, x: &Tensor, dim: usize, index: &Tensor) -> OpResult<Tensor> {
        let operands = [x, index];
        let call = Call::new("gather", &operands);
        call.require(index.dtype() == DType::I32, || "the index must be i32".into())?;
        let rank = x.shape().len();
        call.require(dim < rank && index.shape().len() == rank, || {
            format!("self and index need one rank, with dimension {dim}")
        })?;
        let fits = (0..rank).all(|other| other == dim || index.shape()[other] <= x.shape()[other]);
        call.require(fits, || format!("the index may exceed self in dimension {dim} only"))?;
        let size = x.shape()[dim];
        call.in_range("index", index, size)?;
        self.admit(&call, index.shape())?;
        // Burn wants equal sizes in the other dimensions.
        let mut x = x.clone();
        for other in (0..rank).filter(|&other| other != dim) {
            if index.shape()[other] < x.shape()[other] {
                x = self.narrow(&x, other, 0, index.shape()[other])?;
            }
        }
        Ok(match x.dtype() {
            DType::F32 => Tensor::float(Dispatch::float_gather(dim, x.row_major(), index.row_major())),
            DType::I32 => Tensor::int(Dispatch::int_gather(dim, x.row_major(), index.row_major())),
        })
    }

    fn one_hot(&mut self, x: &Tensor, classes: usize) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("one-hot", &operands);
        call.require(x.dtype() == DType::I32, || "the operand must be i32".into())?;
        let mut shape = x.shape().to_vec();
        shape.push(classes);
        let elements = call.shape(&shape, self.elements_max)?;
        let mut values = vec![0.0; elements];
        x.with_ints(|classes_at| {
            for (row, &class) in values.chunks_exact_mut(classes).zip(classes_at) {
                if let Some(value) = usize::try_from(class).ok().and_then(|class| row.get_mut(class)) {
                    *value = 1.0;
                }
            }
        });
        Ok(self.floats(values, &shape))
    }

    fn equal(&mut self, a: &Tensor, b: &Tensor) -> OpResult<Tensor> {
        let operands = [a, b];
        let call = Call::new("equal", &operands);
        call.require(a.dtype() == b.dtype(), || "operands must have one element type".into())?;
        let shape = call.broadcast(a.shape(), b.shape())?;
        self.admit(&call, &shape)?;
        let expanded = Shape::from(shape.clone());
        // GPUs have no booleans of one byte.
        let bool_type = if self.is_cpu() { BoolDType::Native } else { BoolDType::U32 };
        let equal = match a.dtype() {
            DType::F32 => {
                let expand = |tensor: &Tensor| {
                    let constant = Tensor::float(tensor.constant());
                    Dispatch::float_expand(with_rank(&constant, shape.len()), expanded.clone())
                };
                Dispatch::float_equal(expand(a), expand(b), bool_type)
            }
            DType::I32 => {
                let expand = |tensor: &Tensor| Dispatch::int_expand(with_rank(tensor, shape.len()), expanded.clone());
                Dispatch::int_equal(expand(a), expand(b), bool_type)
            }
        };
        Ok(Tensor::float(Dispatch::bool_into_float(equal, FloatDType::F32)))
    }

    fn to_f32(&mut self, x: &Tensor) -> OpResult<Tensor> {
        Ok(match x.dtype() {
            DType::F32 => x.clone(),
            DType::I32 => Tensor::float(Dispatch::int_into_float(x.row_major(), FloatDType::F32)),
        })
    }

    fn dropout(&mut self, x: &Tensor, probability: f32, seed: u64) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("dropout", &operands);
        call.floats()?;
        call.require((0.0..1.0).contains(&probability), || {
            format!("probability {probability} is not in 0 to below 1")
        })?;
        if probability == 0.0 {
            return Ok(x.clone());
        }
        let mask = self.floats(dropout_mask(probability, seed, x.elements()), x.shape());
        Ok(Tensor::float(Dispatch::float_mul(x.row_major(), mask.row_major())))
    }

    fn detach(&mut self, x: &Tensor) -> OpResult<Tensor> {
        Ok(match x.dtype() {
            DType::F32 => x.detached(),
            DType::I32 => x.clone(),
        })
    }
}
