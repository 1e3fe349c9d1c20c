//! Convolution.

use crate::initial::Fan;
use crate::{Builder, Conv2dOptions, Initial, Parameter, Pass, Tensor};

/// `[batch, inputs, height, width] -> [batch, outputs, height', width']` with a square filter.
///
/// ```ignore
/// let conv = Conv2d::new(1, 6, 5).padding(2).build(build, "conv1");
/// ```
pub struct Conv2d {
    weight: Parameter,
    bias: Option<Parameter>,
    options: Conv2dOptions,
}

/// A convolution that has no name yet.
pub struct Conv2dConfig {
    inputs: u32,
    outputs: u32,
    kernel: u32,
    bias: bool,
    initial: Initial,
    options: Conv2dOptions,
}

impl Conv2d {
    /// A convolution with filters of `kernel` by `kernel` pixels, stride 1, no padding, and a bias, which start
    /// as [`Initial::FanIn`] says.
    #[expect(clippy::new_ret_no_self, reason = "a builder reads best when it starts at the layer's own name")]
    pub fn new(inputs: u32, outputs: u32, kernel: u32) -> Conv2dConfig {
        let options = Conv2dOptions { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 1 };
        Conv2dConfig { inputs, outputs, kernel, bias: true, initial: Initial::FanIn, options }
    }

    /// Applies the layer.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        x.conv2d(pass.parameter(self.weight), self.bias.map(|bias| pass.parameter(bias)), self.options)
    }
}

impl Conv2dConfig {
    /// Step of the filter, in pixels.
    pub fn stride(mut self, stride: u32) -> Self {
        self.options.stride = (stride, stride);
        self
    }

    /// Zero pixels on all sides.
    pub fn padding(mut self, padding: u32) -> Self {
        self.options.padding = (padding, padding);
        self
    }

    /// Distance between filter taps, in pixels.
    pub fn dilation(mut self, dilation: u32) -> Self {
        self.options.dilation = (dilation, dilation);
        self
    }

    /// Number of channel groups; divides inputs and outputs.
    pub fn groups(mut self, groups: u32) -> Self {
        self.options.groups = groups;
        self
    }

    /// Leaves the bias out, for a convolution that a normalisation follows.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// Other first values.
    pub fn initial(mut self, initial: Initial) -> Self {
        self.initial = initial;
        self
    }

    /// Channels that come out.
    pub(crate) fn outputs(&self) -> u32 {
        self.outputs
    }

    /// Names the parameters, `NAME.weight` and `NAME.bias`.
    pub fn build(self, build: &mut Builder, name: &str) -> Conv2d {
        let Conv2dConfig { inputs, outputs, kernel, bias, initial, options } = self;
        let inputs_per_group = inputs / options.groups;
        let area = u64::from(kernel) * u64::from(kernel);
        let fan = Fan { inputs: u64::from(inputs_per_group) * area, outputs: u64::from(outputs) * area };
        build.scope(name, |build| Conv2d {
            weight: build.parameter("weight", &[outputs, inputs_per_group, kernel, kernel], initial.weight(fan)),
            bias: bias.then(|| build.parameter("bias", &[outputs], initial.bias(fan))),
            options,
        })
    }
}
