//! Convolution, in the two layouts of images.

pub mod channels_last;
pub mod planes;

use super::buffer::Buffer;
use super::layout::Layout;
use super::shape::ConvShape;

/// Fewest output channels for which pixels' channels fill vectors well.
const CHANNELS_LAST_FROM: usize = 32;

/// Fewest output pixels of a batch for which bringing the weight into another order pays.
const CHANNELS_LAST_PIXELS: usize = 128;

/// The layout in which this convolution is fastest.
pub fn preferred_layout(shape: &ConvShape) -> Layout {
    let wide = shape.out_channels >= CHANNELS_LAST_FROM && shape.out_channels.is_multiple_of(16);
    let many = shape.batch * shape.out_pixels() >= CHANNELS_LAST_PIXELS;
    if wide && many && (shape.groups == 1 || shape.is_depthwise()) { Layout::ChannelsLast } else { Layout::Planes }
}

/// Gradients of input, weight and bias, where wanted.
pub struct Gradients {
    /// Of the input, in its layout.
    pub x: Option<Buffer>,
    /// Of the weight, `[out, in / groups, height, width]`.
    pub weight: Option<Buffer>,
    /// Of the bias.
    pub bias: Option<Buffer>,
}

/// Which gradients are to be computed.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The input's.
    pub x: bool,
    /// The weight's.
    pub weight: bool,
    /// The bias's.
    pub bias: bool,
}
