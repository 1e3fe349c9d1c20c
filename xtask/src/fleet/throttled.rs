//! What a fleet of containers and one of plain control groups have in common: a job, and quotas that change while it runs.

use std::path::Path;

use omnilearn_devices::quota::CpuGroup;

use super::containers::ContainerFleet;
use crate::demo::{Fleet, Job, JobStatus, Next, RunRecords};
use crate::interrupt::Interrupt;

/// What to do about the state of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    /// New quotas of all agents, in cores.
    pub(crate) quotas: Option<Vec<f64>>,
    /// Whether to watch on.
    pub(crate) next: Next,
}

/// Agents under CPU quotas that can be changed.
pub(crate) trait Throttled {
    /// How many agents there are.
    fn agents(&self) -> usize;

    /// Trains a job and returns what was recorded, also as CSV files in the folder `csv` if one is given. `decide` sees its
    /// state time and again.
    ///
    /// # Errors
    /// When the job fails or makes no progress, or a quota cannot be set.
    fn train_deciding(
        &mut self,
        job: &Job,
        csv: Option<&Path>,
        interrupt: &Interrupt,
        decide: &mut dyn FnMut(&JobStatus) -> Decision,
    ) -> anyhow::Result<RunRecords>;
}

impl Throttled for Fleet<'_> {
    fn agents(&self) -> usize {
        self.quotas().len()
    }

    fn train_deciding(
        &mut self,
        job: &Job,
        csv: Option<&Path>,
        interrupt: &Interrupt,
        decide: &mut dyn FnMut(&JobStatus) -> Decision,
    ) -> anyhow::Result<RunRecords> {
        self.run_watched(job, csv, interrupt, &mut |status, groups: &mut [CpuGroup]| {
            let Decision { quotas, next } = decide(status);
            for (group, quota) in groups.iter_mut().zip(quotas.into_iter().flatten()) {
                group.set_quota(quota)?;
            }
            Ok(next)
        })
    }
}

impl Throttled for ContainerFleet<'_> {
    fn agents(&self) -> usize {
        self.containers().len()
    }

    fn train_deciding(
        &mut self,
        job: &Job,
        csv: Option<&Path>,
        interrupt: &Interrupt,
        decide: &mut dyn FnMut(&JobStatus) -> Decision,
    ) -> anyhow::Result<RunRecords> {
        self.run_watched(job, csv, interrupt, &mut |status, fleet| {
            let Decision { quotas, next } = decide(status);
            if let Some(quotas) = quotas {
                fleet.set_quotas(&quotas)?;
            }
            Ok(next)
        })
    }
}
