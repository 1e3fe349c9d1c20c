//! What happens to a job.

use omnilearn_wire::message::{Failure, JobReady, Machine, StepReport, StepTimings};
use omnilearn_wire::{AgentId, AssignmentId, Version};

/// Something that happened, as the shell saw it. Contents from agents are not trusted.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// An agent can work on the job. An agent that was already known starts afresh.
    Ready {
        /// Which agent.
        agent: AgentId,
        /// Its name, for people.
        name: String,
        /// Its machine.
        machine: Machine,
        /// What it found out while it got ready.
        ready: JobReady,
    },
    /// The connection is lost or was closed. What it was working on is issued again.
    Gone {
        /// Which agent.
        agent: AgentId,
    },
    /// Opens a gradient's stream.
    PushBegin {
        /// Who pushes.
        agent: AgentId,
        /// The assignment that it answers.
        assignment: AssignmentId,
        /// Version that the gradient was computed from.
        version: Version,
        /// Length of the stream, in bytes.
        bytes: u64,
    },
    /// A piece of a gradient's stream.
    PushChunk {
        /// Who pushes.
        agent: AgentId,
        /// The assignment that it answers.
        assignment: AssignmentId,
        /// Where the piece begins, in bytes.
        offset: u64,
        /// The piece.
        bytes: &'a [u8],
    },
    /// Closes a gradient's stream.
    PushEnd {
        /// Who pushes.
        agent: AgentId,
        /// The assignment that it answers.
        assignment: AssignmentId,
        /// What was measured.
        report: StepReport,
    },
    /// The timings of a push whose report had none. They may come before it or after it.
    Timings {
        /// Who measured.
        agent: AgentId,
        /// The assignment that was timed.
        assignment: AssignmentId,
        /// What was measured.
        timings: StepTimings,
    },
    /// A share of an evaluation.
    Evaluated {
        /// Who evaluated.
        agent: AgentId,
        /// The assignment that it answers.
        assignment: AssignmentId,
        /// Samples evaluated.
        samples: u32,
        /// Sum of the loss over them.
        loss_sum: f64,
        /// Sums over them in the order of [`crate::config::JobConfig::metrics`].
        metric_sums: Vec<f64>,
    },
    /// An assignment that an agent could not do.
    Failed {
        /// Which agent.
        agent: AgentId,
        /// Which assignment.
        assignment: AssignmentId,
        /// What kind of failure.
        failure: Failure,
        /// What happened, for people.
        message: String,
    },
}
