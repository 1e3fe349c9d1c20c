//! Why a push is left out.

use omnilearn_wire::{AssignmentId, Layout, Version};

use crate::aggregate::AddError;

/// Why the hub left a pushed gradient out of the model. None of these closes the connection.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PushError {
    /// Never issued, or long ago.
    #[error("assignment {assignment} is unknown")]
    Unknown {
        /// Which.
        assignment: AssignmentId,
    },
    /// Issued to another agent.
    #[error("assignment {assignment} was issued to another agent")]
    Foreign {
        /// Which.
        assignment: AssignmentId,
    },
    /// Computed from other parameters than asked for.
    #[error("gradient is of version {found}, the assignment is of version {expected}")]
    Version {
        /// What was pushed.
        found: Version,
        /// What was asked for.
        expected: Version,
    },
    /// The stream is not as long as the model.
    #[error("gradient has {found} bytes, expected {expected}")]
    Length {
        /// Bytes announced or sent.
        found: u64,
        /// Bytes of the model's gradient.
        expected: u64,
    },
    /// Pieces are missing or repeated.
    #[error("piece begins at byte {found}, expected {expected}")]
    Order {
        /// Where the piece begins.
        found: u64,
        /// Where it should.
        expected: u64,
    },
    /// A piece of a large gradient that ends within an element.
    #[error("piece of {bytes} bytes at byte {offset} does not end between elements")]
    PartialElement {
        /// Where the piece begins.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
    /// Ended before it began.
    #[error("push of assignment {assignment} ended before it began")]
    NotBegun {
        /// Which.
        assignment: AssignmentId,
    },
    /// A value that is not a number, or not finite.
    #[error("tensor `{tensor}` is not finite at index {index}")]
    NotFinite {
        /// Which tensor.
        tensor: String,
        /// Which element of it.
        index: usize,
    },
    /// A value too large for any sensible gradient.
    #[error("tensor `{tensor}` is too large at index {index}")]
    TooLarge {
        /// Which tensor.
        tensor: String,
        /// Which element of it.
        index: usize,
    },
    /// The loss is not finite.
    #[error("loss is {loss}")]
    Loss {
        /// What was reported.
        loss: f32,
    },
    /// Not the kernel's metrics.
    #[error("report has {found} metrics, the kernel has {expected}")]
    Metrics {
        /// Metrics reported.
        found: usize,
        /// Metrics of the kernel.
        expected: usize,
    },
    /// Not the samples that were asked for.
    #[error("update is of {found} samples, the assignment is of {expected}")]
    Samples {
        /// Samples reported.
        found: u32,
        /// Samples assigned.
        expected: u32,
    },
    /// Too many steps were applied since the gradient's version.
    #[error("gradient is {staleness} steps old, at most {staleness_max} allowed")]
    TooStale {
        /// How old.
        staleness: u64,
        /// How old it may be.
        staleness_max: u64,
    },
    /// It came after its round was closed.
    #[error("the round was closed without it")]
    RoundClosed,
    /// Its round had to start over.
    #[error("the round started over")]
    RoundReopened,
    /// Its agent was gone, and its samples were issued again.
    #[error("the agent was gone and its samples were issued again")]
    Reissued,
    /// No progress for too long, and its samples were issued again.
    #[error("no progress for too long, its samples were issued again")]
    Overdue,
    /// The job is over.
    #[error("the job is over")]
    JobOver,
}

/// What a push says about its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing: it came too late.
    Late,
    /// Too old.
    Stale,
    /// Values that nobody can use.
    Value,
    /// Not what was agreed.
    Malformed,
}

impl PushError {
    pub(crate) fn fault(&self) -> Fault {
        match self {
            PushError::NotFinite { .. } | PushError::TooLarge { .. } | PushError::Loss { .. } => Fault::Value,
            PushError::TooStale { .. } => Fault::Stale,
            PushError::RoundClosed
            | PushError::RoundReopened
            | PushError::Reissued
            | PushError::Overdue
            | PushError::JobOver => Fault::Late,
            _ => Fault::Malformed,
        }
    }

    /// Names the tensor of an element of the parameters.
    pub(crate) fn from_add(error: AddError, layout: &Layout) -> PushError {
        let (AddError::NotFinite { index } | AddError::TooLarge { index } | AddError::Scale { index }) = error;
        let mut within = index;
        let mut name = "";
        for tensor in layout.parameters() {
            let elements = omnilearn_wire::layout::elements(&tensor.shape).unwrap_or(u64::MAX) as usize;
            if within < elements {
                name = &tensor.name;
                break;
            }
            within -= elements;
        }
        let (tensor, index) = (name.to_owned(), within);
        match error {
            AddError::NotFinite { .. } => PushError::NotFinite { tensor, index },
            AddError::TooLarge { .. } => PushError::TooLarge { tensor, index },
            AddError::Scale { .. } => PushError::RoundReopened,
        }
    }
}
