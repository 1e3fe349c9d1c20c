//! Fully connected layer.

use crate::builder::by_fan_in;
use crate::{Builder, Parameter, Pass, Tensor};

/// `x W + b`: `[batch, inputs] -> [batch, outputs]`; the weight is `[inputs, outputs]`.
pub struct Linear {
    weight: Parameter,
    bias: Parameter,
}

impl Linear {
    /// A layer with parameters `NAME.weight` and `NAME.bias`, drawn within `1 / sqrt(inputs)`.
    pub fn new(build: &mut Builder, name: &str, inputs: u32, outputs: u32) -> Linear {
        build.scope(name, |build| Linear {
            weight: build.parameter("weight", &[inputs, outputs], by_fan_in(inputs.into())),
            bias: build.parameter("bias", &[outputs], by_fan_in(inputs.into())),
        })
    }

    /// Applies the layer.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        x.linear(pass.parameter(self.weight), Some(pass.parameter(self.bias)))
    }
}
