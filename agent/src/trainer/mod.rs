//! What the compute thread does: a kernel, its parameters and a data set, made into gradients.

mod admission;
mod calibrate;
mod encode;
mod factory;
mod frozen;
mod local;
mod parameters;
mod pass;
mod samples;
mod self_test;
#[cfg(test)]
mod tests;
mod threads;
mod timed;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use omnilearn_kernel_host::{
    Batch, Description, Instance, Kernel, KernelError, Limit, Limits, Merge, Mode, Output, initialize, panic_text,
};
use omnilearn_wire::frozen::Split;
use omnilearn_wire::message::{Computation, Evaluate, Failure, JobOffer, StepReport, StepTimings, Train};
use omnilearn_wire::sampling::augment_seed;
use omnilearn_wire::{Codec, Layout, Version};

pub use self::factory::TrainerFactory;
pub use self::frozen::{FrozenFile, JobFiles};
use self::local::Own;
use self::parameters::{ParameterStream, Parameters};
use self::pass::{Computed, Point};
use self::samples::{Drawn, Epochs};
use self::threads::Threads;
use crate::dataset::{Augmenter, Batch as SampleBatch, Dataset, DatasetError, Part, Samples, Values, needs};
use crate::engine::{Engine, Tensor};
use crate::session::{Compute, ComputeError, Evaluation, ParameterPiece};

/// The first steps of a job fill caches and pools and are not representative.
const WARM_UP_STEPS: u32 = 2;

/// A job on this machine. Lives on the compute thread.
pub struct Trainer {
    engine: Engine,
    /// `None` only while a spent instance is being replaced, and after that has failed.
    instance: Option<Instance<Engine>>,
    description: Description,
    codec: Codec,
    dataset: Samples,
    /// What changes training images, and the seed that it follows.
    augmenter: Option<Augmenter>,
    seed: u64,
    epochs: Epochs,
    incoming: ParameterStream,
    /// Spent on decoding parameters since the last step.
    decode: Duration,
    version: Option<Version>,
    /// Which parameters are trained: those are what arrives, what is stepped and what is pushed.
    split: Split,
    /// The trained ones.
    parameters: Vec<Tensor>,
    /// The others, constants of every forward pass.
    frozen: Vec<Tensor>,
    /// All buffers in the kernel's order, shared ones as they came from the hub, local ones as the last step left them.
    buffers: Vec<Tensor>,
    /// Parameters that are the agent's and not the hub's, where the job has agents keep such.
    own: Option<Own>,
    /// Seconds that a sample took in the last assignment whose time was given.
    sample_s: Option<f64>,
    steps: u32,
    batches_seen: HashSet<usize>,
    /// A part of the gradient stream.
    chunk: Vec<u8>,
    /// Whose number of threads is followed, if anyone's.
    threads: Option<Threads>,
    /// Last, so that the tensors above are gone by then.
    _memory: KeptMemory,
}

/// The memory that is kept from step to step. It is given back with the job.
struct KeptMemory;

impl Drop for KeptMemory {
    fn drop(&mut self) {
        omnilearn_cpu::release_unused();
    }
}

/// What an offer leaves of the kernel's parameters to train.
fn split(offer: &JobOffer, layout: Layout) -> Result<Split, String> {
    let frozen = offer.frozen.as_ref().map_or(&[][..], |frozen| &frozen.parameters);
    Split::new(layout, frozen).map_err(|error| format!("the job's frozen parameters: {error}"))
}

/// A computed gradient, still in tensors.
struct Gradient {
    loss: f32,
    metric_sums: Vec<f32>,
    gradients: Vec<Option<Tensor>>,
    buffers: Vec<Tensor>,
}

/// What changes training images as the job says, if it says so.
fn augmenter(offer: &JobOffer, dataset: &Dataset) -> Result<Option<Augmenter>, String> {
    let augment = offer.augment;
    if augment.is_none() {
        return Ok(None);
    }
    let augmenter = Augmenter::new(&dataset.outline().form, augment.flip, augment.crop_padding);
    augmenter.map(Some).ok_or_else(|| format!("data set `{}` cannot be augmented as the job says", offer.dataset))
}

/// The samples of each part, where the job divides the training set.
fn members(offer: &JobOffer, dataset: &Dataset, samples: u32) -> Result<Option<Vec<Vec<u32>>>, String> {
    let partition = &offer.partition;
    if partition.parts().is_none() {
        return Ok(None);
    }
    let strata = match partition.needs_strata() {
        true => dataset.train().strata().map_err(|error| error.to_string())?,
        false => Vec::new(),
    };
    partition.members(offer.seed, samples, &strata).map(Some).map_err(|error| error.to_string())
}

impl Trainer {
    /// Uses as many threads as these allow at the time of each step.
    pub(crate) fn with_threads(self, threads: Threads) -> Trainer {
        Trainer { threads: Some(threads), ..self }
    }

    /// Opens a kernel for a job, with the parameters that the kernel itself proposes.
    ///
    /// # Errors
    /// What is wrong and what to do, for the hub's operator.
    pub fn new(
        offer: &JobOffer,
        kernel: &Kernel,
        JobFiles { dataset, frozen }: JobFiles,
        engine: Engine,
        limits: Limits,
    ) -> Result<Trainer, String> {
        let text = |error: KernelError| error.to_string();
        let mut instance = kernel.instantiate(engine.clone(), limits).map_err(text)?;
        let description = instance.describe(&offer.settings).map_err(text)?;
        let layout = description.layout().map_err(|error| error.to_string())?;
        if layout.digest() != offer.layout_digest {
            return Err("the kernel describes other parameters here than at the hub".to_owned());
        }
        let split = split(offer, layout)?;
        let frozen = match frozen {
            Some(file) => file.tensors(split.frozen(), &engine)?,
            None if split.frozen_bytes() == 0 => Vec::new(),
            None => return Err("the values of the frozen parameters are missing".to_owned()),
        };
        let samples = dataset.samples(&needs(&description)).map_err(|error| error.to_string())?;
        let augmenter = augmenter(offer, &dataset)?;
        let members = members(offer, &dataset, samples.fit().train_samples)?;
        let sized = |shape: &[u32]| shape.iter().map(|&size| size as usize).collect::<Vec<_>>();
        let mut initial = split.part(initialize(&description, offer.seed).0).0.into_iter();
        let parameters = split
            .trained()
            .parameters()
            .iter()
            .map(|parameter| {
                let shape = sized(&parameter.shape);
                let values = initial.by_ref().take(shape.iter().product()).collect();
                engine.floats(values, &shape)
            })
            .collect();
        let buffers = description
            .buffers
            .iter()
            .map(|buffer| {
                let shape = sized(&buffer.shape);
                engine.floats(vec![buffer.initial; shape.iter().product()], &shape)
            })
            .collect();
        Ok(Trainer {
            engine,
            instance: Some(instance),
            description,
            codec: offer.codec,
            epochs: Epochs::new(offer.seed, samples.fit().train_samples, members),
            dataset: samples,
            augmenter,
            seed: offer.seed,
            incoming: ParameterStream::new(split.trained().clone(), offer.codec),
            decode: Duration::ZERO,
            version: None,
            split,
            parameters,
            frozen,
            buffers,
            own: None,
            sample_s: None,
            steps: 0,
            batches_seen: HashSet::new(),
            chunk: Vec::new(),
            threads: None,
            _memory: KeptMemory,
        })
    }

    /// The data set as the kernel takes it.
    pub fn dataset(&self) -> &Samples {
        &self.dataset
    }

    fn adopt(&mut self, parameters: Parameters) {
        self.version = Some(parameters.version);
        self.parameters = parameters.parameters;
        let mut shared = parameters.buffers.into_iter();
        for (buffer, info) in self.buffers.iter_mut().zip(&self.description.buffers) {
            if info.merge == Merge::MeanBySamples {
                *buffer = shared.next().expect("the stream has as many shared buffers as the description");
            }
        }
    }

    fn check_version(&self, wanted: Version) -> Result<(), ComputeError> {
        match self.version {
            Some(version) if version == wanted => Ok(()),
            have => {
                let have = have.map_or("none".to_owned(), |version| format!("version {version}"));
                Err(failed(Failure::Data, format!("needs parameters of version {wanted}, has {have}")))
            }
        }
    }

    /// The parameters of a forward pass: trained ones with the frozen ones among them, in the kernel's order.
    fn with_frozen(&self, trained: &[Tensor]) -> Vec<Tensor> {
        self.split.merge(trained, &self.frozen).cloned().collect()
    }

    /// Reads samples into tensors.
    fn load(&self, part: &Part, samples: &[u32]) -> Result<(Tensor, Tensor), ComputeError> {
        self.tensors(part.read(samples), samples.len())
    }

    /// Reads training samples into tensors, changed where the job says so.
    fn load_training(&self, drawn: &[Drawn]) -> Result<(Tensor, Tensor), ComputeError> {
        let samples: Vec<u32> = drawn.iter().map(|drawn| drawn.sample).collect();
        let train = self.dataset.train();
        let read = match &self.augmenter {
            Some(augmenter) => {
                let seed = |index: usize| augment_seed(self.seed, drawn[index].epoch, drawn[index].sample);
                train.read_augmented(&samples, augmenter, seed)
            }
            None => train.read(&samples),
        };
        self.tensors(read, samples.len())
    }

    fn tensors(
        &self,
        read: Result<SampleBatch, DatasetError>,
        samples: usize,
    ) -> Result<(Tensor, Tensor), ComputeError> {
        let SampleBatch { inputs, targets } = read.map_err(|error| failed(Failure::Data, error.to_string()))?;
        let tensor = |values: Values, sample: &[usize]| {
            let shape: Vec<usize> = std::iter::once(samples).chain(sample.iter().copied()).collect();
            match values {
                Values::F32(values) => self.engine.floats(values, &shape),
                Values::I32(values) => self.engine.ints(values, &shape),
            }
        };
        let fit = self.dataset.fit();
        Ok((tensor(inputs, &fit.input_shape), tensor(targets, &fit.target_shape)))
    }

    /// Runs the kernel. A spent instance is replaced, so that the next assignment finds a sound one.
    fn forward(&mut self, batch: Batch<Tensor>) -> Result<Output<Tensor>, ComputeError> {
        let Some(instance) = &mut self.instance else {
            return Err(failed(Failure::Kernel, "the kernel could not be started again after a failure".to_owned()));
        };
        let result = instance.forward(batch);
        if instance.is_spent() {
            self.instance = self.instance.take().and_then(|instance| instance.restart().ok());
        }
        result.map_err(|error| kernel_failed(&error))
    }

    /// Forward and backward pass. Changes nothing but the instance.
    fn differentiate_at(
        &mut self,
        point: &Point,
        inputs: Tensor,
        targets: Tensor,
        seed: u64,
    ) -> Result<Gradient, ComputeError> {
        let leaves: Vec<Tensor> = point.parameters.iter().map(|parameter| self.engine.leaf(parameter)).collect();
        let batch = Batch {
            mode: Mode::Train,
            parameters: self.with_frozen(&leaves),
            buffers: point.buffers.clone(),
            inputs: vec![inputs],
            targets: Some(targets),
            seed,
        };
        let Output { loss, buffers, metrics, .. } = self.forward(batch)?;
        let loss = loss.expect("the host checks that there is a loss");
        let value = loss.to_vec()[0];
        if !value.is_finite() {
            return Err(failed(Failure::NotFinite, format!("the loss is {value}")));
        }
        let mut gradients = self.engine.backward(&loss);
        let gradients = leaves.iter().map(|leaf| gradients.take(leaf)).collect();
        let metric_sums = metrics.iter().map(|metric| metric.to_vec()[0]).collect();
        // The new statistics carry no gradient, whatever the kernel did.
        let buffers = buffers.iter().map(Tensor::detached).collect();
        Ok(Gradient { loss: value, metric_sums, gradients, buffers })
    }
}

impl Compute for Trainer {
    fn stream_bytes(&self) -> u64 {
        self.incoming.bytes()
    }

    fn take_parameters(&mut self, piece: ParameterPiece<'_>) -> Result<(), String> {
        let start = Instant::now();
        let complete = self.incoming.take(piece, &self.engine).map_err(|error| error.to_string())?;
        if let Some(parameters) = complete {
            self.adopt(parameters);
        }
        self.decode += start.elapsed();
        Ok(())
    }

    fn train(
        &mut self,
        work: &Train,
        sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<StepReport, ComputeError> {
        guarded("the training step", || self.train_step(work, sink))
    }

    fn evaluate(&mut self, work: &Evaluate) -> Result<Evaluation, ComputeError> {
        guarded("the evaluation", || self.evaluate_samples(work))
    }
}

/// A panic of the backend costs the step, not the agent. On a GPU, whatever reads a result may find that an earlier operation has
/// failed.
fn guarded<R>(what: &str, compute: impl FnOnce() -> Result<R, ComputeError>) -> Result<R, ComputeError> {
    catch_unwind(AssertUnwindSafe(compute)).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(failed(device_failure(text), format!("{what} panicked: {text}")))
    })
}

impl Trainer {
    fn train_step(
        &mut self,
        work: &Train,
        sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<StepReport, ComputeError> {
        self.check_version(work.version)?;
        self.threads.iter().for_each(Threads::follow_quota);
        let start = Instant::now();
        let drawn = self.epochs.drawn(&work.spans).map_err(|error| failed(Failure::Data, error.to_string()))?;
        let named = start.elapsed();
        let computed = match work.computation {
            Computation::Gradient => self.pass(&self.point(), &drawn, work.seed)?,
            Computation::Timed { compute_s } => self.timed(&drawn, compute_s, work.seed)?,
            Computation::Local(local) => self.local(&drawn, local, work.seed)?,
        };
        let Computed { mut gradient, samples, load, compute, new_size } = computed;
        let start = Instant::now();
        self.encode(&gradient, sink)?;
        let encoded = start.elapsed();

        // Shared buffers belong to the version and change with the next one only.
        let updated = std::mem::take(&mut gradient.buffers);
        for ((buffer, updated), info) in self.buffers.iter_mut().zip(updated).zip(&self.description.buffers) {
            if info.merge == Merge::KeepLocal {
                *buffer = updated;
            }
        }
        let warm_up = new_size || self.steps < WARM_UP_STEPS;
        self.steps = self.steps.saturating_add(1);
        let compute = compute + std::mem::take(&mut self.decode);
        let timings = StepTimings {
            load_s: (named + load).as_secs_f32(),
            compute_s: compute.as_secs_f32(),
            encode_s: encoded.as_secs_f32(),
            warm_up,
            ..StepTimings::default()
        };
        let samples = samples as u32; // no more than were assigned
        let timings = Some(timings);
        Ok(StepReport { loss: gradient.loss, metric_sums: gradient.metric_sums, timings, samples })
    }

    fn evaluate_samples(&mut self, work: &Evaluate) -> Result<Evaluation, ComputeError> {
        self.check_version(work.version)?;
        self.threads.iter().for_each(Threads::follow_quota);
        let samples_max = self.dataset.test().len();
        if work.start >= work.end || work.end as usize > samples_max || work.batch == 0 {
            let message = format!(
                "samples {}..{} by {} are not in the test set of {samples_max}",
                work.start, work.end, work.batch
            );
            return Err(failed(Failure::Data, message));
        }
        let mut evaluation =
            Evaluation { metric_sums: vec![0.0; self.description.metrics.len()], ..Evaluation::default() };
        let mut start = work.start;
        while start < work.end {
            let end = work.end.min(start.saturating_add(work.batch));
            let samples: Vec<u32> = (start..end).collect();
            let (inputs, targets) = self.load(self.dataset.test(), &samples)?;
            let batch = Batch {
                mode: Mode::Evaluate,
                parameters: self.with_frozen(&self.parameters),
                buffers: self.buffers.clone(),
                inputs: vec![inputs],
                targets: Some(targets),
                seed: 0,
            };
            let output = self.forward(batch)?;
            let loss = output.loss.expect("the host checks that there is a loss").to_vec()[0];
            if !loss.is_finite() {
                return Err(failed(Failure::NotFinite, format!("the loss of test samples {start}..{end} is {loss}")));
            }
            evaluation.samples += end - start;
            evaluation.loss_sum += f64::from(loss) * f64::from(end - start);
            for (sum, metric) in evaluation.metric_sums.iter_mut().zip(&output.metrics) {
                *sum += f64::from(metric.to_vec()[0]);
            }
            start = end;
        }
        Ok(evaluation)
    }
}

fn failed(failure: Failure, message: String) -> ComputeError {
    ComputeError { failure, message }
}

/// What a device's driver, or Burn in its place, says in a panic: whether memory ran out or something else went wrong.
fn device_failure(message: &str) -> Failure {
    let message = message.to_lowercase();
    let is_memory =
        ["out of memory", "outofmemory", "not enough memory", "allocat"].iter().any(|word| message.contains(word));
    if is_memory { Failure::Memory } else { Failure::Device }
}

fn kernel_failed(error: &KernelError) -> ComputeError {
    let failure = match error {
        KernelError::Trap { .. } => Failure::Trap,
        KernelError::Limit(Limit::TensorBytes { .. }) => Failure::Memory,
        KernelError::Limit(_) => Failure::Limit,
        KernelError::Device { message } => device_failure(message),
        _ => Failure::Kernel,
    };
    failed(failure, error.to_string())
}
