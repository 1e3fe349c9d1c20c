//! What is measured: models, batches and threads.

use std::fmt;
use std::num::NonZeroUsize;

use clap::ValueEnum;

use super::CpuArguments;

/// Batches of a sweep.
const SWEEP_BATCHES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// A model that all contestants have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// 784-256-10
    Mlp,
    /// LeNet-5 with ReLU and maximum pooling
    Lenet,
    /// AlexNet for images of 32x32
    Alexnet,
    /// VGG-11 for images of 32x32
    Vgg11,
    /// ResNet-18 for images of 32x32
    Resnet18,
}

impl Model {
    /// Its name on a command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Lenet => "lenet",
            Self::Alexnet => "alexnet",
            Self::Vgg11 => "vgg11",
            Self::Resnet18 => "resnet18",
        }
    }

    fn default_batches(self) -> &'static [u32] {
        match self {
            Self::Mlp | Self::Lenet | Self::Alexnet => &[64],
            Self::Vgg11 => &[32],
            Self::Resnet18 => &[32, 128],
        }
    }

    /// Whether its convolutions can be measured one by one.
    pub(crate) fn lists_convolutions(self) -> bool {
        matches!(self, Self::Vgg11 | Self::Resnet18)
    }
}

/// One line of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// What is trained.
    pub(crate) model: Model,
    /// Samples of a step.
    pub(crate) batch: u32,
    /// Threads that compute.
    pub(crate) threads: usize,
}

impl Case {
    /// What the arguments ask for on a machine of `cores` cores, each case once.
    pub(crate) fn choose(arguments: &CpuArguments, cores: usize) -> Vec<Self> {
        let mut all_threads: Vec<usize> = arguments.threads.iter().copied().map(NonZeroUsize::get).collect();
        if all_threads.is_empty() {
            all_threads = vec![1, if arguments.sweep { 2 } else { cores }];
        }
        let models = if arguments.models.is_empty() { Model::value_variants() } else { &arguments.models };
        let chosen: Vec<u32> = arguments.batches.iter().map(|batch| batch.get()).collect();
        let mut cases = Vec::new();
        for &model in models {
            let batches = match (&chosen[..], arguments.sweep) {
                ([], true) => &SWEEP_BATCHES,
                ([], false) => model.default_batches(),
                (chosen, _) => chosen,
            };
            for &batch in batches {
                for &threads in &all_threads {
                    let case = Self { model, batch, threads };
                    if !cases.contains(&case) {
                        cases.push(case);
                    }
                }
            }
        }
        cases
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} batch {}, {}", self.model.name(), self.batch, threads_text(self.threads))
    }
}

/// `1 thread` or `2 threads`.
pub(crate) fn threads_text(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: CpuArguments,
    }

    fn cases(line: &str) -> Vec<String> {
        let arguments = Line::try_parse_from(line.split_whitespace()).unwrap().arguments;
        Case::choose(&arguments, 4).iter().map(Case::to_string).collect()
    }

    #[test]
    fn batches_depend_on_the_model_unless_they_are_given() {
        assert_eq!(
            cases("cpu --models vgg11,resnet18 --threads 1"),
            ["vgg11 batch 32, 1 thread", "resnet18 batch 32, 1 thread", "resnet18 batch 128, 1 thread"]
        );
        assert_eq!(
            cases("cpu --models mlp --batches 3,5 --threads 1,2,2"),
            ["mlp batch 3, 1 thread", "mlp batch 3, 2 threads", "mlp batch 5, 1 thread", "mlp batch 5, 2 threads"]
        );
    }

    #[test]
    fn one_thread_and_all_cores_are_the_default() {
        assert_eq!(cases("cpu --models mlp"), ["mlp batch 64, 1 thread", "mlp batch 64, 4 threads"]);
    }

    #[test]
    fn a_sweep_covers_small_batches() {
        assert_eq!(cases("cpu --sweep").len(), 5 * 9 * 2);
        assert_eq!(cases("cpu --sweep --models lenet --batches 1").len(), 2);
    }

    #[test]
    fn an_unknown_model_is_refused_with_the_known_ones() {
        let error = Line::try_parse_from(["cpu", "--models", "resnet"]).err().unwrap().to_string();
        assert!(error.contains("mlp, lenet, alexnet, vgg11, resnet18"), "{error}");
    }
}
