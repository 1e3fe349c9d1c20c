//! Times of steps, many in one message.

mod buffer;
mod publisher;
mod receipt;

use std::fmt;
use std::str::FromStr;

use omnilearn_wire::limits::NAME_BYTES_MAX;
use omnilearn_wire::message::StepTimings;
use serde::{Deserialize, Serialize};

pub use buffer::{STEPS_MAX_DEFAULT, TimingsBuffer};
pub use publisher::TimingsPublisher;
pub use receipt::{ReceiptError, TimingsReceipt};

use crate::session::SessionMark;

/// Most steps in one batch.
pub const BATCH_STEPS_MAX: usize = 10_000;

/// Largest batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// First byte of a batch in postcard, which no JSON begins with. Another layout takes another number.
const POSTCARD_VERSION: u8 = 1;

/// How batches are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimingsFormat {
    /// One JSON object, for whoever reads along.
    #[default]
    Json,
    /// A byte 1 and a postcard message: a fourth of the bytes.
    Postcard,
}

impl FromStr for TimingsFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<TimingsFormat, String> {
        match text {
            "json" => Ok(TimingsFormat::Json),
            "postcard" => Ok(TimingsFormat::Postcard),
            _ => Err(format!("`{text}` is not a format; json and postcard are")),
        }
    }
}

impl fmt::Display for TimingsFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            TimingsFormat::Json => "json",
            TimingsFormat::Postcard => "postcard",
        })
    }
}

/// Times of one step, in seconds where nothing else is said. The phases are those of [`StepTimings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimedStep {
    /// Counts the steps of a process from 0, so that a step that comes twice is known.
    pub seq: u64,
    /// When the step ended, since the process began.
    pub at_s: f64,
    /// Job.
    pub job: u64,
    /// Assignment within the job.
    pub assignment: u64,
    /// Round within the job.
    pub round: u64,
    /// Version of the parameters that it began from.
    pub version: u64,
    /// Samples, number.
    pub samples: u32,
    /// Idle before it.
    pub wait_s: f32,
    /// Receiving parameters and reading samples.
    pub load_s: f32,
    /// Decoding parameters, forward and backward pass.
    pub compute_s: f32,
    /// Encoding the gradient.
    pub encode_s: f32,
    /// Sending it.
    pub send_s: f32,
    /// CPU time.
    pub cpu_s: f32,
    /// Time in which the agent's control group was throttled.
    pub throttled_s: f32,
    /// CPU quota in cores, where there is one.
    pub quota_cores: Option<f32>,
    /// Whether the step is not representative.
    pub warm_up: bool,
}

impl TimedStep {
    /// The phases as the hub's controllers take them.
    pub fn timings(&self) -> StepTimings {
        let TimedStep { wait_s, load_s, compute_s, encode_s, send_s, cpu_s, throttled_s, quota_cores, warm_up, .. } =
            *self;
        StepTimings { wait_s, load_s, compute_s, encode_s, send_s, cpu_s, throttled_s, quota_cores, warm_up }
    }

    /// This step with these phases. A number that is not finite, which JSON cannot hold, becomes 0.
    pub fn with_timings(self, timings: &StepTimings) -> TimedStep {
        let finite = |seconds: f32| if seconds.is_finite() { seconds } else { 0.0 };
        TimedStep {
            wait_s: finite(timings.wait_s),
            load_s: finite(timings.load_s),
            compute_s: finite(timings.compute_s),
            encode_s: finite(timings.encode_s),
            send_s: finite(timings.send_s),
            cpu_s: finite(timings.cpu_s),
            throttled_s: finite(timings.throttled_s),
            quota_cores: timings.quota_cores.filter(|cores| cores.is_finite()),
            warm_up: timings.warm_up,
            ..self
        }
    }

    fn is_finite(&self) -> bool {
        let TimedStep { wait_s, load_s, compute_s, encode_s, send_s, cpu_s, throttled_s, quota_cores, .. } = *self;
        let phases = [wait_s, load_s, compute_s, encode_s, send_s, cpu_s, throttled_s, quota_cores.unwrap_or(0.0)];
        self.at_s.is_finite() && phases.iter().all(|seconds| seconds.is_finite())
    }
}

/// Times of steps of one process, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimingsBatch {
    /// The agent's name.
    pub agent: String,
    /// Which process, and in which connection it sends this.
    pub session: SessionMark,
    /// The first step's number.
    pub first: u64,
    /// How many steps of this process were dropped so far, because broker or hub were away for too long.
    pub lost: u64,
    /// The steps. Numbers rise; where one is missing, it is among the lost.
    pub steps: Vec<TimedStep>,
}

/// Why a payload is no batch.
#[derive(Debug, thiserror::Error)]
pub enum TimingsError {
    /// Longer than [`BATCH_BYTES_MAX`].
    #[error("{bytes} bytes, at most {BATCH_BYTES_MAX} allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not this JSON.
    #[error("not a batch's JSON")]
    Json(#[source] serde_json::Error),
    /// Not this layout in postcard.
    #[error("not a batch in postcard")]
    Postcard(#[source] postcard::Error),
    /// Neither JSON nor a known version of the binary layout.
    #[error("neither JSON nor version {POSTCARD_VERSION} of the binary layout")]
    Format,
    /// Nothing, too many steps, or steps that are not in order.
    #[error("{steps} steps that are not 1 to {BATCH_STEPS_MAX} in rising order from {first} on")]
    Steps {
        /// How many.
        steps: usize,
        /// Where they should begin.
        first: u64,
    },
    /// A time that is not a finite number.
    #[error("step {seq} has a time that is not finite")]
    NotFinite {
        /// The step.
        seq: u64,
    },
    /// Another agent's name than the topic's.
    #[error("it names another agent")]
    Name,
}

impl TimingsBatch {
    /// In one of the formats.
    pub fn encode(&self, format: TimingsFormat) -> Vec<u8> {
        match format {
            TimingsFormat::Json => serde_json::to_vec(self).expect("a batch has string keys only"),
            TimingsFormat::Postcard => {
                let payload = vec![POSTCARD_VERSION];
                postcard::to_extend(self, payload).expect("a batch is plain data and memory grows")
            }
        }
    }

    /// Reads a batch in either format from the topic of the agent `name`.
    ///
    /// # Errors
    /// [`TimingsError`].
    pub fn decode(name: &str, payload: &[u8]) -> Result<TimingsBatch, TimingsError> {
        if payload.len() > BATCH_BYTES_MAX {
            return Err(TimingsError::TooLong { bytes: payload.len() });
        }
        let batch: TimingsBatch = match payload {
            [POSTCARD_VERSION, rest @ ..] => postcard::from_bytes(rest).map_err(TimingsError::Postcard)?,
            [b'{', ..] => serde_json::from_slice(payload).map_err(TimingsError::Json)?,
            _ => return Err(TimingsError::Format),
        };
        if batch.agent != name || name.len() > NAME_BYTES_MAX {
            return Err(TimingsError::Name);
        }
        let in_order = batch.steps.windows(2).all(|pair| pair[0].seq < pair[1].seq);
        let first = batch.steps.first().map(|step| step.seq);
        if first != Some(batch.first) || !in_order || batch.steps.len() > BATCH_STEPS_MAX {
            return Err(TimingsError::Steps { steps: batch.steps.len(), first: batch.first });
        }
        match batch.steps.iter().find(|step| !step.is_finite()) {
            Some(step) => Err(TimingsError::NotFinite { seq: step.seq }),
            None => Ok(batch),
        }
    }
}

#[cfg(test)]
mod tests;
