//! The job files of the demo.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use toml::{Table, Value};

/// How agents are synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Bulk-synchronous: every step waits for all agents.
    Bsp,
    /// Asynchronous: every gradient is applied when it arrives.
    Asp,
}

impl Mode {
    /// Its name in a job file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bsp => "bsp",
            Self::Asp => "asp",
        }
    }
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// A multi-layer perceptron.
    Mlp,
    /// LeNet-5, 61,706 parameters.
    Lenet,
    /// ResNet-18, in the demo with few channels (see --width).
    Resnet,
}

impl Model {
    /// The name of its kernel.
    pub(crate) fn kernel(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Lenet => "lenet",
            Self::Resnet => "resnet",
        }
    }

    /// In words, with the width that a ResNet gets.
    pub(crate) fn describe(self, width: u32) -> String {
        match self {
            Self::Mlp => "MLP".to_owned(),
            Self::Lenet => "LeNet".to_owned(),
            Self::Resnet => format!("ResNet-18 of width {width} (64 is the full one)"),
        }
    }

    /// Epochs after which LeNet is past 88 %, and the others fit into a coffee break.
    pub(crate) fn epochs_default(self) -> u32 {
        match self {
            Self::Mlp => 6,
            Self::Lenet => 8,
            Self::Resnet => 2,
        }
    }
}

/// How batches are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// The same for all agents.
    Uniform,
    /// In proportion to the CPU quotas, once.
    Static,
    /// From measured step times, by the default controller.
    Dynamic,
    /// From measured step times, by the paper's proportional rule.
    Proportional,
}

impl Policy {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Static => "static",
            Self::Dynamic => "dynamic",
            Self::Proportional => "proportional",
        }
    }
}

/// One job of the demo.
#[derive(Clone, Debug)]
pub(crate) struct JobPlan {
    /// Synchronisation.
    pub(crate) mode: Mode,
    /// What is trained.
    pub(crate) model: Model,
    /// How batches are set.
    pub(crate) policy: Policy,
    /// Feature channels of the first stage of a ResNet.
    pub(crate) width: u32,
    /// Samples behind one step, over all agents.
    pub(crate) global_batch: u32,
    /// Passes over the training set.
    pub(crate) epochs: u32,
    /// Agents that take part.
    pub(crate) agents: u32,
    /// Data set.
    pub(crate) dataset: &'static str,
    /// Samples in its training set.
    pub(crate) train_samples: u32,
    /// Seed of everything random.
    pub(crate) seed: u64,
}

/// Learning rate of a step behind 256 samples.
const LEARNING_RATE: f64 = 0.05;

/// Evaluations in an epoch: enough to see when a target was reached, few enough to cost little.
const EVALUATIONS_PER_EPOCH: u32 = 4;

impl JobPlan {
    /// The text of the job file.
    ///
    /// # Errors
    /// When it cannot be written as TOML.
    pub(crate) fn to_toml(&self, component: &Path) -> anyhow::Result<String> {
        let component = component.to_str().context("the workspace's path is not UTF-8")?;
        let steps_per_epoch = (self.train_samples / self.global_batch).max(1);
        let (steps, learning_rate) = match self.mode {
            Mode::Bsp => (steps_per_epoch, LEARNING_RATE),
            // An epoch has as many samples but a step for each agent's batch, so each step goes a smaller way.
            Mode::Asp => (steps_per_epoch * self.agents, LEARNING_RATE / f64::from(self.agents)),
        };
        let learning_rate = learning_rate * f64::from(self.global_batch) / 256.0;
        let mut batching = Table::new();
        let policy = if self.policy == Policy::Proportional { "dynamic" } else { self.policy.name() };
        batching.insert("policy".to_owned(), policy.into());
        if self.policy == Policy::Proportional {
            batching.insert("controller".to_owned(), "proportional".into());
        }
        let mut kernel = table([("path", component.into())]);
        if self.model == Model::Resnet {
            kernel.insert("settings".to_owned(), table([("width", self.width.into())]).into());
        }
        // Asynchronous agents make about as many steps as planned: the more their batches differ, the more. Those past the
        // plan are made at the minimum, which must not be nothing.
        let minimum = if self.mode == Mode::Bsp { 0.02 } else { 0.1 };
        let schedule = table([
            ("warmup_steps", (steps / 10).into()),
            ("kind", "cosine".into()),
            ("total_steps", (steps * self.epochs).into()),
            ("minimum", minimum.into()),
        ]);
        let job = table([
            ("name", format!("{}-{}-{}", self.model.kernel(), self.mode.name(), self.policy.name()).into()),
            ("seed", i64::try_from(self.seed).context("the seed is too large")?.into()),
            ("dataset", self.dataset.into()),
            ("kernel", kernel.into()),
            ("training", table([("mode", self.mode.name().into()), ("global_batch", self.global_batch.into())]).into()),
            ("batching", batching.into()),
            (
                "optimizer",
                table([
                    ("kind", "sgd".into()),
                    ("learning_rate", learning_rate.into()),
                    ("momentum", 0.9.into()),
                    ("weight_decay", 5e-4.into()),
                ])
                .into(),
            ),
            ("schedule", schedule.into()),
            ("evaluate", table([("every_steps", steps.div_ceil(EVALUATIONS_PER_EPOCH).into())]).into()),
            ("stop", table([("epochs", self.epochs.into())]).into()),
            ("fleet", table([("agents_min", self.agents.into()), ("wait_for_agents", self.agents.into())]).into()),
        ]);
        toml::to_string(&job).context("writing the job file")
    }
}

/// A table with these entries.
pub(crate) fn table<const LENGTH: usize>(entries: [(&str, Value); LENGTH]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> JobPlan {
        JobPlan {
            mode: Mode::Bsp,
            model: Model::Lenet,
            policy: Policy::Dynamic,
            width: 8,
            global_batch: 256,
            epochs: 8,
            agents: 4,
            dataset: "fashion-mnist",
            train_samples: 60_000,
            seed: 1,
        }
    }

    fn parse(plan: &JobPlan) -> Table {
        plan.to_toml(Path::new("/w/lenet.wasm")).unwrap().parse().unwrap()
    }

    #[test]
    fn a_job_file_says_what_was_asked_for() {
        let job = parse(&plan());
        assert_eq!(job["kernel"]["path"].as_str(), Some("/w/lenet.wasm"));
        assert_eq!(job["training"]["mode"].as_str(), Some("bsp"));
        assert_eq!(job["schedule"]["total_steps"].as_integer(), Some(8 * 234));
        assert_eq!(job["evaluate"]["every_steps"].as_integer(), Some(59));
        assert_eq!(job["fleet"]["wait_for_agents"].as_integer(), Some(4));
        assert!(job["kernel"].get("settings").is_none());
    }

    #[test]
    fn an_asynchronous_step_goes_a_smaller_way_for_there_are_more_of_them() {
        let job = parse(&JobPlan { mode: Mode::Asp, ..plan() });
        assert_eq!(job["optimizer"]["learning_rate"].as_float(), Some(0.0125));
        assert_eq!(job["evaluate"]["every_steps"].as_integer(), Some(234));
        assert_eq!(job["schedule"]["total_steps"].as_integer(), Some(4 * 8 * 234));
    }

    #[test]
    fn the_papers_rule_is_a_controller_of_the_dynamic_policy() {
        let job = parse(&JobPlan { policy: Policy::Proportional, model: Model::Resnet, ..plan() });
        assert_eq!(job["batching"]["policy"].as_str(), Some("dynamic"));
        assert_eq!(job["batching"]["controller"].as_str(), Some("proportional"));
        assert_eq!(job["kernel"]["settings"]["width"].as_integer(), Some(8));
    }
}
