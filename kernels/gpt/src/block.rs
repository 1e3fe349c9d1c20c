//! One layer of the transformer.

use omnilearn_kernel_sdk::LinearConfig;
use omnilearn_kernel_sdk::prelude::*;

use crate::DEVIATION;
use crate::attention::Attention;

/// What all layers have in common.
pub(crate) struct Shape {
    pub(crate) width: u32,
    pub(crate) heads: u32,
    pub(crate) layers: u32,
    pub(crate) dropout: f32,
}

impl Shape {
    pub(crate) fn linear(&self, inputs: u32, outputs: u32) -> LinearConfig {
        Linear::new(inputs, outputs).initial(Initial::Normal(DEVIATION))
    }

    /// A layer whose output is added to what passes by: two in each block, so that their sum does not grow with the depth.
    pub(crate) fn residual(&self, inputs: u32, outputs: u32) -> LinearConfig {
        Linear::new(inputs, outputs).initial(Initial::Normal(DEVIATION / (2.0 * self.layers as f32).sqrt()))
    }
}

/// Attention and a perceptron, each after a normalisation and added to its own input.
pub(crate) struct Block {
    attention_norm: LayerNorm,
    attention: Attention,
    perceptron_norm: LayerNorm,
    perceptron: Perceptron,
}

impl Block {
    pub(crate) fn new(build: &mut Builder, shape: &Shape) -> Block {
        Block {
            attention_norm: LayerNorm::new(build, "ln_1", shape.width),
            attention: build.scope("attn", |build| Attention::new(build, shape)),
            perceptron_norm: LayerNorm::new(build, "ln_2", shape.width),
            perceptron: build.scope("mlp", |build| Perceptron::new(build, shape)),
        }
    }

    pub(crate) fn forward(&self, x: Tensor, mask: &Tensor, pass: &mut Pass) -> Tensor {
        let y = self.attention_norm.forward(&x, pass);
        let x = x.add(&self.attention.forward(&y, mask, pass));
        let y = self.perceptron_norm.forward(&x, pass);
        x.add(&self.perceptron.forward(&y, pass))
    }
}

/// One hidden layer of four times the width.
struct Perceptron {
    hidden: Linear,
    projection: Linear,
    dropout: Dropout,
}

impl Perceptron {
    fn new(build: &mut Builder, shape: &Shape) -> Perceptron {
        Perceptron {
            hidden: shape.linear(shape.width, 4 * shape.width).build(build, "c_fc"),
            projection: shape.residual(4 * shape.width, shape.width).build(build, "c_proj"),
            dropout: Dropout::new(shape.dropout),
        }
    }

    fn forward(&self, x: &Tensor, pass: &mut Pass) -> Tensor {
        let x = self.hidden.forward(x, pass).gelu();
        let x = self.projection.forward(&x, pass);
        self.dropout.forward(x, pass)
    }
}
