//! What the HTTP interface says, in JSON. Programs read these; a field is added, never renamed.

use std::collections::BTreeMap;

use omnilearn_hub_core::record::Record;
use omnilearn_hub_core::status::{AgentState, AgentStatus, Phase, Status};
use omnilearn_wire::message::{Machine, Span, StepTimings};
use serde::{Deserialize, Serialize};

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Another job is before it.
    Queued,
    /// It trains, or waits for agents.
    Running,
    /// It ended by a stop condition; its weights can be exported.
    Done,
    /// An operator ended it; its weights can be exported.
    Stopped,
    /// It could not run.
    Failed,
    /// The hub ended while it ran; its last checkpoint can be exported.
    Interrupted,
}

impl JobState {
    /// Whether the job changes no more.
    pub fn is_final(self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running)
    }

    /// As in JSON and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Stopped => "stopped",
            JobState::Failed => "failed",
            JobState::Interrupted => "interrupted",
        }
    }
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// What became of it.
    pub state: JobState,
    /// Why it is in that state, in words; may be empty.
    pub message: String,
    /// When it was submitted, in seconds since 1970.
    pub created_s: f64,
    /// `bsp` or `asp`.
    pub mode: String,
    /// `uniform`, `static` or `dynamic`.
    pub policy: String,
    /// Data set.
    pub dataset: String,
    /// Samples in the training set.
    pub train_samples: u32,
    /// Elements of the parameters.
    pub parameters: u64,
    /// Those of them that are not trained.
    #[serde(default)]
    pub parameters_frozen: u64,
    /// How it does; none before it runs for the first time.
    pub progress: Option<Progress>,
}

/// How a job does. Times are in seconds since the job started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// `waiting`, `training`, `evaluating` or `finished`.
    pub phase: String,
    /// What it waits for, in words.
    pub waiting: Vec<String>,
    /// What keeps the split from being balanced, in words.
    pub remarks: Vec<String>,
    /// Optimizer steps so far.
    pub version: u64,
    /// Epochs of accepted samples so far.
    pub epoch: f64,
    /// Mean loss of the last step.
    pub loss: Option<f64>,
    /// Mean loss of the last evaluation.
    pub test_loss: Option<f64>,
    /// Accuracy of the last evaluation, 0 to 1.
    pub accuracy: Option<f64>,
    /// Throughput of late.
    pub samples_per_s: Option<f64>,
    /// Learning rate of the next step.
    pub learning_rate: f64,
    /// Global batch that is assigned.
    pub global_batch: u32,
    /// Largest over smallest sustained step time of the agents at work.
    pub max_over_min_step: Option<f64>,
    /// Time since the start.
    pub wall_s: f64,
    /// The same without evaluation.
    pub training_s: f64,
    /// Agents that take part.
    pub agents: Vec<AgentProgress>,
    /// Agents that do not, and why.
    pub declined: BTreeMap<String, String>,
    /// Counters since the start.
    pub counters: BTreeMap<String, u64>,
}

/// How an agent does in a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentProgress {
    /// Its number.
    pub agent: u32,
    /// Its name.
    pub name: String,
    /// `idle`, `training`, `evaluating`, `benched` or `unfit`.
    pub state: String,
    /// Why it is benched or unfit; else empty.
    pub reason: String,
    /// Local batch.
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

/// One agent that is connected, or was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    /// Its number; 0 for one that is known from the broker only.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Whether it is connected now.
    pub connected: bool,
    /// Which way it is connected: `tcp 10.0.0.5:4000` or `mqtt agents/NAME`.
    pub address: Option<String>,
    /// `websocket` or `mqtt`, where it is connected or says at the broker how it trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// What it says of itself at the broker, where it is known there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence: Option<PresenceView>,
    /// How many of its steps' timings have come over the broker, where any have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<TimingsView>,
    /// Its machine.
    pub machine: Option<Machine>,
    /// Bytes received from it on this connection.
    pub received_bytes: u64,
    /// Bytes sent to it on this connection.
    pub sent_bytes: u64,
}

/// What an agent says of itself at the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceView {
    /// `online`; `offline`; or `unknown`, where it was online when the hub last saw it and has not been heard since the hub was
    /// away from the broker.
    pub state: String,
    /// Whether it was told to pause.
    pub paused: bool,
    /// Its version.
    pub version: String,
    /// How it sends timings: `json` or `postcard`.
    pub timings: String,
}

/// How many steps' timings have come over the broker since the hub started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimingsView {
    /// Taken.
    pub received: u64,
    /// Delivered again.
    pub duplicates: u64,
    /// Never delivered.
    pub lost: u64,
}

/// The hub at its broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerView {
    /// The broker's address, with the prefix of topics.
    pub broker: String,
    /// Whether the hub is connected to it.
    pub connected: bool,
}

/// One accepted update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// Number of the record.
    pub id: u64,
    /// Seconds since the job started.
    pub wall_s: f64,
    /// The round; in ASP the version when the work was issued.
    pub round: u64,
    /// Version that the update led to.
    pub version: u64,
    /// Who computed it.
    pub agent: u32,
    /// The assignment.
    pub assignment: u64,
    /// Local batch.
    pub samples: u32,
    /// Mean loss over the local batch.
    pub loss: f64,
    /// In steps.
    pub staleness: u64,
    /// What the agent measured; nothing where that has not come.
    #[serde(flatten)]
    pub timings: Option<TimingsRow>,
    /// Which samples, as positions of epochs' permutations.
    pub spans: Vec<Span>,
}

/// What an agent measured in one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimingsRow {
    /// Idle time before the assignment, in seconds.
    pub wait_s: f64,
    /// Reading samples, in seconds.
    pub load_s: f64,
    /// Forward and backward, in seconds.
    pub compute_s: f64,
    /// Encoding the gradient, in seconds.
    pub encode_s: f64,
    /// Sending it, in seconds.
    pub send_s: f64,
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Throttled time, in seconds.
    pub throttled_s: f64,
    /// CPU quota, in cores.
    pub quota_cores: Option<f64>,
    /// Time that the agent can sustain, in seconds.
    pub sustained_s: f64,
    /// Whether the step is not representative.
    pub warm_up: bool,
}

impl From<&StepTimings> for TimingsRow {
    fn from(timings: &StepTimings) -> TimingsRow {
        TimingsRow {
            wait_s: seconds(timings.wait_s),
            load_s: seconds(timings.load_s),
            compute_s: seconds(timings.compute_s),
            encode_s: seconds(timings.encode_s),
            send_s: seconds(timings.send_s),
            cpu_s: seconds(timings.cpu_s),
            throttled_s: seconds(timings.throttled_s),
            quota_cores: timings.quota_cores.map(seconds),
            sustained_s: seconds(timings.sustained_s() as f32),
            warm_up: timings.warm_up,
        }
    }
}

/// One new version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRow {
    /// Number of the record.
    pub id: u64,
    /// Seconds since the job started.
    pub wall_s: f64,
    /// The same without evaluation.
    pub training_s: f64,
    /// The new version.
    pub version: u64,
    /// Epochs of accepted samples so far.
    pub epoch: f64,
    /// Mean loss.
    pub loss: f64,
    /// Samples behind this step.
    pub samples: u32,
    /// Updates behind this step.
    pub updates: u32,
    /// Learning rate.
    pub learning_rate: f64,
    /// L2 norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// One evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRow {
    /// Number of the record.
    pub id: u64,
    /// Seconds since the job started.
    pub wall_s: f64,
    /// Training time at that version, in seconds.
    pub training_s: f64,
    /// Version evaluated.
    pub version: u64,
    /// Epochs of accepted samples.
    pub epoch: f64,
    /// Samples evaluated.
    pub samples: u32,
    /// Mean loss.
    pub loss: f64,
    /// Share of correct answers.
    pub accuracy: Option<f64>,
    /// Means of the kernel's metrics.
    pub metrics: BTreeMap<String, f64>,
}

/// One agent's batch after a new split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchRow {
    /// Number of the record.
    pub id: u64,
    /// Seconds since the job started.
    pub wall_s: f64,
    /// Version at which it holds first.
    pub version: u64,
    /// Which agent.
    pub agent: u32,
    /// Its batch.
    pub samples: u32,
    /// Why the split changed.
    pub reason: String,
}

/// Records of a job in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordPage {
    /// Accepted updates.
    pub steps: Vec<StepRow>,
    /// Versions.
    pub rounds: Vec<RoundRow>,
    /// Evaluations.
    pub evaluations: Vec<EvaluationRow>,
    /// Batches.
    pub batches: Vec<BatchRow>,
    /// `since` of the next page.
    pub next: u64,
    /// Whether there is a next page now.
    pub more: bool,
}

/// What `POST /api/v1/jobs` takes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Text of the job file.
    pub job_file: String,
    /// SHA-256 of the kernel, in hexadecimal, as answered by `POST /api/v1/kernels`.
    pub kernel: String,
    /// The kernel's signature by its author, if it has one: the content of the file that `omnilearn-hub kernel sign` writes.
    #[serde(default)]
    pub signature: Option<String>,
    /// SHA-256 of the weights, in hexadecimal, as answered by `POST /api/v1/weights`, if the job file names any.
    #[serde(default)]
    pub weights: Option<String>,
}

/// What `POST /api/v1/weights` answers, and `GET /api/v1/weights/SHA256` for weights that are here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WeightsAccepted {
    /// SHA-256 of the file, in hexadecimal.
    pub weights: String,
    /// Its length.
    pub bytes: u64,
}

/// What `POST /api/v1/kernels` answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelAccepted {
    /// SHA-256 of the component, in hexadecimal.
    pub kernel: String,
    /// Its length.
    pub bytes: u64,
}

/// What a refused request answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong, where, and what to do.
    pub error: String,
}

/// Health and counters of the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Always `ok` where there is an answer.
    pub status: String,
    /// Version of the hub.
    pub version: String,
    /// Public key with which the hub signs kernels, in hexadecimal.
    #[serde(default)]
    pub key: String,
    /// Counters since the hub started.
    pub counters: BTreeMap<String, u64>,
    /// The broker, where the hub has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mqtt: Option<BrokerView>,
}

/// Spans in one cell of a table, such as `0:100-164 1:0-4`: epoch, first position, one past the last.
pub fn format_spans(spans: &[Span]) -> String {
    let spans: Vec<String> = spans.iter().map(|Span { epoch, start, end }| format!("{epoch}:{start}-{end}")).collect();
    spans.join(" ")
}

/// Reads what [`format_spans`] writes; anything else in the text is passed over.
pub fn parse_spans(text: &str) -> Vec<Span> {
    let span = |part: &str| {
        let (epoch, positions) = part.split_once(':')?;
        let (start, end) = positions.split_once('-')?;
        Some(Span { epoch: epoch.parse().ok()?, start: start.parse().ok()?, end: end.parse().ok()? })
    };
    text.split(' ').filter_map(span).collect()
}

/// A time that an agent claims, which may be no number.
fn seconds(claimed: f32) -> f64 {
    if claimed.is_finite() { claimed.into() } else { 0.0 }
}

impl From<&AgentStatus> for AgentProgress {
    fn from(status: &AgentStatus) -> AgentProgress {
        let (state, reason) = match &status.state {
            AgentState::Idle => ("idle", String::new()),
            AgentState::Training => ("training", String::new()),
            AgentState::Evaluating => ("evaluating", String::new()),
            AgentState::Benched { reason, until } => {
                ("benched", format!("{reason}; back at {:.0} s", until.as_secs_f64()))
            }
            AgentState::Unfit { reason } => ("unfit", reason.clone()),
        };
        AgentProgress {
            agent: status.agent.0,
            name: status.name.clone(),
            state: state.into(),
            reason,
            local_batch: status.local_batch,
            step_s: status.step_s,
            busy_s: status.busy_s,
            idle_share: status.idle_share,
            staleness: status.staleness,
            staleness_mean: status.staleness_mean,
            updates: status.updates,
            samples: status.samples,
            refused: status.refused,
            failed: status.failed,
            batch_max: status.batch_max,
        }
    }
}

impl From<&Status> for Progress {
    fn from(status: &Status) -> Progress {
        let phase = match status.phase {
            Phase::Waiting => "waiting",
            Phase::Training => "training",
            Phase::Evaluating => "evaluating",
            Phase::Finished(_) => "finished",
        };
        let counters = &status.counters;
        let counters = [
            ("accepted", counters.accepted),
            ("duplicate", counters.duplicate),
            ("refused_stale", counters.refused_stale),
            ("refused_value", counters.refused_value),
            ("refused_closed", counters.refused_closed),
            ("refused_malformed", counters.refused_malformed),
            ("failed", counters.failed),
            ("abandoned", counters.abandoned),
            ("stragglers", counters.stragglers),
            ("left_out", counters.left_out),
            ("samples_reissued", counters.samples_reissued),
            ("rounds_reopened", counters.rounds_reopened),
            ("batch_changes", counters.batch_changes),
            ("push_bytes", counters.push_bytes),
        ];
        Progress {
            phase: phase.into(),
            waiting: status.waiting.iter().map(ToString::to_string).collect(),
            remarks: status.remarks.clone(),
            version: status.version.0,
            epoch: status.epoch,
            loss: status.loss,
            test_loss: status.test_loss,
            accuracy: status.accuracy,
            samples_per_s: status.samples_per_s,
            learning_rate: status.learning_rate,
            global_batch: status.global_batch,
            max_over_min_step: status.max_over_min_step,
            wall_s: status.wall_s,
            training_s: status.training_s,
            agents: status.agents.iter().map(AgentProgress::from).collect(),
            declined: BTreeMap::new(),
            counters: counters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }
}

impl RecordPage {
    /// Adds a record under its number; late timings go to their step, if it is on this page.
    pub fn push(&mut self, id: u64, record: &Record) {
        match record {
            Record::Step(step) => self.steps.push(StepRow {
                id,
                wall_s: step.wall_s,
                round: step.round,
                version: step.version.0,
                agent: step.agent.0,
                assignment: step.assignment.0,
                samples: step.samples,
                loss: step.loss.into(),
                staleness: step.staleness,
                timings: step.timings.as_ref().map(TimingsRow::from),
                spans: step.spans.clone(),
            }),
            Record::Timings(late) => {
                let of = |row: &&mut StepRow| (row.agent, row.assignment) == (late.agent.0, late.assignment.0);
                if let Some(row) = self.steps.iter_mut().rev().find(of) {
                    row.timings.get_or_insert_with(|| TimingsRow::from(&late.timings));
                }
            }
            Record::Round(round) => self.rounds.push(RoundRow {
                id,
                wall_s: round.wall_s,
                training_s: round.training_s,
                version: round.version.0,
                epoch: round.epoch,
                loss: round.loss,
                samples: round.samples,
                updates: round.updates,
                learning_rate: round.learning_rate,
                gradient_norm: round.gradient_norm,
            }),
            Record::Evaluation(evaluation) => self.evaluations.push(EvaluationRow {
                id,
                wall_s: evaluation.wall_s,
                training_s: evaluation.training_s,
                version: evaluation.version.0,
                epoch: evaluation.epoch,
                samples: evaluation.samples,
                loss: evaluation.loss,
                accuracy: evaluation.accuracy,
                metrics: evaluation.metrics.iter().cloned().collect(),
            }),
            Record::Batches(batches) => {
                self.batches.extend(batches.batches.iter().map(|(agent, samples)| BatchRow {
                    id,
                    wall_s: batches.wall_s,
                    version: batches.version.0,
                    agent: agent.0,
                    samples: *samples,
                    reason: batches.reason.clone(),
                }));
            }
        }
    }
}
