//! Compares a step through a WebAssembly kernel with the same model written natively.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use omnilearn_agent::engine::{Engine, Tensor};
use omnilearn_kernel_host::backend::OpResult;
use omnilearn_kernel_host::{Batch, Description, Instance, Kernel, Limits, Mode, initialize};
use omnilearn_wire::message::{Setting, SettingValue};
use omnilearn_wire::sampling::SplitMix64;

use crate::native::{self, Forward, Model};
use crate::timing::median;

/// One comparison to make.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `lenet` or `resnet`.
    pub model: &'static str,
    /// Settings of the kernel.
    pub settings: &'static [(&'static str, i64)],
    /// Samples of a step.
    pub batch: usize,
    /// Pairs of steps to time, after two that are not.
    pub steps: usize,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Median of a native step, in milliseconds.
    pub native_ms: f64,
    /// Median of a step through the kernel, in milliseconds.
    pub kernel_ms: f64,
    /// Whether loss and every gradient were equal bit by bit in every pair of steps.
    pub gradients_equal: bool,
    /// Elements of the model.
    pub parameters: usize,
}

/// What both ways compute on.
struct Problem {
    engine: Engine,
    description: Description,
    parameters: Vec<f32>,
    buffers: Vec<Tensor>,
    images: Tensor,
    targets: Tensor,
}

impl Problem {
    fn leaves(&self) -> Vec<Tensor> {
        let mut rest = self.parameters.as_slice();
        let leaf = |shape: &[u32]| {
            let shape: Vec<usize> = shape.iter().map(|&dimension| dimension as usize).collect();
            let (values, tail) = rest.split_at(shape.iter().product());
            rest = tail;
            self.engine.leaf(&self.engine.floats(values.to_vec(), &shape))
        };
        self.description.parameters.iter().map(|parameter| parameter.shape.as_slice()).map(leaf).collect()
    }

    /// Backward pass and read-out, alike for both.
    fn finish(&self, leaves: &[Tensor], loss: &Tensor) -> Vec<f32> {
        let mut gradients = self.engine.backward(loss);
        let mut flat = loss.to_vec();
        for leaf in leaves {
            flat.extend(gradients.take(leaf).expect("every parameter has a gradient").to_vec());
        }
        flat
    }

    fn native(&self, model: Model) -> OpResult<Vec<f32>> {
        let leaves = self.leaves();
        let mut engine = self.engine.clone();
        let Forward { logits, .. } = model.forward(&mut engine, &leaves, &self.buffers, &self.images)?;
        let (loss, _) = native::classify(&mut engine, &logits, &self.targets)?;
        Ok(self.finish(&leaves, &loss))
    }

    fn kernel(&self, instance: &mut Instance<Engine>) -> Result<Vec<f32>> {
        let leaves = self.leaves();
        let output = instance.forward(Batch {
            mode: Mode::Train,
            parameters: leaves.clone(),
            buffers: self.buffers.clone(),
            inputs: vec![self.images.clone()],
            targets: Some(self.targets.clone()),
            seed: 0,
        })?;
        Ok(self.finish(&leaves, &output.loss.context("a training pass has a loss")?))
    }
}

/// Times pairs of steps, the order within a pair alternating.
///
/// # Errors
/// If the kernel is not built or fails.
pub fn compare(case: &Case) -> Result<Comparison> {
    let engine = Engine::default();
    let native = if case.model == "lenet" { Model::LeNet } else { Model::ResNet18 };
    let kernel = Kernel::open(&crate::component(case.model)?)?;
    let mut instance = kernel.instantiate(engine.clone(), Limits::default())?;
    let setting = |&(name, value): &(&str, i64)| Setting { name: name.to_owned(), value: SettingValue::Integer(value) };
    let description = instance.describe(&case.settings.iter().map(setting).collect::<Vec<_>>())?;
    let (parameters, shared) = initialize(&description, 1);
    let mut generator = SplitMix64::new(7);
    let mut uniform = || (generator.next_u64() >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
    let shape = [case.batch, 1, 28, 28];
    let images = engine.floats((0..shape.iter().product()).map(|_| uniform()).collect(), &shape);
    let targets = engine.ints((0..case.batch as i32).map(|sample| sample % 10).collect(), &[case.batch]);
    let mut rest = shared.as_slice();
    let buffers = description.buffers.iter().map(|buffer| {
        let shape: Vec<usize> = buffer.shape.iter().map(|&dimension| dimension as usize).collect();
        let (values, tail) = rest.split_at(shape.iter().product());
        rest = tail;
        engine.floats(values.to_vec(), &shape)
    });
    let buffers = buffers.collect();
    let problem = Problem { engine, description, parameters, buffers, images, targets };

    let mut times = [Vec::new(), Vec::new()];
    let mut gradients_equal = true;
    for step in 0..case.steps + 2 {
        let mut results = [Vec::new(), Vec::new()];
        for turn in 0..2 {
            let through_kernel = (step + turn) % 2 == 1;
            let start = Instant::now();
            let result = if through_kernel { problem.kernel(&mut instance)? } else { problem.native(native)? };
            let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
            results[usize::from(through_kernel)] = result;
            if step >= 2 {
                times[usize::from(through_kernel)].push(elapsed_ms);
            }
        }
        ensure!(results[0].len() == problem.parameters.len() + 1, "a gradient has the length of the parameters");
        gradients_equal &= results[0].iter().zip(&results[1]).all(|(a, b)| a.to_bits() == b.to_bits());
    }
    let [native_ms, kernel_ms] = times.map(median);
    Ok(Comparison { native_ms, kernel_ms, gradients_equal, parameters: problem.parameters.len() })
}
