//! The backend of those who describe kernels and never compute.

use std::convert::Infallible;

use crate::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpError, OpResult, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
};

/// Refuses every operation: there are no tensors here.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTensors;

fn refuse<T>(operation: &'static str) -> OpResult<T> {
    Err(OpError {
        operation,
        operands: "anything".to_owned(),
        reason: "this kernel is only described here, not computed".to_owned(),
    })
}

macro_rules! refuse {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $operation:literal;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> OpResult<$result> {
            refuse($operation)
        })*
    };
}

impl TensorBackend for NoTensors {
    type Tensor = Infallible;

    fn shape(&self, x: &Infallible) -> Vec<usize> {
        match *x {}
    }

    fn dtype(&self, x: &Infallible) -> DType {
        match *x {}
    }

    refuse! {
        from_f32(_values: Vec<f32>, _shape: &[usize]) -> Infallible, "from-f32";
        from_i32(_values: Vec<i32>, _shape: &[usize]) -> Infallible, "from-i32";
        full(_value: f32, _shape: &[usize]) -> Infallible, "full";
        unary(_op: Unary, _x: &Infallible) -> Infallible, "unary";
        binary(_op: Binary, _a: &Infallible, _b: &Infallible) -> Infallible, "binary";
        scalar(_op: Scalar, _x: &Infallible) -> Infallible, "scalar";
        matmul(_a: &Infallible, _b: &Infallible) -> Infallible, "matmul";
        linear(_x: &Infallible, _weight: &Infallible, _bias: Option<&Infallible>) -> Infallible, "linear";
        conv2d(_x: &Infallible, _weight: &Infallible, _bias: Option<&Infallible>, _options: Conv2dOptions) -> Infallible, "conv2d";
        max_pool2d(_x: &Infallible, _options: Pool2dOptions) -> Infallible, "max-pool2d";
        avg_pool2d(_x: &Infallible, _options: Pool2dOptions) -> Infallible, "avg-pool2d";
        global_avg_pool2d(_x: &Infallible) -> Infallible, "global-avg-pool2d";
        batch_norm_train(_x: &Infallible, _statistics: BatchNorm<'_, Infallible>, _momentum: f32) -> [Infallible; 3], "batch-norm-train";
        batch_norm_eval(_x: &Infallible, _statistics: BatchNorm<'_, Infallible>) -> Infallible, "batch-norm-eval";
        layer_norm(_x: &Infallible, _gamma: &Infallible, _beta: &Infallible, _epsilon: f32) -> Infallible, "layer-norm";
        embedding(_table: &Infallible, _indices: &Infallible) -> Infallible, "embedding";
        reshape(_x: &Infallible, _shape: &[usize]) -> Infallible, "reshape";
        permute(_x: &Infallible, _axes: &[usize]) -> Infallible, "permute";
        narrow(_x: &Infallible, _dim: usize, _start: usize, _length: usize) -> Infallible, "narrow";
        concat(_tensors: &[Infallible], _dim: usize) -> Infallible, "concat";
        reduce(_reduction: Reduction, _x: &Infallible, _dims: &[usize]) -> Infallible, "reduce";
        max(_x: &Infallible, _dim: usize) -> Infallible, "max";
        argmax(_x: &Infallible, _dim: usize) -> Infallible, "argmax";
        softmax(_x: &Infallible, _dim: usize) -> Infallible, "softmax";
        log_softmax(_x: &Infallible, _dim: usize) -> Infallible, "log-softmax";
        cross_entropy(_logits: &Infallible, _targets: &Infallible) -> Infallible, "cross-entropy";
        gather(_x: &Infallible, _dim: usize, _index: &Infallible) -> Infallible, "gather";
        one_hot(_x: &Infallible, _classes: usize) -> Infallible, "one-hot";
        equal(_a: &Infallible, _b: &Infallible) -> Infallible, "equal";
        to_f32(_x: &Infallible) -> Infallible, "to-f32";
        dropout(_x: &Infallible, _probability: f32, _seed: u64) -> Infallible, "dropout";
        detach(_x: &Infallible) -> Infallible, "detach";
    }
}
