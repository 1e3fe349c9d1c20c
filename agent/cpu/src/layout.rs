//! The two layouts of images.

use super::buffer::Buffer;
use super::scratch::transpose;
use super::threads::{for_each, parts, split};

/// How images lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, channels, height, width]`
    #[default]
    Planes,
    /// `[batch, height, width, channels]`
    ChannelsLast,
}

impl Layout {
    /// The one that this is not.
    #[must_use]
    pub fn other(self) -> Layout {
        match self {
            Layout::Planes => Layout::ChannelsLast,
            Layout::ChannelsLast => Layout::Planes,
        }
    }
}

/// The same images in the other layout than `from`.
pub fn exchanged(from: Layout, channels: usize, pixels: usize, x: &[f32]) -> Buffer {
    let (rows, columns) = match from {
        Layout::Planes => (channels, pixels),
        Layout::ChannelsLast => (pixels, channels),
    };
    let mut out = Buffer::new(x.len());
    let sample = channels * pixels;
    for_each(split(&mut out, sample, &parts(x.len() / sample, 2 * x.len())), |(first, out)| {
        let samples = x[first * sample..].chunks_exact(sample);
        for (x, out) in samples.zip(out.chunks_exact_mut(sample)) {
            transpose(x, columns, out, rows);
        }
    });
    out
}
