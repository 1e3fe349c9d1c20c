//! What experiments do to a fleet beside training on it: look at its hub, and disturb its agents.

use std::fs;

use anyhow::{Context, bail};
use rustix::process::Signal;

use super::{Fleet, Job};
use crate::demo::hub_client::HubClient;
use crate::interrupt::Interrupt;

/// How an agent is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its process is killed; the operating system closes its connection.
    Killed,
    /// Its process stands still; its connection stays.
    Silent,
}

impl Fleet<'_> {
    /// The hub, to ask it something.
    pub(crate) fn hub(&self) -> &HubClient {
        &self.client
    }

    /// Number of agents.
    pub(crate) fn agents(&self) -> usize {
        self.agents.len()
    }

    /// Hands in a job and returns its number.
    ///
    /// # Errors
    /// When the hub refuses it.
    pub(crate) fn start_job(&self, job: &Job) -> anyhow::Result<u64> {
        self.submit(job)
    }

    /// Fails when the hub has ended.
    ///
    /// # Errors
    /// When it has.
    pub(crate) fn check_hub(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        interrupt.check()?;
        self.hub.check_running()
    }

    /// Writes a job's records as CSV files.
    ///
    /// # Errors
    /// When the hub does not answer or a file cannot be written.
    pub(crate) fn export_records(&self, job: u64, folder: &std::path::Path) -> anyhow::Result<()> {
        self.hub_program().export(job, folder)
    }

    /// Loses an agent.
    ///
    /// # Errors
    /// When there is no such agent, or it is gone already.
    pub(crate) fn lose(&mut self, index: usize, loss: Loss) -> anyhow::Result<()> {
        let signal = match loss {
            Loss::Killed => Signal::KILL,
            Loss::Silent => Signal::STOP,
        };
        self.agents.get_mut(index).context("no such agent")?.signal(signal)
    }

    /// Lets agents that stand still go on, so that they can be ended.
    pub(crate) fn wake_all(&mut self) {
        for agent in &mut self.agents {
            // Fails only for one that has ended, and then there is nothing to wake.
            let _gone = agent.signal(Signal::CONT);
        }
    }

    /// Changes an agent's quota, in cores.
    ///
    /// # Errors
    /// When the operating system refuses it.
    pub(crate) fn set_quota(&mut self, index: usize, cores: f64) -> anyhow::Result<()> {
        self.groups.get_mut(index).context("no such agent")?.set_quota(cores)
    }

    /// Memory of the hub's process that is resident, in bytes.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub(crate) fn hub_resident_bytes(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/status", self.hub.id());
        let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        match resident_kib(&status) {
            Some(kib) => Ok(kib * 1024.0),
            None => bail!("{path} does not say how much memory is resident"),
        }
    }
}

/// `VmRSS` of a process's status.
fn resident_kib(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_a_process_status() {
        assert_eq!(resident_kib("Name:\tx\nVmHWM:\t  99 kB\nVmRSS:\t   21456 kB\n"), Some(21456.0));
        assert_eq!(resident_kib("Name:\tx\n"), None);
    }
}
