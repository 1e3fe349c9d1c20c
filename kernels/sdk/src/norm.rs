//! Batch normalisation.

use crate::{Buffer, Builder, Initializer, Merge, Parameter, Pass, Tensor};

/// Share of a step's batch statistics in the running statistics, as in PyTorch.
const MOMENTUM: f32 = 0.1;
/// Added to the variance, as in PyTorch.
const EPSILON: f32 = 1e-5;

/// Normalises each channel of `[batch, channels, height, width]` by the batch's statistics in training and by the
/// running ones otherwise. Agents' running statistics are averaged by their samples.
pub struct BatchNorm2d {
    gamma: Parameter,
    beta: Parameter,
    running_mean: Buffer,
    running_var: Buffer,
}

impl BatchNorm2d {
    /// A layer with parameters `NAME.gamma` (ones) and `NAME.beta` (zeros).
    pub fn new(build: &mut Builder, name: &str, channels: u32) -> BatchNorm2d {
        build.scope(name, |build| BatchNorm2d {
            gamma: build.parameter("gamma", &[channels], Initializer::Constant(1.0)),
            beta: build.parameter("beta", &[channels], Initializer::Constant(0.0)),
            running_mean: build.buffer("running_mean", &[channels], 0.0, Merge::MeanBySamples),
            running_var: build.buffer("running_var", &[channels], 1.0, Merge::MeanBySamples),
        })
    }

    /// Applies the layer; in training, also updates its running statistics.
    pub fn forward(&self, x: &Tensor, pass: &mut Pass) -> Tensor {
        let (gamma, beta) = (pass.parameter(self.gamma), pass.parameter(self.beta));
        let (mean, var) = (pass.buffer(self.running_mean), pass.buffer(self.running_var));
        if !pass.training() {
            return x.batch_norm_eval(gamma, beta, mean, var, EPSILON);
        }
        let (y, mean, var) = x.batch_norm_train(gamma, beta, mean, var, MOMENTUM, EPSILON);
        pass.set_buffer(self.running_mean, mean);
        pass.set_buffer(self.running_var, var);
        y
    }
}
