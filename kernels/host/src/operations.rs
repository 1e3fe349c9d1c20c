//! Every operation of the tensor interface: finds the operands, checks dimensions and room, and lets the backend compute.

use std::time::Instant;

use wasmtime::Result;
use wasmtime::component::Resource;

use crate::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpError, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
};
use crate::bindings::Handle;
use crate::bindings::omnilearn::kernel::tensor as wit;
use crate::handles::{Held, RANK_MAX};
use crate::sizes;
use crate::state::State;

type Tensor = Resource<Handle>;

fn misuse(operation: &'static str, operands: String, reason: impl Into<String>) -> wasmtime::Error {
    OpError { operation, operands, reason: reason.into() }.into()
}

fn pair((height, width): (u32, u32)) -> [usize; 2] {
    [height as usize, width as usize]
}

impl From<wit::Conv2dOptions> for Conv2dOptions {
    fn from(options: wit::Conv2dOptions) -> Self {
        let wit::Conv2dOptions { stride, padding, dilation, groups } = options;
        Conv2dOptions {
            stride: pair(stride),
            padding: pair(padding),
            dilation: pair(dilation),
            groups: groups as usize,
        }
    }
}

impl From<wit::Pool2dOptions> for Pool2dOptions {
    fn from(options: wit::Pool2dOptions) -> Self {
        let wit::Pool2dOptions { kernel, stride, padding } = options;
        Pool2dOptions { kernel: pair(kernel), stride: pair(stride), padding: pair(padding) }
    }
}

/// A shape that a kernel asks for: rank 1 to 6, no dimension of zero.
fn requested_shape(operation: &'static str, shape: &[u32]) -> Result<Vec<usize>> {
    if shape.is_empty() || shape.len() > RANK_MAX {
        let shown = &shape[..shape.len().min(RANK_MAX + 1)];
        return Err(misuse(
            operation,
            format!("shape {shown:?}"),
            format!("rank is {}, not in 1..={RANK_MAX}", shape.len()),
        ));
    }
    if shape.contains(&0) {
        return Err(misuse(operation, format!("shape {shape:?}"), "a dimension is 0"));
    }
    Ok(shape.iter().map(|&dimension| dimension as usize).collect())
}

/// Counts a dimension from the front.
fn dimension<T>(operation: &'static str, x: &Held<T>, dim: i32) -> Result<usize> {
    let rank = x.shape.len() as i64;
    let from_front = if dim < 0 { i64::from(dim) + rank } else { dim.into() };
    if (0..rank).contains(&from_front) {
        Ok(from_front as usize)
    } else {
        Err(misuse(operation, x.name(), format!("there is no dimension {dim}")))
    }
}

impl<B: TensorBackend> State<B> {
    fn held(&self, x: &Tensor) -> Result<&Held<B::Tensor>> {
        Ok(self.handles.get(x)?)
    }

    fn elements(&self, x: &Tensor) -> Result<u64> {
        Ok(sizes::elements(&self.held(x)?.shape))
    }

    fn unary(&mut self, operation: &'static str, op: Unary, x: Tensor) -> Result<Tensor> {
        let elements = self.elements(&x)?;
        self.operate(operation, elements, |backend, handles| Ok(backend.unary(op, &handles.get(&x)?.tensor)?))
    }

    fn scalar(&mut self, operation: &'static str, op: Scalar, x: Tensor) -> Result<Tensor> {
        let elements = self.elements(&x)?;
        self.operate(operation, elements, |backend, handles| Ok(backend.scalar(op, &handles.get(&x)?.tensor)?))
    }

    fn binary(&mut self, operation: &'static str, op: Binary, a: Tensor, b: Tensor) -> Result<Tensor> {
        let elements = sizes::broadcast(&self.held(&a)?.shape, &self.held(&b)?.shape);
        self.operate(operation, elements, |backend, handles| {
            Ok(backend.binary(op, &handles.get(&a)?.tensor, &handles.get(&b)?.tensor)?)
        })
    }

    fn reduce(&mut self, operation: &'static str, reduction: Reduction, x: Tensor, dims: Vec<i32>) -> Result<Tensor> {
        let held = self.held(&x)?;
        if dims.len() > held.shape.len() {
            return Err(misuse(operation, held.name(), format!("{} dimensions are named", dims.len())));
        }
        let mut front = dims.iter().map(|&dim| dimension(operation, held, dim)).collect::<Result<Vec<_>>>()?;
        front.sort_unstable();
        if front.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(misuse(operation, held.name(), format!("a dimension of {dims:?} is named twice")));
        }
        self.operate(operation, 1, |backend, handles| {
            Ok(backend.reduce(reduction, &handles.get(&x)?.tensor, &front)?)
        })
    }

    /// An operation along one dimension that makes at most as many elements as it gets.
    fn along(
        &mut self,
        operation: &'static str,
        x: Tensor,
        dim: i32,
        compute: impl FnOnce(&mut B, &B::Tensor, usize) -> Result<B::Tensor, OpError>,
    ) -> Result<Tensor> {
        let held = self.held(&x)?;
        let (dim, elements) = (dimension(operation, held, dim)?, sizes::elements(&held.shape));
        self.operate(operation, elements, |backend, handles| Ok(compute(backend, &handles.get(&x)?.tensor, dim)?))
    }
}

impl<B: TensorBackend> wit::Host for State<B> {}

impl<B: TensorBackend> wit::HostTensor for State<B> {
    fn from_f32(&mut self, values: Vec<f32>, shape: Vec<u32>) -> Result<Tensor> {
        let shape = created_shape("from-f32", "f32", values.len(), &shape)?;
        self.operate("from-f32", values.len() as u64, |backend, _| Ok(backend.from_f32(values, &shape)?))
    }

    fn from_i32(&mut self, values: Vec<i32>, shape: Vec<u32>) -> Result<Tensor> {
        let shape = created_shape("from-i32", "i32", values.len(), &shape)?;
        self.operate("from-i32", values.len() as u64, |backend, _| Ok(backend.from_i32(values, &shape)?))
    }

    fn full(&mut self, value: f32, shape: Vec<u32>) -> Result<Tensor> {
        let shape = requested_shape("full", &shape)?;
        self.operate("full", sizes::elements(&shape), |backend, _| Ok(backend.full(value, &shape)?))
    }

    fn shape(&mut self, x: Tensor) -> Result<Vec<u32>> {
        Ok(self.held(&x)?.shape.iter().map(|&dimension| dimension as u32).collect())
    }

    fn dtype(&mut self, x: Tensor) -> Result<wit::Dtype> {
        Ok(match self.held(&x)?.dtype {
            DType::F32 => wit::Dtype::F32,
            DType::I32 => wit::Dtype::I32,
        })
    }

    fn add(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary("add", Binary::Add, a, b)
    }

    fn sub(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary("sub", Binary::Sub, a, b)
    }

    fn mul(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary("mul", Binary::Mul, a, b)
    }

    fn div(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary("div", Binary::Div, a, b)
    }

    fn add_scalar(&mut self, x: Tensor, value: f32) -> Result<Tensor> {
        self.scalar("add-scalar", Scalar::Add(value), x)
    }

    fn mul_scalar(&mut self, x: Tensor, value: f32) -> Result<Tensor> {
        self.scalar("mul-scalar", Scalar::Mul(value), x)
    }

    fn pow_scalar(&mut self, x: Tensor, exponent: f32) -> Result<Tensor> {
        self.scalar("pow-scalar", Scalar::Pow(exponent), x)
    }

    fn clamp(&mut self, x: Tensor, low: f32, high: f32) -> Result<Tensor> {
        if low > high || low.is_nan() || high.is_nan() {
            return Err(misuse("clamp", self.held(&x)?.name(), format!("low is {low} and high is {high}")));
        }
        self.scalar("clamp", Scalar::Clamp(low, high), x)
    }

    fn neg(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("neg", Unary::Neg, x)
    }

    fn abs(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("abs", Unary::Abs, x)
    }

    fn exp(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("exp", Unary::Exp, x)
    }

    fn log(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("log", Unary::Log, x)
    }

    fn sqrt(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("sqrt", Unary::Sqrt, x)
    }

    fn relu(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("relu", Unary::Relu, x)
    }

    fn sigmoid(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("sigmoid", Unary::Sigmoid, x)
    }

    fn tanh(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("tanh", Unary::Tanh, x)
    }

    fn gelu(&mut self, x: Tensor) -> Result<Tensor> {
        self.unary("gelu", Unary::Gelu, x)
    }

    fn matmul(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        let elements = sizes::matmul(&self.held(&a)?.shape, &self.held(&b)?.shape);
        self.operate("matmul", elements, |backend, handles| {
            Ok(backend.matmul(&handles.get(&a)?.tensor, &handles.get(&b)?.tensor)?)
        })
    }

    fn linear(&mut self, x: Tensor, weight: Tensor, bias: Option<Tensor>) -> Result<Tensor> {
        let elements = sizes::linear(&self.held(&x)?.shape, &self.held(&weight)?.shape);
        self.operate("linear", elements, |backend, handles| {
            let bias = bias.as_ref().map(|bias| handles.get(bias)).transpose()?;
            Ok(backend.linear(
                &handles.get(&x)?.tensor,
                &handles.get(&weight)?.tensor,
                bias.map(|bias| &bias.tensor),
            )?)
        })
    }

    fn conv2d(
        &mut self,
        x: Tensor,
        weight: Tensor,
        bias: Option<Tensor>,
        options: wit::Conv2dOptions,
    ) -> Result<Tensor> {
        let options = Conv2dOptions::from(options);
        let (held, filter) = (self.held(&x)?, self.held(&weight)?);
        if options.stride.contains(&0) || options.dilation.contains(&0) || options.groups == 0 {
            return Err(misuse(
                "conv2d",
                format!("{} and {}", held.name(), filter.name()),
                format!("{options:?} has a zero"),
            ));
        }
        let elements = sizes::conv2d(&held.shape, &filter.shape, &options);
        self.operate("conv2d", elements, |backend, handles| {
            let bias = bias.as_ref().map(|bias| handles.get(bias)).transpose()?;
            Ok(backend.conv2d(
                &handles.get(&x)?.tensor,
                &handles.get(&weight)?.tensor,
                bias.map(|bias| &bias.tensor),
                options,
            )?)
        })
    }

    fn max_pool2d(&mut self, x: Tensor, options: wit::Pool2dOptions) -> Result<Tensor> {
        let options = pool_options("max-pool2d", self.held(&x)?, options)?;
        let elements = sizes::pool2d(&self.held(&x)?.shape, &options);
        self.operate("max-pool2d", elements, |backend, handles| {
            Ok(backend.max_pool2d(&handles.get(&x)?.tensor, options)?)
        })
    }

    fn avg_pool2d(&mut self, x: Tensor, options: wit::Pool2dOptions) -> Result<Tensor> {
        let options = pool_options("avg-pool2d", self.held(&x)?, options)?;
        let elements = sizes::pool2d(&self.held(&x)?.shape, &options);
        self.operate("avg-pool2d", elements, |backend, handles| {
            Ok(backend.avg_pool2d(&handles.get(&x)?.tensor, options)?)
        })
    }

    fn global_avg_pool2d(&mut self, x: Tensor) -> Result<Tensor> {
        self.operate(
            "global-avg-pool2d",
            1,
            |backend, handles| Ok(backend.global_avg_pool2d(&handles.get(&x)?.tensor)?),
        )
    }

    fn batch_norm_train(
        &mut self,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: f32,
        epsilon: f32,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        const OPERATION: &str = "batch-norm-train";
        let elements = self.elements(&x)?;
        self.handles.check_room(OPERATION, elements)?;
        self.operation = OPERATION;
        let began = Instant::now();
        let handles = &self.handles;
        let statistics = BatchNorm {
            gamma: &handles.get(&gamma)?.tensor,
            beta: &handles.get(&beta)?.tensor,
            running_mean: &handles.get(&running_mean)?.tensor,
            running_var: &handles.get(&running_var)?.tensor,
            epsilon,
        };
        let [y, mean, var] = self.backend.batch_norm_train(&handles.get(&x)?.tensor, statistics, momentum)?;
        self.clock.operation_ended(OPERATION, began)?;
        Ok((self.hold(OPERATION, y)?, self.hold(OPERATION, mean)?, self.hold(OPERATION, var)?))
    }

    fn batch_norm_eval(
        &mut self,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        epsilon: f32,
    ) -> Result<Tensor> {
        let elements = self.elements(&x)?;
        self.operate("batch-norm-eval", elements, |backend, handles| {
            let statistics = BatchNorm {
                gamma: &handles.get(&gamma)?.tensor,
                beta: &handles.get(&beta)?.tensor,
                running_mean: &handles.get(&running_mean)?.tensor,
                running_var: &handles.get(&running_var)?.tensor,
                epsilon,
            };
            Ok(backend.batch_norm_eval(&handles.get(&x)?.tensor, statistics)?)
        })
    }

    fn layer_norm(&mut self, x: Tensor, gamma: Tensor, beta: Tensor, epsilon: f32) -> Result<Tensor> {
        let elements = self.elements(&x)?;
        self.operate("layer-norm", elements, |backend, handles| {
            let (gamma, beta) = (&handles.get(&gamma)?.tensor, &handles.get(&beta)?.tensor);
            Ok(backend.layer_norm(&handles.get(&x)?.tensor, gamma, beta, epsilon)?)
        })
    }

    fn embedding(&mut self, table: Tensor, indices: Tensor) -> Result<Tensor> {
        let elements = sizes::embedding(&self.held(&table)?.shape, &self.held(&indices)?.shape);
        self.operate("embedding", elements, |backend, handles| {
            Ok(backend.embedding(&handles.get(&table)?.tensor, &handles.get(&indices)?.tensor)?)
        })
    }

    fn reshape(&mut self, x: Tensor, shape: Vec<u32>) -> Result<Tensor> {
        let shape = requested_shape("reshape", &shape)?;
        let held = self.held(&x)?;
        let elements = sizes::elements(&held.shape);
        if sizes::elements(&shape) != elements {
            return Err(misuse("reshape", held.name(), format!("shape {shape:?} has another number of elements")));
        }
        self.operate("reshape", elements, |backend, handles| Ok(backend.reshape(&handles.get(&x)?.tensor, &shape)?))
    }

    fn permute(&mut self, x: Tensor, axes: Vec<u32>) -> Result<Tensor> {
        let held = self.held(&x)?;
        let rank = held.shape.len();
        let axes: Vec<usize> = axes.into_iter().take(RANK_MAX + 1).map(|axis| axis as usize).collect();
        if axes.len() != rank || !(0..rank).all(|axis| axes.contains(&axis)) {
            return Err(misuse("permute", held.name(), format!("axes {axes:?} are no permutation of 0..{rank}")));
        }
        let elements = sizes::elements(&held.shape);
        self.operate("permute", elements, |backend, handles| Ok(backend.permute(&handles.get(&x)?.tensor, &axes)?))
    }

    fn narrow(&mut self, x: Tensor, dim: i32, start: u32, length: u32) -> Result<Tensor> {
        let held = self.held(&x)?;
        let size = held.shape[dimension("narrow", held, dim)?];
        if length == 0 || start as usize + length as usize > size {
            return Err(misuse(
                "narrow",
                held.name(),
                format!("there are no elements {start} .. {start} + {length} along dimension {dim}"),
            ));
        }
        self.along("narrow", x, dim, |backend, x, dim| backend.narrow(x, dim, start as usize, length as usize))
    }

    fn concat(&mut self, tensors: Vec<Tensor>, dim: i32) -> Result<Tensor> {
        let Some(first) = tensors.first() else {
            return Err(misuse("concat", "no tensors".to_owned(), "it takes at least one"));
        };
        let dim = dimension("concat", self.held(first)?, dim)?;
        let mut elements = 0u64;
        for tensor in &tensors {
            elements = elements.saturating_add(self.elements(tensor)?);
        }
        self.operate("concat", elements, |backend, handles| {
            let tensors =
                tensors.iter().map(|tensor| Ok(handles.get(tensor)?.tensor.clone())).collect::<Result<Vec<_>>>()?;
            Ok(backend.concat(&tensors, dim)?)
        })
    }

    fn sum(&mut self, x: Tensor, dims: Vec<i32>) -> Result<Tensor> {
        self.reduce("sum", Reduction::Sum, x, dims)
    }

    fn mean(&mut self, x: Tensor, dims: Vec<i32>) -> Result<Tensor> {
        self.reduce("mean", Reduction::Mean, x, dims)
    }

    fn max(&mut self, x: Tensor, dim: i32) -> Result<Tensor> {
        self.along("max", x, dim, B::max)
    }

    fn argmax(&mut self, x: Tensor, dim: i32) -> Result<Tensor> {
        self.along("argmax", x, dim, B::argmax)
    }

    fn softmax(&mut self, x: Tensor, dim: i32) -> Result<Tensor> {
        self.along("softmax", x, dim, B::softmax)
    }

    fn log_softmax(&mut self, x: Tensor, dim: i32) -> Result<Tensor> {
        self.along("log-softmax", x, dim, B::log_softmax)
    }

    fn cross_entropy(&mut self, logits: Tensor, targets: Tensor) -> Result<Tensor> {
        self.operate("cross-entropy", 1, |backend, handles| {
            Ok(backend.cross_entropy(&handles.get(&logits)?.tensor, &handles.get(&targets)?.tensor)?)
        })
    }

    fn gather(&mut self, x: Tensor, dim: i32, index: Tensor) -> Result<Tensor> {
        let dim = dimension("gather", self.held(&x)?, dim)?;
        let elements = self.elements(&index)?;
        self.operate("gather", elements, |backend, handles| {
            Ok(backend.gather(&handles.get(&x)?.tensor, dim, &handles.get(&index)?.tensor)?)
        })
    }

    fn one_hot(&mut self, x: Tensor, classes: u32) -> Result<Tensor> {
        let held = self.held(&x)?;
        if classes == 0 || held.shape.len() == RANK_MAX {
            return Err(misuse(
                "one-hot",
                held.name(),
                format!("{classes} classes as one more dimension, of at most {RANK_MAX}"),
            ));
        }
        let elements = sizes::elements(&held.shape).saturating_mul(classes.into());
        self.operate("one-hot", elements, |backend, handles| {
            Ok(backend.one_hot(&handles.get(&x)?.tensor, classes as usize)?)
        })
    }

    fn equal(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        let elements = sizes::broadcast(&self.held(&a)?.shape, &self.held(&b)?.shape);
        self.operate("equal", elements, |backend, handles| {
            Ok(backend.equal(&handles.get(&a)?.tensor, &handles.get(&b)?.tensor)?)
        })
    }

    fn to_f32(&mut self, x: Tensor) -> Result<Tensor> {
        let elements = self.elements(&x)?;
        self.operate("to-f32", elements, |backend, handles| Ok(backend.to_f32(&handles.get(&x)?.tensor)?))
    }

    fn dropout(&mut self, x: Tensor, probability: f32, seed: u64) -> Result<Tensor> {
        let held = self.held(&x)?;
        if !(0.0..1.0).contains(&probability) {
            return Err(misuse("dropout", held.name(), format!("probability is {probability}, not in [0, 1)")));
        }
        let elements = sizes::elements(&held.shape);
        self.operate("dropout", elements, |backend, handles| {
            Ok(backend.dropout(&handles.get(&x)?.tensor, probability, seed)?)
        })
    }

    fn detach(&mut self, x: Tensor) -> Result<Tensor> {
        let elements = self.elements(&x)?;
        self.operate("detach", elements, |backend, handles| Ok(backend.detach(&handles.get(&x)?.tensor)?))
    }

    fn drop(&mut self, x: Tensor) -> Result<()> {
        self.handles.remove(&x);
        Ok(())
    }
}

fn created_shape(operation: &'static str, dtype: &str, values: usize, shape: &[u32]) -> Result<Vec<usize>> {
    let shape = requested_shape(operation, shape)?;
    if sizes::elements(&shape) != values as u64 {
        return Err(misuse(
            operation,
            format!("{values} {dtype} values"),
            format!("shape {shape:?} has another number of elements"),
        ));
    }
    Ok(shape)
}

fn pool_options<T>(operation: &'static str, x: &Held<T>, options: wit::Pool2dOptions) -> Result<Pool2dOptions> {
    let options = Pool2dOptions::from(options);
    if options.kernel.contains(&0) || options.stride.contains(&0) {
        return Err(misuse(operation, x.name(), format!("{options:?} has a zero")));
    }
    Ok(options)
}
