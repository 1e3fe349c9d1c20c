//! What a job is asked to do. Plain data: where it comes from, and its defaults, are the shell's business.

use std::collections::BTreeMap;
use std::time::Duration;

use omnilearn_wire::{Codec, JobId, Layout};

use crate::optimizer::OptimizerConfig;
use crate::schedule::ScheduleConfig;

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobConfig {
    /// The job's number, which every assignment carries.
    pub job: JobId,
    /// The job's name.
    pub name: String,
    /// Seed of the samples' order and of dropout.
    pub seed: u64,
    /// Samples in the training set.
    pub train_samples: u32,
    /// Samples in the test set; 0 for no evaluation.
    pub test_samples: u32,
    /// Codec of gradients and parameters on the wire.
    pub codec: Codec,
    /// How agents are synchronised.
    pub mode: Mode,
    /// B, samples behind one BSP step. In ASP the sum of the agents' local batches.
    pub global_batch: u32,
    /// How the global batch is split over agents.
    pub batching: Batching,
    /// Shares of the global batch by agent name, relative to each other, for [`Batching::Static`] and [`Start::Static`].
    /// Used if every agent at work is named; finite and over zero.
    pub shares: BTreeMap<String, f64>,
    /// Smallest and largest local batch, both inclusive.
    pub batch_bounds: (u32, u32),
    /// The optimizer, which runs on the hub.
    pub optimizer: OptimizerConfig,
    /// The learning rate over steps.
    pub schedule: ScheduleConfig,
    /// Largest L2 norm of the whole gradient; longer ones are shortened to it.
    pub clip_norm: Option<f32>,
    /// Quorum: agents needed to open a round, and updates needed to close one past its deadline.
    pub agents_min: u32,
    /// Longest time without any progress before a missing agent is given up.
    pub round_deadline: Duration,
    /// When and how to evaluate.
    pub evaluate: EvaluateConfig,
    /// Names of the kernel's metrics, in its order. One named `correct` counts correct answers and gives the accuracy.
    pub metrics: Vec<String>,
    /// When to stop.
    pub stop: StopConfig,
    /// Agents to wait for before the first step.
    pub wait_for_agents: u32,
    /// Time after which the first step no longer waits for more than [`JobConfig::agents_min`] agents.
    pub wait_timeout: Duration,
}

/// How agents are synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bulk synchronous: a step is the mean over one global batch, behind a barrier.
    Bsp,
    /// Asynchronous: each gradient is applied on arrival.
    Asp {
        /// Largest staleness that is applied; an older gradient is refused and its samples are issued again.
        staleness_max: Option<u64>,
        /// Divide a gradient by its staleness + 1 (DynSGD).
        damping: bool,
    },
}

/// How the global batch is split over agents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Batching {
    /// The same batch for all.
    Uniform,
    /// In proportion to a rating taken before training: measured speed, or else the CPU quota.
    Static,
    /// Moved by a controller that sees each step's timings.
    Dynamic {
        /// Which controller.
        controller: Controller,
        /// Smallest relative change of a batch that is worth making; see [`DEAD_BAND_DEFAULT`].
        dead_band: f64,
        /// Part of the way to the target that one adjustment goes, over 0 and up to 1.
        gain: f64,
        /// The batches before the first adjustment.
        start: Start,
    },
}

/// Dead-band of the dynamic controllers where the job does not say.
pub const DEAD_BAND_DEFAULT: f64 = 0.03;

/// A controller of local batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// The paper's: each batch in proportion to mean time over own time.
    Proportional,
    /// One finish time for all from an affine model of each agent's time.
    Deadline,
    /// The paper's, as its code has it: once per epoch, and each agent by itself within its dead-band.
    Epoch {
        /// Samples of an epoch.
        samples: u32,
    },
}

/// Batches that a dynamic controller starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The same for all.
    Uniform,
    /// As [`Batching::Static`], where every agent has a measured rating; else the same for all.
    Static,
}

/// When and how to evaluate on the test set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluateConfig {
    /// How often.
    pub every: EvaluateEvery,
    /// Most samples in one forward pass.
    pub batch: u32,
}

/// How often to evaluate. The end of training is always evaluated, unless an operator or the wall time ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluateEvery {
    /// Each time the version is a multiple of this.
    Steps(u64),
    /// Each time this many more epochs are complete.
    Epochs(u32),
}

/// When to stop: at the first condition met. Without any, the job runs until it is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StopConfig {
    /// Complete epochs.
    pub epochs: Option<u32>,
    /// Steps.
    pub steps: Option<u64>,
    /// Test accuracy, 0 to 1.
    pub target_accuracy: Option<f64>,
    /// Time since the job started.
    pub wall_time: Option<Duration>,
}

/// Why a job cannot run as configured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A number outside what makes sense.
    #[error("`{field}` is {value}, must be {expected}")]
    Value {
        /// Which field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Initial values that do not fit the layout.
    #[error("{what}: {found} given, the layout has {expected}")]
    Layout {
        /// What was counted.
        what: &'static str,
        /// How many were given.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// The accuracy is a stop condition, but nothing measures it.
    #[error("`target_accuracy` needs test samples and a metric named `correct`")]
    NoAccuracy,
}

fn check(
    valid: bool,
    field: &'static str,
    value: impl std::fmt::Debug,
    expected: &'static str,
) -> Result<(), ConfigError> {
    if valid { Ok(()) } else { Err(ConfigError::Value { field, value: format!("{value:?}"), expected }) }
}

impl JobConfig {
    /// Index of the metric that counts correct answers.
    pub fn correct_metric(&self) -> Option<usize> {
        self.metrics.iter().position(|name| name == "correct")
    }

    /// Checks every number by itself and against the others.
    ///
    /// # Errors
    /// [`ConfigError`] at the first one that makes no sense.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (batch_min, batch_max) = self.batch_bounds;
        check(self.train_samples > 0, "train_samples", self.train_samples, "at least 1")?;
        check(self.global_batch > 0, "global_batch", self.global_batch, "at least 1")?;
        check(batch_min > 0 && batch_min <= batch_max, "batch_bounds", self.batch_bounds, "1 <= smallest <= largest")?;
        check(batch_min <= self.global_batch, "batch_bounds", self.batch_bounds, "at most the global batch")?;
        let shares_sound = self.shares.values().all(|share| share.is_finite() && *share > 0.0);
        check(shares_sound, "shares", &self.shares, "finite and over 0")?;
        check(self.agents_min > 0, "agents_min", self.agents_min, "at least 1")?;
        let agents_most = self.global_batch / batch_min;
        check(self.agents_min <= agents_most, "agents_min", self.agents_min, "at most global batch / smallest batch")?;
        check(self.round_deadline > Duration::ZERO, "round_deadline", self.round_deadline, "over 0")?;
        check(self.clip_norm.is_none_or(|norm| norm > 0.0), "clip_norm", self.clip_norm, "over 0")?;
        let every = match self.evaluate.every {
            EvaluateEvery::Steps(steps) => steps,
            EvaluateEvery::Epochs(epochs) => u64::from(epochs),
        };
        check(every > 0, "evaluate.every", every, "at least 1")?;
        check(self.evaluate.batch > 0, "evaluate.batch", self.evaluate.batch, "at least 1")?;
        if let Batching::Dynamic { dead_band, gain, .. } = self.batching {
            check((0.0..1.0).contains(&dead_band), "dead_band", dead_band, "from 0 to below 1")?;
            check(gain > 0.0 && gain <= 1.0, "gain", gain, "over 0 and at most 1")?;
        }
        if let Some(accuracy) = self.stop.target_accuracy {
            check((0.0..=1.0).contains(&accuracy), "target_accuracy", accuracy, "from 0 to 1")?;
            if self.test_samples == 0 || self.correct_metric().is_none() {
                return Err(ConfigError::NoAccuracy);
            }
        }
        self.optimizer.validate()?;
        self.schedule.validate()
    }

    pub(crate) fn validate_model(
        &self,
        layout: &Layout,
        parameters: &[f32],
        buffers: &[f32],
        decay_mask: &[bool],
    ) -> Result<(), ConfigError> {
        for (what, found, expected) in [
            ("parameter elements", parameters.len(), layout.parameter_elements()),
            ("shared buffer elements", buffers.len(), layout.buffer_elements()),
            ("entries of the weight decay mask", decay_mask.len(), layout.parameters().len()),
        ] {
            if found != expected {
                return Err(ConfigError::Layout { what, found, expected });
            }
        }
        let finite = parameters.iter().chain(buffers).all(|value| value.is_finite());
        check(finite, "initial parameters", "not finite", "finite")
    }
}
