//! Layers for sequences.

use crate::{Builder, Initializer, Parameter, Pass, Tensor};

/// Added to the variance, as in PyTorch.
const EPSILON: f32 = 1e-5;

/// Normalises each row of the last dimension by its own mean and variance.
pub struct LayerNorm {
    gamma: Parameter,
    beta: Parameter,
}

impl LayerNorm {
    /// A layer with parameters `NAME.gamma` (ones) and `NAME.beta` (zeros) for rows of this size.
    pub fn new(build: &mut Builder, name: &str, features: u32) -> LayerNorm {
        build.scope(name, |build| LayerNorm {
            gamma: build.parameter("gamma", &[features], Initializer::Constant(1.0)),
            beta: build.parameter("beta", &[features], Initializer::Constant(0.0)),
        })
    }

    /// Applies the layer.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        x.layer_norm(pass.parameter(self.gamma), pass.parameter(self.beta), EPSILON)
    }
}

/// A row of a table for each index: `[..] -> [.., features]`.
pub struct Embedding {
    table: Parameter,
}

impl Embedding {
    /// A table with the parameter `NAME.table`, `[rows, features]`, drawn from a normal distribution of deviation 0.02.
    pub fn new(build: &mut Builder, name: &str, rows: u32, features: u32) -> Embedding {
        build.scope(name, |build| Embedding {
            table: build.parameter("table", &[rows, features], Initializer::Normal(0.02)),
        })
    }

    /// Looks the indices up, an `i32` tensor of any shape.
    pub fn forward(&self, indices: &Tensor, pass: &Pass) -> Tensor {
        pass.parameter(self.table).embedding(indices)
    }
}
