//! What every rule of synchronisation works on: the model, the samples, the agents and their assignments.

use std::collections::VecDeque;

use omnilearn_wire::message::{PushOutcome, Span, StepTimings, Train};
use omnilearn_wire::sampling::derive_seed;
use omnilearn_wire::{AgentId, AssignmentId, Layout, Version};

use crate::Now;
use crate::action::{Action, Level, Outbox, StopReason};
use crate::aggregate::Accumulator;
use crate::batching::Batcher;
use crate::clock::TrainingClock;
use crate::config::{EvaluateEvery, JobConfig};
use crate::cursor::{Cursor, Which, samples_in};
use crate::evaluation::Evaluation;
use crate::ledger::{Assignment, Closed, Ledger};
use crate::membership::{Members, Work};
use crate::model::Snapshot;
use crate::optimizer::{GradientSource, Optimizer};
use crate::push::{PushError, Stream, Uploads};
use crate::record::{BatchesRecord, EvaluationRecord, Record, RoundRecord, StepRecord};
use crate::status::Counters;

mod evaluate;
mod report;

/// Versions over which throughput is measured.
const THROUGHPUT_VERSIONS: usize = 64;

/// One job.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: JobConfig,
    pub(crate) layout: Layout,
    pub(crate) stream: Stream,
    pub(crate) model: Snapshot,
    optimizer: Optimizer,
    /// Made when it is first needed: ASP has no sums.
    sum: Option<Accumulator>,
    pub(crate) cursor: Cursor,
    pub(crate) batcher: Batcher,
    pub(crate) members: Members,
    pub(crate) ledger: Ledger,
    pub(crate) uploads: Uploads,
    pub(crate) counters: Counters,
    pub(crate) out: Outbox,
    evaluation: Option<Evaluation>,
    evaluation_due: bool,
    /// Complete epochs at the last step.
    epochs_seen: u32,
    evaluated: Option<Version>,
    last_evaluation: Option<EvaluationRecord>,
    clock: TrainingClock,
    started: bool,
    loss: Option<f64>,
    throughput: VecDeque<(f64, u64)>, // training time in seconds and samples committed by then, per version
    ending: Option<StopReason>,
    pub(crate) finished: Option<StopReason>,
}

/// A step that has just been applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) loss: f64,
    pub(crate) samples: u32,
    pub(crate) updates: u32,
    pub(crate) gradient_norm: f64,
}

impl State {
    pub(crate) fn new(
        config: JobConfig,
        layout: Layout,
        parameters: &[f32],
        buffers: &[f32],
        decays: &[bool],
    ) -> State {
        let tensors = tensor_elements(&layout);
        let decay: Vec<(usize, bool)> = tensors.into_iter().zip(decays.iter().copied()).collect();
        State {
            stream: Stream {
                codec: config.codec,
                parameter_bytes: layout.parameter_bytes(config.codec),
                bytes: layout.stream_bytes(config.codec),
                metrics: config.metrics.len(),
            },
            model: Snapshot::new(parameters, buffers),
            optimizer: Optimizer::new(config.optimizer, config.clip_norm, &decay),
            sum: None,
            cursor: Cursor::new(config.train_samples),
            batcher: Batcher::new(config.batching, config.global_batch, config.batch_bounds),
            members: Members::default(),
            ledger: Ledger::default(),
            uploads: Uploads::default(),
            counters: Counters::default(),
            out: Outbox::default(),
            evaluation: None,
            evaluation_due: false,
            epochs_seen: 0,
            evaluated: None,
            last_evaluation: None,
            clock: TrainingClock::default(),
            started: false,
            loss: None,
            throughput: VecDeque::new(),
            ending: None,
            finished: None,
            config,
            layout,
        }
    }

    /// Whether the job is over.
    pub(crate) fn is_over(&self) -> bool {
        self.finished.is_some()
    }

    /// Whether training is over, if not yet the job.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Agents needed to begin, or to go on.
    fn agents_needed(&self, now: Now) -> u32 {
        let all = !self.started && now < self.config.wait_timeout;
        if all { self.config.wait_for_agents.max(self.config.agents_min) } else { self.config.agents_min }
    }

    /// Whether enough agents are here for new work.
    pub(crate) fn may_start(&self, now: Now) -> bool {
        self.members.available_count(now) >= self.agents_needed(now) as usize
    }

    /// When fewer agents will do for the first step.
    pub(crate) fn start_deadline(&self) -> Option<Now> {
        (!self.started).then_some(self.config.wait_timeout)
    }

    /// Brings the split of the global batch up to date.
    pub(crate) fn update_batches(&mut self, now: Now) {
        let infeasible = self.batcher.infeasible();
        let Some(reason) = self.batcher.update(&self.members.available(now)) else { return };
        let batches = self.batcher.batches();
        self.counters.batch_changes += 1;
        let text = batches.iter().map(|(agent, batch)| format!("{agent}:{batch}")).collect::<Vec<_>>().join(" ");
        self.out.notice(Level::Info, "batches set", vec![("batches", text), ("reason", reason.clone())]);
        if let Some(error) = self.batcher.infeasible().filter(|_| self.batcher.infeasible() != infeasible) {
            let fields = vec![
                ("reason", error.to_string()),
                ("global_batch", self.batcher.effective_global_batch().to_string()),
                ("agents", batches.len().to_string()),
            ];
            self.out.notice(Level::Warn, "batch bounds leave no choice", fields);
        }
        let version = self.model.version;
        let record = BatchesRecord { version, wall_s: now.as_secs_f64(), batches, reason };
        self.out.push(Action::Record(Record::Batches(record)));
    }

    /// Gives an agent without work a gradient to compute.
    pub(crate) fn issue(&mut self, agent: AgentId, samples: u32, which: Which, now: Now) -> Option<AssignmentId> {
        let member = self.members.get_mut(agent).filter(|member| member.work == Work::Idle)?;
        let spans = self.cursor.take(samples, which);
        let first = spans.first()?;
        let id = self.ledger.next_id();
        let version = self.model.version;
        let parameters = (member.held != Some(version)).then(|| self.model.clone());
        (member.held, member.work) = (Some(version), Work::Train(id));
        if !self.started {
            self.started = true;
            self.clock.set_pace(now, 1.0);
        }
        let work = Train {
            job: self.config.job,
            assignment: id,
            round: version.0,
            version,
            // From the samples, so that it does not depend on who got them.
            seed: derive_seed(self.config.seed, &[u64::from(first.epoch), u64::from(first.start), version.0]),
            spans: spans.clone(),
        };
        self.out.push(Action::Train { agent, work, parameters });
        self.ledger.open(Assignment { id, agent, version, samples: samples_in(&spans), spans, progress: now });
        Some(id)
    }

    /// Takes an open assignment away from its agent; its samples will be issued again. Returns the agent, and whether a
    /// part of its gradient had been added to the sum.
    pub(crate) fn give_up(&mut self, id: AssignmentId, why: PushError) -> Option<(AgentId, bool)> {
        let assignment = self.ledger.close(id, Closed::Void(why))?;
        let agent = assignment.agent;
        let added = self.uploads.assignment(agent) == Some(id) && self.uploads.remove(agent);
        self.members.set_work(agent, Work::Idle);
        self.out.push(Action::Cancel { agent, assignment: id });
        self.give_back(assignment.spans);
        Some((agent, added))
    }

    /// Returns samples that were not learned from.
    pub(crate) fn give_back(&mut self, spans: Vec<Span>) {
        self.counters.samples_reissued += u64::from(samples_in(&spans));
        self.cursor.give_back(spans);
    }

    fn sum<'a>(sum: &'a mut Option<Accumulator>, layout: &Layout, global_batch: u32) -> &'a mut Accumulator {
        // No local batches sum to more, whatever the agents.
        sum.get_or_insert_with(|| Accumulator::new(&tensor_elements(layout), global_batch))
    }

    /// Adds a whole staged gradient to the round's sum.
    pub(crate) fn add_to_sum(&mut self, staged: &[u8], samples: u32) -> Result<(), PushError> {
        let gradient = &staged[..self.stream.parameter_bytes as usize];
        let sum = State::sum(&mut self.sum, &self.layout, self.config.global_batch);
        let added = sum.add_encoded(0, self.config.codec, gradient, samples);
        added.map_err(|error| PushError::from_add(error, &self.layout))
    }

    /// Takes a piece of a push. Returns whether it is progress.
    pub(crate) fn chunk(
        &mut self,
        (agent, id): (AgentId, AssignmentId),
        piece: (u64, &[u8]),
        now: Now,
    ) -> Result<bool, PushError> {
        let State { uploads, ledger, stream, sum, layout, config, .. } = self;
        let add = |start: usize, bytes: &[u8], samples: u32| {
            let added = State::sum(sum, layout, config.global_batch).add_encoded(start, config.codec, bytes, samples);
            added.map_err(|error| PushError::from_add(error, layout))
        };
        uploads.chunk(ledger, *stream, (agent, id), piece, add, now)
    }

    /// Throws the round's sum away.
    pub(crate) fn clear_sum(&mut self) {
        if let Some(sum) = &mut self.sum {
            sum.clear();
        }
    }

    /// One step along the mean of what is in the sum. Returns the gradient's norm.
    pub(crate) fn apply_sum(&mut self, samples: u32) -> f64 {
        let sum = self.sum.take();
        let norm = sum.as_ref().map_or(0.0, |sum| self.apply(&sum.mean(samples)));
        self.sum = sum;
        self.clear_sum();
        norm
    }

    /// One step along a gradient. Returns the gradient's norm.
    pub(crate) fn apply(&mut self, gradient: &dyn GradientSource) -> f64 {
        let learning_rate = self.learning_rate();
        let norm = self.optimizer.step(&mut self.model, gradient, learning_rate);
        self.model.version = self.model.version.next();
        norm
    }

    /// Of the next step. Where the agents cannot take the whole global batch, it is scaled with what they can take.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.rate_at(self.model.version)
    }

    fn rate_at(&self, version: Version) -> f64 {
        let part = f64::from(self.batcher.effective_global_batch()) / f64::from(self.config.global_batch);
        self.config.schedule.learning_rate(version.0) * part
    }

    pub(crate) fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    pub(crate) fn recycle(&mut self, staged: Vec<u8>) {
        let agents = self.members.connected();
        self.uploads.recycle(staged, agents);
    }

    /// Ends an assignment whose update counts, and tells its agent.
    pub(crate) fn accept(&mut self, assignment: &Assignment, version: Version, staleness: u64) {
        let (id, agent) = (assignment.id, assignment.agent);
        self.ledger.close(id, Closed::Accepted { version, staleness });
        self.members.set_work(agent, Work::Idle);
        self.out.push(Action::Outcome { agent, assignment: id, outcome: PushOutcome::Accepted { version, staleness } });
    }

    /// Counts an update that is in the parameters.
    pub(crate) fn count_accepted(&mut self, agent: AgentId, record: &StepRecord, bytes: u64) {
        self.counters.accepted += 1;
        self.counters.push_bytes += bytes;
        self.members.accepted(agent, record.samples, record.staleness, &record.timings);
        self.observe(agent, record.samples, &record.timings);
    }

    /// Tells the batcher of a step's time.
    pub(crate) fn observe(&mut self, agent: AgentId, samples: u32, timings: &StepTimings) {
        if !timings.warm_up {
            self.batcher.observe(agent, samples, timings.sustained_s());
        }
    }

    /// After a step: its record, and what it makes due.
    pub(crate) fn finish_step(&mut self, now: Now, step: Step) {
        let training_s = self.clock.seconds(now);
        let version = self.model.version;
        self.loss = Some(step.loss);
        self.throughput.push_back((training_s, self.cursor.samples_committed()));
        if self.throughput.len() > THROUGHPUT_VERSIONS {
            self.throughput.pop_front();
        }
        self.out.push(Action::Record(Record::Round(RoundRecord {
            version,
            loss: step.loss,
            wall_s: now.as_secs_f64(),
            training_s,
            samples: step.samples,
            updates: step.updates,
            epoch: self.cursor.epoch_progress(),
            learning_rate: self.rate_at(Version(version.0 - 1)),
            gradient_norm: step.gradient_norm,
        })));
        let epochs = self.cursor.epochs_complete();
        self.evaluation_due |= match self.config.evaluate.every {
            EvaluateEvery::Steps(steps) => version.0.is_multiple_of(steps),
            EvaluateEvery::Epochs(every) => epochs / every > self.epochs_seen / every,
        };
        self.epochs_seen = epochs;
        let stop = self.config.stop;
        if self.ending.is_none() {
            self.ending = match (stop.epochs, stop.steps) {
                (Some(most), _) if epochs >= most => Some(StopReason::Epochs { epochs: most }),
                (_, Some(most)) if version.0 >= most => Some(StopReason::Steps { steps: most }),
                _ => None,
            };
        }
    }
}

fn tensor_elements(layout: &Layout) -> Vec<usize> {
    let elements =
        |shape: &[u32]| omnilearn_wire::layout::elements(shape).expect("a layout's tensors were checked") as usize;
    layout.parameters().iter().map(|tensor| elements(&tensor.shape)).collect()
}
