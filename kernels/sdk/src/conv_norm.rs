//! Convolution with the batch normalisation that follows it.

use crate::{BatchNorm2d, Builder, Conv2d, Conv2dConfig, Pass, Tensor};

/// A convolution without bias, then batch normalisation.
///
/// ```ignore
/// let stem = Conv2d::new(3, 64, 3).padding(1).build_with_norm(build, "conv1", "bn1");
/// ```
pub struct ConvNorm2d {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl ConvNorm2d {
    /// Applies both; in training, also updates the running statistics.
    pub fn forward(&self, x: &Tensor, pass: &mut Pass) -> Tensor {
        let x = self.conv.forward(x, pass);
        self.norm.forward(&x, pass)
    }
}

impl Conv2dConfig {
    /// Names the parameters of a convolution without bias and of the normalisation of its output.
    pub fn build_with_norm(self, build: &mut Builder, conv: &str, norm: &str) -> ConvNorm2d {
        let channels = self.outputs();
        ConvNorm2d { conv: self.no_bias().build(build, conv), norm: BatchNorm2d::new(build, norm, channels) }
    }
}
