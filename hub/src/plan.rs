//! From a job file and a kernel to a job that can start: every check that needs no agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use omnilearn_datasets::{Fit, Library};
use omnilearn_hub_core::Training;
use omnilearn_hub_core::config::{
    Batching, ConfigError, Controller, EvaluateConfig, EvaluateEvery, JobConfig, Mode, Start, StopConfig,
};
use omnilearn_hub_core::optimizer::OptimizerConfig;
use omnilearn_hub_core::schedule::{ScheduleConfig, ScheduleShape};
use omnilearn_kernel_host::{Description, Kernel, KernelError, initialize};
use omnilearn_wire::frozen::Split;
use omnilearn_wire::layout::{LayoutError, TensorShape};
use omnilearn_wire::limits::{METRICS_MAX, NAME_BYTES_MAX, SETTINGS_MAX};
use omnilearn_wire::message::{JobOffer, Setting};
use omnilearn_wire::{Codec, JobId, Layout};

use crate::first_values::{self, FirstValues};
use crate::given_weights::{GivenWeights, GivenWeightsError};
use crate::job_data::JobData;
use crate::job_file::{
    ControllerName, JobFile, JobFileError, ModeName, OptimizerName, PolicyName, ScheduleName, StartName,
};
use crate::rule_sections;
use crate::signing::Signatures;
use crate::store::StoredJob;
use crate::view::{JobState, JobView};

/// Why a job cannot start as written.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] JobFileError),
    /// What the kernel says to its settings.
    #[error("[kernel.settings]: {0}")]
    Kernel(#[from] KernelError),
    /// What the core says to the numbers.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The model's tensors.
    #[error("the kernel's tensors: {0}")]
    Layout(#[from] LayoutError),
    /// The weights that the job is to begin with.
    #[error("[kernel] weights: {0}")]
    Weights(#[from] GivenWeightsError),
    /// The values of frozen parameters.
    #[error("cannot keep the frozen parameters in the state folder: {0}")]
    Frozen(#[source] std::io::Error),
    /// A key's value does not fit the rest.
    #[error("{key}: {problem}")]
    Value {
        /// Section and key.
        key: &'static str,
        /// What does not fit, and what would.
        problem: String,
    },
    /// The kernel does not fit the data set.
    #[error("kernel and data set do not fit: {problem}")]
    Mismatch {
        /// What does not fit.
        problem: String,
    },
    /// The hub is about to end.
    #[error("the hub is shutting down")]
    ShuttingDown,
}

/// What a job file is planned with.
pub(crate) struct Materials<'a> {
    pub(crate) kernel: &'a Kernel,
    /// Length of the component.
    pub(crate) kernel_bytes: u64,
    pub(crate) signatures: Signatures,
    /// What the job begins with, if the file names any.
    pub(crate) weights: Option<GivenWeights>,
    /// Data sets that were added at the hub.
    pub(crate) library: &'a Library,
}

/// A job that can start.
pub(crate) struct Plan {
    pub(crate) file: JobFile,
    text: String,
    pub(crate) config: JobConfig,
    pub(crate) split: Arc<Split>,
    pub(crate) kernel_digest: [u8; 32],
    kernel_bytes: u64,
    pub(crate) signatures: Signatures,
    settings: Vec<Setting>,
    data: JobData,
    pub(crate) description: Arc<Description>,
    first_values: Option<FirstValues>,
    created_s: f64,
}

/// A job before its first event.
pub(crate) struct NewTraining {
    pub(crate) training: Training,
    /// Values of the frozen parameters as agents fetch them, if there are any.
    pub(crate) frozen: Option<Vec<u8>>,
}

/// Frozen values as they travel.
fn encoded(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * Codec::F32.element_bytes());
    Codec::F32.encode_into(values, &mut bytes);
    bytes
}

pub(crate) fn value(key: &'static str, problem: impl Into<String>) -> PlanError {
    PlanError::Value { key, problem: problem.into() }
}

impl Plan {
    /// Checks a job file against its kernel and the weights that it begins with. May block.
    ///
    /// # Errors
    /// [`PlanError`] with the key and what to write instead.
    pub(crate) fn new(text: &str, materials: Materials<'_>) -> Result<Plan, PlanError> {
        let Materials { kernel, kernel_bytes, signatures, weights, library } = materials;
        let file = JobFile::parse(text)?;
        let settings = file.settings()?;
        if settings.len() > SETTINGS_MAX {
            return Err(value("[kernel.settings]", format!("more than {SETTINGS_MAX} settings")));
        }
        let description = kernel.describe(&settings)?;
        check_names(&description)?;
        let data = JobData::new(&file, library, &description, (&kernel.settings()?, &settings))?;
        let layout = description.layout()?;
        let config = config(&file, &data, &description)?;
        config.validate()?;
        let first_values = first_values(&file, weights.as_ref(), &layout)?;
        let split = split(&file, layout)?;
        Ok(Plan {
            text: text.to_owned(),
            config,
            split: Arc::new(split),
            kernel_digest: *kernel.digest(),
            kernel_bytes,
            signatures,
            settings,
            data,
            description: Arc::new(description),
            first_values,
            created_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            file,
        })
    }

    /// Work for another thread: draws the first parameters or reads them, and makes the core. Takes a while for a large model.
    pub(crate) fn start(&self) -> impl FnOnce() -> Result<NewTraining, PlanError> + Send + 'static {
        let (config, split, description) =
            (self.config.clone(), Arc::clone(&self.split), Arc::clone(&self.description));
        let first_values = self.first_values.clone();
        move || {
            let (mut parameters, mut buffers) = initialize(&description, config.seed);
            if let Some(first_values) = first_values {
                first_values.load(split.whole(), &mut parameters, &mut buffers)?;
            }
            let (trained, frozen) = split.part(parameters);
            let decay = split.trained_of(description.decay_mask()).collect();
            let training = Training::new(config, split.trained().clone(), trained, buffers, decay)?;
            let frozen = (!frozen.is_empty()).then(|| encoded(&frozen));
            crate::allocator::trim();
            Ok(NewTraining { training, frozen })
        }
    }

    /// What agents are told; `frozen` is the digest of the frozen parameters' values, where there are any.
    pub(crate) fn offer(&self, frozen: Option<[u8; 32]>) -> JobOffer {
        JobOffer {
            job: self.config.job,
            name: self.config.name.clone(),
            kernel_digest: self.kernel_digest,
            kernel_bytes: self.kernel_bytes,
            signatures: self.signatures.offered(),
            settings: self.settings.clone(),
            dataset: self.file.dataset.clone(),
            layout_digest: self.split.whole().digest(),
            codec: self.config.codec,
            seed: self.config.seed,
            calibration_batches: self.calibration_batches(),
            batch_bounds: self.config.batch_bounds,
            manifest: self.data.manifest,
            augment: self.data.augment,
            partition: self.data.partition.clone(),
            frozen: frozen.and_then(|digest| self.split.offered(digest)),
        }
    }

    /// What is kept of the job, so that it can be planned again.
    pub(crate) fn stored(&self, view: JobView) -> StoredJob {
        StoredJob {
            view,
            job_file: self.text.clone(),
            kernel: self.kernel_digest,
            author: self.signatures.author.map(|author| author.to_string()),
            weights: self.first_values.as_ref().map(|first_values| first_values.digest),
        }
    }

    /// As given; by default two small sizes, where the bounds allow them.
    fn calibration_batches(&self) -> Vec<u32> {
        let (_, batch_max) = self.config.batch_bounds;
        let by_default = || [4, 16].into_iter().filter(|batch| *batch <= batch_max).collect();
        self.file.batching.calibration_batches.clone().unwrap_or_else(by_default)
    }

    /// What users are told before the job runs.
    pub(crate) fn view(&self, state: JobState) -> JobView {
        JobView {
            id: self.config.job.0,
            name: self.config.name.clone(),
            state,
            message: self.first_values.as_ref().map(FirstValues::notice).unwrap_or_default(),
            created_s: self.created_s,
            mode: self.file.training.mode.as_str().into(),
            policy: match self.file.batching.policy {
                PolicyName::Uniform => "uniform",
                PolicyName::Static => "static",
                PolicyName::Dynamic => "dynamic",
            }
            .into(),
            dataset: self.file.dataset.clone(),
            train_samples: self.config.train_samples,
            parameters: self.split.whole().parameter_elements() as u64,
            parameters_frozen: self.split.frozen().parameter_elements() as u64,
            progress: None,
        }
    }
}

fn first_values(
    file: &JobFile,
    weights: Option<&GivenWeights>,
    layout: &Layout,
) -> Result<Option<FirstValues>, PlanError> {
    let (named, except) = (file.kernel.weights.is_some(), &file.kernel.weights_except);
    if !named && !except.is_empty() {
        return Err(value("[kernel] weights_except", "there are no `weights` to except tensors from"));
    }
    let tensors = || layout.parameters().iter().chain(layout.buffers());
    check_patterns("[kernel] weights_except", except, "tensor", tensors)?;
    match (named, weights) {
        (true, Some(weights)) => Ok(Some(FirstValues::check(weights, except, layout)?)),
        (false, None) => Ok(None),
        (true, None) => Err(value(
            "[kernel] weights",
            "the submission comes without the file; send it to /api/v1/weights and name its digest",
        )),
        (false, Some(_)) => {
            Err(value("[kernel] weights", "the submission comes with a file that the job does not name"))
        }
    }
}

/// What `[kernel] frozen` leaves to train.
fn split(file: &JobFile, layout: Layout) -> Result<Split, PlanError> {
    const KEY: &str = "[kernel] frozen";
    let patterns = &file.kernel.frozen;
    check_patterns(KEY, patterns, "parameter", || layout.parameters().iter())?;
    let is_frozen = |tensor: &TensorShape| patterns.iter().any(|pattern| first_values::matches(pattern, &tensor.name));
    let numbered = (0u32..).zip(layout.parameters());
    let frozen: Vec<u32> = numbered.filter(|(_, tensor)| is_frozen(tensor)).map(|(number, _)| number).collect();
    Split::new(layout, &frozen).map_err(|error| value(KEY, error.to_string()))
}

/// Refuses a pattern that no name is like: it is misspelt, or meant for another kernel.
fn check_patterns<'a, T: Iterator<Item = &'a TensorShape>>(
    key: &'static str,
    patterns: &[String],
    what: &str,
    tensors: impl Fn() -> T,
) -> Result<(), PlanError> {
    let is_unknown = |pattern: &&String| !tensors().any(|tensor| first_values::matches(pattern, &tensor.name));
    let Some(pattern) = patterns.iter().find(is_unknown) else { return Ok(()) };
    let first: Vec<&str> = tensors().take(3).map(|tensor| tensor.name.as_str()).collect();
    let first = first.join(", ");
    Err(value(key, format!("no {what} of the kernel is named as \"{pattern}\" says; its first are {first}")))
}

fn check_names(description: &Description) -> Result<(), PlanError> {
    let mismatch = |problem: String| Err(PlanError::Mismatch { problem });
    if description.metrics.len() > METRICS_MAX {
        return mismatch(format!(
            "the kernel has {} metrics, at most {METRICS_MAX} are taken",
            description.metrics.len()
        ));
    }
    let mut names = std::collections::HashSet::new();
    let tensors = description.parameters.iter().map(|parameter| &parameter.name);
    if let Some(name) =
        tensors.chain(description.buffers.iter().map(|buffer| &buffer.name)).find(|name| !names.insert(*name))
    {
        return mismatch(format!("the kernel has two tensors named `{name}`, weights could not be exported"));
    }
    Ok(())
}

fn seconds(key: &'static str, seconds: f64) -> Result<Duration, PlanError> {
    let fits =
        Duration::try_from_secs_f64(seconds).ok().filter(|duration| *duration <= Duration::from_secs(366 * 86_400));
    fits.ok_or_else(|| value(key, format!("{seconds} is no number of seconds between 0 and a year")))
}

fn config(file: &JobFile, data: &JobData, description: &Description) -> Result<JobConfig, PlanError> {
    let fit = &data.fit;
    let name = file.display_name();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(value("name", format!("must have 1 to {NAME_BYTES_MAX} bytes on one line")));
    }
    let stop = stop(file)?;
    let mode = rule_sections::mode(file)?;
    let training = &file.training;
    Ok(JobConfig {
        job: JobId(0), // given when the job is queued
        name,
        seed: file.seed,
        train_samples: fit.train_samples,
        test_samples: fit.test_samples,
        parts: data.parts.clone(),
        codec: training.codec,
        mode,
        global_batch: training.global_batch,
        batching: batching(file, fit.train_samples),
        shares: shares(file)?,
        batch_bounds: batch_bounds(file, fit)?,
        optimizer: optimizer(file),
        schedule: schedule(file, &mode, &stop, fit)?,
        clip_norm: training.clip_norm,
        agents_min: file.fleet.agents_min,
        round_deadline: seconds("[fleet] round_deadline_s", file.fleet.round_deadline_s)?,
        evaluate: evaluate(file)?,
        metrics: description.metrics.clone(),
        stop,
        wait_for_agents: file.fleet.wait_for_agents.unwrap_or(file.fleet.agents_min),
        wait_timeout: seconds("[fleet] wait_timeout_s", file.fleet.wait_timeout_s)?,
    })
}

fn batching(file: &JobFile, train_samples: u32) -> Batching {
    let batching = &file.batching;
    match batching.policy {
        PolicyName::Uniform => Batching::Uniform,
        PolicyName::Static => Batching::Static,
        PolicyName::Dynamic => Batching::Dynamic {
            controller: match batching.controller {
                ControllerName::Proportional => Controller::Proportional,
                ControllerName::Deadline => Controller::Deadline,
                ControllerName::Epoch => Controller::Epoch { samples: train_samples },
            },
            dead_band: batching.dead_band,
            gain: batching.gain,
            start: match batching.start {
                StartName::Uniform => Start::Uniform,
                StartName::Static => Start::Static,
            },
        },
    }
}

fn shares(file: &JobFile) -> Result<BTreeMap<String, f64>, PlanError> {
    let shares = &file.batching.shares;
    if let Some((name, share)) = shares.iter().find(|(_, share)| !(share.is_finite() && **share > 0.0)) {
        return Err(value("[batching.shares]", format!("{name} = {share} is not a number over zero")));
    }
    Ok(shares.clone())
}

fn batch_bounds(file: &JobFile, fit: &Fit) -> Result<(u32, u32), PlanError> {
    let (training, batching, fleet) = (&file.training, &file.batching, &file.fleet);
    let global_batch = training.global_batch;
    if global_batch == 0 || global_batch > fit.train_samples {
        let problem = format!("{global_batch} is not between 1 and the {} training samples", fit.train_samples);
        return Err(value("[training] global_batch", problem));
    }
    // What an agent manages in a given time is nobody's to know before.
    let most = if training.mode == ModeName::Anytime { fit.train_samples } else { global_batch };
    let (batch_min, batch_max) = (batching.batch_min, batching.batch_max.unwrap_or(most));
    if batch_min == 0 || batch_min > batch_max {
        let problem = format!("{batch_min} is not between 1 and batch_max = {batch_max}");
        return Err(value("[batching] batch_min", problem));
    }
    let calibration = batching.calibration_batches.iter().flatten();
    if let Some(calibration) = calibration.into_iter().find(|batch| !(1..=batch_max).contains(*batch)) {
        let problem = format!("{calibration} is not between 1 and batch_max = {batch_max}");
        return Err(value("[batching] calibration_batches", problem));
    }
    if fleet.agents_min == 0 {
        return Err(value("[fleet] agents_min", "0 agents cannot train, at least 1 is needed"));
    }
    let expected = fleet.wait_for_agents.unwrap_or(fleet.agents_min);
    if expected < fleet.agents_min {
        let problem = format!("{expected} is less than agents_min = {}", fleet.agents_min);
        return Err(value("[fleet] wait_for_agents", problem));
    }
    let (least, most) = (u64::from(batch_min) * u64::from(expected), u64::from(batch_max) * u64::from(expected));
    if least > global_batch.into() {
        let problem = format!(
            "{expected} agents with at least {batch_min} samples each need a global batch of {least}, it is {global_batch}"
        );
        return Err(value("[batching] batch_min", problem));
    }
    if most < global_batch.into() {
        let problem = format!(
            "{expected} agents with at most {batch_max} samples each make a global batch of {most}, it is {global_batch}"
        );
        return Err(value("[batching] batch_max", problem));
    }
    Ok((batch_min, batch_max))
}

fn optimizer(file: &JobFile) -> OptimizerConfig {
    let optimizer = &file.optimizer;
    let (weight_decay, epsilon, [beta1, beta2]) = (optimizer.weight_decay, optimizer.epsilon, optimizer.betas);
    match optimizer.kind {
        OptimizerName::Sgd => {
            // What agents have changed in steps of their own is taken over as it is.
            let default = if file.training.mode.steps_locally() { 0.0 } else { 0.9 };
            let momentum = optimizer.momentum.unwrap_or(default);
            OptimizerConfig::Sgd { momentum, nesterov: optimizer.nesterov, weight_decay }
        }
        OptimizerName::Adam => OptimizerConfig::Adam { beta1, beta2, epsilon, weight_decay },
        OptimizerName::Adamw => OptimizerConfig::AdamW { beta1, beta2, epsilon, weight_decay },
    }
}

fn schedule(file: &JobFile, mode: &Mode, stop: &StopConfig, fit: &Fit) -> Result<ScheduleConfig, PlanError> {
    let schedule = &file.schedule;
    let learning_rate = file.optimizer.learning_rate.unwrap_or(match file.optimizer.kind {
        OptimizerName::Sgd if file.training.mode.steps_locally() => 1.0,
        OptimizerName::Sgd => 0.05,
        OptimizerName::Adam | OptimizerName::Adamw => 0.001,
    });
    let shape = match schedule.kind {
        ScheduleName::Constant => ScheduleShape::Constant,
        ScheduleName::Step if schedule.milestones.is_empty() => {
            return Err(value("[schedule] milestones", "kind = \"step\" needs the steps at which the rate changes"));
        }
        ScheduleName::Step => ScheduleShape::Step { milestones: schedule.milestones.clone(), factor: schedule.factor },
        ScheduleName::Cosine => {
            let samples_per_step = f64::from(file.training.global_batch) * f64::from(mode.local_steps());
            let steps_per_epoch = f64::from(fit.train_samples) / samples_per_step;
            let by_epochs = stop.epochs.map(|epochs| (f64::from(epochs) * steps_per_epoch).ceil() as u64);
            let until_stop = [stop.steps, by_epochs].into_iter().flatten().min();
            let total_steps = schedule.total_steps.or(until_stop).ok_or_else(|| {
                value("[schedule] total_steps", "kind = \"cosine\" needs a length here, or steps or epochs in [stop]")
            })?;
            if !(0.0..=1.0).contains(&schedule.minimum) {
                return Err(value("[schedule] minimum", format!("{} is not between 0 and 1", schedule.minimum)));
            }
            ScheduleShape::Cosine { total_steps, floor: schedule.minimum * learning_rate }
        }
    };
    Ok(ScheduleConfig { learning_rate, warm_up_steps: schedule.warmup_steps, shape })
}

fn evaluate(file: &JobFile) -> Result<EvaluateConfig, PlanError> {
    let evaluate = &file.evaluate;
    let every = match (evaluate.every_steps, evaluate.every_epochs) {
        (Some(_), Some(_)) => {
            return Err(value("[evaluate]", "every_steps and every_epochs exclude each other; give one of them"));
        }
        (Some(steps), None) => EvaluateEvery::Steps(steps),
        (None, epochs) => EvaluateEvery::Epochs(epochs.unwrap_or(1)),
    };
    Ok(EvaluateConfig { every, batch: evaluate.batch })
}

fn stop(file: &JobFile) -> Result<StopConfig, PlanError> {
    const EPOCHS_DEFAULT: u32 = 5;
    let stop = &file.stop;
    let wall_time = stop.wall_time_s.map(|time| seconds("[stop] wall_time_s", time)).transpose()?;
    let given = stop.epochs.is_some() || stop.steps.is_some() || stop.target_accuracy.is_some() || wall_time.is_some();
    for (key, number) in [("[stop] epochs", stop.epochs.map(u64::from)), ("[stop] steps", stop.steps)] {
        if number == Some(0) {
            return Err(value(key, "0 leaves nothing to do, at least 1 is needed"));
        }
    }
    Ok(StopConfig {
        epochs: if given { stop.epochs } else { Some(EPOCHS_DEFAULT) },
        steps: stop.steps,
        target_accuracy: stop.target_accuracy,
        wall_time,
    })
}
