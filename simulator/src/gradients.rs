//! Where gradients come from: the agent's own trainer, or nowhere.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use omnilearn_agent::config::{AgentConfig, HubAddress};
use omnilearn_agent::dataset::fetch::{HubFiles, Interrupted, Piece};
use omnilearn_agent::device::{DeviceChoice, NoGpu};
use omnilearn_agent::session::{Compute, ComputeError, ComputeFactory, Evaluation, ParameterPiece, Prepared};
use omnilearn_agent::trainer::TrainerFactory;
use omnilearn_hub::PlanError;
use omnilearn_hub::offline::{FrozenValues, OfflineJob};
use omnilearn_hub_core::config::{ConfigError, Mode};
use omnilearn_hub_core::{JobConfig, Snapshot, Training};
use omnilearn_kernel_host::Merge;
use omnilearn_wire::layout::TensorShape;
use omnilearn_wire::message::{Evaluate, JobOffer, Span, StepReport, Train};
use omnilearn_wire::{Codec, Layout, Version};

/// Why nothing can be trained for real.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// A buffer that each agent would keep for itself.
    #[error(
        "buffer `{name}` of the kernel is kept by each agent for itself; one trainer computes for all virtual agents and would mix \
         them: use --gradients none"
    )]
    LocalBuffer {
        /// The buffer.
        name: String,
    },
    /// Parameters that each agent would keep for itself.
    #[error(
        "under elastic averaging each agent keeps parameters of its own; one trainer computes for all virtual agents and would mix \
         them: use --gradients none"
    )]
    OwnParameters,
    /// The device.
    #[error(transparent)]
    Device(#[from] NoGpu),
    /// What an agent would answer to the job.
    #[error("an agent on this machine cannot train the job: {0}")]
    Declined(String),
    /// The core.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Makes the core and computes for all virtual agents.
pub trait Gradients {
    /// The core before its first event.
    ///
    /// # Errors
    /// Why the job cannot begin.
    fn start(&mut self, config: &JobConfig) -> Result<Training, PlanError>;

    /// Whether parameters must be kept for agents until they have computed from them.
    fn needs_parameters(&self) -> bool;

    /// Appends the stream of a gradient to `stream`, and reports loss and metrics. Timings are the simulation's.
    ///
    /// # Errors
    /// What a real agent would report.
    fn gradient(
        &mut self,
        work: &Train,
        parameters: Option<&Snapshot>,
        stream: &mut Vec<u8>,
    ) -> Result<StepReport, ComputeError>;

    /// Evaluates a part of the test set.
    ///
    /// # Errors
    /// What a real agent would report.
    fn evaluate(&mut self, work: &Evaluate, parameters: Option<&Snapshot>) -> Result<Evaluation, ComputeError>;
}

/// No gradients: a model of one element that stays 0, so that the core does all of its work but the arithmetic.
#[derive(Clone, Debug, Default)]
pub struct NoGradients {
    codec: Codec,
    metrics: usize,
}

impl Gradients for NoGradients {
    fn start(&mut self, config: &JobConfig) -> Result<Training, PlanError> {
        (self.codec, self.metrics) = (config.codec, config.metrics.len());
        let tensor = TensorShape { name: "stand-in".to_owned(), shape: vec![1] };
        let layout = Layout::new(vec![tensor], Vec::new())?;
        Ok(Training::new(config.clone(), layout, vec![0.0], Vec::new(), vec![false])?)
    }

    fn needs_parameters(&self) -> bool {
        false
    }

    fn gradient(
        &mut self,
        work: &Train,
        _parameters: Option<&Snapshot>,
        stream: &mut Vec<u8>,
    ) -> Result<StepReport, ComputeError> {
        self.codec.encode_into(&[0.0], stream);
        let samples = work.spans.iter().map(Span::len).sum();
        Ok(StepReport { loss: 0.0, metric_sums: vec![0.0; self.metrics], timings: None, samples })
    }

    fn evaluate(&mut self, work: &Evaluate, _parameters: Option<&Snapshot>) -> Result<Evaluation, ComputeError> {
        let samples = work.end.saturating_sub(work.start);
        Ok(Evaluation { samples, loss_sum: 0.0, metric_sums: vec![0.0; self.metrics] })
    }
}

/// What computes real gradients on this machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Folders in which data sets are looked for, before the usual ones.
    pub data: Vec<PathBuf>,
    /// Folder for compiled kernels and unpacked data sets, if not the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Compute threads, if not as many as there are cores.
    pub threads: Option<std::num::NonZeroUsize>,
}

/// In the hub's place: data sets are on this machine, only the values of frozen parameters are to be had.
struct NoHub {
    frozen: Option<FrozenValues>,
    asked: VecDeque<([u8; 32], u64, u32)>,
}

impl HubFiles for NoHub {
    fn ask(&mut self, digest: [u8; 32], offset: u64, bytes: u32) {
        self.asked.push_back((digest, offset, bytes));
    }

    fn piece(&mut self) -> Result<Piece, Interrupted> {
        let (digest, offset, bytes) = self.asked.pop_front().ok_or(Interrupted)?;
        let Some(frozen) = self.frozen.as_ref().filter(|frozen| frozen.digest == digest) else {
            return Ok(Piece { total: 0, bytes: Vec::new().into() }); // it is not here
        };
        let total = frozen.bytes.len() as u64;
        let (start, end) = (offset.min(total), offset.saturating_add(bytes.into()).min(total));
        Ok(Piece { total, bytes: frozen.bytes[start as usize..end as usize].to_vec().into() })
    }

    fn pause(&mut self, _time: Duration) -> Result<(), Interrupted> {
        Err(Interrupted)
    }
}

/// Real gradients, by the trainer of an agent on this machine's CPU. One trainer computes for all virtual agents, each time from
/// the parameters that the agent in question holds.
pub struct RealGradients<'a> {
    job: &'a OfflineJob,
    compute: Box<dyn Compute>,
    codec: Codec,
    loaded: Option<Version>,
    piece: Vec<u8>,
}

impl RealGradients<'_> {
    /// Gets this machine ready for the job.
    ///
    /// # Errors
    /// [`RealError`]: what is missing, and what to do.
    pub fn new(job: &OfflineJob, machine: Machine) -> Result<RealGradients<'_>, RealError> {
        if matches!(job.config().mode, Mode::ElasticAveraging { .. }) {
            return Err(RealError::OwnParameters);
        }
        let local = job.description().buffers.iter().find(|buffer| buffer.merge == Merge::KeepLocal);
        if let Some(buffer) = local {
            return Err(RealError::LocalBuffer { name: buffer.name.clone() });
        }
        let mut config = AgentConfig::new(HubAddress::nowhere());
        (config.data, config.threads, config.device) = (machine.data, machine.threads, DeviceChoice::Cpu);
        config.cache = machine.cache.unwrap_or(config.cache);
        let factory = TrainerFactory::new(&config)?;
        // Virtual agents time themselves in virtual time.
        let frozen = job.frozen()?;
        let offer = JobOffer { calibration_batches: Vec::new(), ..job.offer(frozen.as_ref()) };
        let mut hub = NoHub { frozen, asked: VecDeque::new() };
        let Prepared { compute, .. } =
            factory.prepare(&offer, job.component(), &mut hub).map_err(RealError::Declined)?;
        Ok(RealGradients { job, compute, codec: offer.codec, loaded: None, piece: Vec::new() })
    }

    /// Hands the parameters to the trainer as they would arrive, unless it has them.
    fn load(&mut self, parameters: Option<&Snapshot>) -> Result<(), ComputeError> {
        let Some(parameters) = parameters.filter(|parameters| self.loaded != Some(parameters.version)) else {
            return Ok(()); // work for other parameters is then refused by the trainer
        };
        self.loaded = None;
        let total = self.compute.stream_bytes();
        let mut offset = 0;
        let blocks = parameters.parameters.iter().map(|block| (self.codec, &**block));
        let buffers = (!parameters.buffers.is_empty()).then_some((Codec::F32, &*parameters.buffers));
        for (codec, values) in blocks.chain(buffers) {
            self.piece.clear();
            codec.encode_into(values, &mut self.piece);
            let piece = ParameterPiece { version: parameters.version, offset, total, bytes: &self.piece };
            self.compute
                .take_parameters(piece)
                .map_err(|message| ComputeError { failure: omnilearn_wire::message::Failure::Data, message })?;
            offset += self.piece.len() as u64;
        }
        self.loaded = Some(parameters.version);
        Ok(())
    }
}

impl Gradients for RealGradients<'_> {
    fn start(&mut self, config: &JobConfig) -> Result<Training, PlanError> {
        if config != self.job.config() {
            let field = "job";
            let expected = "the job that the trainer was prepared for";
            return Err(ConfigError::Value { field, value: config.name.clone(), expected }.into());
        }
        self.job.start()
    }

    fn needs_parameters(&self) -> bool {
        true
    }

    fn gradient(
        &mut self,
        work: &Train,
        parameters: Option<&Snapshot>,
        stream: &mut Vec<u8>,
    ) -> Result<StepReport, ComputeError> {
        self.load(parameters)?;
        self.compute.train(work, &mut |bytes| {
            stream.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
    }

    fn evaluate(&mut self, work: &Evaluate, parameters: Option<&Snapshot>) -> Result<Evaluation, ComputeError> {
        self.load(parameters)?;
        self.compute.evaluate(work)
    }
}
