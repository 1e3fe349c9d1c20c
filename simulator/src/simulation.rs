//! The run itself: a clock that jumps from one event to the next, the hub's core, and the agents' work between them.
//!
//! The hub answers in no time. A message to or from an agent takes the agent's latency, and parameters and gradients take their
//! bytes' time on the agent's link and the hub's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use omnilearn_hub::PlanError;
use omnilearn_hub::limits::{HEARTBEAT, HEARTBEATS_MISSED_MAX};
use omnilearn_hub_core::status::Status;
use omnilearn_hub_core::{Action, Event, Now, Record, Snapshot, Training};
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::{Span, StepReport, StepTimings};
use omnilearn_wire::{AgentId, AssignmentId};

use crate::agent::{Task, VirtualAgent, Work, duration};
use crate::fleet::{Fleet, Leaving};
use crate::gradients::Gradients;
use crate::job::Job;
use crate::limit::Limit;
use crate::link::SharedLink;
use crate::queue::Queue;
use crate::tally::Tally;
use crate::thread_time::thread_cpu_s;

/// Shorter runs take their time for CPU time: the system brings a thread's CPU time up to date some hundred times a second.
const CPU_MEASURED_S: f64 = 0.5;

/// Why a simulation has no end.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The job could not begin.
    #[error(transparent)]
    Start(#[from] PlanError),
    /// Nothing is left that could happen, and the job is not over.
    #[error(
        "the job can never end: at {virtual_s:.1} s of virtual time, after {epoch:.2} epochs, nobody works on it: {waiting}; \
         change `agents_min` or `wait_for_agents` in the job, or when agents join and leave in the fleet"
    )]
    Stuck {
        /// When.
        virtual_s: f64,
        /// How far it got.
        epoch: f64,
        /// What it waits for.
        waiting: String,
    },
    /// Without gradients there is no accuracy.
    #[error(
        "without gradients no accuracy is ever reached: give `epochs`, `steps` or `wall_time_s` in [stop], or use --gradients real"
    )]
    NoEnd,
    /// The observer would not go on.
    #[error("{0}")]
    Observer(#[source] std::io::Error),
}

/// Watches a run.
pub trait Observer {
    /// What the core recorded.
    ///
    /// # Errors
    /// To end the simulation.
    fn record(&mut self, record: &Record) -> std::io::Result<()>;

    /// After each step: virtual time, epoch and version.
    fn progress(&mut self, _now: Now, _epoch: f64, _version: u64) {}
}

/// Nobody watches.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Observer for Unwatched {
    fn record(&mut self, _record: &Record) -> std::io::Result<()> {
        Ok(())
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The core's view of the job, at the end.
    pub status: Status,
    /// The parameters, at the end.
    pub parameters: Snapshot,
    /// Virtual time from the beginning to the end.
    pub virtual_time: Now,
    /// CPU time of the core. Measured as time that passed in it, less the part in which this thread did not run.
    pub core_cpu_s: f64,
    /// Real time.
    pub wall_s: f64,
    /// The shortest training time that the agents' speeds allow; in BSP only.
    pub limit_s: Option<f64>,
    /// For each round, how much of the time until it began was not spent on training; in BSP only.
    pub pauses_s: Vec<f64>,
    pub(crate) tally: Tally,
}

impl Outcome {
    /// Updates by their staleness in steps.
    pub fn staleness(&self) -> &BTreeMap<u64, u64> {
        &self.tally.staleness
    }

    /// What the hub would have warned of, and how often.
    pub fn warnings(&self) -> &BTreeMap<&'static str, u64> {
        &self.tally.warnings
    }
}

/// Whose work, and which.
type Part = (usize, AssignmentId);

#[derive(Clone, Copy, Debug)]
enum Happening {
    Joins(usize),
    Leaves(usize, Leaving),
    /// The hub gives up a connection.
    Lost(usize),
    /// A shared link may be done with something.
    Uplink,
    Downlink,
    /// Parameters and assignment are there.
    Arrived(Part),
    Computed(Part),
    Pushed(Part),
    Evaluated(Part),
    /// A long push makes progress.
    Progress(Part),
}

struct Simulation<'a> {
    fleet: &'a Fleet,
    job: &'a Job,
    gradients: &'a mut dyn Gradients,
    observer: &'a mut dyn Observer,
    training: Training,
    /// When the core must be called if nothing else happens before.
    deadline: Option<Now>,
    core: Duration,
    now: Now,
    queue: Queue<Happening>,
    agents: Vec<VirtualAgent>,
    /// Counts changes of who works.
    members: u64,
    /// Brings parameters to agents.
    uplink: Option<SharedLink<Part>>,
    /// Brings gradients to the hub.
    downlink: Option<SharedLink<Part>>,
    /// When each is looked at next. An event at another time was planned for what has changed since.
    uplink_due: Option<Now>,
    downlink_due: Option<Now>,
    tally: Tally,
    limit: Option<Limit>,
    pauses_s: Vec<f64>,
    /// A push's bytes.
    stream: Vec<u8>,
}

/// Runs a job on a fleet to its end.
///
/// # Errors
/// [`SimulationError`].
pub fn simulate(
    fleet: &Fleet,
    job: &Job,
    gradients: &mut dyn Gradients,
    observer: &mut dyn Observer,
) -> Result<Outcome, SimulationError> {
    let stop = &job.config.stop;
    if !gradients.needs_parameters() && stop.epochs.is_none() && stop.steps.is_none() && stop.wall_time.is_none() {
        return Err(SimulationError::NoEnd);
    }
    let training = gradients.start(&job.config)?;
    let (began, cpu_began_s) = (Instant::now(), thread_cpu_s());
    let mut simulation = Simulation {
        fleet,
        job,
        gradients,
        observer,
        deadline: training.next_deadline(),
        training,
        core: Duration::ZERO,
        now: Now::ZERO,
        queue: Queue::default(),
        agents: fleet.agents.iter().map(|_| VirtualAgent::new()).collect(),
        members: 0,
        uplink: fleet.hub_uplink_bytes_per_s.map(SharedLink::new),
        downlink: fleet.hub_downlink_bytes_per_s.map(SharedLink::new),
        uplink_due: None,
        downlink_due: None,
        tally: Tally::new(fleet.agents.len(), stop.target_accuracy),
        limit: job.is_bsp().then(|| Limit::new(fleet, &job.config, job.stream_bytes)),
        pauses_s: Vec::new(),
        stream: Vec::new(),
    };
    simulation.run()?;
    let wall_s = began.elapsed().as_secs_f64();
    let cpu = cpu_began_s.zip(thread_cpu_s()).filter(|_| wall_s >= CPU_MEASURED_S);
    let running = cpu.map_or(1.0, |(from_s, to_s)| ((to_s - from_s) / wall_s).min(1.0));
    let Simulation { training, core, now, tally, limit, pauses_s, .. } = simulation;
    Ok(Outcome {
        status: training.status(now),
        parameters: training.snapshot(),
        virtual_time: now,
        core_cpu_s: core.as_secs_f64() * running,
        wall_s,
        limit_s: limit.and_then(|limit| limit.total_s()),
        pauses_s,
        tally,
    })
}

impl Simulation<'_> {
    fn run(&mut self) -> Result<(), SimulationError> {
        for (index, spec) in self.fleet.agents.iter().enumerate() {
            self.queue.plan(spec.joins, Happening::Joins(index));
            if let Some((leaves, how)) = spec.leaves {
                self.queue.plan(leaves, Happening::Leaves(index, how));
            }
        }
        while self.training.finished().is_none() {
            match (self.queue.next_time(), self.deadline) {
                (None, None) => return Err(self.stuck()),
                (Some(time), deadline) if deadline.is_none_or(|deadline| time <= deadline) => {
                    if let Some((time, happening)) = self.queue.pop() {
                        self.now = self.now.max(time);
                        self.happen(happening)?;
                    }
                }
                (_, Some(deadline)) => {
                    self.now = self.now.max(deadline);
                    let now = self.now;
                    let actions = self.timed(|training| training.on_deadline(now));
                    self.perform(actions)?;
                }
                (Some(_), None) => unreachable!("an event without a deadline is taken above"),
            }
        }
        Ok(())
    }

    fn stuck(&self) -> SimulationError {
        let waiting = self.training.status(self.now).waiting;
        let waiting = waiting.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        SimulationError::Stuck { virtual_s: self.now.as_secs_f64(), epoch: self.tally.epoch(), waiting }
    }

    /// Lets the core work, asks it when it must be called next, and counts its time.
    fn timed<R>(&mut self, work: impl FnOnce(&mut Training) -> R) -> R {
        let began = Instant::now();
        let result = work(&mut self.training);
        self.deadline = self.training.next_deadline();
        self.core += began.elapsed();
        result
    }

    fn tell(&mut self, event: Event<'_>) -> Result<(), SimulationError> {
        let now = self.now;
        let actions = self.timed(|training| training.handle(now, event));
        self.perform(actions)
    }

    /// What speeds depend on.
    fn moment(&self, now: Now) -> (Now, f64) {
        (now, self.tally.epoch())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), SimulationError> {
        match happening {
            Happening::Joins(agent) => self.joins(agent),
            Happening::Leaves(agent, how) => self.leaves(agent, how),
            Happening::Lost(agent) => self.gone(agent),
            Happening::Uplink => {
                self.uplink_due.take_if(|due| *due == self.now);
                let done = self.uplink.as_mut().map(|link| link.done(self.now)).unwrap_or_default();
                for (agent, assignment) in done {
                    let arrives = self.now + duration(self.fleet.agents[agent].latency_s);
                    self.queue.plan(arrives, Happening::Arrived((agent, assignment)));
                }
                self.plan_links();
                Ok(())
            }
            Happening::Downlink => {
                self.downlink_due.take_if(|due| *due == self.now);
                let done = self.downlink.as_mut().map(|link| link.done(self.now)).unwrap_or_default();
                for (agent, assignment) in done {
                    let now = self.now;
                    if let Some(work) = self.agents[agent].work(assignment) {
                        work.send_s = (now - work.computed).as_secs_f64();
                        let arrives = now + duration(self.fleet.agents[agent].latency_s);
                        self.queue.plan(arrives, Happening::Pushed((agent, assignment)));
                    }
                }
                self.plan_links();
                Ok(())
            }
            Happening::Arrived((agent, assignment)) => {
                let (now, latency) = (self.now, duration(self.fleet.agents[agent].latency_s));
                if let Some(work) = self.agents[agent].work(assignment) {
                    work.load_s = now.saturating_sub(work.issued + latency).as_secs_f64();
                    self.compute((agent, assignment), now);
                }
                Ok(())
            }
            Happening::Computed(part) => {
                self.send(part);
                Ok(())
            }
            Happening::Pushed(part) => self.pushed(part),
            Happening::Evaluated(part) => self.evaluated(part),
            Happening::Progress(part) => self.progress(part),
        }
    }

    /// Looks at the shared links again when they may be done with something. Where that is later than planned, the event that is
    /// planned finds nothing and plans anew.
    fn plan_links(&mut self) {
        for (link, due, happening) in [
            (&self.uplink, &mut self.uplink_due, Happening::Uplink),
            (&self.downlink, &mut self.downlink_due, Happening::Downlink),
        ] {
            if let Some(next) = link.as_ref().and_then(SharedLink::next)
                && due.is_none_or(|due| next < due)
            {
                *due = Some(next);
                self.queue.plan(next, happening);
            }
        }
    }

    fn joins(&mut self, index: usize) -> Result<(), SimulationError> {
        let spec = &self.fleet.agents[index];
        let config = &self.job.config;
        let ready = spec.ready(
            (config.train_samples, config.test_samples),
            &self.job.calibration_batches,
            self.moment(self.now),
            (self.fleet.seed, index as u64),
        );
        let agent = &mut self.agents[index];
        (agent.connected, agent.alive) = (true, true);
        self.members += 1;
        self.tally.came(index);
        let (name, machine) = (spec.name.clone(), spec.machine());
        self.tell(Event::Ready { agent: AgentId(index as u32), name, machine, ready })
    }

    fn leaves(&mut self, index: usize, how: Leaving) -> Result<(), SimulationError> {
        self.members += 1;
        self.tally.went(index);
        let agent = &mut self.agents[index];
        agent.alive = false;
        agent.works.clear();
        agent.held = None;
        match how {
            Leaving::Closes => self.gone(index),
            Leaving::Silent => {
                self.queue.plan(self.now + HEARTBEAT * HEARTBEATS_MISSED_MAX, Happening::Lost(index));
                Ok(())
            }
            Leaving::Hangs => Ok(()),
        }
    }

    fn gone(&mut self, index: usize) -> Result<(), SimulationError> {
        self.agents[index].connected = false;
        self.tell(Event::Gone { agent: AgentId(index as u32) })
    }

    fn perform(&mut self, actions: Vec<Action>) -> Result<(), SimulationError> {
        for action in actions {
            match action {
                Action::Train { agent, mut work, parameters } => {
                    if work.version.0 == self.pauses_s.len() as u64 {
                        self.open_round();
                    }
                    let samples = work.spans.iter().map(Span::len).sum();
                    if !self.gradients.needs_parameters() {
                        work.spans = Vec::new(); // given back while it is warm: nobody will look at the samples
                    }
                    self.issue(agent.0 as usize, Task::Train(work, samples), parameters);
                }
                Action::Evaluate { agent, work, parameters } => {
                    self.issue(agent.0 as usize, Task::Evaluate(work), parameters);
                }
                Action::Cancel { agent, assignment } => {
                    if let Some(work) = self.agents[agent.0 as usize].work(assignment) {
                        work.cancelled = true;
                    }
                }
                Action::Record(record) => {
                    self.tally.record(&record);
                    self.observer.record(&record).map_err(SimulationError::Observer)?;
                    if let Record::Round(round) = &record {
                        self.limit.iter_mut().for_each(Limit::close);
                        self.observer.progress(self.now, round.epoch, round.version.0);
                    }
                }
                Action::Notice(notice) => self.tally.notice(&notice),
                Action::Outcome { .. } | Action::Finished(_) => {}
            }
        }
        Ok(())
    }

    /// The first assignment of a version: in BSP a round.
    fn open_round(&mut self) {
        let at = self.moment(self.now);
        let Some(limit) = &mut self.limit else { return };
        self.pauses_s.push(self.now.as_secs_f64() - self.tally.training_s());
        limit.open(self.fleet, at, self.members, |index| self.agents[index].alive);
    }

    /// Parameters, where they are needed, and an assignment set out to an agent.
    fn issue(&mut self, index: usize, task: Task, parameters: Option<Snapshot>) {
        let (now, spec) = (self.now, &self.fleet.agents[index]);
        let agent = &mut self.agents[index];
        if !agent.alive {
            return; // nobody is there, and the hub does not know yet
        }
        let bytes = if parameters.is_some() { self.job.stream_bytes } else { 0 };
        self.tally.bytes_down += bytes;
        if self.gradients.needs_parameters() {
            agent.held = parameters.or(agent.held.take());
        }
        let latency = duration(spec.latency_s);
        let wait_s = agent.idle_since.map_or(0.0, |since| (now + latency).saturating_sub(since).as_secs_f64());
        let assignment = task.assignment();
        let load_s = spec.download_s(bytes);
        agent.works.push(Work {
            task,
            parameters: agent.held.clone(),
            cancelled: false,
            issued: now,
            wait_s,
            load_s,
            compute_s: 0.0,
            computed: Now::ZERO,
            send_s: 0.0,
        });
        match &mut self.uplink {
            Some(link) if bytes > 0 => {
                link.begin(now, bytes, spec.downlink_bytes_per_s, (index, assignment));
                self.plan_links();
            }
            // Nobody else has a part in it, so it is known now when the work begins.
            _ => self.compute((index, assignment), now + latency + duration(load_s)),
        }
    }

    /// Work whose input is there at `arrives` begins once the agent is free.
    fn compute(&mut self, (index, assignment): Part, arrives: Now) {
        let begins = arrives.max(self.agents[index].free_at);
        let (spec, seed, parts) = (&self.fleet.agents[index], self.fleet.seed, [index as u64, assignment.0]);
        let moment = self.moment(begins);
        let agent = &mut self.agents[index];
        let Some(work) = agent.work(assignment) else { return };
        let is_evaluation = matches!(work.task, Task::Evaluate(_));
        work.compute_s = match &mut work.task {
            Task::Train(train, samples) => spec.train(train, samples, moment, (seed, &parts)),
            Task::Evaluate(work) => spec.evaluation_s(work, moment, seed, &parts),
        };
        let ends = begins + duration(work.compute_s);
        work.computed = ends;
        agent.free_at = ends;
        let latency = duration(spec.latency_s);
        if is_evaluation {
            self.queue.plan(ends + latency, Happening::Evaluated((index, assignment)));
            return;
        }
        let send_s = spec.upload_s(self.job.stream_bytes);
        let is_long = send_s > self.progress_every().as_secs_f64();
        if self.downlink.is_some() || is_long {
            self.queue.plan(ends, Happening::Computed((index, assignment)));
        } else {
            if let Some(work) = self.agents[index].work(assignment) {
                work.send_s = send_s;
            }
            self.queue.plan(ends + duration(send_s) + latency, Happening::Pushed((index, assignment)));
        }
    }

    /// How often the hub hears of a push that takes long: well within its deadline, as pieces of a real push would arrive.
    fn progress_every(&self) -> Duration {
        self.job.config.round_deadline / 4
    }

    /// A gradient sets out to the hub.
    fn send(&mut self, part: Part) {
        let ((index, assignment), now, bytes) = (part, self.now, self.job.stream_bytes);
        let spec = &self.fleet.agents[index];
        let (send_s, latency) = (spec.upload_s(bytes), duration(spec.latency_s));
        let agent = &mut self.agents[index];
        match agent.work(assignment) {
            None => return,
            // Computed for nothing; a real agent finds out as it is about to send.
            Some(work) if work.cancelled => {
                let compute_s = work.compute_s;
                self.tally.busy(index, compute_s);
                agent.take_work(assignment);
                agent.idle_since = Some(now);
                return;
            }
            Some(work) => (work.computed, work.send_s) = (now, send_s),
        }
        match &mut self.downlink {
            Some(link) => {
                link.begin(now, bytes, spec.uplink_bytes_per_s, part);
                self.plan_links();
            }
            None => self.queue.plan(now + duration(send_s) + latency, Happening::Pushed(part)),
        }
        self.queue.plan(now + self.progress_every(), Happening::Progress(part));
    }

    /// A push under way shows that it is: it opens at the hub, and then brings an empty piece.
    fn progress(&mut self, part: Part) -> Result<(), SimulationError> {
        let (index, assignment) = part;
        let Some(Work { task: Task::Train(train, _), cancelled: false, .. }) = self.agents[index].work(assignment)
        else {
            return Ok(());
        };
        let (agent, version) = (AgentId(index as u32), train.version);
        self.queue.plan(self.now + self.progress_every(), Happening::Progress(part));
        // Beginning anew replaces what had begun, so one message does for both.
        let bytes = self.core_stream_bytes();
        self.tell(Event::PushBegin { agent, assignment, version, bytes })
    }

    /// Length of a push as the core sees it.
    fn core_stream_bytes(&self) -> u64 {
        if self.gradients.needs_parameters() {
            self.job.stream_bytes
        } else {
            self.job.config.codec.element_bytes() as u64
        }
    }

    fn pushed(&mut self, (index, assignment): Part) -> Result<(), SimulationError> {
        let latency = duration(self.fleet.agents[index].latency_s);
        let agent = &mut self.agents[index];
        let Some(work) = agent.take_work(assignment) else { return Ok(()) };
        let Work { task: Task::Train(train, samples), parameters, wait_s, load_s, compute_s, send_s, .. } = work else {
            return Ok(());
        };
        agent.idle_since = Some(self.now.saturating_sub(latency));
        if work.cancelled {
            self.tally.busy(index, load_s + compute_s);
            return Ok(());
        }
        let timings = StepTimings {
            wait_s: wait_s as f32,
            load_s: load_s as f32,
            compute_s: compute_s as f32,
            send_s: send_s as f32,
            warm_up: agent.is_warm_up(samples),
            ..StepTimings::default()
        };
        self.tally.busy(index, load_s + compute_s + send_s);
        self.tally.bytes_up += self.job.stream_bytes;
        let mut stream = std::mem::take(&mut self.stream);
        stream.clear();
        let computed = self.gradients.gradient(index, &train, parameters.as_ref(), &mut stream);
        drop(parameters); // before the core steps, so that it need not copy what nobody holds any more
        let (now, agent, version) = (self.now, AgentId(index as u32), train.version);
        let actions = match computed {
            Ok(StepReport { loss, metric_sums, .. }) => {
                let report = StepReport { loss, metric_sums, timings: Some(timings), samples };
                self.timed(|training| {
                    let bytes = stream.len() as u64;
                    let mut actions = training.handle(now, Event::PushBegin { agent, assignment, version, bytes });
                    for (number, bytes) in stream.chunks(CHUNK_BYTES).enumerate() {
                        let offset = (number * CHUNK_BYTES) as u64;
                        actions.extend(training.handle(now, Event::PushChunk { agent, assignment, offset, bytes }));
                    }
                    actions.extend(training.handle(now, Event::PushEnd { agent, assignment, report }));
                    actions
                })
            }
            Err(error) => {
                let (failure, message) = (error.failure, error.message);
                self.timed(|training| training.handle(now, Event::Failed { agent, assignment, failure, message }))
            }
        };
        self.stream = stream;
        self.perform(actions)
    }

    fn evaluated(&mut self, (index, assignment): Part) -> Result<(), SimulationError> {
        let now = self.now;
        let agent = &mut self.agents[index];
        let Some(work) = agent.take_work(assignment) else { return Ok(()) };
        agent.idle_since = Some(now);
        let Work { task: Task::Evaluate(evaluate), parameters, cancelled: false, .. } = work else { return Ok(()) };
        let agent = AgentId(index as u32);
        match self.gradients.evaluate(index, &evaluate, parameters.as_ref()) {
            Ok(evaluation) => self.tell(Event::Evaluated {
                agent,
                assignment,
                samples: evaluation.samples,
                loss_sum: evaluation.loss_sum,
                metric_sums: evaluation.metric_sums,
            }),
            Err(error) => {
                let (failure, message) = (error.failure, error.message);
                self.tell(Event::Failed { agent, assignment, failure, message })
            }
        }
    }
}
