//! Fully connected layer.

use crate::initial::Fan;
use crate::{Builder, Initial, Parameter, Pass, Tensor};

/// `x W^T + b`: `[.., inputs] -> [.., outputs]`; the weight is `[outputs, inputs]`, as in PyTorch.
///
/// ```ignore
/// let head = Linear::new(512, 10).build(build, "fc");
/// ```
pub struct Linear {
    weight: Parameter,
    bias: Option<Parameter>,
}

/// A fully connected layer that has no name yet.
pub struct LinearConfig {
    inputs: u32,
    outputs: u32,
    bias: bool,
    initial: Initial,
}

impl Linear {
    /// A layer with a bias that starts as [`Initial::FanIn`] says.
    #[expect(clippy::new_ret_no_self, reason = "a builder reads best when it starts at the layer's own name")]
    pub fn new(inputs: u32, outputs: u32) -> LinearConfig {
        LinearConfig { inputs, outputs, bias: true, initial: Initial::FanIn }
    }

    /// Applies the layer to each row of the last dimension.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        linear(x, pass.parameter(self.weight), self.bias.map(|bias| pass.parameter(bias)))
    }
}

impl LinearConfig {
    /// Leaves the bias out.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// Other first values.
    pub fn initial(mut self, initial: Initial) -> Self {
        self.initial = initial;
        self
    }

    /// Names the parameters, `NAME.weight` and `NAME.bias`.
    pub fn build(self, build: &mut Builder, name: &str) -> Linear {
        let LinearConfig { inputs, outputs, bias, initial } = self;
        let fan = Fan { inputs: inputs.into(), outputs: outputs.into() };
        build.scope(name, |build| Linear {
            weight: build.parameter("weight", &[outputs, inputs], initial.weight(fan)),
            bias: bias.then(|| build.parameter("bias", &[outputs], initial.bias(fan))),
        })
    }
}

/// `x W^T + b` for any rank from 2 on: the operation itself takes `[batch, inputs]` only.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let mut shape = x.shape();
    if shape.len() <= 2 {
        return x.linear(weight, bias);
    }
    let features = shape.pop().unwrap_or(1);
    let rows = shape.iter().product();
    let y = x.reshape(&[rows, features]).linear(weight, bias); // [rows, outputs]
    shape.push(y.shape()[1]);
    y.reshape(&shape)
}
