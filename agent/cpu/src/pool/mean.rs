//! Pooling by the mean, over windows and over whole planes.

use crate::buffer::Buffer;
use crate::elementwise::sum_plane;
use crate::layout::Layout;
use crate::shape::PoolShape;
use crate::threads::{for_each, parts, split};

/// Calls `visit(output element, input element, 1 / pixels of the window that are no padding)` for some samples.
#[inline(always)]
fn windows(shape: &PoolShape, layout: Layout, samples: usize, mut visit: impl FnMut(usize, usize, f32)) {
    let (pixels, out_pixels, channels) = (shape.in_pixels(), shape.out_pixels(), shape.channels);
    for sample in 0..samples {
        for output in 0..out_pixels {
            let mut count = 0;
            shape.window(output, |_, _| count += 1);
            let inverse = 1.0 / count as f32;
            shape.window(output, |_, pixel| {
                for channel in 0..channels {
                    let (out, input) = match layout {
                        Layout::Planes => {
                            let plane = sample * channels + channel;
                            (plane * out_pixels + output, plane * pixels + pixel)
                        }
                        Layout::ChannelsLast => (
                            (sample * out_pixels + output) * channels + channel,
                            (sample * pixels + pixel) * channels + channel,
                        ),
                    };
                    visit(out, input, inverse);
                }
            });
        }
    }
}

/// Mean of each window, over the pixels that are no padding.
pub fn mean_forward(shape: &PoolShape, layout: Layout, x: &[f32]) -> Buffer {
    let (sample, out_sample) = (shape.channels * shape.in_pixels(), shape.channels * shape.out_pixels());
    let mut out = Buffer::zeroed(shape.batch * out_sample);
    for_each(split(&mut out, out_sample, &parts(shape.batch, x.len())), |(first, out)| {
        let x = &x[first * sample..];
        windows(shape, layout, out.len() / out_sample, |output, input, inverse| out[output] += x[input] * inverse);
    });
    out
}

/// The gradient of the input of [`mean_forward`].
pub fn mean_backward(shape: &PoolShape, layout: Layout, gradient: &[f32]) -> Buffer {
    let (sample, out_sample) = (shape.channels * shape.in_pixels(), shape.channels * shape.out_pixels());
    let mut out = Buffer::zeroed(shape.batch * sample);
    for_each(split(&mut out, sample, &parts(shape.batch, shape.batch * sample)), |(first, out)| {
        let gradient = &gradient[first * out_sample..];
        windows(shape, layout, out.len() / sample, |output, input, inverse| out[input] += gradient[output] * inverse);
    });
    out
}

/// Mean over the pixels of each channel, `[batch, channels]`.
pub fn global_mean_forward(layout: Layout, channels: usize, pixels: usize, x: &[f32]) -> Buffer {
    let samples = x.len() / (channels * pixels);
    let mut out = Buffer::zeroed(samples * channels);
    for (x, out) in x.chunks_exact(channels * pixels).zip(out.chunks_exact_mut(channels)) {
        match layout {
            Layout::Planes => {
                out.iter_mut().zip(x.chunks_exact(pixels)).for_each(|(out, plane)| *out = sum_plane(plane));
            }
            Layout::ChannelsLast => {
                for pixel in x.chunks_exact(channels) {
                    out.iter_mut().zip(pixel).for_each(|(out, value)| *out += value);
                }
            }
        }
        out.iter_mut().for_each(|out| *out /= pixels as f32);
    }
    out
}

/// The gradient of the input of [`global_mean_forward`].
pub fn global_mean_backward(layout: Layout, channels: usize, pixels: usize, gradient: &[f32]) -> Buffer {
    let mut out = Buffer::new(gradient.len() * pixels);
    let inverse = 1.0 / pixels as f32;
    for (gradient, out) in gradient.chunks_exact(channels).zip(out.chunks_exact_mut(channels * pixels)) {
        match layout {
            Layout::Planes => {
                gradient
                    .iter()
                    .zip(out.chunks_exact_mut(pixels))
                    .for_each(|(value, plane)| plane.fill(value * inverse));
            }
            Layout::ChannelsLast => {
                for pixel in out.chunks_exact_mut(channels) {
                    pixel.iter_mut().zip(gradient).for_each(|(out, value)| *out = value * inverse);
                }
            }
        }
    }
    out
}
