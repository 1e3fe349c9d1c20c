//! A job planned where no hub runs: from the same files, through the same checks, to the same core. A simulation needs no more.

use std::path::{Path, PathBuf};

use omnilearn_datasets::Library;
use omnilearn_hub_core::{JobConfig, Training};
use omnilearn_kernel_host::{Description, Kernel, KeyPair, OpenError};
use omnilearn_wire::message::JobOffer;
use omnilearn_wire::{JobId, Layout};

use crate::digest;
use crate::given_weights::{GivenWeights, GivenWeightsError};
use crate::job_file::{JobFile, JobFileError};
use crate::plan::{Materials, Plan, PlanError};
use crate::signing::Signatures;
use crate::view::{JobState, JobView};

/// Why a job cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A file that the job names.
    #[error("cannot read {what} {}: {cause}", path.display())]
    File {
        /// What for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The kernel is none.
    #[error("[kernel] path: {}: {cause}", path.display())]
    Kernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: OpenError,
    },
    /// What the hub would say to the job.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl From<JobFileError> for OfflineError {
    fn from(error: JobFileError) -> OfflineError {
        PlanError::from(error).into()
    }
}

impl From<GivenWeightsError> for OfflineError {
    fn from(error: GivenWeightsError) -> OfflineError {
        PlanError::from(error).into()
    }
}

/// Values of frozen parameters, as agents fetch them.
#[derive(Clone, Debug)]
pub struct FrozenValues {
    /// Their SHA-256, by which they are asked for.
    pub digest: [u8; 32],
    /// One parameter after the other, row-major `f32`, little-endian, in the kernel's order.
    pub bytes: Vec<u8>,
}

/// A job that could be submitted, and what it names.
pub struct OfflineJob {
    plan: Plan,
    component: Vec<u8>,
}

impl OfflineJob {
    /// Plans the job that a file's text describes. Kernel and weights are read relative to `folder`; data sets are those of the
    /// `library` and of the catalogue.
    ///
    /// # Errors
    /// [`OfflineError`], as the hub would refuse it.
    pub fn plan(text: &str, folder: &Path, library: &Library) -> Result<OfflineJob, OfflineError> {
        let file = JobFile::parse(text)?;
        let path = folder.join(&file.kernel.path);
        let what = "the kernel ([kernel] path; `cargo xtask kernels` builds them)";
        let component = std::fs::read(&path).map_err(|cause| OfflineError::File { what, path: path.clone(), cause })?;
        let kernel = Kernel::open(&component).map_err(|cause| OfflineError::Kernel { path, cause })?;
        let weights = file.kernel.weights.as_ref().map(|weights| open_weights(&folder.join(weights))).transpose()?;
        // Nobody checks it: there is no hub and no agent.
        let key = KeyPair::from_secret(&[0; 32]);
        let signatures = Signatures::new(&key, kernel.digest(), None).expect("there is no author's signature to check");
        let kernel_bytes = component.len() as u64;
        let materials = Materials { kernel: &kernel, kernel_bytes, signatures, weights, library };
        let mut plan = Plan::new(text, materials)?;
        plan.config.job = JobId(1);
        Ok(OfflineJob { plan, component })
    }

    /// What the core is asked to do.
    pub fn config(&self) -> &JobConfig {
        &self.plan.config
    }

    /// What travels: the parameters that are trained, and shared buffers.
    pub fn layout(&self) -> &Layout {
        self.plan.split.trained()
    }

    /// The model as its kernel describes it.
    pub fn description(&self) -> &Description {
        &self.plan.description
    }

    /// The kernel's component.
    pub fn component(&self) -> &[u8] {
        &self.component
    }

    /// What agents would be told, without signatures; `frozen` as from [`OfflineJob::frozen`].
    pub fn offer(&self, frozen: Option<&FrozenValues>) -> JobOffer {
        JobOffer { signatures: Vec::new(), ..self.plan.offer(frozen.map(|frozen| frozen.digest)) }
    }

    /// The values of frozen parameters, for agents to fetch; none where all are trained. Takes a while for a large model.
    ///
    /// # Errors
    /// [`PlanError`], if the weights have changed since they were checked.
    pub fn frozen(&self) -> Result<Option<FrozenValues>, PlanError> {
        if self.plan.split.frozen_bytes() == 0 {
            return Ok(None);
        }
        let values = self.plan.start()()?.frozen;
        Ok(values.map(|bytes| FrozenValues { digest: digest::sha256(&bytes), bytes }))
    }

    /// The job as users see it before it runs.
    pub fn view(&self) -> JobView {
        self.plan.view(JobState::Queued)
    }

    /// The core before its first event, with the parameters that the job begins with. Takes a while for a large model.
    ///
    /// # Errors
    /// [`PlanError`], if the weights have changed since they were checked.
    pub fn start(&self) -> Result<Training, PlanError> {
        self.plan.start()().map(|new| new.training)
    }
}

fn open_weights(path: &Path) -> Result<GivenWeights, OfflineError> {
    let what = "the weights ([kernel] weights)";
    let unreadable = |cause| OfflineError::File { what, path: path.to_owned(), cause };
    let digest = std::fs::File::open(path).and_then(omnilearn_datasets::digest_of).map_err(unreadable)?;
    Ok(GivenWeights::open(path.to_owned(), digest)?)
}
