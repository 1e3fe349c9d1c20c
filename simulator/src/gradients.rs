//! Where gradients come from: the agent's own trainer, or nowhere.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use omnilearn_agent::config::{AgentConfig, HubAddress};
use omnilearn_agent::dataset::fetch::{HubFiles, Interrupted, Piece};
use omnilearn_agent::device::{DeviceChoice, NoGpu};
use omnilearn_agent::session::{Compute, ComputeError, ComputeFactory, Evaluation, ParameterPiece};
use omnilearn_agent::trainer::TrainerFactory;
use omnilearn_hub::PlanError;
use omnilearn_hub::offline::{FrozenValues, OfflineJob};
use omnilearn_hub_core::config::{ConfigError, Mode};
use omnilearn_hub_core::{JobConfig, Snapshot, Training};
use omnilearn_kernel_host::Merge;
use omnilearn_wire::layout::TensorShape;
use omnilearn_wire::message::{Evaluate, JobOffer, Span, StepReport, Train};
use omnilearn_wire::{Codec, Layout, Version};

/// Most trainers at once. Each holds a model, and what its agent keeps for itself.
const TRAINERS_MAX: usize = 64;

/// Why nothing can be trained for real.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// More agents than trainers fit, where each needs one of its own.
    #[error(
        "each of {agents} agents keeps {what} for itself and needs a trainer of its own, and at most {TRAINERS_MAX} are made: use a \
         smaller fleet, or --gradients none"
    )]
    TooManyTrainers {
        /// How many.
        agents: usize,
        /// What each keeps.
        what: String,
    },
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

    /// Appends the stream of an agent's gradient to `stream`, and reports loss and metrics. Timings are the simulation's.
    ///
    /// # Errors
    /// What a real agent would report.
    fn gradient(
        &mut self,
        agent: usize,
        work: &Train,
        parameters: Option<&Snapshot>,
        stream: &mut Vec<u8>,
    ) -> Result<StepReport, ComputeError>;

    /// Evaluates a part of the test set on an agent.
    ///
    /// # Errors
    /// What a real agent would report.
    fn evaluate(
        &mut self,
        agent: usize,
        work: &Evaluate,
        parameters: Option<&Snapshot>,
    ) -> Result<Evaluation, ComputeError>;
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
        _agent: usize,
        work: &Train,
        _parameters: Option<&Snapshot>,
        stream: &mut Vec<u8>,
    ) -> Result<StepReport, ComputeError> {
        self.codec.encode_into(&[0.0], stream);
        let samples = work.spans.iter().map(Span::len).sum();
        Ok(StepReport { loss: 0.0, metric_sums: vec![0.0; self.metrics], timings: None, samples })
    }

    fn evaluate(
        &mut self,
        _agent: usize,
        work: &Evaluate,
        _parameters: Option<&Snapshot>,
    ) -> Result<Evaluation, ComputeError> {
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

/// Real gradients, by the trainers of agents on this machine's CPU. One trainer computes for all virtual agents, each time from
/// the parameters that the agent in question holds; but where agents keep something for themselves, each has its own.
pub struct RealGradients<'a> {
    job: &'a OfflineJob,
    trainers: Vec<Trainer>,
    codec: Codec,
    piece: Vec<u8>,
}

struct Trainer {
    compute: Box<dyn Compute>,
    loaded: Option<Version>,
}

impl RealGradients<'_> {
    /// Gets this machine ready for the job on so many agents.
    ///
    /// # Errors
    /// [`RealError`]: what is missing, and what to do.
    pub fn new(job: &OfflineJob, machine: Machine, agents: usize) -> Result<RealGradients<'_>, RealError> {
        let trainers = match kept(job) {
            Some(what) if agents > TRAINERS_MAX => return Err(RealError::TooManyTrainers { agents, what }),
            Some(_) => agents,
            None => 1,
        };
        let mut config = AgentConfig::new(HubAddress::nowhere());
        (config.data, config.threads, config.device) = (machine.data, machine.threads, DeviceChoice::Cpu);
        config.cache = machine.cache.unwrap_or(config.cache);
        let factory = TrainerFactory::new(&config)?;
        let frozen = job.frozen()?;
        // Virtual agents time themselves in virtual time.
        let offer = JobOffer { calibration_batches: Vec::new(), ..job.offer(frozen.as_ref()) };
        let mut hub = NoHub { frozen, asked: VecDeque::new() };
        let mut trainer = || {
            let prepared = factory.prepare(&offer, job.component(), &mut hub).map_err(RealError::Declined)?;
            Ok(Trainer { compute: prepared.compute, loaded: None })
        };
        let trainers = (0..trainers).map(|_| trainer()).collect::<Result<_, RealError>>()?;
        Ok(RealGradients { job, trainers, codec: offer.codec, piece: Vec::new() })
    }

    /// An agent's trainer, with the parameters handed to it as they would arrive, unless it has them.
    fn load(&mut self, agent: usize, parameters: Option<&Snapshot>) -> Result<&mut dyn Compute, ComputeError> {
        let index = agent.min(self.trainers.len() - 1);
        let Trainer { compute, loaded } = &mut self.trainers[index];
        let Some(parameters) = parameters.filter(|parameters| *loaded != Some(parameters.version)) else {
            return Ok(compute.as_mut()); // work for other parameters is then refused by the trainer
        };
        *loaded = None;
        let total = compute.stream_bytes();
        let mut offset = 0;
        let blocks = parameters.parameters.iter().map(|block| (self.codec, &**block));
        let buffers = (!parameters.buffers.is_empty()).then_some((Codec::F32, &*parameters.buffers));
        for (codec, values) in blocks.chain(buffers) {
            self.piece.clear();
            codec.encode_into(values, &mut self.piece);
            let piece = ParameterPiece { version: parameters.version, offset, total, bytes: &self.piece };
            compute
                .take_parameters(piece)
                .map_err(|message| ComputeError { failure: omnilearn_wire::message::Failure::Data, message })?;
            offset += self.piece.len() as u64;
        }
        *loaded = Some(parameters.version);
        Ok(compute.as_mut())
    }
}

/// What each agent of a job keeps for itself, if anything.
fn kept(job: &OfflineJob) -> Option<String> {
    if matches!(job.config().mode, Mode::ElasticAveraging { .. }) {
        return Some("parameters".to_owned());
    }
    let local = job.description().buffers.iter().find(|buffer| buffer.merge == Merge::KeepLocal)?;
    Some(format!("the buffer `{}`", local.name))
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
        agent: usize,
        work: &Train,
        parameters: Option<&Snapshot>,
        stream: &mut Vec<u8>,
    ) -> Result<StepReport, ComputeError> {
        self.load(agent, parameters)?.train(work, &mut |bytes| {
            stream.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
    }

    fn evaluate(
        &mut self,
        agent: usize,
        work: &Evaluate,
        parameters: Option<&Snapshot>,
    ) -> Result<Evaluation, ComputeError> {
        self.load(agent, parameters)?.evaluate(work)
    }
}
