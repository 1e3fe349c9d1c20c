//! One kind of convolution that a model has.

use omnilearn_kernel_host::backend::Conv2dOptions;

/// A square convolution on square images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Channels in.
    pub inputs: usize,
    /// Channels out.
    pub outputs: usize,
    /// Height and width of its input.
    pub size: usize,
    /// Height and width of its kernel.
    pub kernel: usize,
    /// Step, in pixels.
    pub stride: usize,
    /// Zero pixels on each side.
    pub padding: usize,
}

impl Convolution {
    /// Height and width of its output.
    pub fn out_size(&self) -> usize {
        (self.size + 2 * self.padding - self.kernel) / self.stride + 1
    }

    /// Floating-point operations of one pass, forward or either gradient, computed directly: `2 N Co Ci k² Ho Wo`.
    pub fn flop(&self, batch: usize) -> f64 {
        let taps = self.inputs * self.kernel * self.kernel;
        2.0 * batch as f64 * self.outputs as f64 * taps as f64 * (self.out_size() * self.out_size()) as f64
    }

    /// Its geometry.
    pub fn options(&self) -> Conv2dOptions {
        options(self.stride, self.padding)
    }
}

/// Geometry of a square convolution without dilation and groups.
pub fn options(stride: usize, padding: usize) -> Conv2dOptions {
    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 }
}
