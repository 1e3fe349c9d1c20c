//! What is kept of a run.

use omnilearn_wire::message::{Span, StepTimings};
use omnilearn_wire::{AgentId, AssignmentId, Version};

/// One line of a run's history.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// An accepted update.
    Step(StepRecord),
    /// A new version.
    Round(RoundRecord),
    /// A complete evaluation.
    Evaluation(EvaluationRecord),
    /// A new split of the global batch.
    Batches(BatchesRecord),
    /// What an agent measured in a step that was recorded without.
    Timings(TimingsRecord),
}

/// One accepted update. Recorded when it is in the parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// The round; in ASP the version when the work was issued.
    pub round: u64,
    /// Version that the update led to.
    pub version: Version,
    /// Who computed it.
    pub agent: AgentId,
    /// The assignment.
    pub assignment: AssignmentId,
    /// Local batch.
    pub samples: u32,
    /// Which samples.
    pub spans: Vec<Span>,
    /// Mean loss over the local batch.
    pub loss: f32,
    /// Sums of the kernel's metrics over the local batch.
    pub metric_sums: Vec<f32>,
    /// Staleness at which it was applied, in steps; 0 in BSP.
    pub staleness: u64,
    /// What the agent measured; none if it has not come yet.
    pub timings: Option<StepTimings>,
    /// When the push was complete, in seconds since the job started.
    pub wall_s: f64,
}

/// The timings of one accepted update, where they came later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimingsRecord {
    /// Who computed it.
    pub agent: AgentId,
    /// The assignment.
    pub assignment: AssignmentId,
    /// What the agent measured.
    pub timings: StepTimings,
}

/// One new version.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRecord {
    /// The new version.
    pub version: Version,
    /// Mean loss over the samples behind it.
    pub loss: f64,
    /// Time since the job started, in seconds.
    pub wall_s: f64,
    /// Time since the first assignment, in seconds, without the time spent on evaluation.
    pub training_s: f64,
    /// Samples behind this step.
    pub samples: u32,
    /// Updates behind this step.
    pub updates: u32,
    /// Epochs of accepted samples so far, such as 1.5.
    pub epoch: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// L2 norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// One evaluation of the whole test set.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationRecord {
    /// Parameters evaluated.
    pub version: Version,
    /// Epochs of accepted samples when they were evaluated.
    pub epoch: f64,
    /// Training time at that version, in seconds.
    pub training_s: f64,
    /// Wall time when the evaluation was complete, in seconds since the job started.
    pub wall_s: f64,
    /// Samples evaluated.
    pub samples: u32,
    /// Mean loss.
    pub loss: f64,
    /// Share of correct answers, where the kernel counts them.
    pub accuracy: Option<f64>,
    /// Means of the kernel's metrics over the test set, by name.
    pub metrics: Vec<(String, f64)>,
}

/// A new split of the global batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchesRecord {
    /// Version at which it holds first.
    pub version: Version,
    /// Time since the job started, in seconds.
    pub wall_s: f64,
    /// Who gets how many samples, by agent.
    pub batches: Vec<(AgentId, u32)>,
    /// Why it changed.
    pub reason: String,
}
