//! The job file: what a user writes to say what is trained and how. [`EXAMPLE`] explains every key.

use std::collections::BTreeMap;
use std::path::PathBuf;

use omnilearn_hub_core::config::DEAD_BAND_DEFAULT;
use omnilearn_wire::Codec;
use omnilearn_wire::message::{Setting, SettingValue};
use serde::Deserialize;

use crate::job_keys::{self, UnknownKey};
use crate::limits::JOB_FILE_BYTES_MAX;
use crate::rule_sections::{
    AnytimeSection, BackupWorkersSection, ConSgdSection, DynSgdSection, ElasticAveragingSection, HopSection,
    LocalSgdSection, SspSection,
};

/// A job file with every key explained; `omnilearn-hub job-example` prints it.
pub const EXAMPLE: &str = include_str!("../job.example.toml");

/// Why a job file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JobFileError {
    /// Not TOML, or a value of the wrong kind; the text shows the line.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A key that no one knows.
    #[error(transparent)]
    UnknownKey(#[from] UnknownKey),
    /// A setting's value that no kernel can take.
    #[error("[kernel.settings] {name}: a setting is true or false, a number or a text, not {found}")]
    Setting {
        /// Name of the setting.
        name: String,
        /// Kind of the value.
        found: &'static str,
    },
    /// Far more than a job file needs.
    #[error("{bytes} bytes are too long for a job file, at most {JOB_FILE_BYTES_MAX} are taken")]
    TooLong {
        /// Length of the text.
        bytes: usize,
    },
}

/// A job file as written, defaults filled in.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobFile {
    /// Name of the job in lists and logs; by default the kernel's and the data set's.
    pub name: Option<String>,
    /// Seed of everything random.
    #[serde(default)]
    pub seed: u64,
    /// Name of the data set.
    pub dataset: String,
    /// What is done with it.
    #[serde(default)]
    pub data: DataSection,
    /// What is trained.
    pub kernel: KernelSection,
    /// How steps are made.
    #[serde(default)]
    pub training: TrainingSection,
    /// How the global batch is split.
    #[serde(default)]
    pub batching: BatchingSection,
    /// What `mode = "asp"` allows.
    #[serde(default)]
    pub asp: AspSection,
    /// How a gradient changes the parameters.
    #[serde(default)]
    pub optimizer: OptimizerSection,
    /// How the learning rate changes over steps.
    #[serde(default)]
    pub schedule: ScheduleSection,
    /// When the model is evaluated.
    #[serde(default)]
    pub evaluate: EvaluateSection,
    /// When the job is done.
    #[serde(default)]
    pub stop: StopSection,
    /// What is expected of the agents.
    #[serde(default)]
    pub fleet: FleetSection,
    /// `mode = "backup_workers"`.
    #[serde(default)]
    pub backup_workers: BackupWorkersSection,
    /// `mode = "hop"`.
    #[serde(default)]
    pub hop: HopSection,
    /// `mode = "anytime"`.
    #[serde(default)]
    pub anytime: AnytimeSection,
    /// `mode = "local_sgd"`.
    #[serde(default)]
    pub local_sgd: LocalSgdSection,
    /// `mode = "ssp"`.
    #[serde(default)]
    pub ssp: SspSection,
    /// `mode = "con_sgd"`.
    #[serde(default)]
    pub con_sgd: ConSgdSection,
    /// `mode = "dyn_sgd"`.
    #[serde(default)]
    pub dyn_sgd: DynSgdSection,
    /// `mode = "elastic_averaging"`.
    #[serde(default)]
    pub elastic_averaging: ElasticAveragingSection,
}

/// `data.partition`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionName {
    /// Every agent may be given any sample.
    #[default]
    Shared,
    /// Equal parts at random.
    Iid,
    /// Parts whose mix of classes is drawn.
    Dirichlet,
    /// Parts of a few classes each.
    Labels,
    /// Parts of whole groups.
    Key,
}

/// `data.augment`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentSection {
    /// Mirror images left to right, half of the time.
    pub flip: bool,
    /// Pixels around an image, from which a window of its size is cut.
    pub crop_padding: u32,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSection {
    /// How training images are changed.
    pub augment: AugmentSection,
    /// How the training set is divided over agents.
    pub partition: PartitionName,
    /// Number of parts; by default the agents that the job waits for.
    pub parts: Option<u32>,
    /// How even the classes of `dirichlet` are.
    pub alpha: f64,
    /// Classes in each part of `labels`.
    pub labels_per_agent: u32,
}

impl Default for DataSection {
    fn default() -> Self {
        DataSection {
            augment: AugmentSection::default(),
            partition: PartitionName::Shared,
            parts: None,
            alpha: 0.5,
            labels_per_agent: 2,
        }
    }
}

/// `[kernel]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSection {
    /// The component, relative to the job file.
    pub path: PathBuf,
    /// The first values, a safetensors file relative to the job file; by default they are drawn.
    pub weights: Option<PathBuf>,
    /// Patterns of the tensors that keep their drawn values all the same.
    #[serde(default)]
    pub weights_except: Vec<String>,
    /// Patterns of the parameters that are not trained.
    #[serde(default)]
    pub frozen: Vec<String>,
    /// The kernel's own settings.
    #[serde(default)]
    pub settings: BTreeMap<String, toml::Value>,
}

/// `training.mode`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeName {
    /// Bulk-synchronous.
    #[default]
    Bsp,
    /// Bulk-synchronous without the last ones.
    BackupWorkers,
    /// Bulk-synchronous without the last ones, whose updates count later.
    Hop,
    /// Rounds of a fixed computing time.
    Anytime,
    /// Rounds of several local steps.
    LocalSgd,
    /// Asynchronous.
    Asp,
    /// Stale-synchronous.
    Ssp,
    /// Stale-synchronous with a constant rate.
    ConSgd,
    /// Stale-synchronous with a rate that falls with staleness.
    DynSgd,
    /// Agents with parameters of their own.
    ElasticAveraging,
}

impl ModeName {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            ModeName::Bsp => "bsp",
            ModeName::BackupWorkers => "backup_workers",
            ModeName::Hop => "hop",
            ModeName::Anytime => "anytime",
            ModeName::LocalSgd => "local_sgd",
            ModeName::Asp => "asp",
            ModeName::Ssp => "ssp",
            ModeName::ConSgd => "con_sgd",
            ModeName::DynSgd => "dyn_sgd",
            ModeName::ElasticAveraging => "elastic_averaging",
        }
    }

    /// Whether agents make steps of their own, which the hub's optimizer then takes over.
    pub(crate) fn steps_locally(self) -> bool {
        matches!(self, ModeName::LocalSgd | ModeName::ElasticAveraging)
    }
}

/// `[training]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingSection {
    /// Synchronisation.
    pub mode: ModeName,
    /// Samples behind one step, over all agents.
    pub global_batch: u32,
    /// Encoding of gradients and parameters on the wire.
    pub codec: Codec,
    /// Largest norm of a gradient.
    pub clip_norm: Option<f32>,
}

impl Default for TrainingSection {
    fn default() -> Self {
        TrainingSection { mode: ModeName::Bsp, global_batch: 256, codec: Codec::F32, clip_norm: None }
    }
}

/// `batching.policy`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// Equal batches.
    Uniform,
    /// Batches in proportion to what agents say of themselves.
    Static,
    /// Batches in proportion to measured speed.
    #[default]
    Dynamic,
}

/// `batching.controller`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControllerName {
    /// Batch in proportion to the inverse of the step time.
    Proportional,
    /// A common finish time from a fitted time per step and per sample.
    #[default]
    Deadline,
    /// As `proportional`, but once per epoch.
    Epoch,
}

/// `batching.start`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartName {
    /// The same for all.
    #[default]
    Uniform,
    /// As `policy = "static"`, where agents have timed themselves.
    Static,
}

/// `[batching]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchingSection {
    /// Who gets how much.
    pub policy: PolicyName,
    /// How `dynamic` reacts.
    pub controller: ControllerName,
    /// Smallest batch of an agent.
    pub batch_min: u32,
    /// Largest batch of an agent; by default the global batch.
    pub batch_max: Option<u32>,
    /// Relative difference of step times that `dynamic` leaves alone.
    pub dead_band: f64,
    /// Part of the way to its target that `dynamic` goes in one adjustment.
    pub gain: f64,
    /// Batches before the first adjustment of `dynamic`.
    pub start: StartName,
    /// Batch sizes at which an agent times itself before it takes part.
    pub calibration_batches: Option<Vec<u32>>,
    /// Shares of the global batch by agent name, for `static`.
    pub shares: BTreeMap<String, f64>,
}

impl Default for BatchingSection {
    fn default() -> Self {
        BatchingSection {
            policy: PolicyName::Dynamic,
            controller: ControllerName::Deadline,
            batch_min: 1,
            batch_max: None,
            dead_band: DEAD_BAND_DEFAULT,
            gain: 1.0,
            start: StartName::Uniform,
            calibration_batches: None,
            shares: BTreeMap::new(),
        }
    }
}

/// `[asp]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AspSection {
    /// Oldest gradient that counts, in steps.
    pub staleness_max: Option<u64>,
    /// Whether a gradient's share shrinks with its staleness.
    pub damping: bool,
}

/// `optimizer.kind`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// Stochastic gradient descent.
    #[default]
    Sgd,
    /// Adam; weight decay is added to the gradient.
    Adam,
    /// Adam with decoupled weight decay.
    Adamw,
}

/// `[optimizer]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSection {
    /// Rule.
    pub kind: OptimizerName,
    /// Learning rate before the schedule; the default depends on the rule.
    pub learning_rate: Option<f64>,
    /// Momentum of `sgd`; the default depends on the mode.
    pub momentum: Option<f32>,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: f32,
    /// Decay rates of the two moments of `adam` and `adamw`.
    pub betas: [f32; 2],
    /// Added to the denominator of `adam` and `adamw`.
    pub epsilon: f32,
}

impl Default for OptimizerSection {
    fn default() -> Self {
        OptimizerSection {
            kind: OptimizerName::Sgd,
            learning_rate: None,
            momentum: None,
            nesterov: false,
            weight_decay: 0.0,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
        }
    }
}

/// `schedule.kind`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleName {
    /// Always the same.
    #[default]
    Constant,
    /// Multiplied by a factor at milestones.
    Step,
    /// Half a cosine down to a minimum.
    Cosine,
}

/// `[schedule]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSection {
    /// Shape.
    pub kind: ScheduleName,
    /// Steps over which the learning rate rises from near zero.
    pub warmup_steps: u64,
    /// Steps at which `step` multiplies.
    pub milestones: Vec<u64>,
    /// By how much `step` multiplies.
    pub factor: f64,
    /// Length of `cosine`, in steps; by default until the job stops.
    pub total_steps: Option<u64>,
    /// Where `cosine` ends, as a share of the learning rate.
    pub minimum: f64,
}

impl Default for ScheduleSection {
    fn default() -> Self {
        ScheduleSection {
            kind: ScheduleName::Constant,
            warmup_steps: 0,
            milestones: Vec::new(),
            factor: 0.1,
            total_steps: None,
            minimum: 0.0,
        }
    }
}

/// `[evaluate]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateSection {
    /// Evaluate after so many epochs.
    pub every_epochs: Option<u32>,
    /// Evaluate after so many steps.
    pub every_steps: Option<u64>,
    /// Most samples in one forward pass.
    pub batch: u32,
}

impl Default for EvaluateSection {
    fn default() -> Self {
        EvaluateSection { every_epochs: None, every_steps: None, batch: 250 }
    }
}

/// `[stop]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StopSection {
    /// After so many epochs.
    pub epochs: Option<u32>,
    /// After so many steps.
    pub steps: Option<u64>,
    /// At this accuracy on the test set.
    pub target_accuracy: Option<f64>,
    /// After so many seconds.
    pub wall_time_s: Option<f64>,
}

/// `[fleet]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FleetSection {
    /// Fewest agents with which the job goes on.
    pub agents_min: u32,
    /// Agents that the job waits for before it starts.
    pub wait_for_agents: Option<u32>,
    /// How long it waits for more than `agents_min`, in seconds.
    pub wait_timeout_s: f64,
    /// How long a round waits for an agent that makes no progress, in seconds.
    pub round_deadline_s: f64,
}

impl Default for FleetSection {
    fn default() -> Self {
        FleetSection { agents_min: 1, wait_for_agents: None, wait_timeout_s: 60.0, round_deadline_s: 120.0 }
    }
}

impl JobFile {
    /// Reads a job file.
    ///
    /// # Errors
    /// [`JobFileError`], with the line where there is one.
    pub fn parse(text: &str) -> Result<JobFile, JobFileError> {
        if text.len() > JOB_FILE_BYTES_MAX {
            return Err(JobFileError::TooLong { bytes: text.len() });
        }
        job_keys::check(text)?;
        let job: JobFile = toml::from_str(text)?;
        job.settings()?;
        Ok(job)
    }

    /// The job's name, given or made of kernel and data set.
    pub fn display_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| {
            let kernel = self.kernel.path.file_stem().unwrap_or_default().to_string_lossy();
            format!("{kernel}-{}", self.dataset)
        })
    }

    /// The kernel's settings.
    ///
    /// # Errors
    /// [`JobFileError::Setting`] for a list, a table or a date.
    pub fn settings(&self) -> Result<Vec<Setting>, JobFileError> {
        let setting = |(name, value): (&String, &toml::Value)| {
            let value = match value {
                toml::Value::Boolean(flag) => SettingValue::Flag(*flag),
                toml::Value::Integer(integer) => SettingValue::Integer(*integer),
                toml::Value::Float(number) => SettingValue::Number(*number),
                toml::Value::String(text) => SettingValue::Text(text.clone()),
                other => return Err(JobFileError::Setting { name: name.clone(), found: other.type_str() }),
            };
            Ok(Setting { name: name.clone(), value })
        };
        self.kernel.settings.iter().map(setting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "dataset = \"mnist\"\n[kernel]\npath = \"kernels/mlp.wasm\"\n";

    fn message(text: &str) -> String {
        JobFile::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn kernel_and_data_set_are_enough() {
        let job = JobFile::parse(MINIMAL).unwrap();
        assert_eq!(job.display_name(), "mlp-mnist");
        assert_eq!(job.training.global_batch, 256);
        assert_eq!(job.batching.policy, PolicyName::Dynamic);
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_nearest_key() {
        let text = format!("{MINIMAL}[optimizer]\nlearning_rat = 0.1\n");
        assert_eq!(message(&text), "line 5: unknown key `learning_rat` in [optimizer], did you mean `learning_rate`?");
        assert_eq!(message("sed = 1\n"), "line 1: unknown key `sed` at the top of the file, did you mean `seed`?");
        let text = format!("{MINIMAL}[flet]\n");
        assert_eq!(message(&text), "line 4: unknown section [flet], did you mean [fleet]?");
        let text = format!("{MINIMAL}[stop]\nzzzzzzzz = 1\n");
        assert_eq!(
            message(&text),
            "line 5: unknown key `zzzzzzzz` in [stop]; known there: epochs, steps, target_accuracy, wall_time_s"
        );
    }

    #[test]
    fn a_key_that_belongs_to_another_section_is_sent_there() {
        let text = format!("learning_rate = 0.1\n{MINIMAL}");
        assert_eq!(
            message(&text),
            "line 1: unknown key `learning_rate` at the top of the file; `learning_rate` belongs in [optimizer]"
        );
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_with_its_line() {
        let text = format!("{MINIMAL}[training]\nglobal_batch = \"many\"\n");
        let message = message(&text);
        assert!(message.contains("line 5") && message.contains("expected u32"), "{message}");
    }

    #[test]
    fn kernel_settings_take_any_name_but_only_plain_values() {
        let job =
            JobFile::parse(&format!("{MINIMAL}[kernel.settings]\nclasses = 10\nrate = 0.5\nwide = true\n")).unwrap();
        assert_eq!(job.settings().unwrap().len(), 3);
        let text = format!("{MINIMAL}[kernel.settings]\nclasses = [1, 2]\n");
        assert_eq!(
            message(&text),
            "[kernel.settings] classes: a setting is true or false, a number or a text, not array"
        );
    }

    #[test]
    fn the_example_parses_and_shows_every_key() {
        JobFile::parse(EXAMPLE).unwrap();
        for (section, keys) in job_keys::KEYS {
            if !section.is_empty() {
                assert!(EXAMPLE.contains(&format!("[{section}]")), "[{section}] is not in the example");
            }
            for key in *keys {
                let shown = |line: &str| {
                    line.trim_start_matches(['#', ':', ' '])
                        .split_once('=')
                        .is_some_and(|(left, _)| left.trim() == *key)
                };
                let is_section = job_keys::KEYS.iter().any(|(name, _)| name == key) || *key == "settings";
                assert!(is_section || EXAMPLE.lines().any(shown), "`{key}` of [{section}] is not in the example");
            }
        }
    }

    #[test]
    fn the_example_parses_with_every_alternative_switched_on() {
        // A line such as `# steps = 1000` is an alternative; it must be a key that the file really takes.
        let all: String =
            EXAMPLE.lines().map(|line| format!("{}\n", line.strip_prefix("#: ").unwrap_or(line))).collect();
        JobFile::parse(&all).unwrap();
    }
}
