//! Trains something small that needs neither a hub nor data, and looks at what training needs.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use omnilearn_kernel_host::backend::{Conv2dOptions, OpResult, TensorBackend, Unary};
use omnilearn_wire::dataset::CATALOGUE;
use omnilearn_wire::sampling::SplitMix64;
use serde_json::{Map, Value, json};

use crate::dataset::Dataset;
use crate::engine::{Engine, Tensor};
use crate::session::writable;

const STEPS: usize = 20;
const BATCH: usize = 32;
const CLASSES: usize = 10;
const SIDE: usize = 16;
const CHANNELS: usize = 8;
const LEARNING_RATE: f32 = 0.1;

/// What is tested.
pub(super) struct SelfTest<'a> {
    pub(super) engine: Engine,
    pub(super) threads: NonZeroUsize,
    pub(super) data: &'a [PathBuf],
    pub(super) cache: &'a Path,
}

impl SelfTest<'_> {
    /// Device, threads, time of a step, loss before and after, data sets.
    ///
    /// # Errors
    /// If the cache folder cannot be written, or training does not lower the loss.
    pub(super) fn run(self) -> Result<Value, String> {
        let SelfTest { engine, threads, data, cache } = self;
        writable(cache).map_err(|error| format!("{error}: {}", error.cause))?;
        let device = engine.description().to_owned();
        let Trained { losses, step_s } = train(engine).map_err(|error| format!("{device}: {error}"))?;
        let (first, last) = (losses[0], losses[STEPS - 1]);
        if !first.is_finite() || last.is_nan() || last >= first {
            return Err(format!("{device}: {STEPS} steps took the loss from {first} to {last}; it should have fallen"));
        }
        let dataset = |name| match Dataset::open(name, data, cache) {
            Ok(_) => "ready".to_owned(),
            Err(error) => error.to_string(),
        };
        let datasets: Map<String, Value> =
            CATALOGUE.iter().map(|known| (known.name.to_owned(), dataset(known.name).into())).collect();
        Ok(json!({
            "device": device,
            "threads": threads,
            "steps": STEPS,
            "batch": BATCH,
            "step_s": step_s,
            "loss_first": first,
            "loss_last": last,
            "cache": cache.display().to_string(),
            "datasets": datasets,
        }))
    }
}

/// What came of the steps.
struct Trained {
    losses: [f32; STEPS],
    /// Time of one step, the median.
    step_s: f64,
}

/// Some steps of SGD on one batch of random images with random labels: a convolution, a ReLU and a linear layer, which can learn
/// it by heart.
fn train(mut engine: Engine) -> OpResult<Trained> {
    let mut generator = SplitMix64::new(1);
    let mut uniform = |bound: f32, count: usize| -> Vec<f32> {
        let mut draw = || (generator.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0; // [-1, 1)
        (0..count).map(|_| bound * draw()).collect()
    };
    let features = CHANNELS * SIDE * SIDE;
    let images = engine.from_f32(uniform(1.0, BATCH * SIDE * SIDE), &[BATCH, 1, SIDE, SIDE])?;
    let labels = engine.from_i32((0..BATCH).map(|sample| (sample % CLASSES) as i32).collect(), &[BATCH])?;
    // Each within the bound 1/sqrt(inputs).
    let mut parameters = [
        (uniform(1.0 / 3.0, CHANNELS * 9), vec![CHANNELS, 1, 3, 3]),
        (uniform(1.0 / (features as f32).sqrt(), CLASSES * features), vec![CLASSES, features]),
    ];
    let (mut losses, mut times) = ([0.0; STEPS], [0.0; STEPS]);
    for step in 0..STEPS {
        let start = Instant::now();
        let leaves = [0, 1].map(|index| {
            let (values, shape): &(Vec<f32>, Vec<usize>) = &parameters[index];
            engine.leaf(&engine.floats(values.clone(), shape))
        });
        let loss = forward(&mut engine, &leaves, &images, &labels)?;
        let mut gradients = engine.backward(&loss);
        for ((values, _), leaf) in parameters.iter_mut().zip(&leaves) {
            let Some(gradient) = gradients.take(leaf) else { continue };
            gradient.with_floats(|gradient| {
                values.iter_mut().zip(gradient).for_each(|(value, slope)| *value -= LEARNING_RATE * slope);
            });
        }
        losses[step] = loss.with_floats(|loss| loss[0]);
        times[step] = start.elapsed().as_secs_f64();
    }
    times.sort_by(f64::total_cmp);
    Ok(Trained { losses, step_s: times[STEPS / 2] })
}

/// Mean cross entropy of the batch.
fn forward(engine: &mut Engine, parameters: &[Tensor; 2], images: &Tensor, labels: &Tensor) -> OpResult<Tensor> {
    let [kernel, weight] = parameters;
    let same = Conv2dOptions { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 };
    let planes = engine.conv2d(images, kernel, None, same)?; // [batch, channels, height, width]
    let planes = engine.unary(Unary::Relu, &planes)?;
    let features = engine.reshape(&planes, &[BATCH, CHANNELS * SIDE * SIDE])?;
    let logits = engine.linear(&features, weight, None)?; // [batch, classes]
    engine.cross_entropy(&logits, labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_can_train_passes_and_a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::TempDir::new().unwrap();
        let test =
            |cache: &Path| SelfTest { engine: Engine::default(), threads: NonZeroUsize::MIN, data: &[], cache }.run();
        let found = test(folder.path()).unwrap();
        assert!(found["loss_last"].as_f64() < found["loss_first"].as_f64(), "{found}");
        assert!(found["step_s"].as_f64() > Some(0.0), "{found}");
        assert_eq!(found["datasets"].as_object().unwrap().len(), CATALOGUE.len());
        let file = folder.path().join("file");
        std::fs::write(&file, b"in the way").unwrap();
        let error = test(&file).unwrap_err();
        assert!(error.contains(&*file.to_string_lossy()), "{error}");
    }
}
