//! Pooling: the maximum or the mean of each window, per channel.

mod channels_last;
mod mean;
mod planes;

use crate::buffer::Buffer;
use crate::layout::Layout;
use crate::shape::PoolShape;

pub use self::mean::{global_mean_backward, global_mean_forward, mean_backward, mean_forward};

/// What [`max_backward`] needs of the forward pass beside the input.
#[derive(Clone, Debug)]
pub enum Saved {
    /// Where in its window each maximum was; nothing where the windows lie side by side.
    Taps(Vec<u16>),
    /// The output.
    Output,
}

/// Maximum of each window. Not-a-number wins and stays, so that it is noticed.
pub fn max_forward(shape: &PoolShape, layout: Layout, x: &[f32]) -> (Buffer, Saved) {
    match layout {
        Layout::Planes => {
            let (out, taps) = planes::max_forward(shape, x);
            (out, Saved::Taps(taps))
        }
        Layout::ChannelsLast => (channels_last::max_forward(shape, x), Saved::Output),
    }
}

/// The gradient of the input `x` of [`max_forward`], whose output was `out`: each window's goes to its first largest pixel.
pub fn max_backward(shape: &PoolShape, x: &[f32], out: &[f32], saved: &Saved, gradient: &[f32]) -> Buffer {
    match saved {
        Saved::Taps(taps) => planes::max_backward(shape, x, taps, gradient),
        Saved::Output => channels_last::max_backward(shape, x, out, gradient),
    }
}
