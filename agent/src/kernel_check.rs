//! `omnilearn-agent kernel check`: what a kernel's author wants to know before a job uses it.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use omnilearn_kernel_host::backend::DType;
use omnilearn_kernel_host::{
    Batch, Description, Initializer, Instance, Kernel, Limits, Merge, Mode, SettingInfo, TensorSpec, initialize, to_hex,
};
use omnilearn_wire::message::{Setting, SettingValue};
use omnilearn_wire::sampling::SplitMix64;
use sha2::{Digest, Sha256};

use crate::engine::{Engine, Tensor};

/// Parameters that are listed one by one.
const LISTED_MAX: usize = 40;

/// Steps along the gradient that are tried, by the share of the loss by which it should change: by more than `f32` rounds, and by so
/// little that the loss is straight.
const CHANGES: [f64; 6] = [1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4];

/// Largest relative difference between the slope by differentiation and by differences.
const DIFFERENCE_MAX: f64 = 0.03;

/// What to check.
#[derive(Clone, Debug)]
pub struct Check<'a> {
    /// The component.
    pub file: &'a Path,
    /// The job's settings; others have their defaults.
    pub settings: Vec<Setting>,
    /// Samples of the step.
    pub batch: usize,
}

/// Opens a kernel, describes it, trains it for one step on random samples, and compares its gradient with finite differences.
///
/// # Errors
/// What is wrong, in a sentence, after what has been found so far has gone to `print`.
pub fn check(check: &Check<'_>, engine: Engine, print: &mut dyn FnMut(&str)) -> Result<(), String> {
    let bytes = std::fs::read(check.file).map_err(|cause| format!("cannot read {}: {cause}", check.file.display()))?;
    print(&format!("{}\n", check.file.display()));
    let digest = to_hex(&Sha256::digest(&bytes));
    print(&format!("  {:<14}{} (sha-256 {digest})\n", "bytes", bytes.len()));
    let start = Instant::now();
    let kernel = Kernel::open(&bytes).map_err(|error| error.to_string())?;
    let compiled = start.elapsed();
    let start = Instant::now();
    let mut instance = kernel.instantiate(engine, Limits::default()).map_err(|error| error.to_string())?;
    let started = start.elapsed();
    for import in kernel.imports() {
        print(&format!("  {:<14}{import}\n", "imports"));
    }
    print(&format!("  {:<14}{}; started in {}\n", "compiled in", milliseconds(compiled), milliseconds(started)));

    let infos = instance.settings().map_err(|error| error.to_string())?;
    print(&settings_text(&infos, &check.settings));
    let description = instance.describe(&check.settings).map_err(|error| error.to_string())?;
    print(&description_text(&description));
    let step = Step::new(&mut instance, &description, check.batch);
    print(&format!("one step of {} samples on {}\n", check.batch, instance.backend().description()));
    let text = step.check(&mut instance)?;
    print(&text);
    let usage = instance.usage();
    print(&format!(
        "  {:<14}tensors {:.1} MiB, the kernel itself {:.1} MiB\n",
        "memory",
        mebibytes(usage.tensor_bytes),
        mebibytes(usage.linear_memory_bytes)
    ));
    Ok(())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 20)
}

/// `NAME=VALUE` as a setting: a flag, an integer, a number, or else a text.
///
/// # Errors
/// Without `=` or a name.
pub fn parse_setting(text: &str) -> Result<Setting, String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    let value = match (value.parse(), value.parse(), value.parse()) {
        (Ok(flag), ..) => SettingValue::Flag(flag),
        (_, Ok(integer), _) => SettingValue::Integer(integer),
        (.., Ok(number)) => SettingValue::Number(number),
        _ => SettingValue::Text(value.to_owned()),
    };
    Ok(Setting { name: name.to_owned(), value })
}

fn written(value: &SettingValue) -> String {
    match value {
        SettingValue::Flag(flag) => flag.to_string(),
        SettingValue::Integer(integer) => integer.to_string(),
        SettingValue::Number(number) => number.to_string(),
        SettingValue::Text(text) => format!("\"{text}\""),
    }
}

fn settings_text(infos: &[SettingInfo], given: &[Setting]) -> String {
    let mut text = "settings\n".to_owned();
    for SettingInfo { name, help, default } in infos {
        let value = given.iter().find(|setting| setting.name == *name).map_or(default, |setting| &setting.value);
        let _ = writeln!(text, "  {name:<14}{:<10}{help}", written(value)); // writing to a string cannot fail
    }
    text
}

fn spec_text(kind: &str, spec: &TensorSpec) -> String {
    let dtype = match spec.dtype {
        DType::F32 => "f32",
        DType::I32 => "i32",
    };
    format!("  {kind:<14}{} {dtype} {:?}\n", spec.name, spec.shape)
}

fn description_text(description: &Description) -> String {
    let elements = |shape: &[u32]| shape.iter().map(|&size| u64::from(size)).product::<u64>();
    let total: u64 = description.parameters.iter().map(|parameter| elements(&parameter.shape)).sum();
    let mut text = format!("parameters: {total} in {} tensors\n", description.parameters.len());
    let width = description.parameters.iter().map(|parameter| parameter.name.len()).max().unwrap_or(0);
    for parameter in description.parameters.iter().take(LISTED_MAX) {
        let initial = match parameter.initializer {
            Initializer::Constant(value) => format!("all {value}"),
            Initializer::Uniform(bound) => format!("uniform, below {bound:.3}"),
            Initializer::Normal(deviation) => format!("normal, deviation {deviation:.3}"),
        };
        let decay = if parameter.decay { "" } else { ", no weight decay" };
        let shape = format!("{:?}", parameter.shape);
        let _ = writeln!(text, "  {:<width$}  {shape:<20} {initial}{decay}", parameter.name); // as above
    }
    if description.parameters.len() > LISTED_MAX {
        let _ = writeln!(text, "  and {} more", description.parameters.len() - LISTED_MAX); // as above
    }
    for buffer in &description.buffers[..description.buffers.len().min(LISTED_MAX)] {
        let merge = match buffer.merge {
            Merge::MeanBySamples => "mean of all agents",
            Merge::KeepLocal => "stays on its agent",
        };
        let _ = writeln!(text, "  {:<14}{} {:?}, {merge}", "buffer", buffer.name, buffer.shape); // as above
    }
    description.inputs.iter().for_each(|input| text.push_str(&spec_text("input", input)));
    text.push_str(&spec_text("target", &description.target));
    let _ = writeln!(text, "  {:<14}{}", "metrics", description.metrics.join(", ")); // as above
    text
}

/// A training step on random samples.
struct Step {
    names: Vec<String>,
    shapes: Vec<Vec<usize>>,
    parameters: Vec<Vec<f32>>,
    buffers: Vec<Tensor>,
    inputs: Vec<Tensor>,
    target: Tensor,
}

impl Step {
    fn new(instance: &mut Instance<Engine>, description: &Description, batch: usize) -> Step {
        let engine = instance.backend_mut();
        let sized = |shape: &[u32]| shape.iter().map(|&size| size as usize).collect::<Vec<usize>>();
        let mut values = initialize(description, 1).0.into_iter();
        let shapes: Vec<Vec<usize>> = description.parameters.iter().map(|parameter| sized(&parameter.shape)).collect();
        let parameters = shapes.iter().map(|shape| values.by_ref().take(shape.iter().product()).collect()).collect();
        let buffers = description.buffers.iter().map(|buffer| {
            let shape = sized(&buffer.shape);
            engine.floats(vec![buffer.initial; shape.iter().product()], &shape)
        });
        let mut generator = SplitMix64::new(2);
        let mut random = |spec: &TensorSpec| {
            let shape: Vec<usize> = std::iter::once(batch).chain(sized(&spec.shape)).collect();
            let elements = shape.iter().product();
            match spec.dtype {
                DType::F32 => {
                    // Of unit variance.
                    let value = || ((generator.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * 3f32.sqrt();
                    engine.floats(std::iter::repeat_with(value).take(elements).collect(), &shape)
                }
                // Every vocabulary and every number of classes has these two.
                DType::I32 => engine.ints((0..elements).map(|_| generator.below(2) as i32).collect(), &shape),
            }
        };
        let inputs = description.inputs.iter().map(&mut random).collect();
        let target = random(&description.target);
        let names = description.parameters.iter().map(|parameter| parameter.name.clone()).collect();
        Step { names, shapes, parameters, buffers: buffers.collect(), inputs, target }
    }

    /// The loss with parameters moved by `step` along `direction`, the leaves, and the metrics.
    fn forward(
        &self,
        instance: &mut Instance<Engine>,
        direction: &[Vec<f32>],
        step: f64,
    ) -> Result<(Tensor, Vec<Tensor>, Vec<Tensor>), String> {
        let engine = instance.backend().clone();
        let moved = |(index, values): (usize, &Vec<f32>)| {
            let mut values = values.clone();
            if let Some(direction) = direction.get(index) {
                values.iter_mut().zip(direction).for_each(|(value, along)| *value += (step * f64::from(*along)) as f32);
            }
            engine.leaf(&engine.floats(values, &self.shapes[index]))
        };
        let leaves: Vec<Tensor> = self.parameters.iter().enumerate().map(moved).collect();
        let batch = Batch {
            mode: Mode::Train,
            parameters: leaves.clone(),
            buffers: self.buffers.clone(),
            inputs: self.inputs.clone(),
            targets: Some(self.target.clone()),
            seed: 3,
        };
        let output = instance.forward(batch).map_err(|error| error.to_string())?;
        let loss = output.loss.ok_or("the kernel returned no loss")?;
        Ok((loss, leaves, output.metrics))
    }

    fn check(&self, instance: &mut Instance<Engine>) -> Result<String, String> {
        // Once before it is timed: a GPU compiles its programs now.
        self.forward(instance, &[], 0.0)?;
        let start = Instant::now();
        let (loss, leaves, metrics) = self.forward(instance, &[], 0.0)?;
        let value = loss.to_vec()[0];
        let mut gradients = instance.backend().backward(&loss);
        let gradient: Vec<Option<Vec<f32>>> =
            leaves.iter().map(|leaf| gradients.take(leaf).map(|gradient| gradient.to_vec())).collect();
        let took = start.elapsed();
        if !value.is_finite() {
            return Err(format!("the loss is {value}"));
        }
        let description = instance.description().cloned().ok_or("the kernel is not described")?;
        let mut text = format!("  {:<14}{value:.4}\n", "loss");
        for (name, metric) in description.metrics.iter().zip(&metrics) {
            let _ = writeln!(text, "  {name:<14}{:.4}", metric.to_vec()[0]); // writing to a string cannot fail
        }
        let _ = writeln!(text, "  {:<14}{}", "took", milliseconds(took)); // as above
        let flat: Vec<Vec<f32>> = gradient
            .iter()
            .zip(&self.parameters)
            .map(|(gradient, values)| gradient.clone().unwrap_or_else(|| vec![0.0; values.len()]))
            .collect();
        for (name, gradient) in self.names.iter().zip(&flat) {
            if gradient.iter().any(|value| !value.is_finite()) {
                return Err(format!("the gradient of `{name}` is not finite"));
            }
            if gradient.iter().all(|&value| value == 0.0) {
                let _ = writeln!(text, "  note: the loss does not depend on `{name}`"); // as above
            }
        }
        text.push_str(&self.compare(instance, value.into(), &flat)?);
        Ok(text)
    }

    /// The slope of the loss along its gradient, by differentiation and by differences.
    fn compare(&self, instance: &mut Instance<Engine>, value: f64, gradient: &[Vec<f32>]) -> Result<String, String> {
        let length = |values: &[Vec<f32>]| -> f64 {
            values.iter().flatten().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
        };
        let slope = length(gradient);
        if slope == 0.0 {
            return Err("the loss depends on no parameter".to_owned());
        }
        let direction: Vec<Vec<f32>> = gradient
            .iter()
            .map(|values| values.iter().map(|&value| (f64::from(value) / slope) as f32).collect())
            .collect();
        let mut best = (f64::INFINITY, f64::NAN);
        for step in CHANGES.map(|share| share * value.abs().max(1e-3) / slope) {
            let mut loss = |step: f64| -> Result<f64, String> {
                Ok(f64::from(self.forward(instance, &direction, step)?.0.to_vec()[0]))
            };
            let differences = (loss(step)? - loss(-step)?) / (2.0 * step);
            let difference = (differences - slope).abs() / slope;
            if difference < best.0 {
                best = (difference, differences);
            }
        }
        let (difference, differences) = best;
        if difference > DIFFERENCE_MAX {
            return Err(format!(
                "the slope of the loss along its gradient is {slope:.4} by differentiation and {differences:.4} by finite \
                 differences: is a part of the model cut off (`detach`), or is the loss not the one that is trained?"
            ));
        }
        Ok(format!(
            "  {:<14}slope {slope:.4} by differentiation, {differences:.4} by finite differences ({:.2} % apart)\n",
            "gradient",
            difference * 100.0
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_what_they_look_like() {
        let value = |text| parse_setting(text).unwrap().value;
        assert_eq!(value("tied=true"), SettingValue::Flag(true));
        assert_eq!(value("width=64"), SettingValue::Integer(64));
        assert_eq!(value("dropout=0.5"), SettingValue::Number(0.5));
        assert_eq!(value("stem=small"), SettingValue::Text("small".to_owned()));
        assert!(parse_setting("width").is_err() && parse_setting("=1").is_err());
    }
}
