//! One process, and what it reports.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::fleet::process::Process;
use crate::interrupt::Interrupt;

/// What a process found about a training step.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Sample {
    /// Median of its steps.
    pub(crate) step_ms: f64,
    /// The most memory that it had resident.
    pub(crate) peak_bytes: Option<u64>,
    /// Cores that others used while it measured.
    pub(crate) foreign_cores: Option<f64>,
}

impl fmt::Display for Sample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3} ms", self.step_ms)?;
        if let Some(bytes) = self.peak_bytes {
            write!(formatter, ", {:.0} MB", bytes as f64 * 1e-6)?;
        }
        if let Some(cores) = self.foreign_cores {
            write!(formatter, ", {cores:.2} cores used by others")?;
        }
        Ok(())
    }
}

/// Runs a process to its end and reads the JSON in its output. `look` sees the output so far, time and again.
///
/// # Errors
/// When it fails or says something else, and after an interrupt, which ends it.
pub(crate) fn run<T: DeserializeOwned>(
    name: &str,
    command: Command,
    folder: &Path,
    interrupt: &Interrupt,
    look: impl FnMut(&str),
) -> anyhow::Result<T> {
    let mut process = Process::spawn(name, command, &folder.join(format!("{name}.log")))?;
    let output = process.run_to_end(interrupt, look)?;
    record(&output).with_context(|| format!("{name} reported no result:\n{}", process.log_tail()))
}

/// The last line that is an object. Libraries may print warnings around it.
fn record<T: DeserializeOwned>(output: &str) -> anyhow::Result<T> {
    let line = output.lines().rev().find(|line| line.starts_with('{')).context("no line of JSON")?;
    serde_json::from_str(line).context("unexpected JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_found_among_warnings() {
        let output =
            "a warning\n{\"step_ms\": 1.5, \"steps\": 3, \"peak_bytes\": 2000000, \"foreign_cores\": null}\nbye\n";
        let sample: Sample = record(output).unwrap();
        assert_eq!(sample.to_string(), "1.500 ms, 2 MB");
        assert!(record::<Sample>("{}").is_err() && record::<Sample>("").is_err());
    }

    #[test]
    fn the_environment_and_the_arguments_reach_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo "{\"step_ms\": $STEP_MS}""#]).env("STEP_MS", "2.5");
        let sample: Sample = run("ours", command, folder.path(), &Interrupt::listen().unwrap(), |_| ()).unwrap();
        assert_eq!(sample.step_ms, 2.5);
    }
}
