//! A job at a glance: what it waits for, and how each agent does.

use std::fmt;

use omnilearn_wire::message::Machine;
use omnilearn_wire::{AgentId, Version};

use crate::Now;
use crate::action::StopReason;

/// A job at a glance.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// What the job does now.
    pub phase: Phase,
    /// What it waits for, in words; empty when it waits for nothing.
    pub waiting: Vec<Waiting>,
    /// Version of the parameters.
    pub version: Version,
    /// Epochs of accepted samples, such as 1.5.
    pub epoch: f64,
    /// Mean loss of the last step.
    pub loss: Option<f64>,
    /// Mean loss of the last evaluation.
    pub test_loss: Option<f64>,
    /// Accuracy of the last evaluation.
    pub accuracy: Option<f64>,
    /// Throughput of late, in samples per second of training time.
    pub samples_per_s: Option<f64>,
    /// Learning rate of the next step.
    pub learning_rate: f64,
    /// Global batch that is really assigned; differs from the configured one where bounds leave no choice.
    pub global_batch: u32,
    /// Largest over smallest sustained step time of the agents at work.
    pub max_over_min_step: Option<f64>,
    /// Time since the job started, in seconds.
    pub wall_s: f64,
    /// Training time without evaluation, in seconds.
    pub training_s: f64,
    /// Agents, by id.
    pub agents: Vec<AgentStatus>,
    /// What keeps the split from being balanced, in words.
    pub remarks: Vec<String>,
    /// Counters since the job started.
    pub counters: Counters,
}

/// What a job does.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// Waiting for agents.
    Waiting,
    /// Training.
    Training,
    /// Evaluating.
    Evaluating,
    /// Over.
    Finished(StopReason),
}

/// One thing that a job waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Waiting {
    /// More agents must be ready.
    Agents {
        /// Agents that can work.
        ready: u32,
        /// Agents needed.
        needed: u32,
        /// When fewer will do, in time since the job started.
        until: Option<Now>,
    },
    /// Updates of the open round.
    Updates {
        /// Those missing.
        agents: Vec<(AgentId, String)>,
        /// Updates already in.
        accepted: u32,
        /// Updates needed once the deadline is over.
        quorum: u32,
        /// The deadline, in time since the job started, if nothing more arrives.
        until: Now,
    },
    /// Others are so far ahead of these that they must wait.
    Lead {
        /// The slowest.
        agents: Vec<(AgentId, String)>,
        /// How many wait.
        waiting: u32,
        /// Pushes that they may be ahead.
        lead_max: u64,
    },
    /// Shares of an evaluation.
    Evaluation {
        /// Those working on one.
        agents: Vec<(AgentId, String)>,
        /// Samples not yet evaluated.
        samples: u32,
    },
}

fn names(agents: &[(AgentId, String)]) -> String {
    agents.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Agents { ready, needed, until: None } => {
                write!(formatter, "waiting for agents: {ready} of {needed} ready")
            }
            Waiting::Agents { ready, needed, until: Some(until) } => {
                write!(formatter, "waiting for agents: {ready} of {needed} ready, until {:.1} s", until.as_secs_f64())
            }
            Waiting::Updates { agents, accepted, quorum, until } => write!(
                formatter,
                "waiting for updates of {}: {accepted} in, {quorum} will do from {:.1} s on",
                names(agents),
                until.as_secs_f64()
            ),
            Waiting::Lead { agents, waiting, lead_max } => write!(
                formatter,
                "waiting for a push of {}: {waiting} others are more than lead_max = {lead_max} ahead",
                names(agents)
            ),
            Waiting::Evaluation { agents, samples } if agents.is_empty() => {
                write!(formatter, "waiting for an agent to evaluate {samples} samples")
            }
            Waiting::Evaluation { agents, samples } => {
                write!(formatter, "waiting for {} to evaluate {samples} samples", names(agents))
            }
        }
    }
}

/// How an agent does.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentStatus {
    /// Which agent.
    pub agent: AgentId,
    /// Its name.
    pub name: String,
    /// Its machine.
    pub machine: Machine,
    /// What it does.
    pub state: AgentState,
    /// Local batch; 0 while it has none.
    pub local_batch: u32,
    /// Sustained time of a step, smoothed, in seconds.
    pub step_s: Option<f64>,
    /// Busy time of the last step, in seconds.
    pub busy_s: Option<f64>,
    /// Share of its time spent waiting, smoothed, 0 to 1.
    pub idle_share: Option<f64>,
    /// Staleness of its last update, in steps.
    pub staleness: Option<u64>,
    /// Mean staleness of its updates, in steps.
    pub staleness_mean: Option<f64>,
    /// Accepted updates.
    pub updates: u64,
    /// Samples in accepted updates.
    pub samples: u64,
    /// Pushes refused.
    pub refused: u64,
    /// Assignments that failed.
    pub failed: u64,
    /// Largest batch that its memory allows, where known.
    pub batch_max: Option<u32>,
}

/// What an agent does.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentState {
    /// Nothing to do at the moment.
    Idle,
    /// Computing or pushing a gradient.
    Training,
    /// Evaluating.
    Evaluating,
    /// Gets no work for a while.
    Benched {
        /// Why, in words.
        reason: String,
        /// Until when, in time since the job started.
        until: Now,
    },
    /// Cannot work on this job.
    Unfit {
        /// Why, in words.
        reason: String,
    },
}

/// Counters since the job started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Updates accepted.
    pub accepted: u64,
    /// Pushes that repeated an accepted one.
    pub duplicate: u64,
    /// Pushes refused because they were too stale.
    pub refused_stale: u64,
    /// Pushes refused because of a value that was not finite or too large.
    pub refused_value: u64,
    /// Pushes refused because they came too late for their round, or their samples had been issued again.
    pub refused_closed: u64,
    /// Pushes refused because they were malformed or meant someone else's assignment.
    pub refused_malformed: u64,
    /// Assignments that failed on the agent.
    pub failed: u64,
    /// Assignments given up because their agent left.
    pub abandoned: u64,
    /// Assignments given up because of a deadline.
    pub stragglers: u64,
    /// Assignments given up because a round had enough updates without them.
    pub left_out: u64,
    /// Samples that had to be issued again.
    pub samples_reissued: u64,
    /// Rounds that had to start over.
    pub rounds_reopened: u64,
    /// Changes of the batches.
    pub batch_changes: u64,
    /// Bytes of accepted pushes.
    pub push_bytes: u64,
}
