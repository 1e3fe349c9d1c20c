//! The harness: one [`Training`] and agents that take `offset_s + batch / rate` of virtual time for a gradient.
//!
//! The model is a vector θ; sample i is a vector x_i, drawn from i; the loss is ½·|θ − x_i|² and its gradient θ − x_i. The
//! metric `correct` counts samples with an even number.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use omnilearn_hub_core::config::{
    Batching, Controller, EvaluateConfig, EvaluateEvery, JobConfig, Mode, Start, StopConfig,
};
use omnilearn_hub_core::optimizer::OptimizerConfig;
use omnilearn_hub_core::record::{EvaluationRecord, RoundRecord, StepRecord, TimingsRecord};
use omnilearn_hub_core::schedule::ScheduleConfig;
use omnilearn_hub_core::{Action, Event, Now, Record, Snapshot, Training};
use omnilearn_wire::layout::TensorShape;
use omnilearn_wire::message::{
    CalibrationPoint, Computation, Failure, JobReady, LocalSteps, Machine, PushOutcome, StepReport, StepTimings, Train,
};
use omnilearn_wire::sampling::{SplitMix64, derive_seed, permutation};
use omnilearn_wire::{AgentId, AssignmentId, Codec, JobId, Layout, Version};

pub(crate) const TRAIN_SAMPLES: u32 = 1000;
pub(crate) const TEST_SAMPLES: u32 = 200;

pub(crate) fn config() -> JobConfig {
    JobConfig {
        job: JobId(1),
        name: "test".to_owned(),
        seed: 7,
        train_samples: TRAIN_SAMPLES,
        parts: Vec::new(),
        test_samples: 0,
        codec: Codec::F32,
        mode: Mode::Bsp,
        global_batch: 64,
        batching: Batching::Uniform,
        shares: BTreeMap::new(),
        batch_bounds: (1, 64),
        optimizer: OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        schedule: ScheduleConfig::constant(0.05),
        clip_norm: None,
        agents_min: 1,
        round_deadline: Duration::from_secs(30),
        evaluate: EvaluateConfig { every: EvaluateEvery::Epochs(1), batch: 100 },
        metrics: vec!["correct".to_owned()],
        stop: StopConfig::default(),
        wait_for_agents: 1,
        wait_timeout: Duration::from_secs(60),
    }
}

pub(crate) fn dynamic(controller: Controller) -> Batching {
    Batching::Dynamic { controller, dead_band: 0.03, gain: 1.0, start: Start::Uniform }
}

/// Element `index` of sample i.
fn element(sample: u32, index: usize) -> f32 {
    let bits = SplitMix64::new(derive_seed(u64::from(sample), &[(index % 64) as u64])).next_u64();
    (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Does what it is told.
    Good,
    /// Computes, and never answers.
    Silent,
    /// Pushes even what was cancelled.
    Stubborn,
    /// Pushes a gradient with a value that is not a number.
    NotANumber,
    /// Begins to push and stops half-way.
    StopsHalfWay,
    /// Reports a failure.
    Fails(Failure),
}

pub(crate) struct SimulatedAgent {
    pub(crate) offset_s: f64,
    pub(crate) rate: f64,
    pub(crate) habit: Habit,
    connected: bool,
    /// Parameters of its own, where it keeps such.
    pub(crate) own: Option<Vec<f32>>,
    held: Option<Snapshot>,
    cancelled: BTreeSet<AssignmentId>,
    /// When it will have computed what it was given.
    free_s: f64,
}

/// What an assignment made.
#[derive(Clone, Debug)]
pub(crate) struct Computed {
    pub(crate) loss: f32,
    pub(crate) gradient: Vec<f32>,
    pub(crate) samples: u32,
    pub(crate) compute_s: f64,
    /// When its agent is done with what it had before.
    begins_s: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Push(AgentId, AssignmentId),
    Evaluated(AgentId, AssignmentId),
    Timings(AgentId, AssignmentId),
}

pub(crate) struct Cluster {
    pub(crate) training: Training,
    pub(crate) now: Now,
    pub(crate) agents: BTreeMap<AgentId, SimulatedAgent>,
    pub(crate) work: BTreeMap<AssignmentId, (AgentId, Train)>,
    evaluations: BTreeMap<AssignmentId, (u32, u32)>,
    pub(crate) computed: BTreeMap<AssignmentId, Computed>,
    due: BinaryHeap<Reverse<(Now, u64, Due)>>,
    sequence: u64,
    pub(crate) steps: Vec<StepRecord>,
    pub(crate) late_timings: Vec<TimingsRecord>,
    pub(crate) rounds: Vec<RoundRecord>,
    pub(crate) evaluated: Vec<EvaluationRecord>,
    pub(crate) batches: Vec<Vec<u32>>,
    pub(crate) outcomes: Vec<(AssignmentId, PushOutcome)>,
    pub(crate) notices: Vec<String>,
    permutations: BTreeMap<u32, Vec<u32>>,
    config: JobConfig,
    layout: Layout,
    pub(crate) chunk_bytes: usize,
    /// Timings come apart from pushes, so much later; before them, if it is negative.
    pub(crate) timings_after_s: Option<f64>,
}

impl Cluster {
    pub(crate) fn new(config: JobConfig) -> Cluster {
        Cluster::with_tensors(config, &[6, 4])
    }

    pub(crate) fn with_tensors(config: JobConfig, tensors: &[u32]) -> Cluster {
        let shape =
            |(index, elements): (usize, &u32)| TensorShape { name: format!("t{index}"), shape: vec![*elements] };
        let parameters = tensors.iter().enumerate().map(shape).collect();
        let buffers = vec![TensorShape { name: "running".to_owned(), shape: vec![2] }];
        let layout = Layout::new(parameters, buffers).unwrap();
        let initial = vec![0.5; layout.parameter_elements()];
        let decay = vec![true; tensors.len()];
        let training = Training::new(config.clone(), layout.clone(), initial, vec![0.0; 2], decay).unwrap();
        Cluster {
            training,
            now: Now::ZERO,
            agents: BTreeMap::new(),
            work: BTreeMap::new(),
            evaluations: BTreeMap::new(),
            computed: BTreeMap::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            steps: Vec::new(),
            late_timings: Vec::new(),
            rounds: Vec::new(),
            evaluated: Vec::new(),
            batches: Vec::new(),
            outcomes: Vec::new(),
            notices: Vec::new(),
            permutations: BTreeMap::new(),
            config,
            layout,
            chunk_bytes: 1 << 20,
            timings_after_s: None,
        }
    }

    /// With agents 0, 1, … of these speeds in samples per second.
    pub(crate) fn started(config: JobConfig, rates: &[f64]) -> Cluster {
        let mut cluster = Cluster::new(config);
        cluster.join_all(rates);
        cluster
    }

    pub(crate) fn join_all(&mut self, rates: &[f64]) {
        for (agent, &rate) in rates.iter().enumerate() {
            self.join(agent as u32, rate);
        }
    }

    pub(crate) fn join(&mut self, agent: u32, rate: f64) {
        self.join_with(agent, rate, None, Vec::new());
    }

    pub(crate) fn join_with(
        &mut self,
        agent: u32,
        rate: f64,
        batch_max: Option<u32>,
        calibration: Vec<CalibrationPoint>,
    ) {
        let simulated = SimulatedAgent {
            offset_s: 0.01,
            rate,
            habit: Habit::Good,
            connected: true,
            own: None,
            held: None,
            cancelled: BTreeSet::new(),
            free_s: 0.0,
        };
        self.agents.insert(AgentId(agent), simulated);
        let test_samples = self.config.test_samples;
        let train_samples = self.config.train_samples;
        let ready = JobReady { train_samples, test_samples, batch_max, batch_step: 1, calibration };
        self.send(Event::Ready {
            agent: AgentId(agent),
            name: format!("agent-{agent}"),
            machine: Machine::default(),
            ready,
        });
    }

    pub(crate) fn kill(&mut self, agent: u32) {
        self.agent(agent).connected = false;
        self.send(Event::Gone { agent: AgentId(agent) });
    }

    pub(crate) fn agent(&mut self, agent: u32) -> &mut SimulatedAgent {
        self.agents.get_mut(&AgentId(agent)).unwrap()
    }

    /// The assignment that an agent works on, the last one issued to it.
    pub(crate) fn assignment_of(&self, agent: u32) -> AssignmentId {
        *self.work.iter().rev().find(|(_, (owner, _))| *owner == AgentId(agent)).unwrap().0
    }

    pub(crate) fn version(&self) -> u64 {
        self.training.snapshot().version.0
    }

    pub(crate) fn parameters(&self) -> Vec<f32> {
        self.training.snapshot().parameters.iter().flat_map(|block| block.iter().copied()).collect()
    }

    pub(crate) fn send(&mut self, event: Event<'_>) {
        let actions = self.training.handle(self.now, event);
        self.perform(actions);
    }

    pub(crate) fn samples(&mut self, work: &Train) -> Vec<u32> {
        let (seed, samples) = (self.config.seed, self.config.train_samples);
        let mut indices = Vec::new();
        for span in &work.spans {
            let order = self.permutations.entry(span.epoch).or_insert_with(|| permutation(seed, span.epoch, samples));
            indices.extend_from_slice(&order[span.start as usize..span.end as usize]);
        }
        indices
    }

    fn compute(&mut self, agent: AgentId, work: &Train) -> Computed {
        let mut samples = self.samples(work);
        let simulated = self.agents.get_mut(&agent).unwrap();
        let held = simulated.held.as_ref().unwrap();
        assert_eq!(held.version, work.version, "the agent was sent the parameters of its work");
        let hub: Vec<f32> = held.parameters.iter().flat_map(|block| block.iter().copied()).collect();
        if let Computation::Timed { compute_s } = work.computation {
            let fits = (f64::from(compute_s) - simulated.offset_s) * simulated.rate;
            samples.truncate((fits.max(1.0) as usize).min(samples.len()));
        }
        let compute_s = simulated.offset_s + samples.len() as f64 / simulated.rate;
        let (loss, gradient) = match work.computation {
            Computation::Gradient | Computation::Timed { .. } => mean_gradient(&hub, &samples),
            Computation::Local(LocalSteps { steps, learning_rate, momentum, elastic }) => {
                let own = simulated.own.take().filter(|_| elastic.is_some()).unwrap_or_else(|| hub.clone());
                let batch = samples.len().div_ceil(steps as usize);
                let (losses, own) = descend(own, samples.chunks(batch), learning_rate, momentum);
                let part = elastic.unwrap_or(1.0);
                let change: Vec<f32> = hub.iter().zip(&own).map(|(hub, own)| part * (hub - own)).collect();
                let moved = own.iter().zip(&change).map(|(own, change)| own + change).collect();
                simulated.own = elastic.map(|_| moved);
                (losses, change)
            }
        };
        Computed { loss, gradient, samples: samples.len() as u32, compute_s, begins_s: 0.0 }
    }

    fn schedule(&mut self, after_s: f64, due: Due) {
        self.sequence += 1;
        self.due.push(Reverse((self.now + Duration::from_secs_f64(after_s), self.sequence, due)));
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Train { agent, work, parameters } => {
                    let id = work.assignment;
                    let simulated = self.agents.get_mut(&agent).unwrap();
                    assert!(simulated.connected, "work for an agent that is gone");
                    simulated.held = parameters.or(simulated.held.take());
                    let mut computed = self.compute(agent, &work);
                    let now_s = self.now.as_secs_f64();
                    let simulated = self.agents.get_mut(&agent).unwrap();
                    // What was taken back while it was computed is computed to its end all the same.
                    computed.begins_s = simulated.free_s.max(now_s);
                    simulated.free_s = computed.begins_s + computed.compute_s;
                    let after_s = simulated.free_s - now_s;
                    self.computed.insert(id, computed);
                    self.work.insert(id, (agent, work));
                    self.schedule(after_s, Due::Push(agent, id));
                }
                Action::Evaluate { agent, work, parameters } => {
                    let simulated = self.agents.get_mut(&agent).unwrap();
                    simulated.held = parameters.or(simulated.held.take());
                    assert_eq!(simulated.held.as_ref().unwrap().version, work.version);
                    let after_s = simulated.offset_s + f64::from(work.end - work.start) / (3.0 * simulated.rate);
                    self.evaluations.insert(work.assignment, (work.start, work.end));
                    self.schedule(after_s, Due::Evaluated(agent, work.assignment));
                }
                Action::Outcome { assignment, outcome, .. } => self.outcomes.push((assignment, outcome)),
                Action::Cancel { agent, assignment } => {
                    let simulated = self.agents.get_mut(&agent).unwrap();
                    simulated.cancelled.insert(assignment);
                    let begins_s = self.computed.get(&assignment).map_or(0.0, |computed| computed.begins_s);
                    if begins_s > self.now.as_secs_f64() {
                        simulated.free_s = begins_s; // not begun, and never will be
                    }
                }
                Action::Record(Record::Step(record)) => self.steps.push(record),
                Action::Record(Record::Timings(record)) => self.late_timings.push(record),
                Action::Record(Record::Round(record)) => self.rounds.push(record),
                Action::Record(Record::Evaluation(record)) => self.evaluated.push(record),
                Action::Record(Record::Batches(record)) => {
                    self.batches.push(record.batches.iter().map(|&(_, batch)| batch).collect());
                }
                Action::Notice(notice) => self.notices.push(format!("{}: {:?}", notice.message, notice.fields)),
                Action::Finished(_) => {}
            }
        }
    }

    pub(crate) fn encoded(&self, id: AssignmentId) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.config.codec.encode_into(&self.computed[&id].gradient, &mut bytes);
        Codec::F32.encode_into(&[f32::from(id.0 as u16), 1.0], &mut bytes);
        bytes
    }

    fn timings(&self, id: AssignmentId) -> StepTimings {
        StepTimings { compute_s: self.computed[&id].compute_s as f32, ..StepTimings::default() }
    }

    pub(crate) fn report(&self, id: AssignmentId) -> StepReport {
        let Computed { loss, samples, .. } = self.computed[&id];
        let timings = self.timings_after_s.is_none().then(|| self.timings(id));
        StepReport { loss, metric_sums: vec![0.0], timings, samples }
    }

    pub(crate) fn send_timings(&mut self, agent: AgentId, assignment: AssignmentId) {
        let timings = self.timings(assignment);
        self.send(Event::Timings { agent, assignment, timings });
    }

    pub(crate) fn begin(&mut self, agent: u32, assignment: AssignmentId, version: Version, bytes: u64) {
        self.send(Event::PushBegin { agent: AgentId(agent), assignment, version, bytes });
    }

    pub(crate) fn chunk(&mut self, agent: u32, assignment: AssignmentId, offset: u64, bytes: &[u8]) {
        self.send(Event::PushChunk { agent: AgentId(agent), assignment, offset, bytes });
    }

    pub(crate) fn end(&mut self, agent: u32, assignment: AssignmentId) {
        let (agent, report) = (AgentId(agent), self.report(assignment));
        match self.timings_after_s {
            Some(before_s) if before_s < 0.0 => self.send_timings(agent, assignment),
            Some(after_s) => self.schedule(after_s, Due::Timings(agent, assignment)),
            None => {}
        }
        self.send(Event::PushEnd { agent, assignment, report });
    }

    /// A whole push of these bytes, or the first part of it.
    pub(crate) fn push(&mut self, agent: u32, id: AssignmentId, bytes: &[u8], whole: bool) {
        let version = self.work[&id].1.version;
        self.begin(agent, id, version, self.layout.stream_bytes(self.config.codec));
        let sent = if whole { bytes.len() } else { bytes.len() / 2 };
        let chunk_bytes = self.chunk_bytes;
        for (index, chunk) in bytes[..sent].chunks(chunk_bytes).enumerate() {
            self.chunk(agent, id, (index * chunk_bytes) as u64, chunk);
        }
        if whole {
            self.end(agent, id);
        }
    }

    pub(crate) fn push_good(&mut self, agent: u32, id: AssignmentId) {
        let bytes = self.encoded(id);
        self.push(agent, id, &bytes, true);
    }

    fn on_push(&mut self, agent: AgentId, id: AssignmentId) {
        let simulated = &self.agents[&agent];
        let cancelled = simulated.cancelled.contains(&id) && simulated.habit != Habit::Stubborn;
        if !simulated.connected || cancelled {
            return;
        }
        match simulated.habit {
            Habit::Good | Habit::Stubborn => self.push_good(agent.0, id),
            Habit::Silent => {}
            Habit::NotANumber => {
                let mut bytes = self.encoded(id);
                let at = (self.layout.parameter_bytes(self.config.codec) as usize / 2) & !3;
                bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
                self.push(agent.0, id, &bytes, true);
            }
            Habit::StopsHalfWay => {
                let bytes = self.encoded(id);
                self.push(agent.0, id, &bytes, false);
            }
            Habit::Fails(failure) => {
                self.send(Event::Failed { agent, assignment: id, failure, message: "on purpose".to_owned() });
            }
        }
    }

    /// Lets the next thing happen. Returns false when nothing ever will.
    pub(crate) fn step(&mut self) -> bool {
        let deadline = self.training.next_deadline();
        let next = self.due.peek().map(|Reverse((time, ..))| *time);
        match (next, deadline) {
            (None, None) => false,
            (Some(time), deadline) if deadline.is_none_or(|deadline| time <= deadline) => {
                let Some(Reverse((time, _, due))) = self.due.pop() else { return false };
                self.now = self.now.max(time);
                match due {
                    Due::Push(agent, id) => self.on_push(agent, id),
                    Due::Evaluated(agent, id) => self.on_evaluated(agent, id),
                    Due::Timings(agent, id) => self.send_timings(agent, id),
                }
                true
            }
            (_, Some(deadline)) => {
                self.now = self.now.max(deadline);
                let actions = self.training.on_deadline(self.now);
                self.perform(actions);
                assert!(self.training.next_deadline().is_none_or(|next| next > self.now), "a deadline is met once");
                true
            }
            (Some(_), None) => unreachable!("matched above"),
        }
    }

    fn on_evaluated(&mut self, agent: AgentId, assignment: AssignmentId) {
        let simulated = &self.agents[&agent];
        if !simulated.connected || simulated.cancelled.contains(&assignment) || simulated.habit == Habit::Silent {
            return;
        }
        if let Habit::Fails(failure) = simulated.habit {
            return self.send(Event::Failed { agent, assignment, failure, message: "on purpose".to_owned() });
        }
        let (start, end) = self.evaluations[&assignment];
        let even = (start..end).filter(|index| index % 2 == 0).count();
        let loss_sum = (start..end).map(f64::from).sum();
        let metric_sums = vec![even as f64];
        self.send(Event::Evaluated { agent, assignment, samples: end - start, loss_sum, metric_sums });
    }

    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&Cluster) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            assert!(self.step(), "stuck at {:?}: {:?}", self.now, self.training.status(self.now).waiting);
        }
        panic!("not done at {:?}: {:?}", self.now, self.training.status(self.now));
    }

    pub(crate) fn run_to_version(&mut self, version: u64) {
        self.run_until(|cluster| cluster.version() >= version);
    }

    pub(crate) fn run_to_end(&mut self) {
        self.run_until(|cluster| cluster.training.finished().is_some());
    }

    /// How often each position of an epoch is in an accepted update.
    pub(crate) fn coverage(&self, epoch: u32) -> Vec<u32> {
        let mut counts = vec![0; self.config.train_samples as usize];
        for record in &self.steps {
            for span in record.spans.iter().filter(|span| span.epoch == epoch) {
                (span.start..span.end).for_each(|position| counts[position as usize] += 1);
            }
        }
        counts
    }

    pub(crate) fn assert_covered(&self, epochs: u32) {
        for epoch in 0..epochs {
            assert!(self.coverage(epoch).iter().all(|&count| count == 1), "epoch {epoch}: {:?}", self.coverage(epoch));
        }
    }

    pub(crate) fn refusals(&self) -> Vec<String> {
        let refused = self.outcomes.iter().filter_map(|(_, outcome)| match outcome {
            PushOutcome::Refused { reason } => Some(reason.clone()),
            PushOutcome::Accepted { .. } => None,
        });
        refused.collect()
    }
}

/// SGD over batches: m ← μm + g, θ ← θ − ηm, m from zero. The mean loss and where it ends.
pub(crate) fn descend<'a>(
    mut parameters: Vec<f32>,
    batches: impl Iterator<Item = &'a [u32]>,
    learning_rate: f32,
    momentum: f32,
) -> (f32, Vec<f32>) {
    let mut velocity = vec![0.0f32; parameters.len()];
    let (mut losses, mut count) = (0.0, 0);
    for batch in batches {
        let (loss, gradient) = mean_gradient(&parameters, batch);
        (losses, count) = (losses + loss * batch.len() as f32, count + batch.len());
        for ((parameter, velocity), gradient) in parameters.iter_mut().zip(&mut velocity).zip(gradient) {
            *velocity = momentum * *velocity + gradient;
            *parameter -= learning_rate * *velocity;
        }
    }
    (losses / count as f32, parameters)
}

/// Mean loss and gradient over samples.
pub(crate) fn mean_gradient(parameters: &[f32], samples: &[u32]) -> (f32, Vec<f32>) {
    let distinct = parameters.len().min(64); // elements repeat after 64
    let count = samples.len() as f64;
    let means: Vec<f64> = (0..distinct)
        .map(|index| samples.iter().map(|&sample| f64::from(element(sample, index))).sum::<f64>() / count)
        .collect();
    let gradient: Vec<f32> =
        parameters.iter().enumerate().map(|(index, &value)| (f64::from(value) - means[index % 64]) as f32).collect();
    let loss = gradient.iter().take(64).map(|value| 0.5 * value * value).sum();
    (loss, gradient)
}
