//! Pushes on their way in: the checks of every message, and where the bytes of an unfinished push are.
//!
//! A push that fits [`STAGED_BYTES_MAX`] is staged, and added when it is complete: an agent that breaks off half-way
//! leaves no trace. A longer one is added piece by piece as it arrives, so that memory does not grow with the number of
//! agents; if such a push breaks off or is refused half-way, what was added cannot be taken out again, and the round
//! starts over from zero with all of its samples issued again. ASP, which has no round to start over, stages pushes of
//! any length.

use omnilearn_wire::message::{Computation, StepReport};
use omnilearn_wire::{AgentId, AssignmentId, Codec, Version};

use crate::Now;
use crate::agents::AgentMap;
use crate::ledger::{Assignment, Closed, Ledger};

pub(crate) use error::Fault;
pub use error::PushError;

mod error;

/// Longest push that is staged, in bytes.
pub const STAGED_BYTES_MAX: u64 = 8 << 20;

/// A complete push, checked but for the gradient's values if they are still staged.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) assignment: Assignment,
    /// The encoded gradient; none if it was added piece by piece.
    pub(crate) gradient: Option<Vec<u8>>,
    pub(crate) buffers: Vec<f32>,
    pub(crate) report: StepReport,
    pub(crate) bytes: u64,
}

/// What the end of a push makes.
#[derive(Debug)]
pub(crate) enum Ended {
    Update(Box<Update>),
    /// It had already counted.
    Duplicate {
        version: Version,
        staleness: u64,
    },
    /// Its agent has been told already.
    Told,
}

/// The streams that pushes must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) codec: Codec,
    pub(crate) parameter_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) metrics: usize,
}

#[derive(Debug)]
struct Upload {
    assignment: AssignmentId,
    received: u64,
    state: UploadState,
}

#[derive(Debug)]
enum UploadState {
    /// All of it.
    Staged(Vec<u8>),
    /// The part after the parameters, which are added as they arrive.
    Added(Vec<u8>),
    /// Repeats an accepted one.
    Duplicate { version: Version, staleness: u64 },
    /// Refused; its agent has been told.
    Refused,
}

/// Unfinished pushes, at most one per agent.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    uploads: AgentMap<Upload>,
    spare: Vec<Vec<u8>>,
}

impl Uploads {
    /// Opens a stream. `may_add`: a long one may be added piece by piece.
    pub(crate) fn begin(
        &mut self,
        ledger: &mut Ledger,
        stream: Stream,
        (agent, id, version): (AgentId, AssignmentId, Version),
        bytes: u64,
        may_add: bool,
    ) -> Result<(), PushError> {
        let state = match ledger.find(agent, id) {
            Ok(assignment) => {
                if version != assignment.version {
                    return Err(PushError::Version { found: version, expected: assignment.version });
                }
                if bytes != stream.bytes {
                    return Err(PushError::Length { found: bytes, expected: stream.bytes });
                }
                if may_add && bytes > STAGED_BYTES_MAX {
                    UploadState::Added(Vec::new())
                } else {
                    let mut staged = self.spare.pop().unwrap_or_default();
                    staged.reserve_exact(bytes as usize);
                    UploadState::Staged(staged)
                }
            }
            Err(Ok(Closed::Accepted { version, staleness })) => UploadState::Duplicate { version, staleness },
            Err(Ok(Closed::Refused(error) | Closed::Void(error)) | Err(error)) => return Err(error),
        };
        self.uploads.insert(agent, Upload { assignment: id, received: 0, state });
        Ok(())
    }

    /// Whether a part of the agent's unfinished push has been added.
    pub(crate) fn has_added(&self, agent: AgentId) -> bool {
        self.uploads
            .get(agent)
            .is_some_and(|upload| matches!(upload.state, UploadState::Added(_)) && upload.received > 0)
    }

    /// Takes a piece. Returns whether it is progress of an open assignment. Pieces of a push that is not open are
    /// ignored: its beginning or its end is answered.
    pub(crate) fn chunk(
        &mut self,
        ledger: &mut Ledger,
        stream: Stream,
        (agent, id): (AgentId, AssignmentId),
        (offset, bytes): (u64, &[u8]),
        mut add: impl FnMut(usize, &[u8], u32) -> Result<(), PushError>,
        now: Now,
    ) -> Result<bool, PushError> {
        let Some(upload) = self.uploads.get_mut(agent).filter(|upload| upload.assignment == id) else {
            return Ok(false);
        };
        if matches!(upload.state, UploadState::Refused | UploadState::Duplicate { .. }) {
            return Ok(false);
        }
        let Ok(assignment) = ledger.find(agent, id) else { return Ok(false) };
        assignment.progress = now;
        if offset != upload.received {
            return Err(PushError::Order { found: offset, expected: upload.received });
        }
        let end = offset.saturating_add(bytes.len() as u64);
        if end > stream.bytes {
            return Err(PushError::Length { found: end, expected: stream.bytes });
        }
        match &mut upload.state {
            UploadState::Staged(staged) => staged.extend_from_slice(bytes),
            UploadState::Added(rest) => {
                let gradient_left = stream.parameter_bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
                let (gradient, buffers) = bytes.split_at(gradient_left);
                let element_bytes = stream.codec.element_bytes();
                if !gradient.len().is_multiple_of(element_bytes) {
                    return Err(PushError::PartialElement { offset, bytes: bytes.len() as u64 });
                }
                if !gradient.is_empty() {
                    add(offset as usize / element_bytes, gradient, assignment.samples)?;
                }
                rest.extend_from_slice(buffers);
            }
            UploadState::Duplicate { .. } | UploadState::Refused => {}
        }
        upload.received = end;
        Ok(true)
    }

    /// Closes a stream. An update's assignment stays open until the rule has taken it.
    pub(crate) fn end(
        &mut self,
        ledger: &mut Ledger,
        stream: Stream,
        (agent, id): (AgentId, AssignmentId),
        report: StepReport,
    ) -> Result<Ended, PushError> {
        let Some(upload) = self.uploads.get(agent).filter(|upload| upload.assignment == id) else {
            return match ledger.find(agent, id) {
                Ok(_) => Err(PushError::NotBegun { assignment: id }),
                Err(Ok(Closed::Accepted { version, staleness })) => Ok(Ended::Duplicate { version, staleness }),
                Err(Ok(Closed::Refused(_))) => Ok(Ended::Told),
                Err(Ok(Closed::Void(error)) | Err(error)) => Err(error),
            };
        };
        if let UploadState::Duplicate { version, staleness } = upload.state {
            self.remove(agent);
            return Ok(Ended::Duplicate { version, staleness });
        }
        if matches!(upload.state, UploadState::Refused) {
            self.remove(agent);
            return Ok(Ended::Told);
        }
        if upload.received != stream.bytes {
            return Err(PushError::Length { found: upload.received, expected: stream.bytes });
        }
        if !report.loss.is_finite() {
            return Err(PushError::Loss { loss: report.loss });
        }
        if report.metric_sums.len() != stream.metrics {
            return Err(PushError::Metrics { found: report.metric_sums.len(), expected: stream.metrics });
        }
        if let Ok(assignment) = ledger.find(agent, id) {
            let (found, expected) = (report.samples, assignment.samples);
            let may_be_fewer = matches!(assignment.computation, Computation::Timed { .. });
            if found != expected && !(may_be_fewer && (1..expected).contains(&found)) {
                return Err(PushError::Samples { found, expected });
            }
        }
        let (rest, from) = match &upload.state {
            UploadState::Staged(staged) => (staged, stream.parameter_bytes as usize),
            UploadState::Added(rest) => (rest, 0),
            UploadState::Duplicate { .. } | UploadState::Refused => return Ok(Ended::Told),
        };
        let buffers: Vec<f32> =
            rest[from..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if let Some(index) = buffers.iter().position(|value| !value.is_finite()) {
            return Err(PushError::NotFinite { tensor: "shared buffers".to_owned(), index });
        }
        let Ok(assignment) = ledger.find(agent, id).cloned() else {
            return Err(PushError::Unknown { assignment: id });
        };
        let gradient = match self.uploads.remove(agent).map(|upload| upload.state) {
            Some(UploadState::Staged(staged)) => Some(staged),
            _ => None,
        };
        Ok(Ended::Update(Box::new(Update { assignment, gradient, buffers, report, bytes: stream.bytes })))
    }

    /// The assignment of the agent's unfinished push.
    pub(crate) fn assignment(&self, agent: AgentId) -> Option<AssignmentId> {
        self.uploads.get(agent).map(|upload| upload.assignment)
    }

    /// Gives a staging buffer back for the next push.
    pub(crate) fn recycle(&mut self, mut staged: Vec<u8>, agents: usize) {
        staged.clear();
        if self.spare.len() < agents && staged.capacity() as u64 <= STAGED_BYTES_MAX {
            self.spare.push(staged);
        }
    }

    /// The agent has been told that its push is refused; what still comes of it is ignored.
    pub(crate) fn refuse(&mut self, agent: AgentId, assignment: AssignmentId) {
        self.uploads.insert(agent, Upload { assignment, received: 0, state: UploadState::Refused });
    }

    /// Forgets an agent's push. Returns whether a part of it has been added.
    pub(crate) fn remove(&mut self, agent: AgentId) -> bool {
        let added = self.has_added(agent);
        self.uploads.remove(agent);
        added
    }
}
