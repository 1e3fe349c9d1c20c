//! Who is measured, and the process that does it.

use std::path::PathBuf;
use std::process::Command;

use super::case::Case;
use crate::bench::torch::{Script, Torch};

/// Freed memory stays in every process, so that none pays for getting the same pages again in each step.
const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "4000000000"), ("MALLOC_TRIM_THRESHOLD_", "8000000000")];

/// Whose operators compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// Ours.
    Ours,
    /// Those of Burn's CPU backend.
    Flex,
    /// PyTorch's.
    Torch,
}

impl Contestant {
    /// How many there are.
    pub(crate) const COUNT: usize = 3;

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Flex => "flex",
            Self::Torch => "torch",
        }
    }
}

/// The programs of all.
#[derive(Debug)]
pub(crate) struct Contestants {
    /// The program `train-step`.
    pub(crate) train_step: PathBuf,
    /// PyTorch, where it takes part.
    pub(crate) torch: Option<Torch>,
}

impl Contestants {
    /// Who takes part, in the order of a round.
    pub(crate) fn all(&self) -> Vec<Contestant> {
        let torch = self.torch.as_ref().map(|_| Contestant::Torch);
        [Contestant::Ours, Contestant::Flex].into_iter().chain(torch).collect()
    }

    /// A process that times steps and prints one line of JSON.
    pub(crate) fn command(&self, contestant: Contestant, case: &Case, seconds: f64) -> Command {
        let mut command = match (contestant, &self.torch) {
            (Contestant::Torch, Some(torch)) => torch.command(Script::Step),
            (Contestant::Flex, _) => self.train_step("burn"),
            _ => self.train_step("own"),
        };
        command.args(["--model", case.model.name()]);
        command.args(["--batch", &case.batch.to_string()]);
        command.args(["--threads", &case.threads.to_string()]);
        command.args(["--seconds", &seconds.to_string()]);
        command.envs(ALLOCATOR);
        command
    }

    fn train_step(&self, operators: &str) -> Command {
        let mut command = Command::new(&self.train_step);
        command.args(["--operators", operators]);
        command
    }
}
