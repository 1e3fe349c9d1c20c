//! Optimizers, with PyTorch's semantics. They run on the hub, block by block, so that a step needs no second model.

use crate::clip::Clip;
use crate::config::ConfigError;
use crate::model::{BLOCK_ELEMENTS, Snapshot};

/// Which optimizer, and its constants. The learning rate η comes from the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerConfig {
    /// g ← g + λθ; m ← μm + g (m = g at the first step); θ ← θ − η·(nesterov ? g + μm : m).
    Sgd {
        /// μ; 0 for none.
        momentum: f32,
        /// Look ahead along the momentum.
        nesterov: bool,
        /// λ, coupled.
        weight_decay: f32,
    },
    /// g ← g + λθ; m ← β1·m + (1 − β1)g; v ← β2·v + (1 − β2)g²; θ ← θ − η·m̂/(√v̂ + ε), with bias correction.
    Adam {
        /// β1.
        beta1: f32,
        /// β2.
        beta2: f32,
        /// ε.
        epsilon: f32,
        /// λ, coupled.
        weight_decay: f32,
    },
    /// Adam with decoupled decay: θ ← θ − ηλθ first, and g as it is.
    AdamW {
        /// β1.
        beta1: f32,
        /// β2.
        beta2: f32,
        /// ε.
        epsilon: f32,
        /// λ, decoupled.
        weight_decay: f32,
    },
}

impl OptimizerConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let check = |valid: bool, field, value: f32, expected| {
            if valid { Ok(()) } else { Err(ConfigError::Value { field, value: value.to_string(), expected }) }
        };
        let unit = |value: f32| (0.0..1.0).contains(&value);
        let decay = match *self {
            OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                check(unit(momentum), "momentum", momentum, "from 0 to below 1")?;
                check(!nesterov || momentum > 0.0, "momentum", momentum, "over 0 with nesterov")?;
                weight_decay
            }
            OptimizerConfig::Adam { beta1, beta2, epsilon, weight_decay }
            | OptimizerConfig::AdamW { beta1, beta2, epsilon, weight_decay } => {
                check(unit(beta1), "beta1", beta1, "from 0 to below 1")?;
                check(unit(beta2), "beta2", beta2, "from 0 to below 1")?;
                check(epsilon.is_finite() && epsilon > 0.0, "epsilon", epsilon, "over 0")?;
                weight_decay
            }
        };
        check(decay.is_finite() && decay >= 0.0, "weight_decay", decay, "at least 0")
    }
}

/// A gradient that can be read piecewise.
pub(crate) trait GradientSource {
    /// Writes the elements from `start` on.
    fn read(&self, start: usize, out: &mut [f32]);
}

/// An optimizer and its state, which is as long as the model, once or twice.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    clip: Clip,
    /// Ends of runs of elements that alternate between "decays" and "does not", beginning with one that decays.
    decay_runs: Vec<usize>,
    steps: u64,
    first: Vec<f32>,  // momentum, or Adam's m
    second: Vec<f32>, // Adam's v
    scratch: Vec<f32>,
}

/// State of an optimizer as named tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerState {
    /// Steps taken.
    pub steps: u64,
    /// Tensors as long as the model, by name: `momentum`, or `first_moment` and `second_moment`. None before the first step.
    pub tensors: Vec<(String, Vec<f32>)>,
}

/// A state that is not this optimizer's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("optimizer state has tensors {found:?}, expected {expected:?} of {elements} elements each")]
pub struct StateMismatch {
    found: Vec<(String, usize)>,
    expected: Vec<&'static str>,
    elements: usize,
}

impl Optimizer {
    /// An optimizer before its first step. `decay` has each tensor's number of elements and whether it takes weight decay.
    pub fn new(config: OptimizerConfig, clip_norm: Option<f32>, decay: &[(usize, bool)]) -> Optimizer {
        let mut decay_runs = Vec::new();
        let (mut end, mut decays) = (0, true);
        for &(elements, tensor_decays) in decay {
            if tensor_decays != decays {
                decay_runs.push(end);
                decays = tensor_decays;
            }
            end += elements;
        }
        decay_runs.push(end);
        Optimizer {
            config,
            clip: Clip::new(clip_norm),
            decay_runs,
            steps: 0,
            first: Vec::new(),
            second: Vec::new(),
            scratch: Vec::new(),
        }
    }

    fn tensor_names(&self) -> &'static [&'static str] {
        match self.config {
            OptimizerConfig::Sgd { momentum: 0.0, .. } => &[],
            OptimizerConfig::Sgd { .. } => &["momentum"],
            OptimizerConfig::Adam { .. } | OptimizerConfig::AdamW { .. } => &["first_moment", "second_moment"],
        }
    }

    fn elements(&self) -> usize {
        self.decay_runs.last().copied().unwrap_or(0)
    }

    /// Changes the parameters in place, and copies only those blocks that a snapshot holds. Returns the gradient's L2 norm.
    pub(crate) fn step(&mut self, model: &mut Snapshot, gradient: &dyn GradientSource, learning_rate: f64) -> f64 {
        let names = self.tensor_names();
        for (index, state) in [&mut self.first, &mut self.second].into_iter().enumerate() {
            if index < names.len() && state.is_empty() {
                state.resize(self.decay_runs.last().copied().unwrap_or(0), 0.0);
            }
        }
        let elements = self.elements();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(elements.min(BLOCK_ELEMENTS), 0.0);
        let before = self.clip.scale(elements, gradient, &mut scratch);
        let mut square_sum = 0.0;
        for (index, block) in model.parameters.iter_mut().enumerate() {
            let start = index * BLOCK_ELEMENTS;
            let gradient_block = &mut scratch[..block.len()];
            gradient.read(start, gradient_block);
            square_sum += crate::clip::square_sum(gradient_block);
            if before != 1.0 {
                gradient_block.iter_mut().for_each(|value| *value *= before);
            }
            let parameters = std::sync::Arc::make_mut(block);
            self.step_block(start, parameters, gradient_block, learning_rate);
        }
        self.scratch = scratch;
        self.steps += 1;
        square_sum.sqrt()
    }

    fn step_block(&mut self, start: usize, parameters: &mut [f32], gradient: &mut [f32], learning_rate: f64) {
        let end = start + parameters.len();
        let mut run_start = 0;
        for (index, &run_end) in self.decay_runs.iter().enumerate() {
            let (low, high) = (run_start.max(start), run_end.min(end));
            run_start = run_end;
            if low < high {
                let range = low - start..high - start;
                let slices = Slices {
                    parameters: &mut parameters[range.clone()],
                    gradient: &mut gradient[range],
                    first: self.first.get_mut(low..high).unwrap_or_default(),
                    second: self.second.get_mut(low..high).unwrap_or_default(),
                };
                update(self.config, self.steps, learning_rate, index % 2 == 0, slices);
            }
        }
    }

    /// The state as named tensors.
    pub fn export(&self) -> OptimizerState {
        let tensors = [&self.first, &self.second].into_iter().zip(self.tensor_names());
        let tensors = tensors.filter(|(state, _)| !state.is_empty());
        let tensors = tensors.map(|(state, name)| ((*name).to_owned(), state.clone())).collect();
        OptimizerState { steps: self.steps, tensors }
    }

    /// Takes over an exported state.
    ///
    /// # Errors
    /// [`StateMismatch`] if it is another optimizer's or another model's; nothing is changed then.
    pub fn import(&mut self, state: OptimizerState) -> Result<(), StateMismatch> {
        let names = self.tensor_names();
        let elements = self.elements();
        let found = state.tensors.iter().map(|(name, values)| (name.clone(), values.len())).collect::<Vec<_>>();
        let expected = names.iter().map(|name| ((*name).to_owned(), elements)).collect::<Vec<_>>();
        if found != expected && !(state.steps == 0 && found.is_empty()) {
            return Err(StateMismatch { found, expected: names.to_vec(), elements });
        }
        let mut tensors = state.tensors.into_iter().map(|(_, values)| values);
        self.first = tensors.next().unwrap_or_default();
        self.second = tensors.next().unwrap_or_default();
        self.steps = state.steps;
        Ok(())
    }
}

/// The same elements of everything that a step touches. State slices are empty where the optimizer has no such state.
struct Slices<'a> {
    parameters: &'a mut [f32],
    gradient: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
}

fn update(config: OptimizerConfig, steps: u64, learning_rate: f64, decays: bool, slices: Slices<'_>) {
    let decay = |weight_decay: f32| if decays { weight_decay } else { 0.0 };
    match config {
        OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
            sgd(slices, learning_rate as f32, momentum, nesterov, decay(weight_decay), steps == 0);
        }
        OptimizerConfig::Adam { beta1, beta2, epsilon, weight_decay } => {
            let rates = AdamRates::new(steps, learning_rate, beta1, beta2, epsilon);
            adam(slices, &rates, 1.0, decay(weight_decay));
        }
        OptimizerConfig::AdamW { beta1, beta2, epsilon, weight_decay } => {
            let rates = AdamRates::new(steps, learning_rate, beta1, beta2, epsilon);
            adam(slices, &rates, (1.0 - learning_rate * f64::from(decay(weight_decay))) as f32, 0.0);
        }
    }
}

fn sgd(slices: Slices<'_>, learning_rate: f32, momentum: f32, nesterov: bool, weight_decay: f32, first_step: bool) {
    let Slices { parameters, gradient, first, .. } = slices;
    if momentum == 0.0 {
        for (parameter, gradient) in parameters.iter_mut().zip(gradient) {
            *parameter -= learning_rate * (*gradient + weight_decay * *parameter);
        }
        return;
    }
    let kept = if first_step { 0.0 } else { momentum };
    let (own, ahead) = if nesterov { (1.0, momentum) } else { (0.0, 1.0) };
    for ((parameter, gradient), velocity) in parameters.iter_mut().zip(gradient).zip(first) {
        let gradient = *gradient + weight_decay * *parameter;
        *velocity = kept * *velocity + gradient;
        *parameter -= learning_rate * (own * gradient + ahead * *velocity);
    }
}

struct AdamRates {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    step_size: f32,         // η / (1 − β1ᵗ)
    second_correction: f32, // 1 / √(1 − β2ᵗ)
}

impl AdamRates {
    fn new(steps: u64, learning_rate: f64, beta1: f32, beta2: f32, epsilon: f32) -> AdamRates {
        let step = (steps + 1) as f64;
        let bias = |beta: f32| 1.0 - f64::from(beta).powf(step);
        AdamRates {
            beta1,
            beta2,
            epsilon,
            step_size: (learning_rate / bias(beta1)) as f32,
            second_correction: (1.0 / bias(beta2).sqrt()) as f32,
        }
    }
}

fn adam(slices: Slices<'_>, rates: &AdamRates, shrink: f32, weight_decay: f32) {
    let Slices { parameters, gradient, first, second } = slices;
    let &AdamRates { beta1, beta2, epsilon, step_size, second_correction } = rates;
    for (((parameter, gradient), m), v) in parameters.iter_mut().zip(gradient).zip(first).zip(second) {
        let gradient = *gradient + weight_decay * *parameter;
        *m = beta1 * *m + (1.0 - beta1) * gradient;
        *v = beta2 * *v + (1.0 - beta2) * gradient * gradient;
        *parameter = *parameter * shrink - step_size * *m / (v.sqrt() * second_correction + epsilon);
    }
}

#[cfg(test)]
mod tests;
