//! The compute thread. It owns what trains; the network thread hands it work over one bounded queue and takes results
//! over another, so neither a step of ten minutes nor a slow link delays a heartbeat.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use omnilearn_kernel_host::panic_text;
use omnilearn_wire::message::{AgentMessage, Evaluate, Failure, JobOffer, JobReady, Machine, StepReport, Train};
use omnilearn_wire::{AssignmentId, JobId, Version, frame};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{debug, error, info};

use super::files::{Desk, Fetching};
use crate::dataset::fetch::HubFiles;

/// Bytes of parameters that may wait for the compute thread, or one whole stream if that is more: a hub may send the next
/// parameters while the agent still computes. When full, the network thread stops reading from the hub.
pub(super) const INBOX_BYTES: usize = 16 << 20;
/// Least that a piece of parameters takes of the inbox, so that many small pieces fill it too.
const PIECE_BYTES_MIN: usize = 4 << 10;
/// Commands that wait for the compute thread. A hub that fills it breaks the protocol, and the connection is closed.
const COMMANDS_MAX: usize = 1 << 16;
/// Most bytes of gradient that wait for the network. When full, the compute thread waits.
const OUTBOX_BYTES: usize = 8 << 20;
/// A gradient travels in pieces of this size, a quarter of what the protocol allows: what a hub holds of pieces that have
/// not been added yet counts against its memory, and larger ones are no faster.
const CHUNK_BYTES: usize = 256 << 10;
/// A gradient is handed to the network thread in lots of this size, so that a small one costs one hand-over.
const HANDOVER_BYTES: usize = 1 << 20;
/// Results that wait for the network thread. When full, the compute thread waits.
const EVENTS_MAX: usize = 256;

/// What trains. Lives on the compute thread; the session knows nothing of tensors.
pub trait Compute {
    /// Length of a parameter or gradient stream, in bytes.
    fn stream_bytes(&self) -> u64;

    /// Takes a piece of the parameter stream. Pieces of a version arrive in order and without gaps; offset 0 starts over.
    ///
    /// # Errors
    /// Why the piece is not a part of this model's parameters.
    fn take_parameters(&mut self, piece: ParameterPiece<'_>) -> Result<(), String>;

    /// Computes one gradient and hands its stream to `sink` in order, in pieces of any size. `Break` from the sink means
    /// that nobody wants the rest.
    ///
    /// The report's timings say what the step took: `load_s`, `compute_s` with the decoding of its parameters,
    /// `encode_s` with the time spent in the sink, and whether it is a warm-up step. The session fills in the rest.
    ///
    /// # Errors
    /// [`ComputeError`]; whatever the sink has had by then does not count.
    fn train(
        &mut self,
        work: &Train,
        sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<StepReport, ComputeError>;

    /// Computes loss and metrics on a part of the test set.
    ///
    /// # Errors
    /// [`ComputeError`].
    fn evaluate(&mut self, work: &Evaluate) -> Result<Evaluation, ComputeError>;
}

/// Makes a [`Compute`] for a job, and knows the machine.
pub trait ComputeFactory: Send + Sync + 'static {
    /// The machine, for the hub.
    fn machine(&self) -> Machine;

    /// What the process has used so far.
    fn usage(&self) -> Usage;

    /// Opens a kernel, finds the data or fetches it from `hub`, and times itself. Runs on the compute thread.
    ///
    /// # Errors
    /// What is missing and what to do, for the hub's operator.
    fn prepare(&self, offer: &JobOffer, kernel: &[u8], hub: &mut dyn HubFiles) -> Result<Prepared, String>;

    /// Looks at the machine again: what it saw may have changed while the process ran.
    fn look_again(&self) {}

    /// Uses this many compute threads from the next step on, or as many as at the start if none are named. Returns how many
    /// compute now.
    ///
    /// # Errors
    /// Why it cannot use so many.
    fn limit_threads(&self, threads: Option<NonZeroUsize>) -> Result<NonZeroUsize, String> {
        match threads {
            Some(threads) if threads.get() > 1 => Err(format!("{threads} threads were asked for, and there is one")),
            _ => Ok(NonZeroUsize::MIN),
        }
    }

    /// Trains something small and looks at what training needs; returns what it found. May take seconds.
    ///
    /// # Errors
    /// What is wrong and what to do.
    fn test_itself(&self) -> Result<Value, String> {
        Ok(Value::Null)
    }
}

/// A job that the agent can work on.
pub struct Prepared {
    /// What trains.
    pub compute: Box<dyn Compute>,
    /// What was found out.
    pub ready: JobReady,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Prepared").field("ready", &self.ready).finish_non_exhaustive()
    }
}

/// A piece of a parameter stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterPiece<'a> {
    /// Which parameters.
    pub version: Version,
    /// Where the piece begins in the stream, in bytes.
    pub offset: u64,
    /// Length of the stream, in bytes.
    pub total: u64,
    /// The piece.
    pub bytes: &'a [u8],
}

/// Result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Samples evaluated.
    pub samples: u32,
    /// Sum of the loss over these samples.
    pub loss_sum: f64,
    /// Sums over these samples in the order of the kernel's metrics.
    pub metric_sums: Vec<f64>,
}

/// Why an assignment was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ComputeError {
    /// What kind.
    pub failure: Failure,
    /// What happened, for the hub's operator.
    pub message: String,
}

/// What the process has used since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time of all threads.
    pub cpu: Duration,
    /// Time in which the cgroup was throttled.
    pub throttled: Duration,
    /// The CPU quota in cores, where there is one below the number of compute threads.
    pub quota_cores: Option<f32>,
}

/// What was so when an assignment came in, or the first piece of the parameters for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) usage: Usage,
    /// From the first to the last piece of the parameters.
    pub(super) download: Duration,
    /// From the end of the last push; none for the first assignment of a connection.
    pub(super) wait: Option<Duration>,
}

/// From the network thread.
#[derive(Debug)]
pub(super) enum Command {
    /// A new connection, to which results go from now on.
    Connected(Uplink),
    Prepare {
        offer: Arc<JobOffer>,
        kernel: Bytes,
    },
    Parameters {
        version: Version,
        offset: u64,
        total: u64,
        bytes: Bytes,
        permit: Option<OwnedSemaphorePermit>,
    },
    Train {
        work: Train,
        received: Received,
    },
    Evaluate(Evaluate),
    /// The job is over.
    Drop(JobId),
}

/// To the network thread.
#[derive(Debug)]
pub(super) enum Event {
    Prepared {
        job: JobId,
        result: Result<(JobReady, u64), String>,
    },
    /// A piece of a file is wanted from the hub.
    FetchData {
        digest: [u8; 32],
        offset: u64,
        bytes: u32,
    },
    /// Complete frames of a gradient's stream.
    Push {
        assignment: AssignmentId,
        frames: Vec<Bytes>,
        permit: OwnedSemaphorePermit,
        end: Option<PushEnd>,
    },
    Evaluated {
        assignment: AssignmentId,
        evaluation: Evaluation,
    },
    Failed {
        assignment: AssignmentId,
        error: ComputeError,
    },
    /// An assignment was cancelled before its result was complete.
    Dropped(AssignmentId),
    /// The hub's parameters do not fit the model.
    BadParameters(String),
    /// The compute thread has died, and the parameters with it.
    Panicked {
        assignment: Option<AssignmentId>,
        message: String,
    },
}

/// What is known of a push when its last byte is encoded; the writer adds what only it can measure.
#[derive(Debug)]
pub(super) struct PushEnd {
    pub(super) report: StepReport,
    pub(super) step: Step,
    pub(super) received: Received,
    /// When the last byte was encoded.
    pub(super) encoded: Instant,
    /// How long the compute thread waited for room in the queue to the network.
    pub(super) blocked: Duration,
}

/// Which step of a job a push belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) job: JobId,
    pub(super) round: u64,
    pub(super) version: Version,
}

/// The compute thread's way to the hub, good for one connection.
#[derive(Clone, Debug)]
pub(super) struct Uplink {
    events: mpsc::Sender<Event>,
    budget: Arc<Semaphore>,
    cancelled: Cancelled,
    /// Where pieces of files are waited for.
    pub(super) desk: Arc<Desk>,
    runtime: Handle,
}

/// Assignments that the hub took back.
pub(super) type Cancelled = Arc<Mutex<BTreeSet<AssignmentId>>>;

impl Uplink {
    /// A way to the current runtime, and its other end.
    pub(super) fn new() -> (Uplink, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let budget = Arc::new(Semaphore::new(OUTBOX_BYTES));
        let (cancelled, desk) = (Cancelled::default(), Arc::default());
        let uplink = Uplink { events, budget, cancelled, desk, runtime: Handle::current() };
        (uplink, receiver)
    }

    /// Takes back an assignment whose result is not complete yet.
    pub(super) fn cancel(&self, assignment: AssignmentId) {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).insert(assignment);
    }

    /// Forgets an assignment that is done with.
    pub(super) fn forget(&self, assignment: AssignmentId) {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).remove(&assignment);
    }

    /// Ends every wait of the compute thread for this connection.
    pub(super) fn close(&self) {
        self.budget.close();
        self.desk.close();
    }

    fn is_unwanted(&self, assignment: AssignmentId) -> bool {
        self.events.is_closed() || self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).contains(&assignment)
    }

    /// A result for a connection that is gone is dropped: the hub issues the work again.
    pub(super) fn send(&self, event: Event) {
        if self.events.blocking_send(event).is_err() {
            debug!("result dropped, the connection is gone");
        }
    }

    fn acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = bytes.min(OUTBOX_BYTES) as u32;
        match Arc::clone(&self.budget).try_acquire_many_owned(permits) {
            Ok(permit) => Some(permit),
            Err(_) => self.runtime.block_on(Arc::clone(&self.budget).acquire_many_owned(permits)).ok(),
        }
    }
}

/// The network thread's end of the compute thread, which it starts again when it has died.
pub(super) struct ComputeThread {
    factory: Arc<dyn ComputeFactory>,
    commands: mpsc::Sender<Command>,
    inbox: Arc<Semaphore>,
    inbox_bytes: usize,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The compute thread has more to do than any correct hub would ask.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {COMMANDS_MAX} messages wait for the compute thread")]
pub(super) struct TooManyCommands;

impl ComputeThread {
    /// A thread that starts with the first command.
    pub(super) fn new(factory: Arc<dyn ComputeFactory>) -> ComputeThread {
        let (commands, _) = mpsc::channel(1);
        let inbox = Arc::new(Semaphore::new(INBOX_BYTES));
        ComputeThread { factory, commands, inbox, inbox_bytes: INBOX_BYTES, thread: None }
    }

    /// Starts the thread unless it runs, and sends results to `uplink` from now on.
    pub(super) fn connect(&mut self, uplink: Uplink) -> Result<(), TooManyCommands> {
        if self.commands.is_closed() {
            let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
            let factory = Arc::clone(&self.factory);
            let thread = std::thread::Builder::new().name("olrn-compute".to_owned());
            match thread.spawn(move || Worker::new(factory).run(receiver)) {
                Ok(thread) => self.thread = Some(thread),
                // The command below finds the channel closed, which is reported like a thread that died.
                Err(cause) => error!(%cause, "cannot start the compute thread"),
            }
            self.commands = commands;
        }
        self.send(Command::Connected(uplink))
    }

    /// Whether the thread has died or never ran.
    pub(super) fn is_dead(&self) -> bool {
        self.commands.is_closed()
    }

    /// Hands over a command. A dead thread takes it too; its death has been reported.
    pub(super) fn send(&self, command: Command) -> Result<(), TooManyCommands> {
        match self.commands.try_send(command) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(TooManyCommands),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    /// Makes the inbox large enough for a whole stream.
    pub(super) fn make_room(&mut self, stream_bytes: u64) {
        let wanted = usize::try_from(stream_bytes).map_or(usize::MAX, |bytes| bytes.saturating_add(CHUNK_BYTES));
        let wanted = wanted.min(Semaphore::MAX_PERMITS / 2);
        if wanted > self.inbox_bytes {
            self.inbox.add_permits(wanted - self.inbox_bytes);
            self.inbox_bytes = wanted;
        }
    }

    /// Room for a piece of parameters, if there is some at once.
    pub(super) fn try_room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.inbox).try_acquire_many_owned(Self::room(bytes)).ok()
    }

    /// Waits for room for a piece of parameters.
    pub(super) async fn wait_for_room(inbox: Arc<Semaphore>, bytes: usize) -> OwnedSemaphorePermit {
        inbox.acquire_many_owned(Self::room(bytes)).await.expect("this semaphore is never closed")
    }

    /// The bound on parameters that wait.
    pub(super) fn inbox(&self) -> Arc<Semaphore> {
        Arc::clone(&self.inbox)
    }

    fn room(bytes: usize) -> u32 {
        bytes.clamp(PIECE_BYTES_MIN, INBOX_BYTES) as u32
    }

    /// Lets the thread end after what it is doing, and waits for that at most this long.
    pub(super) async fn stop(self, patience: Duration) {
        drop(self.commands);
        let Some(thread) = self.thread else { return };
        let waiting = tokio::time::Instant::now();
        while !thread.is_finished() && waiting.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if !thread.is_finished() {
            info!("left a step that is still being computed");
        }
    }
}

/// What the compute thread owns.
struct Worker {
    factory: Arc<dyn ComputeFactory>,
    uplink: Option<Uplink>,
    current: Option<Current>,
    /// Time spent on the pieces of the parameters that came last.
    decode: Duration,
    /// The next step is the first of its connection: what it waited for is not what steps wait for.
    first_step: bool,
}

struct Current {
    offer: Arc<JobOffer>,
    prepared: Prepared,
}

impl Worker {
    fn new(factory: Arc<dyn ComputeFactory>) -> Worker {
        Worker { factory, uplink: None, current: None, decode: Duration::ZERO, first_step: true }
    }

    fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.blocking_recv() {
            let assignment = match &command {
                Command::Train { work, .. } => Some(work.assignment),
                Command::Evaluate(work) => Some(work.assignment),
                _ => None,
            };
            let job = match &command {
                Command::Prepare { offer, .. } => Some(offer.job),
                _ => None,
            };
            // Nothing of the worker is used after a panic but the way to the hub.
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.perform(command))) else { continue };
            let message = panic_text(panic.as_ref()).to_owned();
            error!(%message, "computing panicked; starting over with a fresh compute thread");
            // Closed first, so that whoever hears of the panic finds the thread dead.
            drop(commands);
            if let Some(uplink) = &self.uplink {
                match job {
                    Some(job) => {
                        uplink.send(Event::Prepared { job, result: Err(format!("getting ready panicked: {message}")) })
                    }
                    None => uplink.send(Event::Panicked { assignment, message }),
                }
            }
            // A destructor that panics too must not end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(self)));
            return;
        }
    }

    fn perform(&mut self, command: Command) {
        if let Command::Connected(uplink) = command {
            self.uplink = Some(uplink);
            self.first_step = true;
            return;
        }
        let Some(uplink) = self.uplink.clone() else { return };
        match command {
            Command::Connected(_) => (),
            Command::Prepare { offer, kernel } => {
                let job = offer.job;
                let result = self.prepare(offer, &kernel, &mut Fetching::new(uplink.clone(), job));
                uplink.send(Event::Prepared { job, result });
            }
            Command::Parameters { version, offset, total, bytes, permit } => {
                let start = Instant::now();
                if let Some(current) = &mut self.current {
                    let piece = ParameterPiece { version, offset, total, bytes: &bytes };
                    if let Err(message) = current.prepared.compute.take_parameters(piece) {
                        uplink.send(Event::BadParameters(message));
                    }
                }
                drop(permit);
                let previous = if offset == 0 { Duration::ZERO } else { self.decode };
                self.decode = previous + start.elapsed();
            }
            Command::Train { work, received } => self.train(&uplink, &work, received),
            Command::Evaluate(work) => {
                let assignment = work.assignment;
                if uplink.is_unwanted(assignment) {
                    return uplink.send(Event::Dropped(assignment));
                }
                let result = match self.on_job(work.job) {
                    Ok(compute) => compute.evaluate(&work),
                    Err(error) => Err(error),
                };
                uplink.send(match result {
                    Ok(evaluation) => Event::Evaluated { assignment, evaluation },
                    Err(error) => Event::Failed { assignment, error },
                });
            }
            Command::Drop(job) => {
                self.current.take_if(|current| current.offer.job == job);
            }
        }
    }

    /// Gets ready for a job, or finds that it is ready: a connection that broke costs no work twice.
    fn prepare(
        &mut self,
        offer: Arc<JobOffer>,
        kernel: &[u8],
        hub: &mut dyn HubFiles,
    ) -> Result<(JobReady, u64), String> {
        let kept = self.current.take_if(|current| *current.offer != *offer).is_none();
        let current = match self.current.take() {
            Some(current) if kept => current,
            _ => Current { prepared: self.factory.prepare(&offer, kernel, hub)?, offer },
        };
        let current = self.current.insert(current);
        Ok((current.prepared.ready.clone(), current.prepared.compute.stream_bytes()))
    }

    fn on_job(&mut self, job: JobId) -> Result<&mut (dyn Compute + 'static), ComputeError> {
        match &mut self.current {
            Some(current) if current.offer.job == job => Ok(current.prepared.compute.as_mut()),
            _ => {
                Err(ComputeError { failure: Failure::Kernel, message: format!("the agent is not ready for job {job}") })
            }
        }
    }

    fn train(&mut self, uplink: &Uplink, work: &Train, mut received: Received) {
        let assignment = work.assignment;
        if uplink.is_unwanted(assignment) {
            return uplink.send(Event::Dropped(assignment));
        }
        received.download = received.download.saturating_sub(std::mem::take(&mut self.decode));
        let first_step = self.first_step;
        let compute = match self.on_job(work.job) {
            Ok(compute) => compute,
            Err(error) => return uplink.send(Event::Failed { assignment, error }),
        };
        let mut push = Push::new(uplink, work, compute.stream_bytes());
        let result = compute.train(work, &mut |bytes| push.accept(bytes));
        let encoded = Instant::now();
        let event = match result {
            _ if push.unwanted => Event::Dropped(assignment),
            Err(error) => Event::Failed { assignment, error },
            Ok(mut report) => {
                if let Some(timings) = &mut report.timings {
                    timings.warm_up |= first_step;
                    timings.load_s += received.download.as_secs_f32();
                    timings.encode_s = (timings.encode_s - push.blocked.as_secs_f32()).max(0.0);
                }
                match push.finish(report, received, encoded) {
                    Ok(event) => event,
                    Err(error) => Event::Failed { assignment, error },
                }
            }
        };
        self.first_step &= !matches!(event, Event::Push { .. });
        uplink.send(event);
    }
}

/// Cuts a gradient's stream into frames.
struct Push<'a> {
    uplink: &'a Uplink,
    assignment: AssignmentId,
    step: Step,
    stream_bytes: u64,
    offset: u64,
    /// Less than a chunk.
    rest: Vec<u8>,
    frames: Vec<Bytes>,
    frame_bytes: usize,
    blocked: Duration,
    unwanted: bool,
}

impl<'a> Push<'a> {
    fn new(uplink: &'a Uplink, work: &Train, stream_bytes: u64) -> Push<'a> {
        let &Train { job, assignment, round, version, .. } = work;
        let begin = AgentMessage::PushBegin { job, assignment, version, bytes: stream_bytes };
        let mut push = Push {
            uplink,
            assignment,
            step: Step { job, round, version },
            stream_bytes,
            offset: 0,
            rest: Vec::new(),
            frames: Vec::with_capacity(2),
            frame_bytes: 0,
            blocked: Duration::ZERO,
            unwanted: false,
        };
        push.frame(&begin);
        push
    }

    fn frame(&mut self, message: &AgentMessage<'_>) {
        let frame = frame::encode(message).expect("a chunk within its bound fits a frame");
        self.frame_bytes += frame.len();
        self.frames.push(Bytes::from(frame));
    }

    fn chunk(&mut self, bytes: &[u8]) {
        self.frame(&AgentMessage::PushChunk { assignment: self.assignment, offset: self.offset, bytes });
        self.offset += bytes.len() as u64;
    }

    /// Takes the next bytes. Whole chunks are framed as they are; what is left over waits for more.
    fn accept(&mut self, mut bytes: &[u8]) -> ControlFlow<()> {
        if self.unwanted {
            return ControlFlow::Break(());
        }
        while !bytes.is_empty() {
            let is_last = self.offset + (self.rest.len() + bytes.len()) as u64 >= self.stream_bytes;
            if self.rest.is_empty() && (is_last || bytes.len() >= CHUNK_BYTES) {
                let (chunk, after) = bytes.split_at(bytes.len().min(CHUNK_BYTES));
                self.chunk(chunk);
                bytes = after;
            } else {
                let (more, after) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.rest.len()));
                self.rest.extend_from_slice(more);
                bytes = after;
                if self.rest.len() == CHUNK_BYTES {
                    self.flush_rest();
                }
            }
            if self.frame_bytes >= HANDOVER_BYTES {
                self.hand_over()?;
            }
        }
        ControlFlow::Continue(())
    }

    fn flush_rest(&mut self) {
        let mut rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.chunk(&rest);
            rest.clear();
        }
        self.rest = rest;
    }

    fn hand_over(&mut self) -> ControlFlow<()> {
        match self.lot(None) {
            Some(event) => {
                let start = Instant::now();
                self.uplink.send(event);
                self.blocked += start.elapsed();
                ControlFlow::Continue(())
            }
            None => {
                self.unwanted = true;
                ControlFlow::Break(())
            }
        }
    }

    /// The frames so far as one event; none if nobody wants them.
    fn lot(&mut self, end: Option<PushEnd>) -> Option<Event> {
        let start = Instant::now();
        let permit = self.uplink.acquire(self.frame_bytes);
        self.blocked += start.elapsed();
        let permit = permit.filter(|_| !self.uplink.is_unwanted(self.assignment))?;
        self.frame_bytes = 0;
        Some(Event::Push { assignment: self.assignment, frames: std::mem::take(&mut self.frames), permit, end })
    }

    fn finish(mut self, report: StepReport, received: Received, encoded: Instant) -> Result<Event, ComputeError> {
        self.flush_rest();
        if self.offset != self.stream_bytes {
            let message = format!("the gradient has {} bytes instead of {}", self.offset, self.stream_bytes);
            return Err(ComputeError { failure: Failure::Kernel, message });
        }
        // The wait for room that follows here lies after `encoded` and so is a part of what the writer measures.
        let end = PushEnd { report, step: self.step, received, encoded, blocked: self.blocked };
        Ok(self.lot(Some(end)).unwrap_or(Event::Dropped(self.assignment)))
    }
}
