//! Layers for sequences.

use crate::linear::linear;
use crate::{Builder, Initializer, Parameter, Pass, Tensor};

/// Added to the variance, as in PyTorch.
const EPSILON: f32 = 1e-5;

/// Normalises each row of the last dimension by its own mean and variance.
pub struct LayerNorm {
    weight: Parameter,
    bias: Parameter,
}

impl LayerNorm {
    /// A layer with parameters `NAME.weight` (ones) and `NAME.bias` (zeros) for rows of this size.
    pub fn new(build: &mut Builder, name: &str, features: u32) -> LayerNorm {
        build.scope(name, |build| LayerNorm {
            weight: build.parameter("weight", &[features], Initializer::Constant(1.0)),
            bias: build.parameter("bias", &[features], Initializer::Constant(0.0)),
        })
    }

    /// Applies the layer.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        x.layer_norm(pass.parameter(self.weight), pass.parameter(self.bias), EPSILON)
    }
}

/// A row of a table for each index: `[..] -> [.., features]`.
///
/// ```ignore
/// let embedding = Embedding::new(256, 64).build(build, "embedding");
/// ```
pub struct Embedding {
    weight: Parameter,
}

/// A table that has no name yet.
pub struct EmbeddingConfig {
    rows: u32,
    features: u32,
    deviation: f32,
}

impl Embedding {
    /// A table whose elements are drawn from a normal distribution of deviation 1, PyTorch's default.
    #[expect(clippy::new_ret_no_self, reason = "a builder reads best when it starts at the layer's own name")]
    pub fn new(rows: u32, features: u32) -> EmbeddingConfig {
        EmbeddingConfig { rows, features, deviation: 1.0 }
    }

    /// Looks the indices up, an `i32` tensor of any shape.
    pub fn forward(&self, indices: &Tensor, pass: &Pass) -> Tensor {
        pass.parameter(self.weight).embedding(indices)
    }

    /// The table itself, `[rows, features]`: the rows of all indices in order.
    pub fn weight<'a>(&self, pass: &'a Pass) -> &'a Tensor {
        pass.parameter(self.weight)
    }

    /// Products with every row, `[.., features] -> [.., rows]`: the head of a language model that shares its embedding.
    pub fn scores(&self, x: &Tensor, pass: &Pass) -> Tensor {
        linear(x, pass.parameter(self.weight), None)
    }
}

impl EmbeddingConfig {
    /// Another standard deviation of the first values.
    pub fn deviation(mut self, deviation: f32) -> Self {
        self.deviation = deviation;
        self
    }

    /// Names the parameter `NAME.weight`, `[rows, features]`.
    pub fn build(self, build: &mut Builder, name: &str) -> Embedding {
        let EmbeddingConfig { rows, features, deviation } = self;
        build.scope(name, |build| Embedding {
            weight: build.parameter("weight", &[rows, features], Initializer::Normal(deviation)),
        })
    }
}
