//! The program `omnilearn-hub` as a user would call it, against a hub that runs.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::process::unconfigured;
use crate::demo::Job;

/// The program, and the hub that it talks to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HubProgram<'a> {
    /// Its path.
    pub(crate) program: &'a Path,
    /// The hub, as `http://HOST:PORT`.
    pub(crate) address: &'a str,
    /// File with the hub's token, if it wants one.
    pub(crate) token_file: Option<&'a Path>,
}

impl HubProgram<'_> {
    /// Hands in a job and returns its number.
    ///
    /// # Errors
    /// Whatever the hub has against it.
    pub(crate) fn submit(&self, job: &Job) -> anyhow::Result<u64> {
        let folder =
            tempfile::Builder::new().prefix("omnilearn-job-").tempdir().context("making a folder for a job")?;
        let file = folder.path().join(format!("{}.toml", job.name));
        fs::write(&file, &job.text).with_context(|| format!("writing {}", file.display()))?;
        let answer = self.call(["submit".as_ref(), file.as_os_str(), "--json".as_ref()])?;
        job_number(&answer).with_context(|| format!("no job number in `{}`", answer.trim()))
    }

    /// Ends a job that has done what it was for. One that came to its end by itself in this moment is as good.
    ///
    /// # Errors
    /// When the hub does not answer.
    pub(crate) fn stop(&self, job: u64) -> anyhow::Result<()> {
        let number = job.to_string();
        let stopped = self.call(["stop".as_ref(), number.as_ref()]);
        let view = self.call(["status".as_ref(), number.as_ref(), "--json".as_ref()])?;
        let view: serde_json::Value = serde_json::from_str(&view).context("reading the job's state")?;
        match view.get("state").and_then(serde_json::Value::as_str) {
            Some("done") => Ok(()),
            _ => stopped.map(drop),
        }
    }

    /// Writes a job's records as CSV files.
    ///
    /// # Errors
    /// When the hub does not answer or a file cannot be written.
    pub(crate) fn export(&self, job: u64, folder: &Path) -> anyhow::Result<()> {
        let number = job.to_string();
        self.call(["export".as_ref(), number.as_ref(), "--csv".as_ref(), folder.as_os_str()]).map(drop)
    }

    /// Runs a command of the program and returns what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub(crate) fn call<const COUNT: usize>(&self, arguments: [&OsStr; COUNT]) -> anyhow::Result<String> {
        let mut command = unconfigured(Command::new(self.program));
        command.args(arguments).args(["--hub", self.address]).stdin(Stdio::null());
        if let Some(file) = self.token_file {
            command.arg("--token-file").arg(file);
        }
        let output = command.output().context("starting omnilearn-hub")?;
        if !output.status.success() {
            let arguments = arguments.map(OsStr::to_string_lossy).join(" ");
            bail!("`omnilearn-hub {arguments}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The number in the JSON of a job.
fn job_number(json: &str) -> Option<u64> {
    serde_json::from_str::<serde_json::Value>(json).ok()?.get("id")?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_number_is_read_from_what_submit_prints() {
        assert_eq!(job_number(r#"{"id": 12, "name": "lenet"}"#), Some(12));
        assert_eq!(job_number("job 12"), None);
    }
}
