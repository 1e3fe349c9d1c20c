//! What both sides do, handed to the hub as a job file and to PyTorch's script as arguments.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use clap::ValueEnum;
use omnilearn_wire::dataset::DatasetSpec;
use serde::Serialize;

use crate::datasets;
use crate::demo::table;

/// How a gradient changes the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Optimizer {
    /// Stochastic gradient descent, with momentum.
    Sgd,
    /// Adam.
    Adam,
    /// Adam with weight decay apart from the gradient.
    Adamw,
}

impl Optimizer {
    /// Its name in a job file, and for the script.
    fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Adam => "adam",
            Self::Adamw => "adamw",
        }
    }

    /// The hub's own default.
    pub(crate) fn learning_rate_default(self) -> f64 {
        match self {
            Self::Sgd => 0.05,
            Self::Adam | Self::Adamw => 0.001,
        }
    }
}

/// The learning rate over steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Schedule {
    /// Always the same.
    Constant,
    /// Half a cosine.
    Cosine,
}

impl Schedule {
    /// Its name in a job file, and for the script.
    fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Cosine => "cosine",
        }
    }
}

/// One training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Recipe {
    /// Channels of the first stage.
    pub(crate) width: u32,
    /// Samples behind one step.
    pub(crate) global_batch: u32,
    /// Steps in all.
    pub(crate) steps: u32,
    /// Steps from one evaluation to the next.
    pub(crate) evaluate_every_steps: u32,
    /// How a gradient changes the parameters.
    pub(crate) optimizer: Optimizer,
    /// Before the schedule.
    pub(crate) learning_rate: f64,
    /// Of SGD.
    pub(crate) momentum: f64,
    /// Of all parameters.
    pub(crate) weight_decay: f64,
    /// The learning rate over steps.
    pub(crate) schedule: Schedule,
    /// Steps over which the learning rate first rises.
    pub(crate) warmup_steps: u32,
    /// Where the cosine ends, as a share of the learning rate.
    pub(crate) minimum: f64,
    /// Of everything random.
    pub(crate) seed: u64,
}

impl Recipe {
    /// Samples in all.
    pub(crate) fn samples(&self) -> u64 {
        u64::from(self.steps) * u64::from(self.global_batch)
    }

    /// The job file for so many agents.
    ///
    /// # Errors
    /// When it cannot be written as TOML.
    pub(crate) fn job_file(&self, spec: &DatasetSpec, component: &Path, agents: u32) -> anyhow::Result<String> {
        let component = component.to_str().context("the workspace's path is not UTF-8")?;
        let [channels, height, width] = spec.shape;
        let settings = table([
            ("depth", 18.into()),
            ("stem", "small".into()),
            ("channels", channels.into()),
            ("image_height", height.into()),
            ("image_width", width.into()),
            ("classes", spec.classes.into()),
            ("width", self.width.into()),
        ]);
        let optimizer = table([
            ("kind", self.optimizer.name().into()),
            ("learning_rate", self.learning_rate.into()),
            ("momentum", self.momentum.into()),
            ("weight_decay", self.weight_decay.into()),
        ]);
        let schedule = table([
            ("kind", self.schedule.name().into()),
            ("warmup_steps", self.warmup_steps.into()),
            ("total_steps", self.steps.into()),
            ("minimum", self.minimum.into()),
        ]);
        let job = table([
            ("name", "accuracy".into()),
            ("seed", i64::try_from(self.seed).context("the seed is too large")?.into()),
            ("dataset", spec.name.into()),
            ("kernel", table([("path", component.into()), ("settings", settings.into())]).into()),
            ("training", table([("mode", "bsp".into()), ("global_batch", self.global_batch.into())]).into()),
            ("batching", table([("policy", "dynamic".into())]).into()),
            ("optimizer", optimizer.into()),
            ("schedule", schedule.into()),
            ("evaluate", table([("every_steps", self.evaluate_every_steps.into())]).into()),
            ("stop", table([("steps", self.steps.into())]).into()),
            ("fleet", table([("agents_min", agents.into()), ("wait_for_agents", agents.into())]).into()),
        ]);
        toml::to_string(&job).context("writing the job file")
    }

    /// The script's command with its arguments. `data` is the folder with the data set's files.
    ///
    /// # Errors
    /// When a file is not there.
    pub(crate) fn command(&self, mut command: Command, spec: &DatasetSpec, data: &Path) -> anyhow::Result<Command> {
        for (flag, file) in [
            ("--train-images", &spec.train_images),
            ("--train-labels", &spec.train_labels),
            ("--test-images", &spec.test_images),
            ("--test-labels", &spec.test_labels),
        ] {
            let path = datasets::find_file(data, file);
            let path = path.with_context(|| format!("{} is not in {}", file.name, data.display()))?;
            command.arg(flag).arg(path);
        }
        for (flag, value) in [
            ("--mean", spec.mean.to_string()),
            ("--deviation", spec.deviation.to_string()),
            ("--classes", spec.classes.to_string()),
            ("--width", self.width.to_string()),
            ("--global-batch", self.global_batch.to_string()),
            ("--steps", self.steps.to_string()),
            ("--evaluate-every-steps", self.evaluate_every_steps.to_string()),
            ("--optimizer", self.optimizer.name().to_owned()),
            ("--learning-rate", self.learning_rate.to_string()),
            ("--momentum", self.momentum.to_string()),
            ("--weight-decay", self.weight_decay.to_string()),
            ("--schedule", self.schedule.name().to_owned()),
            ("--warmup-steps", self.warmup_steps.to_string()),
            ("--minimum", self.minimum.to_string()),
            ("--seed", self.seed.to_string()),
        ] {
            command.args([flag, &value]);
        }
        Ok(command)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, global_batch, steps, learning_rate, weight_decay, warmup_steps, minimum, seed, .. } = self;
        write!(formatter, "ResNet-18 of width {width}, {steps} steps of {global_batch} samples, seed {seed}; ")?;
        write!(formatter, "{}, learning rate {learning_rate}, ", self.optimizer.name())?;
        if self.optimizer == Optimizer::Sgd {
            write!(formatter, "momentum {}, ", self.momentum)?;
        }
        write!(formatter, "weight decay {weight_decay}, ")?;
        match self.schedule {
            Schedule::Constant => write!(formatter, "constant rate")?,
            Schedule::Cosine => write!(formatter, "cosine down to {minimum} of the rate")?,
        }
        write!(formatter, " after {warmup_steps} steps of warm-up")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    pub(crate) fn recipe() -> Recipe {
        Recipe {
            width: 16,
            global_batch: 256,
            steps: 703,
            evaluate_every_steps: 59,
            optimizer: Optimizer::Sgd,
            learning_rate: 0.05,
            momentum: 0.9,
            weight_decay: 5e-4,
            schedule: Schedule::Cosine,
            warmup_steps: 23,
            minimum: 0.02,
            seed: 1,
        }
    }

    #[test]
    fn the_job_file_and_the_scripts_arguments_say_the_same() {
        let spec = datasets::find_spec("fashion-mnist").unwrap();
        let job: toml::Table = recipe().job_file(spec, Path::new("/w/resnet.wasm"), 2).unwrap().parse().unwrap();
        let data = tempfile::tempdir().unwrap();
        for file in [spec.train_images, spec.train_labels, spec.test_images, spec.test_labels] {
            fs::write(data.path().join(format!("{}.gz", file.name)), "").unwrap();
        }
        let command = recipe().command(Command::new("python3"), spec, data.path()).unwrap();
        let arguments: Vec<&str> = command.get_args().map(|argument| argument.to_str().unwrap()).collect();
        let argument = |flag: &str| arguments[arguments.iter().position(|argument| *argument == flag).unwrap() + 1];
        for (section, key, flag) in [
            ("training", "global_batch", "--global-batch"),
            ("optimizer", "kind", "--optimizer"),
            ("optimizer", "learning_rate", "--learning-rate"),
            ("optimizer", "momentum", "--momentum"),
            ("optimizer", "weight_decay", "--weight-decay"),
            ("schedule", "kind", "--schedule"),
            ("schedule", "warmup_steps", "--warmup-steps"),
            ("schedule", "total_steps", "--steps"),
            ("schedule", "minimum", "--minimum"),
            ("evaluate", "every_steps", "--evaluate-every-steps"),
            ("stop", "steps", "--steps"),
        ] {
            let value = &job[section][key];
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(text, argument(flag), "{section}.{key}");
        }
        assert_eq!(job["kernel"]["settings"]["width"].to_string(), argument("--width"));
        assert_eq!(job["fleet"]["agents_min"].as_integer(), Some(2));
        assert!(argument("--test-labels").ends_with("t10k-labels-idx1-ubyte.gz"));
    }

    #[test]
    fn in_words_it_is_complete() {
        assert_eq!(
            recipe().to_string(),
            "ResNet-18 of width 16, 703 steps of 256 samples, seed 1; sgd, learning rate 0.05, momentum 0.9, \
             weight decay 0.0005, cosine down to 0.02 of the rate after 23 steps of warm-up"
        );
    }
}
