//! Batch normalisation.

use crate::{Buffer, Builder, Initializer, Merge, Parameter, Pass, Tensor};

/// Share of a step's batch statistics in the running statistics, as in PyTorch.
const MOMENTUM: f32 = 0.1;
/// Added to the variance, as in PyTorch.
const EPSILON: f32 = 1e-5;

/// Normalises each channel of `[batch, channels, height, width]` by the batch's statistics in training and by the
/// running ones otherwise. Agents' running statistics are averaged by their samples.
pub struct BatchNorm2d {
    weight: Parameter,
    bias: Parameter,
    running_mean: Buffer,
    running_var: Buffer,
}

impl BatchNorm2d {
    /// A layer with parameters `NAME.weight` (ones) and `NAME.bias` (zeros).
    pub fn new(build: &mut Builder, name: &str, channels: u32) -> BatchNorm2d {
        build.scope(name, |build| BatchNorm2d {
            weight: build.parameter("weight", &[channels], Initializer::Constant(1.0)),
            bias: build.parameter("bias", &[channels], Initializer::Constant(0.0)),
            running_mean: build.buffer("running_mean", &[channels], 0.0, Merge::MeanBySamples),
            running_var: build.buffer("running_var", &[channels], 1.0, Merge::MeanBySamples),
        })
    }

    /// Applies the layer; in training, also updates its running statistics.
    pub fn forward(&self, x: &Tensor, pass: &mut Pass) -> Tensor {
        let (weight, bias) = (pass.parameter(self.weight), pass.parameter(self.bias));
        let (mean, var) = (pass.buffer(self.running_mean), pass.buffer(self.running_var));
        if !pass.training() {
            return x.batch_norm_eval(weight, bias, mean, var, EPSILON);
        }
        let (y, mean, var) = x.batch_norm_train(weight, bias, mean, var, MOMENTUM, EPSILON);
        pass.set_buffer(self.running_mean, mean);
        pass.set_buffer(self.running_var, var);
        y
    }
}
