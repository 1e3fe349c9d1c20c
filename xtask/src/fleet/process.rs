//! Processes that we started and that we end, by their own ids.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt::Interrupt;

/// How long a process may take to end cleanly before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Time between two looks at a process. Rare enough not to be part of what is measured.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Lines of a log that an error message shows.
const LOG_TAIL_LINES: usize = 12;

/// A child process with its output in a log file. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a process in a process group of its own, so that a Ctrl-C in the terminal reaches only us and we choose the
    /// order in which the fleet ends.
    ///
    /// # Errors
    /// When the log cannot be created or the program not started.
    pub(crate) fn spawn(name: &str, command: Command, log: &Path) -> anyhow::Result<Self> {
        let mut command = unconfigured(ending_with_us(command));
        let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().context("duplicating a log handle")?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().with_context(|| format!("starting {name} ({:?})", command.get_program()))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal. A child that we have not waited for keeps its id, so this can reach no stranger.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.check_running()?;
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process without an id")?;
        kill_process(pid, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Its log file.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        let text = self.output().unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Fails when the process has ended, with the end of its log.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().with_context(|| format!("looking after {}", self.name))? {
            None => Ok(()),
            Some(status) => {
                bail!("{} ended ({status}); the end of {}:\n{}", self.name, self.log.display(), self.log_tail())
            }
        }
    }

    /// Whether the process has ended well; `false` while it runs.
    ///
    /// # Errors
    /// When it has failed, with the end of its log.
    pub(crate) fn has_succeeded(&mut self) -> anyhow::Result<bool> {
        match self.child.try_wait().with_context(|| format!("looking after {}", self.name))? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => bail!("{} failed ({status}):\n{}", self.name, self.log_tail()),
        }
    }

    /// Waits for the process to end well and returns its output. `look` sees the output so far, time and again.
    ///
    /// # Errors
    /// When it fails, with the end of its log, and after an interrupt.
    pub(crate) fn run_to_end(&mut self, interrupt: &Interrupt, mut look: impl FnMut(&str)) -> anyhow::Result<String> {
        while !self.has_succeeded()? {
            look(&self.output()?);
            interrupt.sleep(LOOK_EVERY)?;
        }
        self.output()
    }

    fn output(&self) -> anyhow::Result<String> {
        let bytes = fs::read(&self.log).with_context(|| format!("reading {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Asks the process to end. A child that we have not waited for keeps its id, so this can reach no stranger.
    fn terminate(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // Fails only when the process ended this instant, and then there is nothing left to do.
            let _gone = kill_process(pid, Signal::TERM);
        }
    }

    fn wait_until(&mut self, deadline: Instant) {
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Fails only for a process that has ended.
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate();
        self.wait_until(Instant::now() + GRACE);
    }
}

/// Ends processes together: all are asked before the first is waited for.
pub(crate) fn stop_all(mut processes: Vec<Process>) {
    for process in &mut processes {
        process.terminate();
    }
    let deadline = Instant::now() + GRACE;
    for process in &mut processes {
        process.wait_until(deadline);
    }
}

/// The same command without the user's `OMNILEARN_` variables, which are meant for hubs and agents of their own. The log
/// level stays.
pub(crate) fn unconfigured(mut command: Command) -> Command {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("OMNILEARN_") && name != "OMNILEARN_LOG") {
            command.env_remove(name);
        }
    }
    command
}

/// The same command under `setpriv`, where there is one, so that the kernel ends the process if we are killed and cannot.
fn ending_with_us(command: Command) -> Command {
    const ARGUMENTS: [&str; 2] = ["--pdeathsig", "TERM"];
    static WORKS: OnceLock<bool> = OnceLock::new();
    let works = *WORKS.get_or_init(|| {
        let mut trial = Command::new("setpriv");
        trial.args(ARGUMENTS).arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        trial.status().is_ok_and(|status| status.success())
    });
    if !works {
        return command;
    }
    let mut wrapped = Command::new("setpriv");
    wrapped.args(ARGUMENTS).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_ended_process_is_reported_with_the_end_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut process =
            Process::spawn("agent-1", shell("echo no such data set >&2; exit 3"), &folder.path().join("log")).unwrap();
        process.child.wait().unwrap();
        let error = process.check_running().unwrap_err().to_string();
        assert!(error.contains("agent-1 ended") && error.contains("no such data set"), "{error}");
    }

    #[test]
    fn stopping_ends_every_process_and_lets_it_clean_up() {
        let folder = tempfile::tempdir().unwrap();
        let processes = (0..3)
            .map(|number| {
                let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do :; done";
                Process::spawn("agent", shell(script), &folder.path().join(format!("{number}.log"))).unwrap()
            })
            .collect::<Vec<_>>();
        let logs: Vec<_> = processes.iter().map(|process| process.log().to_owned()).collect();
        let deadline = Instant::now() + GRACE;
        while logs.iter().any(|log| !fs::read_to_string(log).unwrap().contains("up")) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        stop_all(processes);
        for log in logs {
            assert_eq!(fs::read_to_string(log).unwrap(), "up\nbye\n");
        }
    }
}
