//! What every rule of synchronisation works on: the model, the samples, the agents and their assignments.

use std::collections::VecDeque;

use omnilearn_wire::message::{Computation, PushOutcome, Span, StepTimings, Train};
use omnilearn_wire::sampling::derive_seed;
use omnilearn_wire::{AgentId, AssignmentId, Layout, Version};

use crate::Now;
use crate::action::{Action, Level, Outbox, StopReason};
use crate::aggregate::Accumulator;
use crate::batching::Batcher;
use crate::clock::TrainingClock;
use crate::config::{EvaluateEvery, JobConfig, Local};
use crate::cursor::{Which, samples_in};
use crate::evaluation::Evaluation;
use crate::late_timings::LateTimings;
use crate::ledger::{Assignment, Closed, Ledger};
use crate::membership::{Members, Work};
use crate::model::Snapshot;
use crate::optimizer::{GradientSource, Optimizer};
use crate::positions::Positions;
use crate::push::{PushError, Stream, Uploads};
use crate::record::{BatchesRecord, EvaluationRecord, Record, RoundRecord, StepRecord, TimingsRecord};
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
    /// Most samples that the updates in the sum may have together.
    sum_samples_max: u32,
    pub(crate) cursor: Positions,
    pub(crate) batcher: Batcher,
    pub(crate) members: Members,
    pub(crate) ledger: Ledger,
    pub(crate) uploads: Uploads,
    pub(crate) late_timings: LateTimings,
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

/// What to give an agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) samples: u32,
    pub(crate) which: Which,
    pub(crate) computation: Computation,
}

impl Order {
    /// One gradient over a local batch.
    pub(crate) fn gradient(samples: u32) -> Order {
        Order { samples, which: Which::ReturnedFirst, computation: Computation::Gradient }
    }
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
            sum_samples_max: config.global_batch,
            cursor: Positions::new(config.train_samples, &config.parts),
            batcher: Batcher::new(config.batching, config.global_batch, config.batch_bounds),
            members: Members::default(),
            ledger: Ledger::default(),
            uploads: Uploads::default(),
            late_timings: LateTimings::default(),
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
        let Some(reason) = self.batcher.update(self.members.available(now)) else { return };
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

    /// Gives an agent without work an update to compute.
    pub(crate) fn issue(&mut self, agent: AgentId, order: Order, now: Now) -> Option<AssignmentId> {
        let Order { samples, which, computation } = order;
        if !self.members.is_idle(agent) {
            return None;
        }
        let spans = self.cursor.take(agent, samples, which);
        let first = spans.first()?;
        let id = self.ledger.next_id();
        let version = self.model.version;
        let has_parameters = self.members.begin(agent, Work::Train, version);
        let parameters = (!has_parameters).then(|| self.model.clone());
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
            computation,
        };
        self.out.push(Action::Train { agent, work, parameters });
        let samples = samples_in(&spans);
        self.ledger.open(Assignment { id, agent, version, samples, spans, computation, progress: now });
        Some(id)
    }

    /// Takes an agent's open assignment away; its samples will be issued again. Returns whether a part of its gradient had been
    /// added to the sum.
    pub(crate) fn give_up(&mut self, agent: AgentId, why: PushError) -> Option<bool> {
        let assignment = self.ledger.close(agent, Closed::Void(why))?;
        let id = assignment.id;
        let added = self.uploads.assignment(agent) == Some(id) && self.uploads.remove(agent);
        self.members.set_work(agent, Work::Idle);
        self.out.push(Action::Cancel { agent, assignment: id });
        self.give_back(assignment.spans);
        Some(added)
    }

    /// Returns samples that were not learned from.
    pub(crate) fn give_back(&mut self, spans: Vec<Span>) {
        self.counters.samples_reissued += u64::from(samples_in(&spans));
        self.cursor.give_back(&spans);
    }

    fn sum<'a>(sum: &'a mut Option<Accumulator>, layout: &Layout, samples_max: u32) -> &'a mut Accumulator {
        sum.get_or_insert_with(|| Accumulator::new(&tensor_elements(layout), samples_max))
    }

    /// Makes room for updates of so many samples together in the round's sum. Without a call there is room for the global
    /// batch, which no split of it exceeds. Returns for how many samples there is room: a sum that is not empty stays as it is.
    pub(crate) fn make_room_in_sum(&mut self, samples: u32) -> u32 {
        let is_empty = self.sum.as_ref().is_none_or(|sum| !sum.is_dirty());
        if samples > self.sum_samples_max && is_empty {
            // The sum rounds up to a power of two anyway, and so is made anew more rarely.
            self.sum_samples_max = samples.checked_next_power_of_two().unwrap_or(u32::MAX);
            self.sum = None;
        }
        self.sum_samples_max
    }

    /// Adds a whole staged gradient to the round's sum.
    pub(crate) fn add_to_sum(&mut self, staged: &[u8], samples: u32) -> Result<(), PushError> {
        let gradient = &staged[..self.stream.parameter_bytes as usize];
        let sum = State::sum(&mut self.sum, &self.layout, self.sum_samples_max);
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
        let State { uploads, ledger, stream, sum, sum_samples_max, layout, config, .. } = self;
        let add = |start: usize, bytes: &[u8], samples: u32| {
            let added = State::sum(sum, layout, *sum_samples_max).add_encoded(start, config.codec, bytes, samples);
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
        match self.config.mode.local() {
            // A step takes over what local steps have changed, and those follow the schedule.
            Some(_) => self.config.schedule.learning_rate,
            None => self.config.schedule.learning_rate(version.0) * self.part_of_global_batch(),
        }
    }

    fn part_of_global_batch(&self) -> f64 {
        f64::from(self.batcher.effective_global_batch()) / f64::from(self.config.global_batch)
    }

    /// Learning rate of local steps from the present version on.
    pub(crate) fn local_learning_rate(&self, local: Local) -> f64 {
        let schedule = &self.config.schedule;
        let shape = schedule.learning_rate(self.model.version.0) / schedule.learning_rate;
        local.learning_rate * shape * self.part_of_global_batch()
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
        self.ledger.close(agent, Closed::Accepted { version, staleness });
        self.members.set_work(agent, Work::Idle);
        self.out.push(Action::Outcome { agent, assignment: id, outcome: PushOutcome::Accepted { version, staleness } });
    }

    /// Counts and records an update that is in the parameters.
    pub(crate) fn count_accepted(&mut self, mut record: StepRecord, bytes: u64) {
        let (agent, samples) = (record.agent, record.samples);
        self.counters.accepted += 1;
        self.counters.push_bytes += bytes;
        self.members.accepted(agent, samples, record.staleness);
        let id = record.assignment;
        record.timings = record.timings.or_else(|| self.late_timings.recorded(agent, id, samples));
        if let Some(timings) = &record.timings {
            self.members.timed(agent, timings);
            self.observe(agent, samples, timings);
        }
        self.out.push(Action::Record(Record::Step(record)));
    }

    /// Timings that came apart from their push.
    pub(crate) fn timings_arrived(&mut self, agent: AgentId, assignment: AssignmentId, timings: StepTimings) {
        let open = self.ledger.get(agent).is_some_and(|open| open.id == assignment);
        let Some(samples) = self.late_timings.arrived(agent, assignment, timings, open) else { return };
        // What was measured before the agent started afresh says nothing of it now.
        if self.members.has_since(agent, assignment) {
            self.members.timed(agent, &timings);
            self.observe(agent, samples, &timings);
        }
        self.out.push(Action::Record(Record::Timings(TimingsRecord { agent, assignment, timings })));
    }

    /// Tells the batcher of the time of a step that is not recorded.
    pub(crate) fn observe_refused(&mut self, assignment: &Assignment, timings: Option<StepTimings>) {
        let Assignment { agent, id, samples, .. } = *assignment;
        if let Some(timings) = timings.or_else(|| self.late_timings.recorded(agent, id, samples)) {
            self.observe(agent, samples, &timings);
        }
    }

    /// Tells the batcher of a step's time.
    fn observe(&mut self, agent: AgentId, samples: u32, timings: &StepTimings) {
        if !timings.warm_up {
            self.observe_time(agent, samples, timings.sustained_s());
        }
    }

    /// The batcher knows one local batch and its time, however many an update takes.
    pub(crate) fn observe_time(&mut self, agent: AgentId, samples: u32, seconds: f64) {
        if !self.config.mode.follows_times() {
            return;
        }
        let steps = self.config.mode.local_steps();
        self.batcher.observe(agent, samples / steps, seconds / f64::from(steps));
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
