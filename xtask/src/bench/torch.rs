//! PyTorch, to compare with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::fleet::process::Process;
use crate::interrupt::Interrupt;
use crate::workspace::has_program;

/// Our scripts, and the network that they share.
const FILES: [(&str, &str); 3] = [
    (Script::Step.file(), include_str!("torch_step.py")),
    (Script::Accuracy.file(), include_str!("torch_accuracy.py")),
    ("torch_resnet.py", include_str!("torch_resnet.py")),
];

/// What PyTorch is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Training steps, timed.
    Step,
    /// A training, with the accuracy on the way.
    Accuracy,
}

impl Script {
    const fn file(self) -> &'static str {
        match self {
            Self::Step => "torch_step.py",
            Self::Accuracy => "torch_accuracy.py",
        }
    }
}

/// A Python interpreter that has PyTorch, and the scripts for it.
#[derive(Debug)]
pub(crate) struct Torch {
    python: PathBuf,
    scripts: PathBuf,
    version: String,
}

impl Torch {
    /// Looks whether the interpreter has PyTorch and writes the scripts into `folder`.
    ///
    /// # Errors
    /// When there is no such interpreter or it has no PyTorch.
    pub(crate) fn find(python: &Path, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let is_there = if python.components().count() == 1 && !python.is_file() {
            python.to_str().is_some_and(has_program)
        } else {
            python.is_file()
        };
        if !is_there {
            bail!("there is no Python interpreter `{}`", python.display());
        }
        eprintln!("looking for PyTorch in {}", python.display());
        let mut command = Command::new(python);
        command.args(["-c", "import torch; print(torch.__version__)"]);
        let mut process = Process::spawn("python", command, &folder.join("python.log"))?;
        let last_line = |process: &Process| process.log_tail().lines().last().unwrap_or("no output").trim().to_owned();
        loop {
            interrupt.sleep(Duration::from_millis(50))?;
            match process.has_succeeded() {
                Ok(false) => (),
                Ok(true) => break,
                Err(_) => bail!(
                    "`{0}` has no PyTorch: {1} (`{0} -m pip install torch` gets it)",
                    python.display(),
                    last_line(&process)
                ),
            }
        }
        for (name, text) in FILES {
            let script = folder.join(name);
            fs::write(&script, text).with_context(|| format!("writing {}", script.display()))?;
        }
        Ok(Self { python: python.to_owned(), scripts: folder.to_owned(), version: last_line(&process) })
    }

    /// Its version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The interpreter with a script.
    pub(crate) fn command(&self, script: Script) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.scripts.join(script.file()));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(python: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::listen().unwrap();
        Torch::find(Path::new(python), folder.path(), &interrupt).unwrap_err().to_string()
    }

    #[test]
    fn a_missing_interpreter_is_told_from_one_without_torch() {
        assert_eq!(error("no/such/python"), "there is no Python interpreter `no/such/python`");
        assert_eq!(error("no-such-python"), "there is no Python interpreter `no-such-python`");
        let error = error("sh"); // which does not know `import` either
        assert!(error.starts_with("`sh` has no PyTorch: "), "{error}");
    }
}
