//! The operations of `wit/kernel.wit` on the engine's tensors.
//!
//! Everything is checked here first, because Burn panics on misuse and a kernel is not to bring its agent down.

use burn::backend::ops::{ActivationOps, BoolTensorOps, FloatTensorOps, IntTensorOps, ModuleOps};
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{BoolDType, FloatDType, IntDType, Shape, Slice};
use omnilearn_kernel_host::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpResult, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
};
use omnilearn_wire::sampling::SplitMix64;

use super::check::Call;
use super::cpu::CpuOperators;
use super::shape::{ConvShape, PoolShape};
use super::{Engine, Operators, Tensor};

/// What Burn's CPU backend calls its boolean tensors.
const BOOL: BoolDType = BoolDType::Native;

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

fn reshaped(tensor: DispatchTensor, shape: &[usize]) -> DispatchTensor {
    Dispatch::float_reshape(tensor, Shape::from(shape.to_vec()))
}

/// The primitive with leading dimensions of 1, up to this rank.
fn with_rank(tensor: &Tensor, rank: usize) -> DispatchTensor {
    let missing = rank - tensor.shape().len();
    if missing == 0 {
        return tensor.primitive.clone();
    }
    let shape: Vec<usize> = std::iter::repeat_n(1, missing).chain(tensor.shape().iter().copied()).collect();
    match tensor.dtype() {
        DType::F32 => reshaped(tensor.primitive.clone(), &shape),
        DType::I32 => Dispatch::int_reshape(tensor.primitive.clone(), Shape::from(shape)),
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
        tensor.map_or_else(|| self.nothing.clone(), |tensor| tensor.primitive.clone())
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
        let x = x.primitive.clone();
        Ok(Tensor::float(match op {
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
        let (a, b) = (with_rank(a, shape.len()), with_rank(b, shape.len()));
        Ok(Tensor::float(match op {
            Binary::Add => Dispatch::float_add(a, b),
            Binary::Sub => Dispatch::float_sub(a, b),
            Binary::Mul => Dispatch::float_mul(a, b),
            Binary::Div => Dispatch::float_div(a, b),
        }))
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
        let x = x.primitive.clone();
        Ok(Tensor::float(match op {
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
        let (&[batch, inputs], &[weight_inputs, outputs]) = (x.shape(), weight.shape()) else {
            return Err(call.error("input and weight need rank 2"));
        };
        call.require(inputs == weight_inputs, || {
            format!("the input has {inputs} features, the weight {weight_inputs}")
        })?;
        call.require(bias.is_none_or(|bias| bias.shape() == [outputs]), || {
            format!("the bias needs shape [{outputs}]")
        })?;
        self.admit(&call, &[batch, outputs])?;
        let (x, weight) = (x.primitive.clone(), weight.primitive.clone());
        Ok(Tensor::float(if self.owns() {
            Dispatch::omnilearn_linear(x, weight, self.optional(bias))
        } else {
            Dispatch::linear(x, weight, bias.map(|bias| bias.primitive.clone()))
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
        let shape = ConvShape::new(x.shape(), weight.shape(), options).map_err(|reason| call.error(reason))?;
        let outputs = shape.out_channels;
        call.require(bias.is_none_or(|bias| bias.shape() == [outputs]), || {
            format!("the bias needs shape [{outputs}]")
        })?;
        self.admit(&call, &[shape.batch, outputs, shape.out_height, shape.out_width])?;
        // The padded input, too, is made.
        self.admit(&call, &[shape.in_channels, shape.padded_height(), shape.padded_width()])?;
        let (x, weight) = (x.primitive.clone(), weight.primitive.clone());
        Ok(Tensor::float(if self.owns() {
            Dispatch::omnilearn_conv2d(x, weight, self.optional(bias), shape)
        } else {
            let padding = shape.padding.map(|padding| (padding, padding));
            let options = ConvOptions { stride: shape.stride, padding, dilation: shape.dilation, groups: shape.groups };
            Dispatch::conv2d(x, weight, bias.map(|bias| bias.primitive.clone()), options)
        }))
    }

    fn max_pool2d(&mut self, x: &Tensor, options: Pool2dOptions) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("max-pool2d", &operands);
        call.floats()?;
        let shape = PoolShape::new(x.shape(), options).map_err(|reason| call.error(reason))?;
        self.admit(&call, &[shape.batch, shape.channels, shape.out_height, shape.out_width])?;
        let x = x.primitive.clone();
        Ok(Tensor::float(if self.owns() {
            Dispatch::omnilearn_max_pool2d(x, shape)
        } else {
            Dispatch::max_pool2d(x, shape.kernel, shape.stride, shape.padding, [1, 1], false)
        }))
    }

    fn avg_pool2d(&mut self, x: &Tensor, options: Pool2dOptions) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("avg-pool2d", &operands);
        call.floats()?;
        let shape = PoolShape::new(x.shape(), options).map_err(|reason| call.error(reason))?;
        self.admit(&call, &[shape.batch, shape.channels, shape.out_height, shape.out_width])?;
        Ok(Tensor::float(Dispatch::avg_pool2d(
            x.primitive.clone(),
            shape.kernel,
            shape.stride,
            shape.padding,
            false,
            false,
        )))
    }

    fn global_avg_pool2d(&mut self, x: &Tensor) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("global-avg-pool2d", &operands);
        call.floats()?;
        let &[batch, channels, height, width] = x.shape() else { return Err(call.error("the input needs rank 4")) };
        let flat = reshaped(x.primitive.clone(), &[batch, channels, height * width]);
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
        let operands = (x.primitive.clone(), statistics.gamma.primitive.clone(), statistics.beta.primitive.clone());
        let (out, mean, variance) = if self.owns() {
            Dispatch::omnilearn_batch_norm(operands.0, operands.1, operands.2, statistics.epsilon)
        } else {
            let normalised =
                Dispatch::batch_norm_train(operands.0, operands.1, operands.2, f64::from(statistics.epsilon));
            (normalised.output, normalised.mean, normalised.variance)
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
        Ok([Tensor::float(out), mean, variance])
    }

    fn batch_norm_eval(&mut self, x: &Tensor, statistics: BatchNorm<'_, Tensor>) -> OpResult<Tensor> {
        let operands = [x, statistics.gamma, statistics.beta, statistics.running_mean, statistics.running_var];
        let call = Call::new("batch-norm-eval", &operands);
        let channels = Self::check_norm(&call, x, &statistics)?;
        // scale = gamma / sqrt(variance + epsilon), out = (x - mean) scale + beta
        let variance = Dispatch::float_add_scalar(statistics.running_var.primitive.clone(), statistics.epsilon.into());
        let scale = Dispatch::float_div(statistics.gamma.primitive.clone(), Dispatch::float_sqrt(variance));
        let shape = channel_shape(x.shape().len(), channels);
        let centred =
            Dispatch::float_sub(x.primitive.clone(), reshaped(statistics.running_mean.primitive.clone(), &shape));
        let scaled = Dispatch::float_mul(centred, reshaped(scale, &shape));
        Ok(Tensor::float(Dispatch::float_add(scaled, reshaped(statistics.beta.primitive.clone(), &shape))))
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("reshape", &operands);
        let elements = call.shape(shape, usize::MAX)?;
        call.require(elements == x.elements(), || format!("shape {shape:?} has {elements} elements"))?;
        Ok(match x.dtype() {
            DType::F32 => Tensor::float(reshaped(x.primitive.clone(), shape)),
            DType::I32 => Tensor::int(Dispatch::int_reshape(x.primitive.clone(), Shape::from(shape.to_vec()))),
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
            DType::F32 => Tensor::float(Dispatch::float_permute(x.primitive.clone(), axes)),
            DType::I32 => Tensor::int(Dispatch::int_permute(x.primitive.clone(), axes)),
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
            DType::F32 => Tensor::float(Dispatch::float_slice(x.primitive.clone(), &slices)),
            DType::I32 => Tensor::int(Dispatch::int_slice(x.primitive.clone(), &slices)),
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
        let primitives = tensors.iter().map(|tensor| tensor.primitive.clone()).collect();
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
        let mut sum = x.primitive.clone();
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
        Ok(Tensor::float(Dispatch::float_max_dim(x.primitive.clone(), dim)))
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
        Ok(Tensor::float(Dispatch::softmax(x.primitive.clone(), dim)))
    }

    fn log_softmax(&mut self, x: &Tensor, dim: usize) -> OpResult<Tensor> {
        let operands = [x];
        let call = Call::new("log-softmax", &operands);
        call.floats()?;
        call.require(dim < x.shape().len(), || format!("there is no dimension {dim}"))?;
        Ok(Tensor::float(Dispatch::log_softmax(x.primitive.clone(), dim)))
    }

    fn cross_entropy(&mut self, logits: &Tensor, targets: &Tensor) -> OpResult<Tensor> {
        let operands = [logits, targets];
        let call = Call::new("cross-entropy", &operands);
        call.require(logits.dtype() == DType::F32 && targets.dtype() == DType::I32, || {
            "logits must be f32 and targets i32".into()
        })?;
        let &[batch, classes] = logits.shape() else { return Err(call.error("logits need rank 2")) };
        call.require(targets.shape() == [batch], || format!("targets need shape [{batch}]"))?;
        let outside =
            |targets: &[i32]| targets.iter().copied().find(|&target| target < 0 || target as usize >= classes);
        if let Some(target) = targets.with_ints(outside) {
            return Err(call.error(format!("target {target} is not in 0..{classes}")));
        }
        if self.owns() {
            return Ok(Tensor::float(Dispatch::omnilearn_cross_entropy(
                logits.primitive.clone(),
                targets.primitive.clone(),
            )));
        }
        let log_probabilities = Dispatch::log_softmax(logits.primitive.clone(), 1);
        let index = Dispatch::int_reshape(targets.primitive.clone(), Shape::from(vec![batch, 1]));
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
        let outside = |index: &[i32]| index.iter().copied().find(|&index| index < 0 || index as usize >= size);
        if let Some(index) = index.with_ints(outside) {
            return Err(call.error(format!("index {index} is not in 0..{size}")));
        }
        self.admit(&call, index.shape())?;
        // Burn wants equal sizes in the other dimensions.
        let mut x = x.clone();
        for other in (0..rank).filter(|&other| other != dim) {
            if index.shape()[other] < x.shape()[other] {
                x = self.narrow(&x, other, 0, index.shape()[other])?;
            }
        }
        Ok(match x.dtype() {
            DType::F32 => Tensor::float(Dispatch::float_gather(dim, x.primitive, index.primitive.clone())),
            DType::I32 => Tensor::int(Dispatch::int_gather(dim, x.primitive, index.primitive.clone())),
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
        let equal = match a.dtype() {
            DType::F32 => {
                let expand = |tensor: &Tensor| {
                    let constant = Tensor::float(tensor.constant());
                    Dispatch::float_expand(with_rank(&constant, shape.len()), expanded.clone())
                };
                Dispatch::float_equal(expand(a), expand(b), BOOL)
            }
            DType::I32 => {
                let expand = |tensor: &Tensor| Dispatch::int_expand(with_rank(tensor, shape.len()), expanded.clone());
                Dispatch::int_equal(expand(a), expand(b), BOOL)
            }
        };
        Ok(Tensor::float(Dispatch::bool_into_float(equal, FloatDType::F32)))
    }

    fn to_f32(&mut self, x: &Tensor) -> OpResult<Tensor> {
        Ok(match x.dtype() {
            DType::F32 => x.clone(),
            DType::I32 => Tensor::float(Dispatch::int_into_float(x.primitive.clone(), FloatDType::F32)),
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
        let keep = 1.0 / (1.0 - probability);
        let mut generator = SplitMix64::new(seed);
        // The upper 24 bits as a number in 0 to below 1, exact in f32.
        let mut uniform = || (generator.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
        let mask = (0..x.elements()).map(|_| if uniform() < probability { 0.0 } else { keep }).collect();
        let mask = self.floats(mask, x.shape());
        Ok(Tensor::float(Dispatch::float_mul(x.primitive.clone(), mask.primitive)))
    }

    fn detach(&mut self, x: &Tensor) -> OpResult<Tensor> {
        Ok(match x.dtype() {
            DType::F32 => Tensor::float(x.constant()),
            DType::I32 => x.clone(),
        })
    }
}
