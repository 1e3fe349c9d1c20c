//! What the shell is to do.

use omnilearn_wire::message::{Evaluate, PushOutcome, Train};
use omnilearn_wire::{AgentId, AssignmentId};

use crate::model::Snapshot;
use crate::record::Record;

/// Something for the shell to do, in the order given.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send an agent work.
    Train {
        /// To whom.
        agent: AgentId,
        /// The work.
        work: Train,
        /// The parameters to send first, where the agent does not hold them.
        parameters: Option<Snapshot>,
    },
    /// Send an agent a part of the test set.
    Evaluate {
        /// To whom.
        agent: AgentId,
        /// The work.
        work: Evaluate,
        /// The parameters to send first, where the agent does not hold them.
        parameters: Option<Snapshot>,
    },
    /// Tell an agent what became of its push.
    Outcome {
        /// To whom.
        agent: AgentId,
        /// Which assignment.
        assignment: AssignmentId,
        /// What became of it.
        outcome: PushOutcome,
    },
    /// Tell an agent that an assignment is void.
    Cancel {
        /// To whom.
        agent: AgentId,
        /// Which assignment.
        assignment: AssignmentId,
    },
    /// Keep a record.
    Record(Record),
    /// Log something.
    Notice(Notice),
    /// The job is over; nothing follows.
    Finished(StopReason),
}

/// How much a notice matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Lifecycle.
    Info,
    /// Degraded.
    Warn,
    /// Needs an operator.
    Error,
}

/// Something that an operator should be able to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How much it matters.
    pub level: Level,
    /// A constant text.
    pub message: &'static str,
    /// Values, by name.
    pub fields: Vec<(&'static str, String)>,
}

/// Why a job ended.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StopReason {
    /// The epochs asked for are complete.
    #[error("{epochs} epochs are complete")]
    Epochs {
        /// How many.
        epochs: u32,
    },
    /// The steps asked for are done.
    #[error("{steps} steps are done")]
    Steps {
        /// How many.
        steps: u64,
    },
    /// The accuracy asked for is reached.
    #[error("test accuracy {accuracy:.4} reached the target of {target}")]
    TargetAccuracy {
        /// What was measured.
        accuracy: f64,
        /// What was asked for.
        target: f64,
    },
    /// The time is up.
    #[error("the wall time of {seconds} s is up")]
    WallTime {
        /// How long, in seconds.
        seconds: u64,
    },
    /// An operator ended it.
    #[error("stopped: {reason}")]
    Stopped {
        /// The operator's reason.
        reason: String,
    },
}

/// The actions of one event, as they are found.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<Action>);

impl Outbox {
    /// Makes room for so many more at once: moving thousands again and again as they grow in number would cost more than what they say.
    pub(crate) fn reserve(&mut self, actions: usize) {
        self.0.reserve(actions);
    }

    pub(crate) fn push(&mut self, action: Action) {
        self.0.push(action);
    }

    pub(crate) fn notice(&mut self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.0.push(Action::Notice(Notice { level, message, fields }));
    }

    pub(crate) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.0)
    }
}
