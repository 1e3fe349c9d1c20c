//! What connections tell the job task.

use std::sync::Arc;

use bytes::Bytes;
use omnilearn_wire::message::{Failure, JobReady, Machine, StepReport};
use omnilearn_wire::{AgentId, AssignmentId, JobId, Version};

use tokio::sync::OwnedSemaphorePermit;

use crate::outbound::Outbound;

/// Something that an agent did.
pub(crate) struct FromAgent {
    pub(crate) agent: AgentId,
    /// Number of the connection; what an older one still sends does not count.
    pub(crate) session: u64,
    pub(crate) report: Report,
}

/// What an agent did. Reports of the wire's messages have their fields.
pub(crate) enum Report {
    Connected {
        name: String,
        machine: Machine,
        outbound: Arc<Outbound>,
    },
    Gone,
    Ready {
        job: JobId,
        ready: JobReady,
    },
    Declined {
        job: JobId,
        reason: String,
    },
    PushBegin {
        job: JobId,
        assignment: AssignmentId,
        version: Version,
        bytes: u64,
    },
    /// Gives its place among [`crate::limits::INBOX_CHUNK_BYTES`] back when dropped.
    PushChunk {
        assignment: AssignmentId,
        offset: u64,
        bytes: Bytes,
        _room: OwnedSemaphorePermit,
    },
    PushEnd {
        assignment: AssignmentId,
        report: StepReport,
    },
    Evaluated {
        assignment: AssignmentId,
        samples: u32,
        loss_sum: f64,
        metric_sums: Vec<f64>,
    },
    Failed {
        assignment: AssignmentId,
        failure: Failure,
        message: String,
    },
}
