//! One forward and backward pass, and what several of them make together.

use std::time::{Duration, Instant};

use omnilearn_cpu::Buffer;
use omnilearn_wire::sampling::derive_seed;

use super::samples::Drawn;
use super::{Gradient, Trainer};
use crate::engine::{Engine, Tensor};
use crate::session::ComputeError;

/// Where a gradient is taken.
#[derive(Clone)]
pub(super) struct Point {
    pub(super) parameters: Vec<Tensor>,
    pub(super) buffers: Vec<Tensor>,
}

/// What an assignment made.
pub(super) struct Computed {
    pub(super) gradient: Gradient,
    /// Samples behind it.
    pub(super) samples: usize,
    pub(super) load: Duration,
    pub(super) compute: Duration,
    /// A pass had a size for the first time.
    pub(super) new_size: bool,
}

impl Trainer {
    /// The parameters of the hub's version. Copies nothing.
    pub(super) fn point(&self) -> Point {
        Point { parameters: self.parameters.clone(), buffers: self.buffers.clone() }
    }

    /// Forward and backward pass from the hub's parameters.
    pub(super) fn differentiate(
        &mut self,
        inputs: Tensor,
        targets: Tensor,
        seed: u64,
    ) -> Result<Gradient, ComputeError> {
        self.differentiate_at(&self.point(), inputs, targets, seed)
    }

    /// Reads samples, and takes their gradient.
    pub(super) fn pass(&mut self, point: &Point, drawn: &[Drawn], seed: u64) -> Result<Computed, ComputeError> {
        let start = Instant::now();
        let (inputs, targets) = self.load_training(drawn)?;
        let loaded = Instant::now();
        let gradient = self.differentiate_at(point, inputs, targets, seed)?;
        Ok(Computed {
            gradient,
            samples: drawn.len(),
            load: loaded - start,
            compute: loaded.elapsed(),
            new_size: self.batches_seen.insert(drawn.len()),
        })
    }
}

/// Seed of one of several passes of an assignment. The first has the assignment's own, as if it were the only one.
pub(super) fn pass_seed(seed: u64, pass: usize) -> u64 {
    if pass == 0 { seed } else { derive_seed(seed, &[pass as u64]) }
}

/// Passes of one assignment taken together: loss and gradient are means over samples, metrics are sums, and buffers are those of
/// the last pass. Passes whose gradients were taken out have none together either.
#[derive(Default)]
pub(super) struct Together {
    passes: Option<Computed>,
    /// Σ b·g, once there is a second pass.
    sums: Option<Vec<Option<Buffer>>>,
}

impl Together {
    /// Takes another pass.
    pub(super) fn add(&mut self, pass: Computed) {
        let Some(before) = &mut self.passes else {
            self.passes = Some(pass);
            return;
        };
        let sums = self.sums.get_or_insert_with(|| weighted(&before.gradient.gradients, before.samples));
        for (sum, gradient) in sums.iter_mut().zip(&pass.gradient.gradients) {
            add_weighted(sum, gradient.as_ref(), pass.samples);
        }
        let (old, new) = (before.samples as f32, pass.samples as f32);
        before.gradient.loss = (before.gradient.loss * old + pass.gradient.loss * new) / (old + new);
        for (sum, metric) in before.gradient.metric_sums.iter_mut().zip(&pass.gradient.metric_sums) {
            *sum += metric;
        }
        before.gradient.buffers = pass.gradient.buffers;
        before.samples += pass.samples;
        before.load += pass.load;
        before.compute += pass.compute;
        before.new_size |= pass.new_size;
    }

    /// Samples so far.
    pub(super) fn samples(&self) -> usize {
        self.passes.as_ref().map_or(0, |passes| passes.samples)
    }

    /// All passes as one; none if there was none. The gradient of a single pass is its own to the last bit.
    pub(super) fn finish(self, engine: &Engine, parameters: &[Tensor]) -> Option<Computed> {
        let mut computed = self.passes?;
        if let Some(sums) = self.sums {
            let part = 1.0 / computed.samples as f32;
            let mean = |(sum, parameter): (Option<Buffer>, &Tensor)| {
                sum.map(|mut sum| {
                    sum.iter_mut().for_each(|value| *value *= part);
                    engine.stored(sum, parameter.shape())
                })
            };
            computed.gradient.gradients = sums.into_iter().zip(parameters).map(mean).collect();
        }
        Some(computed)
    }
}

fn weighted(gradients: &[Option<Tensor>], samples: usize) -> Vec<Option<Buffer>> {
    let mut sums: Vec<Option<Buffer>> = gradients.iter().map(|_| None).collect();
    for (sum, gradient) in sums.iter_mut().zip(gradients) {
        add_weighted(sum, gradient.as_ref(), samples);
    }
    sums
}

fn add_weighted(sum: &mut Option<Buffer>, gradient: Option<&Tensor>, samples: usize) {
    let Some(gradient) = gradient else { return };
    let weight = samples as f32;
    gradient.with_floats(|values| {
        let sum = sum.get_or_insert_with(|| Buffer::zeroed(values.len()));
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
    });
}
