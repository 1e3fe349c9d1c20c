//! The task that owns the jobs: one trains, the others wait their turn. It never waits for an agent or for the disk.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::extract::ws::close_code;
use omnilearn_hub_core::action::{Action, Level, Notice, StopReason};
use omnilearn_hub_core::event::Event;
use omnilearn_hub_core::record::{Record, TimingsRecord};
use omnilearn_hub_core::{Snapshot, Training};
use omnilearn_mqtt::timings::TimedStep;
use omnilearn_wire::limits::cut_reason;
use omnilearn_wire::message::{HubMessage, JobOffer, Machine};
use omnilearn_wire::{AgentId, AssignmentId, JobId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::counters::Counters;
use crate::frozen_store::{FrozenFile, FrozenStore};
use crate::inbox::{FromAgent, Report};
use crate::limits::{CHECKPOINT_EVERY, CHECKPOINT_PAUSE, QUEUED_JOBS_MAX, STORE_BATCH, STORE_EVERY, WAIT_REPORT_EVERY};
use crate::outbound::{Close, Full, Outbound};
use crate::parameter_stream::ParameterStream;
use crate::plan::{NewTraining, Plan, PlanError};
use crate::store::Store;
use crate::view::{JobState, JobView, Progress};
use crate::weights::Tensors;

/// Messages taken from the inbox before deadlines are looked at again.
const BURST: usize = 64;

/// What the HTTP interface asks of the job task.
pub(crate) enum Request {
    /// Puts a job at the end of the queue.
    Submit { plan: Box<Plan>, reply: oneshot::Sender<Result<JobView, QueueFull>> },
    /// A job that is queued, runs, or is being saved; none for all others.
    View { job: JobId, reply: oneshot::Sender<Option<JobView>> },
    /// All of those.
    Views { reply: oneshot::Sender<Vec<JobView>> },
    /// Ends a job; none where it is not queued and does not run.
    Stop { job: JobId, reply: oneshot::Sender<Option<JobView>> },
    /// The present weights of a job that runs.
    Weights { job: JobId, reply: oneshot::Sender<Option<Checkpoint>> },
    /// Timings of an agent that came apart from their pushes.
    Timings { agent: AgentId, steps: Vec<TimedStep> },
}

/// Too many jobs wait.
#[derive(Debug, thiserror::Error)]
#[error("{QUEUED_JOBS_MAX} jobs are queued already; stop some or wait")]
pub(crate) struct QueueFull;

/// An agent that is connected.
struct Connected {
    session: u64,
    name: String,
    machine: Machine,
    outbound: Arc<Outbound>,
    ready_for: Option<JobId>,
}

struct Active {
    id: JobId,
    view: JobView,
    offer: JobOffer,
    tensors: Tensors,
    training: Training,
    started: Instant,
    declined: BTreeMap<String, String>,
    /// The last stream that was made, for as long as someone sends it.
    stream: Weak<ParameterStream>,
    checkpoint_due: Instant,
    wait_report_due: Instant,
    reported_version: Option<u64>,
    span: tracing::Span,
}

/// A job at its first values.
struct Beginning {
    training: Training,
    frozen: Option<FrozenFile>,
}

enum Background {
    Started { id: JobId, started: Result<Box<Beginning>, PlanError> },
    Saved { id: JobId, result: Result<(), String> },
}

/// Owns the jobs.
pub(crate) struct JobTask {
    store: Store,
    frozen: FrozenStore,
    checkpoints: Arc<Checkpoints>,
    counters: Arc<Counters>,
    shutdown: CancellationToken,
    exit_when_done: bool,
    agents: HashMap<AgentId, Connected>,
    queue: VecDeque<(JobView, Box<Plan>)>,
    starting: Option<(JobView, Box<Plan>)>,
    active: Option<Box<Active>>,
    saving: BTreeMap<JobId, JobView>,
    next_job: u64,
    ended: u64,
    failed: u64,
    pending: Vec<(JobId, Record)>,
    pending_due: Option<Instant>,
    background: JoinSet<Background>,
}

/// How the hub's jobs went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Jobs that reached an end of their own or an operator's.
    pub ended: u64,
    /// Jobs that failed.
    pub failed: u64,
}

impl JobTask {
    pub(crate) fn new(
        (store, frozen): (Store, FrozenStore),
        counters: Arc<Counters>,
        shutdown: CancellationToken,
        exit_when_done: bool,
        next_job: u64,
    ) -> JobTask {
        JobTask {
            checkpoints: Arc::new(Checkpoints::new(store.clone())),
            store,
            frozen,
            counters,
            shutdown,
            exit_when_done,
            agents: HashMap::new(),
            queue: VecDeque::new(),
            starting: None,
            active: None,
            saving: BTreeMap::new(),
            next_job,
            ended: 0,
            failed: 0,
            pending: Vec::new(),
            pending_due: None,
            background: JoinSet::new(),
        }
    }

    /// Puts back a job that waited when the hub last ended.
    pub(crate) fn requeue(&mut self, view: JobView, plan: Box<Plan>) {
        self.queue.push_back((view, plan));
    }

    /// Runs until shutdown, or until all jobs are done if the hub is to exit then.
    pub(crate) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<FromAgent>,
        mut requests: mpsc::Receiver<Request>,
    ) -> Outcome {
        self.start_next();
        loop {
            let due = self.next_due();
            let background = !self.background.is_empty();
            // Shutdown, then deadlines, then traffic: a flood of pushes cannot starve a deadline.
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break,
                () = tokio::time::sleep_until(due.into()) => self.on_due(),
                Some(done) = self.background.join_next(), if background => match done {
                    Ok(done) => self.on_background(done),
                    Err(error) => tracing::error!(%error, "a background task failed"),
                },
                Some(request) = requests.recv() => self.on_request(request),
                message = inbox.recv() => {
                    let Some(message) = message else { break };
                    self.on_message(message);
                    for _ in 1..BURST {
                        let Ok(message) = inbox.try_recv() else { break };
                        self.on_message(message);
                    }
                }
            }
            if self.exit_when_done && self.ended + self.failed > 0 && self.is_idle() {
                tracing::info!("all jobs are done");
                break;
            }
        }
        self.end().await
    }

    fn is_idle(&self) -> bool {
        self.active.is_none() && self.starting.is_none() && self.queue.is_empty() && self.background.is_empty()
    }

    async fn end(mut self) -> Outcome {
        let close = match self.exit_when_done && !self.shutdown.is_cancelled() {
            true => Close { code: close_code::NORMAL, reason: "all jobs are done".into(), reconnect: false },
            false => Close { code: close_code::AWAY, reason: "the hub is shutting down".into(), reconnect: true },
        };
        for connected in self.agents.values() {
            connected.outbound.close(close.clone());
        }
        if let Some(active) = self.active.take() {
            let _span = active.span.clone().entered();
            tracing::warn!(version = active.training.status(active.now()).version.0, "job interrupted");
            let mut view = active.view();
            view.state = JobState::Interrupted;
            view.message =
                "the hub was stopped while the job ran; submit the job file again, or export the checkpoint".into();
            self.save(&active, view);
        }
        self.flush_records();
        while let Some(done) = self.background.join_next().await {
            if let Ok(done) = done {
                self.on_background(done);
            }
        }
        self.store.flush().await;
        Outcome { ended: self.ended, failed: self.failed }
    }

    fn next_due(&self) -> Instant {
        let idle = Instant::now() + Duration::from_secs(3600);
        let job = self.active.as_ref().map(|active| {
            let deadline = active.training.next_deadline().map(|deadline| active.started + deadline);
            deadline.unwrap_or(idle).min(active.checkpoint_due).min(active.wait_report_due)
        });
        job.unwrap_or(idle).min(self.pending_due.unwrap_or(idle))
    }

    fn on_due(&mut self) {
        let now = Instant::now();
        if self.pending_due.is_some_and(|due| due <= now) {
            self.flush_records();
        }
        let Some(active) = &mut self.active else { return };
        if active.wait_report_due <= now {
            active.wait_report_due = now + WAIT_REPORT_EVERY;
            active.report_waiting();
        }
        let checkpoint = active.checkpoint_due <= now;
        if active.training.next_deadline().is_some_and(|deadline| active.started + deadline <= now) {
            let actions = active.training.on_deadline(active.now());
            self.perform(actions);
        }
        if checkpoint {
            self.checkpoint();
        }
    }

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Submit { plan, reply } => {
                reply.send(self.submit(plan)).ok();
            }
            Request::View { job, reply } => {
                let view = self.views().find(|view| view.id == job.0);
                reply.send(view).ok();
            }
            Request::Views { reply } => {
                reply.send(self.views().collect()).ok();
            }
            Request::Stop { job, reply } => {
                reply.send(self.stop(job)).ok();
            }
            Request::Weights { job, reply } => {
                let active = self.active.as_ref().filter(|active| active.id == job);
                reply.send(active.map(|active| active.checkpoint())).ok();
            }
            Request::Timings { agent, steps } => self.on_timings(agent, &steps),
        }
    }

    fn on_timings(&mut self, agent: AgentId, steps: &[TimedStep]) {
        for step in steps {
            let (job, assignment, timings) = (JobId(step.job), AssignmentId(step.assignment), step.timings());
            match self.active.as_mut().filter(|active| active.id == job) {
                Some(active) => {
                    let _span = active.span.clone().entered();
                    let actions = active.training.handle(active.now(), Event::Timings { agent, assignment, timings });
                    self.perform(actions);
                }
                // Of a job that has ended: the store knows whether there is such a step.
                None => self.keep(job, Record::Timings(TimingsRecord { agent, assignment, timings })),
            }
        }
    }

    fn views(&self) -> impl Iterator<Item = JobView> {
        let active = self.active.iter().map(|active| active.view());
        let waiting = self.starting.iter().chain(&self.queue).map(|(view, _)| view.clone());
        // Not over before its weights can be exported.
        let saving = self.saving.values().map(|view| JobView { state: JobState::Running, ..view.clone() });
        saving.chain(active).chain(waiting)
    }

    fn submit(&mut self, mut plan: Box<Plan>) -> Result<JobView, QueueFull> {
        if self.queue.len() >= QUEUED_JOBS_MAX {
            return Err(QueueFull);
        }
        let id = JobId(self.next_job);
        self.next_job += 1;
        plan.config.job = id;
        let view = plan.view(JobState::Queued);
        let author = plan.signatures.author.map(|author| author.key().short());
        tracing::info!(job = %id, name = view.name, author, "job submitted");
        if !view.message.is_empty() {
            tracing::warn!(job = %id, notice = view.message, "weights do not fit exactly");
        }
        self.store.new_job(plan.stored(view.clone()));
        self.queue.push_back((view.clone(), plan));
        self.start_next();
        Ok(self.views().find(|view| view.id == id.0).unwrap_or(view))
    }

    fn stop(&mut self, job: JobId) -> Option<JobView> {
        const REASON: &str = "by request";
        if let Some(position) = self.queue.iter().position(|(view, _)| view.id == job.0) {
            let (mut view, _) = self.queue.remove(position)?;
            view.state = JobState::Stopped;
            view.message = "stopped before it began".into();
            self.store.job(&view);
            return Some(view);
        }
        let active = self.active.as_mut().filter(|active| active.id == job)?;
        let actions = active.training.stop(active.now(), REASON.to_owned());
        self.perform(actions);
        self.views().find(|view| view.id == job.0)
    }

    /// Draws the next job's first parameters, away from this task: that takes a while for a large model.
    fn start_next(&mut self) {
        if self.active.is_some() || self.starting.is_some() {
            return;
        }
        let Some((view, plan)) = self.queue.pop_front() else { return };
        let (job, store) = (plan.start(), self.frozen.clone());
        let id = plan.config.job;
        self.starting = Some((view, plan));
        let begin = move || {
            let NewTraining { training, frozen } = job()?;
            let frozen = frozen.map(|values| store.keep(&values)).transpose().map_err(PlanError::Frozen)?;
            Ok::<_, PlanError>(Box::new(Beginning { training, frozen }))
        };
        self.background.spawn(async move {
            let started = tokio::task::spawn_blocking(begin).await;
            Background::Started { id, started: started.unwrap_or(Err(PlanError::ShuttingDown)) }
        });
    }

    fn on_background(&mut self, done: Background) {
        match done {
            Background::Started { id, started } => {
                let Some((view, plan)) = self.starting.take() else { return };
                match started {
                    Ok(beginning) => self.started(id, view, &plan, *beginning),
                    Err(error) => self.fail(view, &error.to_string()),
                }
            }
            Background::Saved { id, result } => {
                let final_view = self.saving.remove(&id);
                match (&result, final_view) {
                    (Ok(()), Some(view)) => {
                        self.ended += u64::from(view.state != JobState::Interrupted);
                        self.store.job(&view);
                    }
                    (Ok(()), None) => {}
                    (Err(error), Some(view)) => {
                        self.fail(view, &format!("the job ended, but its weights were not saved: {error}"));
                    }
                    (Err(error), None) => tracing::error!(job = %id, error, "no checkpoint"),
                }
            }
        }
    }

    fn fail(&mut self, mut view: JobView, reason: &str) {
        tracing::error!(job = view.id, reason, "job failed");
        view.state = JobState::Failed;
        view.message = reason.to_owned();
        self.store.job(&view);
        self.failed += 1;
        self.start_next();
    }

    fn started(&mut self, id: JobId, mut view: JobView, plan: &Plan, beginning: Beginning) {
        let Beginning { training, frozen } = beginning;
        view.state = JobState::Running;
        self.store.job(&view);
        let span = tracing::info_span!("job", %id, name = view.name);
        let now = Instant::now();
        let active = Active {
            id,
            view,
            offer: plan.offer(frozen.as_ref().map(|frozen| frozen.digest)),
            tensors: Tensors { split: Arc::clone(&plan.split), frozen },
            training,
            started: now,
            declined: BTreeMap::new(),
            stream: Weak::new(),
            checkpoint_due: now + CHECKPOINT_EVERY,
            wait_report_due: now + WAIT_REPORT_EVERY,
            reported_version: None,
            span,
        };
        active.span.in_scope(|| tracing::info!(agents = self.agents.len(), "job started"));
        for connected in self.agents.values_mut() {
            connected.offer(&active.offer);
        }
        self.active = Some(Box::new(active));
        // The core may have something to wait for even before the first agent.
        let actions = self.active.as_mut().map(|active| active.training.on_deadline(active.now()));
        self.perform(actions.unwrap_or_default());
    }

    fn on_message(&mut self, FromAgent { agent, session, report }: FromAgent) {
        match report {
            Report::Connected { name, machine, outbound } => {
                self.forget(agent);
                let mut connected = Connected { session, name, machine, outbound, ready_for: None };
                if let Some(active) = &self.active {
                    connected.offer(&active.offer);
                }
                self.agents.insert(agent, connected);
            }
            Report::Gone => {
                if self.agents.get(&agent).is_some_and(|connected| connected.session == session) {
                    self.forget(agent);
                }
            }
            report => self.on_report(agent, session, report),
        }
    }

    fn forget(&mut self, agent: AgentId) {
        let Some(connected) = self.agents.remove(&agent) else { return };
        if let Some(active) = &mut self.active
            && connected.ready_for == Some(active.id)
        {
            let actions = active.training.handle(active.now(), Event::Gone { agent });
            self.perform(actions);
        }
    }

    /// A report on the job. One on another job, or from an agent that is not ready for this one, is left over from before.
    fn on_report(&mut self, agent: AgentId, session: u64, report: Report) {
        let out_of_place = || {
            self.counters.reports_out_of_place.fetch_add(1, Ordering::Relaxed);
        };
        let (Some(active), Some(connected)) = (&mut self.active, self.agents.get_mut(&agent)) else {
            return out_of_place();
        };
        if connected.session != session {
            return out_of_place();
        }
        let _span = active.span.clone().entered();
        let now = active.now();
        let event = match &report {
            Report::Ready { job, ready } if *job == active.id => {
                connected.ready_for = Some(active.id);
                active.declined.remove(&connected.name);
                let (name, machine) = (connected.name.clone(), connected.machine.clone());
                Event::Ready { agent, name, machine, ready: ready.clone() }
            }
            Report::Declined { job, reason } if *job == active.id => {
                tracing::warn!(agent = connected.name, reason, "agent cannot take part");
                active.declined.insert(connected.name.clone(), reason.clone());
                if connected.ready_for.take() != Some(active.id) {
                    return;
                }
                Event::Gone { agent }
            }
            _ if connected.ready_for != Some(active.id) => return out_of_place(),
            Report::PushBegin { job, assignment, version, bytes } if *job == active.id => {
                Event::PushBegin { agent, assignment: *assignment, version: *version, bytes: *bytes }
            }
            Report::PushChunk { assignment, offset, bytes, .. } => {
                Event::PushChunk { agent, assignment: *assignment, offset: *offset, bytes }
            }
            Report::PushEnd { assignment, report } => {
                Event::PushEnd { agent, assignment: *assignment, report: report.clone() }
            }
            Report::Evaluated { assignment, samples, loss_sum, metric_sums } => Event::Evaluated {
                agent,
                assignment: *assignment,
                samples: *samples,
                loss_sum: *loss_sum,
                metric_sums: metric_sums.clone(),
            },
            Report::Failed { assignment, failure, message } => {
                Event::Failed { agent, assignment: *assignment, failure: *failure, message: message.clone() }
            }
            _ => return out_of_place(),
        };
        let actions = active.training.handle(now, event);
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        // One strong reference until all agents have it, so that a version is encoded once.
        let mut _stream = None;
        for action in actions {
            let Some(active) = &mut self.active else { return };
            match action {
                Action::Train { agent, work, parameters } => {
                    let stream = parameters.map(|snapshot| active.stream(snapshot));
                    _stream = stream.clone().or(_stream);
                    self.send(agent, |outbound| outbound.ordered(&HubMessage::Train(work), stream));
                }
                Action::Evaluate { agent, work, parameters } => {
                    let stream = parameters.map(|snapshot| active.stream(snapshot));
                    _stream = stream.clone().or(_stream);
                    self.send(agent, |outbound| outbound.ordered(&HubMessage::Evaluate(work), stream));
                }
                Action::Outcome { agent, assignment, outcome } => {
                    self.send(agent, |outbound| outbound.control(&HubMessage::PushOutcome { assignment, outcome }));
                }
                Action::Cancel { agent, assignment } => self.send(agent, |outbound| outbound.cancel(assignment)),
                Action::Record(record) => self.record(record),
                Action::Notice(notice) => log(&notice),
                Action::Finished(reason) => self.finished(&reason),
            }
        }
    }

    fn send(&self, agent: AgentId, put: impl FnOnce(&Outbound) -> Result<(), Full>) {
        let Some(connected) = self.agents.get(&agent) else { return };
        if let Err(full) = put(&connected.outbound) {
            // Its connection ends, and that is what the core will hear.
            tracing::warn!(agent = connected.name, %full, "agent closed");
            let close = Close { code: close_code::POLICY, reason: full.to_string(), reconnect: true };
            connected.outbound.close(close);
        }
    }

    fn record(&mut self, record: Record) {
        let Some(active) = &mut self.active else { return };
        let mut checkpoint = false;
        match &record {
            Record::Evaluation(evaluation) => {
                tracing::info!(
                    version = evaluation.version.0,
                    epoch = %format_args!("{:.2}", evaluation.epoch),
                    loss = %format_args!("{:.4}", evaluation.loss),
                    accuracy = %evaluation.accuracy.map_or_else(|| "-".to_owned(), |accuracy| format!("{accuracy:.4}")),
                    training_s = %format_args!("{:.1}", evaluation.training_s),
                    "evaluated"
                );
                let last = active.checkpoint_due.checked_sub(CHECKPOINT_EVERY).unwrap_or(active.started);
                checkpoint = last.elapsed() >= CHECKPOINT_PAUSE;
            }
            Record::Round(round) => tracing::debug!(version = round.version.0, loss = round.loss, "step"),
            Record::Step(_) | Record::Timings(_) | Record::Batches(_) => {} // the core has a notice for a new split
        }
        let job = active.id;
        self.keep(job, record);
        if checkpoint {
            self.checkpoint();
        }
    }

    fn keep(&mut self, job: JobId, record: Record) {
        self.pending.push((job, record));
        if self.pending.len() >= STORE_BATCH {
            self.flush_records();
        } else if self.pending_due.is_none() {
            self.pending_due = Some(Instant::now() + STORE_EVERY);
        }
    }

    fn flush_records(&mut self) {
        self.pending_due = None;
        if !self.pending.is_empty() {
            self.store.records(std::mem::take(&mut self.pending));
        }
    }

    fn checkpoint(&mut self) {
        let Some(active) = &mut self.active else { return };
        active.checkpoint_due = Instant::now() + CHECKPOINT_EVERY;
        let view = active.view();
        self.store.job(&view);
        let (id, checkpoint) = (active.id, active.checkpoint());
        self.spawn_save(id, checkpoint);
    }

    fn spawn_save(&mut self, id: JobId, checkpoint: Checkpoint) {
        let checkpoints = Arc::clone(&self.checkpoints);
        self.background.spawn(async move {
            let saved = tokio::task::spawn_blocking(move || checkpoints.save(id, checkpoint)).await;
            let result =
                saved.map_err(|error| error.to_string()).and_then(|saved| saved.map_err(|error| error.to_string()));
            Background::Saved { id, result }
        });
    }

    fn save(&mut self, active: &Active, final_view: JobView) {
        self.saving.insert(active.id, final_view);
        self.spawn_save(active.id, active.checkpoint());
    }

    fn finished(&mut self, reason: &StopReason) {
        self.flush_records();
        let Some(active) = self.active.take() else { return };
        let mut view = active.view();
        view.state = match reason {
            StopReason::Stopped { .. } => JobState::Stopped,
            _ => JobState::Done,
        };
        view.message = reason.to_string();
        tracing::info!(reason = %reason, accuracy = view.progress.as_ref().and_then(|progress| progress.accuracy), "job ended");
        let ended = HubMessage::JobEnded { job: active.id, reason: cut_reason(reason.to_string()) };
        for (agent, connected) in &mut self.agents {
            connected.ready_for = None;
            if connected.outbound.ordered(&ended, None).is_err() {
                tracing::warn!(%agent, "agent is too slow to hear that the job ended");
            }
        }
        self.save(&active, view);
        drop(active);
        self.start_next();
    }
}

impl Connected {
    fn offer(&mut self, offer: &JobOffer) {
        self.ready_for = None;
        if let Err(full) = self.outbound.ordered(&HubMessage::JobOffer(offer.clone()), None) {
            self.outbound.close(Close { code: close_code::POLICY, reason: full.to_string(), reconnect: true });
        }
    }
}

impl Active {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn view(&self) -> JobView {
        let mut progress = Progress::from(&self.training.status(self.now()));
        progress.declined = self.declined.clone();
        JobView { progress: Some(progress), ..self.view.clone() }
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint { name: self.view.name.clone(), tensors: self.tensors.clone(), snapshot: self.training.snapshot() }
    }

    fn stream(&mut self, snapshot: Snapshot) -> Arc<ParameterStream> {
        if let Some(stream) = self.stream.upgrade()
            && stream.version() == snapshot.version
        {
            return stream;
        }
        let stream = Arc::new(ParameterStream::new(self.id, self.offer.codec, self.tensors.split.trained(), snapshot));
        self.stream = Arc::downgrade(&stream);
        stream
    }

    /// Names what has kept the job from going on since the last report.
    fn report_waiting(&mut self) {
        let _span = self.span.clone().entered();
        let status = self.training.status(self.now());
        if self.reported_version.replace(status.version.0) == Some(status.version.0) || status.version.0 == 0 {
            for waiting in &status.waiting {
                tracing::info!(version = status.version.0, waiting = %waiting, "no progress");
            }
            for (agent, reason) in &self.declined {
                tracing::info!(agent, reason, "agent cannot take part");
            }
        }
    }
}

fn log(notice: &Notice) {
    let fields: Vec<String> = notice.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let fields = fields.join(" ");
    match notice.level {
        Level::Info => tracing::info!(fields, "{}", notice.message),
        Level::Warn => tracing::warn!(fields, "{}", notice.message),
        Level::Error => tracing::error!(fields, "{}", notice.message),
    }
}
