//! Layer normalisation: each row of `[rows, features]` by its own mean and variance.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};

use super::buffer::Buffer;
use super::elementwise::{sum_plane, sum_rows};
use super::threads::{for_each, map, parts, split};

/// What a row was normalised by.
#[derive(Clone, Copy, Debug)]
struct Row {
    mean: f32,
    /// `1 / sqrt(variance + epsilon)`
    inverse: f32,
}

fn row(x: &[f32], epsilon: f32) -> Row {
    let count = x.len() as f32;
    let mean = sum_plane(x) / count;
    let (chunks, rest) = x.as_chunks::<16>();
    let mut squares = [0.0f32; 16];
    for chunk in chunks {
        squares.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += (x - mean) * (x - mean));
    }
    let rest: f32 = rest.iter().map(|x| (x - mean) * (x - mean)).sum();
    let variance = (squares.iter().sum::<f32>() + rest) / count;
    Row { mean, inverse: 1.0 / (variance + epsilon).sqrt() }
}

/// `gamma (x - mean) / sqrt(variance + epsilon) + beta`, with `gamma` and `beta` of a row's length.
pub fn forward(x: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) -> Buffer {
    let features = gamma.len();
    let mut out = Buffer::new(x.len());
    for_each(split(&mut out, features, &parts(x.len() / features, x.len())), |(first, out)| {
        forward_rows(out, &x[first * features..], gamma, beta, epsilon);
    });
    out
}

#[with_simd]
fn forward_rows<S: Simd>(out: &mut [f32], x: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    for (out, x) in out.chunks_exact_mut(gamma.len()).zip(x.chunks_exact(gamma.len())) {
        let Row { mean, inverse } = row(x, epsilon);
        for ((out, x), (gamma, beta)) in out.iter_mut().zip(x).zip(gamma.iter().zip(beta)) {
            *out = (x - mean) * inverse * gamma + beta;
        }
    }
}

/// Gradients of input, scale and shift.
pub struct Gradients {
    /// Of the input.
    pub x: Buffer,
    /// Of the scale.
    pub gamma: Buffer,
    /// Of the shift.
    pub beta: Buffer,
}

/// With `h = (x - mean) / sqrt(variance + epsilon)`, the output's gradient `g` and means over a row: `dbeta = sum g`,
/// `dgamma = sum g h`, `dx = (gamma g - mean(gamma g) - h mean(gamma g h)) / sqrt(variance + epsilon)`.
pub fn backward(x: &[f32], gamma: &[f32], epsilon: f32, gradient: &[f32]) -> Gradients {
    let features = gamma.len();
    let mut out = Buffer::new(x.len());
    let parts = parts(x.len() / features, 2 * x.len());
    let sums = map(split(&mut out, features, &parts), |(first, out)| {
        let mut sums = [Buffer::zeroed(features), Buffer::zeroed(features)];
        let [gamma_sums, beta_sums] = &mut sums;
        backward_rows(
            out,
            &x[first * features..],
            gamma,
            epsilon,
            &gradient[first * features..],
            gamma_sums,
            beta_sums,
        );
        sums
    });
    let (gammas, betas) = sums.into_iter().map(|[gamma, beta]| (gamma, beta)).unzip();
    Gradients { x: out, gamma: sum_rows(gammas, features), beta: sum_rows(betas, features) }
}

#[with_simd]
fn backward_rows<S: Simd>(
    out: &mut [f32],
    x: &[f32],
    gamma: &[f32],
    epsilon: f32,
    gradient: &[f32],
    gamma_sums: &mut [f32],
    beta_sums: &mut [f32],
) {
    let features = gamma.len();
    let rows = x.chunks_exact(features).zip(gradient.chunks_exact(features));
    for (out, (x, gradient)) in out.chunks_exact_mut(features).zip(rows) {
        let Row { mean, inverse } = row(x, epsilon);
        let (mut sum, mut sum_centred) = (0.0, 0.0);
        let sums = gamma_sums.iter_mut().zip(beta_sums.iter_mut());
        for (((gamma_sum, beta_sum), gamma), (x, gradient)) in sums.zip(gamma).zip(x.iter().zip(gradient)) {
            let centred = (x - mean) * inverse;
            *gamma_sum += gradient * centred;
            *beta_sum += gradient;
            sum += gamma * gradient;
            sum_centred += gamma * gradient * centred;
        }
        let (mean_gradient, mean_centred) = (sum / features as f32, sum_centred / features as f32);
        for ((out, gamma), (x, gradient)) in out.iter_mut().zip(gamma).zip(x.iter().zip(gradient)) {
            let centred = (x - mean) * inverse;
            *out = (gamma * gradient - mean_gradient - centred * mean_centred) * inverse;
        }
    }
}
