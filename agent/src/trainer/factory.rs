//! Gets a machine ready for a job.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use omnilearn_kernel_host::{Kernel, Limits};
use omnilearn_wire::message::{Failure, JobOffer, JobReady, Machine};
use serde_json::Value;
use tracing::{debug, info};

use super::self_test::SelfTest;
use super::threads::Threads;
use super::{FrozenFile, JobFiles, Trainer, admission, guarded};
use crate::config::AgentConfig;
use crate::dataset::Dataset;
use crate::dataset::cache::DataCache;
use crate::dataset::fetch::{self, HubFiles};
use crate::device::{self, Adapter, NoGpu, Selected};
use crate::engine::{Engine, enter_pool};
use crate::machine::{Probe, process_cpu_time};
use crate::session::{ComputeError, ComputeFactory, Prepared, Usage};

/// GPUs compute in groups of this many rows, and compile their programs for each batch size: with multiples there are few.
const GPU_BATCH_STEP: u32 = 16;

/// Makes a [`Trainer`] of each job offered.
pub struct TrainerFactory {
    probe: Arc<Probe>,
    threads: Threads,
    data: Vec<PathBuf>,
    cache: PathBuf,
    data_cache: DataCache,
    memory_max: Option<u64>,
    kernel_limits: Limits,
    engine: Engine,
    adapters: Vec<Adapter>,
}

impl TrainerFactory {
    /// A factory for this machine.
    ///
    /// # Errors
    /// If the configuration asks for a GPU that cannot be had.
    pub fn new(config: &AgentConfig) -> Result<TrainerFactory, NoGpu> {
        let probe = Arc::new(Probe::default());
        let Selected { engine, adapters } = device::select(config.device)?;
        Ok(TrainerFactory {
            threads: Threads::new(config.threads, probe.clone()),
            probe,
            data: config.data.clone(),
            cache: config.cache.clone(),
            data_cache: DataCache::new(&config.cache, config.data_cache_max),
            memory_max: config.memory_max,
            kernel_limits: config.kernel_limits,
            engine,
            adapters,
        })
    }

    /// The graphics adapters that were seen; none if the CPU was asked for.
    pub fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    fn quota_cores(&self) -> Option<f32> {
        self.probe.limiting_quota_cores(self.threads.now()).map(|quota_cores| quota_cores as f32)
    }

    /// Most bytes that a forward pass may hold in tensors. The backward pass needs about as much again for gradients, and
    /// the rest of the machine something too.
    fn tensor_bytes(&self) -> u64 {
        let memory_bytes = self.memory_max.unwrap_or_else(|| self.probe.memory_bytes() / 4 * 3);
        if memory_bytes == 0 { Limits::default().tensor_bytes } else { memory_bytes / 2 }
    }
}

impl ComputeFactory for TrainerFactory {
    fn machine(&self) -> Machine {
        Machine {
            architecture: std::env::consts::ARCH.to_owned(),
            os: std::env::consts::OS.to_owned(),
            cores: u32::try_from(self.probe.cores()).unwrap_or(u32::MAX),
            quota_cores: self.probe.quota_cores().map(|quota_cores| quota_cores as f32),
            threads: u32::try_from(self.threads.now().get()).unwrap_or(u32::MAX),
            memory_bytes: self.memory_max.unwrap_or_else(|| self.probe.memory_bytes()),
            compute_device: self.engine.description().to_owned(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn usage(&self) -> Usage {
        Usage { cpu: process_cpu_time(), throttled: self.probe.throttled(), quota_cores: self.quota_cores() }
    }

    fn prepare(&self, offer: &JobOffer, kernel: &[u8], hub: &mut dyn HubFiles) -> Result<Prepared, String> {
        let most = self.threads.most();
        enter_pool(most).map_err(|error| format!("cannot start {most} compute threads: {error}"))?;
        self.threads.follow_quota();
        let kernel = Kernel::open_cached(kernel, &self.cache.join("compiled")).map_err(|error| error.to_string())?;
        let dataset = match offer.manifest {
            Some(manifest) => fetch::dataset(&offer.dataset, manifest, &self.data, &self.data_cache, hub)?,
            None => Dataset::open(&offer.dataset, &self.data, &self.cache).map_err(|error| error.to_string())?,
        };
        let frozen = FrozenFile::fetch(offer, &kernel, &self.data_cache, hub)?;
        let files = JobFiles { dataset, frozen };
        let tensor_bytes = self.tensor_bytes();
        let engine = self.engine.clone().with_elements_max(usize::try_from(tensor_bytes / 4).unwrap_or(usize::MAX));
        let limits = Limits { tensor_bytes, ..self.kernel_limits };
        if !engine.is_cpu() {
            admission::check(offer, &kernel, &files, engine.clone(), limits)?;
        }
        let mut trainer = Trainer::new(offer, &kernel, files, engine, limits)?.with_threads(self.threads.clone());
        let calibration = trainer
            .calibrate(&offer.calibration_batches, &self.probe, self.quota_cores())
            .map_err(|error| format!("a trial step failed: {error}"))?;
        debug!(points = ?calibration.points, "timed trial steps");
        info!(
            job = %offer.job,
            dataset = %offer.dataset,
            threads = self.threads.now().get(),
            device = self.engine.description(),
            instruction_set = omnilearn_cpu::instruction_set(),
            "ready to train"
        );
        let samples = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let ready = JobReady {
            train_samples: samples(trainer.dataset().train().len()),
            test_samples: samples(trainer.dataset().test().len()),
            batch_max: calibration.batch_max,
            batch_step: if self.engine.is_cpu() { 1 } else { GPU_BATCH_STEP },
            calibration: calibration.points,
        };
        Ok(Prepared { compute: Box::new(trainer), ready })
    }

    fn look_again(&self) {
        self.probe.look_again();
    }

    fn limit_threads(&self, threads: Option<NonZeroUsize>) -> Result<NonZeroUsize, String> {
        self.threads.order(threads).map_err(|error| error.to_string())?;
        Ok(self.threads.now())
    }

    fn test_itself(&self) -> Result<Value, String> {
        let most = self.threads.most();
        enter_pool(most).map_err(|error| format!("cannot start {most} compute threads: {error}"))?;
        self.threads.follow_quota();
        let (engine, threads) = (self.engine.clone(), self.threads.now());
        let test = SelfTest { engine, threads, data: &self.data, cache: &self.cache };
        let run = || test.run().map_err(|message| ComputeError { failure: Failure::Device, message });
        guarded("the self-test", run).map_err(|error| error.message)
    }
}
