//! An operation with its parameters, applied on any backend.

use omnilearn_kernel_host::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpResult, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
};

/// An operation of the tensor interface, with everything but its tensors.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "named as in wit/kernel.wit")]
pub enum Operation {
    FromF32,
    FromI32,
    Full(f32, Vec<usize>),
    Shape,
    DType,
    Unary(Unary),
    Binary(Binary),
    Scalar(Scalar),
    Matmul,
    Linear,
    Conv2d(Conv2dOptions),
    MaxPool2d(Pool2dOptions),
    AvgPool2d(Pool2dOptions),
    GlobalAvgPool2d,
    BatchNormTrain { momentum: f32, epsilon: f32 },
    BatchNormEval { epsilon: f32 },
    LayerNorm { epsilon: f32 },
    Embedding,
    Reshape(Vec<usize>),
    Permute(Vec<usize>),
    Narrow { dim: usize, start: usize, length: usize },
    Concat(usize),
    Reduce(Reduction, Vec<usize>),
    Max(usize),
    Argmax(usize),
    Softmax(usize),
    LogSoftmax(usize),
    CrossEntropy,
    Gather(usize),
    OneHot(usize),
    Equal,
    ToF32,
    Dropout { probability: f32, seed: u64 },
    Detach,
}

impl Operation {
    /// Its name in `wit/kernel.wit`.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::FromF32 => "from-f32",
            Operation::FromI32 => "from-i32",
            Operation::Full(..) => "full",
            Operation::Shape => "shape",
            Operation::DType => "dtype",
            Operation::Unary(Unary::Neg) => "neg",
            Operation::Unary(Unary::Abs) => "abs",
            Operation::Unary(Unary::Exp) => "exp",
            Operation::Unary(Unary::Log) => "log",
            Operation::Unary(Unary::Sqrt) => "sqrt",
            Operation::Unary(Unary::Relu) => "relu",
            Operation::Unary(Unary::Sigmoid) => "sigmoid",
            Operation::Unary(Unary::Tanh) => "tanh",
            Operation::Unary(Unary::Gelu) => "gelu",
            Operation::Binary(Binary::Add) => "add",
            Operation::Binary(Binary::Sub) => "sub",
            Operation::Binary(Binary::Mul) => "mul",
            Operation::Binary(Binary::Div) => "div",
            Operation::Scalar(Scalar::Add(_)) => "add-scalar",
            Operation::Scalar(Scalar::Mul(_)) => "mul-scalar",
            Operation::Scalar(Scalar::Pow(_)) => "pow-scalar",
            Operation::Scalar(Scalar::Clamp(..)) => "clamp",
            Operation::Matmul => "matmul",
            Operation::Linear => "linear",
            Operation::Conv2d(_) => "conv2d",
            Operation::MaxPool2d(_) => "max-pool2d",
            Operation::AvgPool2d(_) => "avg-pool2d",
            Operation::GlobalAvgPool2d => "global-avg-pool2d",
            Operation::BatchNormTrain { .. } => "batch-norm-train",
            Operation::BatchNormEval { .. } => "batch-norm-eval",
            Operation::LayerNorm { .. } => "layer-norm",
            Operation::Embedding => "embedding",
            Operation::Reshape(_) => "reshape",
            Operation::Permute(_) => "permute",
            Operation::Narrow { .. } => "narrow",
            Operation::Concat(_) => "concat",
            Operation::Reduce(Reduction::Sum, _) => "sum",
            Operation::Reduce(Reduction::Mean, _) => "mean",
            Operation::Max(_) => "max",
            Operation::Argmax(_) => "argmax",
            Operation::Softmax(_) => "softmax",
            Operation::LogSoftmax(_) => "log-softmax",
            Operation::CrossEntropy => "cross-entropy",
            Operation::Gather(_) => "gather",
            Operation::OneHot(_) => "one-hot",
            Operation::Equal => "equal",
            Operation::ToF32 => "to-f32",
            Operation::Dropout { .. } => "dropout",
            Operation::Detach => "detach",
        }
    }

    /// How many of its results, from the first on, pass gradients on.
    pub(super) fn results_with_gradient(&self) -> usize {
        match self {
            Operation::FromF32
            | Operation::FromI32
            | Operation::Full(..)
            | Operation::Shape
            | Operation::DType
            | Operation::Argmax(_)
            | Operation::OneHot(_)
            | Operation::Equal
            | Operation::ToF32
            | Operation::Detach => 0,
            _ => 1,
        }
    }

    /// Whether the interface gives no gradient to this operand: running statistics.
    pub(super) fn is_constant(&self, operand: usize) -> bool {
        match self {
            Operation::BatchNormTrain { .. } | Operation::BatchNormEval { .. } => operand >= 3,
            _ => false,
        }
    }

    /// Its results.
    pub(super) fn apply<B: TensorBackend>(&self, backend: &mut B, operands: &[B::Tensor]) -> OpResult<Vec<B::Tensor>> {
        let x = &operands[0];
        let statistics = |epsilon| BatchNorm {
            gamma: &operands[1],
            beta: &operands[2],
            running_mean: &operands[3],
            running_var: &operands[4],
            epsilon,
        };
        let result = match self {
            Operation::FromF32 => backend.from_f32(vec![0.5, -2.0, 3.0, 0.0, 1.0, 7.0], &[2, 3]),
            Operation::FromI32 => backend.from_i32(vec![5, -2, i32::MAX], &[3, 1]),
            Operation::Full(value, shape) => backend.full(*value, shape),
            Operation::Shape => {
                let shape = backend.shape(x).into_iter().map(|size| size as i32).collect::<Vec<_>>();
                backend.from_i32(shape.clone(), &[shape.len()])
            }
            Operation::DType => {
                let types = operands.iter().map(|operand| i32::from(backend.dtype(operand) == DType::F32)).collect();
                backend.from_i32(types, &[operands.len()])
            }
            Operation::Unary(op) => backend.unary(*op, x),
            Operation::Binary(op) => backend.binary(*op, x, &operands[1]),
            Operation::Scalar(op) => backend.scalar(*op, x),
            Operation::Matmul => backend.matmul(x, &operands[1]),
            Operation::Linear => backend.linear(x, &operands[1], operands.get(2)),
            Operation::Conv2d(options) => backend.conv2d(x, &operands[1], operands.get(2), *options),
            Operation::MaxPool2d(options) => backend.max_pool2d(x, *options),
            Operation::AvgPool2d(options) => backend.avg_pool2d(x, *options),
            Operation::GlobalAvgPool2d => backend.global_avg_pool2d(x),
            Operation::BatchNormTrain { momentum, epsilon } => {
                return backend.batch_norm_train(x, statistics(*epsilon), *momentum).map(Vec::from);
            }
            Operation::BatchNormEval { epsilon } => backend.batch_norm_eval(x, statistics(*epsilon)),
            Operation::LayerNorm { epsilon } => backend.layer_norm(x, &operands[1], &operands[2], *epsilon),
            Operation::Embedding => backend.embedding(x, &operands[1]),
            Operation::Reshape(shape) => backend.reshape(x, shape),
            Operation::Permute(axes) => backend.permute(x, axes),
            Operation::Narrow { dim, start, length } => backend.narrow(x, *dim, *start, *length),
            Operation::Concat(dim) => backend.concat(operands, *dim),
            Operation::Reduce(reduction, dims) => backend.reduce(*reduction, x, dims),
            Operation::Max(dim) => backend.max(x, *dim),
            Operation::Argmax(dim) => backend.argmax(x, *dim),
            Operation::Softmax(dim) => backend.softmax(x, *dim),
            Operation::LogSoftmax(dim) => backend.log_softmax(x, *dim),
            Operation::CrossEntropy => backend.cross_entropy(x, &operands[1]),
            Operation::Gather(dim) => backend.gather(x, *dim, &operands[1]),
            Operation::OneHot(classes) => backend.one_hot(x, *classes),
            Operation::Equal => backend.equal(x, &operands[1]),
            Operation::ToF32 => backend.to_f32(x),
            Operation::Dropout { probability, seed } => backend.dropout(x, *probability, *seed),
            Operation::Detach => backend.detach(x),
        };
        result.map(|result| vec![result])
    }
}
