//! Messages after the handshake. Postcard is positional: the order of variants and fields is the protocol, new variants go
//! last, and a message's fields change only with [`crate::handshake::PROTOCOL_MAX`].

use serde::{Deserialize, Serialize, Serializer};

use crate::bounded::List;
use crate::frozen::Frozen;
use crate::limits::{CALIBRATION_MAX, METRICS_MAX, SETTINGS_MAX, SIGNATURES_MAX, SPANS_MAX};
use crate::partition::Partition;
use crate::{AgentId, AssignmentId, Codec, JobId, Version};

/// Serializes a chunk in one piece. The derived code would do it byte by byte, to the same bytes.
fn as_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// From an agent to its hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentMessage<'a> {
    /// Sent every [`Welcome::heartbeat_ms`](crate::handshake::Welcome::heartbeat_ms), from a thread that does not compute.
    Heartbeat,
    /// Asks for a kernel that is not in the agent's cache, from a byte offset on.
    FetchKernel {
        /// SHA-256 of the component.
        digest: [u8; 32],
        /// First byte wanted.
        offset: u64,
    },
    /// The agent can work on the job.
    JobReady {
        /// Which job.
        job: JobId,
        /// What the agent found out while it got ready.
        ready: JobReady,
    },
    /// The agent cannot work on the job; it stays connected.
    JobDeclined {
        /// Which job.
        job: JobId,
        /// What is missing and what to do, for the hub's operator.
        reason: String,
    },
    /// Opens the stream of one gradient. Nothing that follows counts before [`AgentMessage::PushEnd`] is accepted.
    PushBegin {
        /// Which job.
        job: JobId,
        /// The assignment that this answers.
        assignment: AssignmentId,
        /// Version of the parameters that the gradient was computed from.
        version: Version,
        /// Length of the stream: every gradient in parameter order in the job's codec, then every shared buffer in `f32`.
        bytes: u64,
    },
    /// A piece of the gradient stream.
    PushChunk {
        /// The assignment that this answers.
        assignment: AssignmentId,
        /// Where the piece begins in the stream, in bytes. Pieces arrive in order.
        offset: u64,
        /// The piece, at most [`crate::limits::CHUNK_BYTES`].
        #[serde(borrow, serialize_with = "as_bytes")]
        bytes: &'a [u8],
    },
    /// Closes the stream of one gradient.
    PushEnd {
        /// The assignment that this answers.
        assignment: AssignmentId,
        /// What was measured.
        report: StepReport,
    },
    /// The agent's share of an evaluation.
    Evaluated {
        /// The assignment that this answers.
        assignment: AssignmentId,
        /// Samples evaluated.
        samples: u32,
        /// Sum of the loss over these samples.
        loss_sum: f64,
        /// Sums over these samples in the order of the kernel's metrics.
        #[serde(with = "List::<METRICS_MAX>")]
        metric_sums: Vec<f64>,
    },
    /// An assignment that the agent could not do. The agent goes on with the next.
    AssignmentFailed {
        /// Which assignment.
        assignment: AssignmentId,
        /// What kind of failure.
        failure: Failure,
        /// What happened, for the hub's operator.
        message: String,
    },
    /// The agent is about to close the connection on purpose.
    Leaving {
        /// Why.
        reason: String,
    },
    /// Asks for a piece of a data set's manifest or of one of its files. The agent asks for a few pieces ahead and for the next when
    /// one has come, so that it can stop at any time and nothing else waits behind gigabytes.
    FetchData {
        /// SHA-256 of the manifest or file.
        digest: [u8; 32],
        /// First byte wanted.
        offset: u64,
        /// Bytes wanted, at most [`crate::limits::CHUNK_BYTES`]; fewer come at the end.
        bytes: u32,
    },
}

/// From a hub to an agent.
#[expect(clippy::large_enum_variant, reason = "an offer comes once a job, and no message is kept")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HubMessage<'a> {
    /// A job to get ready for.
    JobOffer(JobOffer),
    /// A piece of a kernel.
    KernelChunk {
        /// SHA-256 of the component.
        digest: [u8; 32],
        /// Where the piece begins.
        offset: u64,
        /// Length of the component, in bytes.
        total: u64,
        /// The piece, at most [`crate::limits::CHUNK_BYTES`].
        #[serde(borrow, serialize_with = "as_bytes")]
        bytes: &'a [u8],
    },
    /// A piece of the parameters, in parameter order in the job's codec, then every shared buffer in `f32`. A piece of
    /// another version than the last replaces what had arrived.
    ParameterChunk {
        /// Which job.
        job: JobId,
        /// Which parameters.
        version: Version,
        /// Where the piece begins in the stream, in bytes. Pieces arrive in order.
        offset: u64,
        /// Length of the stream, in bytes.
        total: u64,
        /// The piece, at most [`crate::limits::CHUNK_BYTES`].
        #[serde(borrow, serialize_with = "as_bytes")]
        bytes: &'a [u8],
    },
    /// Compute one update.
    Train(Train),
    /// Compute loss and metrics on a part of the test set.
    Evaluate(Evaluate),
    /// What became of a push.
    PushOutcome {
        /// Which assignment.
        assignment: AssignmentId,
        /// Accepted or why not.
        outcome: PushOutcome,
    },
    /// An assignment is void, for instance because its round was closed; its result would be refused.
    Cancel {
        /// Which assignment.
        assignment: AssignmentId,
    },
    /// The job is over for this agent.
    JobEnded {
        /// Which job.
        job: JobId,
        /// Why, for the agent's log.
        reason: String,
    },
    /// The hub is about to close the connection.
    Closing {
        /// Why, for the agent's log.
        reason: String,
        /// Whether the agent should try again.
        reconnect: bool,
    },
    /// A piece of a data set: the answer to one [`AgentMessage::FetchData`].
    DataChunk {
        /// SHA-256 of the manifest or file.
        digest: [u8; 32],
        /// Where the piece begins.
        offset: u64,
        /// Length of the whole, in bytes; 0 if the hub does not have it.
        total: u64,
        /// The piece, at most [`crate::limits::CHUNK_BYTES`].
        #[serde(borrow, serialize_with = "as_bytes")]
        bytes: &'a [u8],
    },
}

/// A job, as far as an agent needs to know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobOffer {
    /// The job's number.
    pub job: JobId,
    /// The job's name.
    pub name: String,
    /// SHA-256 of the kernel's component.
    pub kernel_digest: [u8; 32],
    /// Length of the component, in bytes.
    pub kernel_bytes: u64,
    /// Who stands behind the kernel: the hub first, then the author, if the job came with a signature.
    #[serde(with = "List::<SIGNATURES_MAX>")]
    pub signatures: Vec<KernelSignature>,
    /// The kernel's settings; those left out have the kernel's default.
    #[serde(with = "List::<SETTINGS_MAX>")]
    pub settings: Vec<Setting>,
    /// Name of the data set: in [`crate::dataset::CATALOGUE`], or of one that was added at the hub.
    pub dataset: String,
    /// Digest of parameter and buffer names and shapes ([`crate::Layout::digest`]); the agent's kernel must agree.
    pub layout_digest: [u8; 32],
    /// Codec of gradients and parameters.
    pub codec: Codec,
    /// Seed of sampling and dropout.
    pub seed: u64,
    /// Batch sizes at which the agent times itself before it reports ready, smallest first. May be empty.
    #[serde(with = "List::<CALIBRATION_MAX>")]
    pub calibration_batches: Vec<u32>,
    /// Smallest and largest batch that the job allows.
    pub batch_bounds: (u32, u32),
    /// The manifest of a data set that was added at the hub, from which it can be fetched.
    pub manifest: Option<ManifestRef>,
    /// How training images are changed.
    pub augment: Augment,
    /// Which samples belong together in a part of the training set.
    pub partition: Partition,
    /// Parameters that are not trained, whose values are fetched once.
    pub frozen: Option<Frozen>,
}

/// What names a packed data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestRef {
    /// SHA-256 of the manifest, which has those of the files.
    pub digest: [u8; 32],
    /// Length of the manifest, in bytes.
    pub bytes: u64,
}

/// How training images are changed, each as a seed made of the job's seed, the epoch and the sample's number says
/// ([`crate::sampling::augment_seed`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Augment {
    /// Mirrored left to right, half of the time.
    pub flip: bool,
    /// Black pixels around the image, from which a window of its size is cut.
    pub crop_padding: u32,
}

impl Augment {
    /// Whether images stay as they are.
    pub fn is_none(&self) -> bool {
        !self.flip && self.crop_padding == 0
    }
}

/// An Ed25519 signature of a kernel's digest. What exactly is signed is told in `docs/protocol.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSignature {
    /// Public key of the signer.
    pub key: [u8; 32],
    /// The signature, 64 bytes without a length before them.
    #[serde(with = "halves")]
    pub signature: [u8; 64],
}

/// Serde knows arrays of up to 32 elements; two of them have the same bytes as one of 64.
mod halves {
    use super::{Deserialize, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8; 64], serializer: S) -> Result<S::Ok, S::Error> {
        let (first, last) = bytes.split_at(32);
        let halves: [[u8; 32]; 2] = [first, last].map(|half| half.try_into().expect("half of 64 bytes"));
        halves.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<[u8; 64], D::Error> {
        let halves = <[[u8; 32]; 2]>::deserialize(deserializer)?;
        Ok(halves.as_flattened().try_into().expect("two halves are 64 bytes"))
    }
}

/// A setting of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Name as the kernel declares it.
    pub name: String,
    /// Value.
    pub value: SettingValue,
}

/// A value of a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SettingValue {
    /// Boolean.
    Flag(bool),
    /// Whole number.
    Integer(i64),
    /// Real number.
    Number(f64),
    /// Text.
    Text(String),
}

/// What an agent found out while it got ready for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReady {
    /// Samples in the training set.
    pub train_samples: u32,
    /// Samples in the test set.
    pub test_samples: u32,
    /// Largest batch that fits the agent's memory, as far as it knows.
    pub batch_max: Option<u32>,
    /// Batches that are multiples of this suit the agent's device best; 1 if it takes any alike.
    pub batch_step: u32,
    /// Measured pairs of batch size and time of one training step without communication.
    #[serde(with = "List::<CALIBRATION_MAX>")]
    pub calibration: Vec<CalibrationPoint>,
}

/// One timed batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationPoint {
    /// Batch size.
    pub samples: u32,
    /// Sustained time of one step at the agent's CPU quota, in seconds ([`StepTimings::sustained_s`]).
    pub step_s: f64,
}

/// Consecutive positions of an epoch's order: its permutation ([`crate::sampling::permutation`]), or with a partition the
/// orders of its parts one after the other ([`crate::partition::order`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    /// Which epoch's permutation.
    pub epoch: u32,
    /// First position.
    pub start: u32,
    /// One past the last position.
    pub end: u32,
}

impl Span {
    /// Number of positions.
    pub fn len(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One update to compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Train {
    /// Which job.
    pub job: JobId,
    /// This piece of work.
    pub assignment: AssignmentId,
    /// The round it belongs to; in ASP the hub's version when it was issued.
    pub round: u64,
    /// Parameters to compute from. Their stream comes before this message unless the agent already has them.
    pub version: Version,
    /// Samples, in order.
    #[serde(with = "List::<SPANS_MAX>")]
    pub spans: Vec<Span>,
    /// Seed for dropout.
    pub seed: u64,
    /// What to make of the samples.
    pub computation: Computation,
}

impl Train {
    /// Number of samples.
    pub fn samples(&self) -> u32 {
        self.spans.iter().map(Span::len).fold(0, u32::saturating_add)
    }
}

/// What to make of the samples of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Computation {
    /// Their mean gradient.
    Gradient,
    /// The mean gradient of as many of them, from the first on, as a time allows; of one at least.
    Timed {
        /// Time for reading samples and computing, in seconds.
        compute_s: f32,
    },
    /// What some steps of SGD change.
    Local(LocalSteps),
}

/// SGD on the agent: m ← μm + g, x ← x − ηm, from the parameters of the assignment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalSteps {
    /// H: the samples are cut, in order, into so many batches of nearly the same size, one for each step.
    pub steps: u32,
    /// η.
    pub learning_rate: f32,
    /// μ. m begins at zero, unless the agent has parameters of its own.
    pub momentum: f32,
    /// None: what is pushed is the parameters before minus those after. α: the agent steps from parameters x of its own, which
    /// are the hub's x̃ at first, then pushes α(x̃ − x) and adds the same to x.
    pub elastic: Option<f32>,
}

/// A part of the test set to evaluate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluate {
    /// Which job.
    pub job: JobId,
    /// This piece of work.
    pub assignment: AssignmentId,
    /// Parameters to evaluate.
    pub version: Version,
    /// First sample of the test set.
    pub start: u32,
    /// One past the last sample.
    pub end: u32,
    /// Most samples in one forward pass.
    pub batch: u32,
}

/// What an agent did and measured in one assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Mean loss over the samples.
    pub loss: f32,
    /// Sums over the samples in the order of the kernel's metrics.
    #[serde(with = "List::<METRICS_MAX>")]
    pub metric_sums: Vec<f32>,
    /// Phases. None: they come over MQTT.
    pub timings: Option<StepTimings>,
    /// How many of the assignment's samples, from the first on, are behind it: all of them but for [`Computation::Timed`].
    pub samples: u32,
}

/// Times of one step. All in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimings {
    /// From the end of the last push to the arrival of this assignment, or of the first piece of the parameters that come
    /// for it: idle.
    pub wait_s: f32,
    /// Receiving parameters, from the first piece to the last, and reading and normalising samples.
    pub load_s: f32,
    /// Decoding parameters, forward and backward pass.
    pub compute_s: f32,
    /// Encoding the gradient.
    pub encode_s: f32,
    /// Waiting for room to send, and from the last byte encoded until the last byte of the gradient was handed to the
    /// operating system. The message that carries this report comes after it and is not counted.
    pub send_s: f32,
    /// CPU time of the whole agent process between the arrival, as in `wait_s`, and the last byte.
    pub cpu_s: f32,
    /// Time in which the agent's cgroup was throttled, within the busy phases.
    pub throttled_s: f32,
    /// The agent's CPU quota in cores; none where it is not limited below its threads.
    pub quota_cores: Option<f32>,
    /// Whether the step is not representative: the first steps, a new batch size's first step, compilation.
    pub warm_up: bool,
}

impl StepTimings {
    /// Wall time from the assignment's arrival to the last byte sent, throttling included.
    pub fn busy_s(&self) -> f64 {
        f64::from(self.load_s) + f64::from(self.compute_s) + f64::from(self.encode_s) + f64::from(self.send_s)
    }

    /// Time that a step costs this agent when it works without a break: the larger of the busy time without throttling and
    /// the CPU time stretched by the quota. A CPU quota throttles in bursts of its period (100 ms), so the wall time of one
    /// step says little, and the throttled time that falls into a barrier is not seen at all; CPU time per quota is what
    /// the agent can sustain.
    pub fn sustained_s(&self) -> f64 {
        let running_s = self.busy_s() - f64::from(self.throttled_s).max(0.0);
        let quota_s = match self.quota_cores {
            Some(quota_cores) if quota_cores > 0.0 => f64::from(self.cpu_s) / f64::from(quota_cores),
            _ => 0.0,
        };
        running_s.max(quota_s)
    }
}

/// What became of a push.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PushOutcome {
    /// It counts, or it had already counted.
    Accepted {
        /// Version of the parameters after it, where it was applied at once.
        version: Version,
        /// Staleness at which it was applied, in steps.
        staleness: u64,
    },
    /// It does not count; the model is unchanged and the samples are issued again.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Why an assignment failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Failure {
    /// The kernel trapped: a bug in it, or a misused operation.
    Trap,
    /// The kernel exhausted a limit of the sandbox.
    Limit,
    /// The kernel returned an error.
    Kernel,
    /// The compute device failed.
    Device,
    /// Memory ran out, or would have.
    Memory,
    /// Samples could not be read.
    Data,
    /// A non-finite loss or gradient.
    NotFinite,
}

/// An agent's machine, as the agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor architecture, such as `x86_64`.
    pub architecture: String,
    /// Operating system.
    pub os: String,
    /// Cores that the process may run on.
    pub cores: u32,
    /// CPU quota in cores, if one is set.
    pub quota_cores: Option<f32>,
    /// Compute threads that the agent uses.
    pub threads: u32,
    /// Memory limit, or the machine's memory, in bytes.
    pub memory_bytes: u64,
    /// What computes, such as `cpu (flex)`.
    pub compute_device: String,
    /// The agent's version.
    pub agent_version: String,
}

/// Identity of an agent within its hub, as shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentName {
    /// The hub's number for it.
    pub id: AgentId,
    /// The name it gave.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sustained_time_is_the_larger_of_running_and_quota_time() {
        let timings = StepTimings { load_s: 0.1, compute_s: 0.4, encode_s: 0.1, send_s: 0.1, ..StepTimings::default() };
        let sustained =
            |cpu_s, throttled_s, quota_cores| StepTimings { cpu_s, throttled_s, quota_cores, ..timings }.sustained_s();
        let close =
            |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{value} instead of {expected}");
        close(timings.busy_s(), 0.7);
        close(sustained(0.5, 0.0, None), 0.7);
        close(sustained(0.5, 0.3, Some(1.0)), 0.5); // what was throttled is not counted twice
        close(sustained(0.5, 0.3, Some(0.25)), 2.0); // throttled outside of the busy time
        close(sustained(0.5, 0.3, Some(0.0)), 0.4); // no quota of zero
    }
}
