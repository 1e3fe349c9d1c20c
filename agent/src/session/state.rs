//! What an agent does about each message: a state machine without sockets. Messages and results come in, effects come out.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use omnilearn_wire::frame::FrameError;
use omnilearn_wire::limits::{SETTINGS_MAX, SPANS_MAX, cut_reason};
use omnilearn_wire::message::{AgentMessage, Failure, HubMessage, JobOffer, PushOutcome};
use omnilearn_wire::{AssignmentId, JobId, Version, frame};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, info, warn};

use super::compute::{Command, ComputeError, Event, PushEnd, Received, Usage};
use super::guard::Guard;
use super::kernel::{Download, KernelStore, WrongPiece};

/// What the shell does next.
#[derive(Debug)]
pub(super) enum Effect {
    Send(AgentMessage<'static>),
    Push {
        assignment: AssignmentId,
        frames: Vec<Bytes>,
        permit: OwnedSemaphorePermit,
        end: Option<PushEnd>,
    },
    Compute(Command),
    /// Parameter streams of this length are about to come.
    MakeRoom(u64),
    /// The hub took an assignment back: its result is not to be finished, or not to be sent.
    Cancel {
        assignment: AssignmentId,
        computing: bool,
    },
    /// An assignment is done with.
    Forget(AssignmentId),
    /// A piece of a data set, for whoever waits for it.
    Data {
        digest: [u8; 32],
        offset: u64,
        total: u64,
        bytes: Bytes,
    },
    /// A job's files may be waited for.
    Offered(JobId),
    /// Nobody is to wait for a job's files any more.
    Ended(JobId),
    End(End),
}

/// Why a connection ends on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The job is over, and the agent was to stop then.
    Done,
    /// The hub does not want the agent back.
    Dismissed { reason: String },
    /// The connection begins anew.
    Reconnect { reason: String },
}

impl std::fmt::Display for End {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Done => formatter.write_str("the job is over"),
            End::Dismissed { reason } | End::Reconnect { reason } => formatter.write_str(reason),
        }
    }
}

/// The hub broke the protocol; the connection is closed with this text.
#[derive(Debug, thiserror::Error)]
pub(super) enum Violation {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Kernel(#[from] WrongPiece),
    #[error("parameter piece of version {version} at {offset} of {total} bytes, expected {expected}")]
    Parameters { version: Version, offset: u64, total: u64, expected: String },
    #[error("the parameters do not fit the model: {0}")]
    BadParameters(String),
    #[error("{count} {what}, at most {most} allowed")]
    TooMany { what: &'static str, count: usize, most: usize },
}

/// The job that the agent works on. There is one at a time, for there is one memory.
#[derive(Debug)]
struct Job {
    offer: Arc<JobOffer>,
    kernel: Option<Bytes>,
    /// Length of its parameter stream, once it is ready.
    stream_bytes: Option<u64>,
}

/// Where a parameter stream stands.
#[derive(Debug)]
struct Stream {
    version: Version,
    next: u64,
    began: Instant,
    usage: Usage,
    last: Instant,
}

/// The agent's side of the protocol.
#[derive(Debug)]
pub(super) struct Session {
    store: KernelStore,
    guard: Guard,
    exit_when_done: bool,
    batch_max: Option<NonZeroU32>,
    job: Option<Job>,
    download: Option<Download>,
    /// The parameters that came last on this connection, until an assignment has used them.
    stream: Option<Stream>,
    stream_is_new: bool,
    /// Handed to the compute thread on this connection and not done with.
    computing: BTreeSet<AssignmentId>,
    jobs_done: u64,
    effects: Vec<Effect>,
}

impl Session {
    /// A session that knows of no job yet.
    pub(super) fn new(store: KernelStore, guard: Guard, exit_when_done: bool) -> Session {
        Session {
            store,
            guard,
            exit_when_done,
            batch_max: None,
            job: None,
            download: None,
            stream: None,
            stream_is_new: false,
            computing: BTreeSet::new(),
            jobs_done: 0,
            effects: Vec::new(),
        }
    }

    /// Whose kernels are run, and the largest batch that is taken, from the next offer on.
    pub(super) fn obey(&mut self, guard: Guard, batch_max: Option<NonZeroU32>) {
        self.guard = guard;
        self.batch_max = batch_max;
    }

    /// Forgets the job, so that the agent gets ready for it from the start when it is offered again.
    pub(super) fn abandon(&mut self) -> Option<JobId> {
        self.job.take().map(|job| job.offer.job)
    }

    /// A new connection: the hub offers jobs again and sends parameters from the start. Kernels that arrived in part stay.
    pub(super) fn connected(&mut self) {
        self.stream = None;
        self.stream_is_new = false;
        self.computing.clear();
        self.effects.clear();
        if let Some(job) = &mut self.job {
            job.stream_bytes = None; // nothing is expected until the hub has heard that the agent is ready
        }
    }

    /// What to do next, once.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn send(&mut self, message: AgentMessage<'static>) {
        self.effects.push(Effect::Send(message));
    }

    fn decline(&mut self, job: JobId, reason: String) {
        warn!(%job, %reason, "job declined");
        self.send(AgentMessage::JobDeclined { job, reason: cut_reason(reason) });
    }

    fn fail(&mut self, assignment: AssignmentId, error: ComputeError) {
        warn!(%assignment, failure = ?error.failure, message = %error.message, "assignment failed");
        let ComputeError { failure, message } = error;
        self.send(AgentMessage::AssignmentFailed { assignment, failure, message: cut_reason(message) });
    }

    /// A frame from the hub. `usage` is asked for only where work begins.
    pub(super) fn on_frame(
        &mut self,
        bytes: &Bytes,
        last_push_end: Option<Instant>,
        usage: impl Fn() -> Usage,
    ) -> Result<(), Violation> {
        match frame::decode::<HubMessage<'_>>(bytes)? {
            HubMessage::JobOffer(offer) => self.on_offer(offer)?,
            HubMessage::KernelChunk { digest, offset, total, bytes } => {
                self.on_kernel(&digest, offset, total, bytes)?
            }
            HubMessage::DataChunk { digest, offset, total, bytes: piece } => {
                self.effects.push(Effect::Data { digest, offset, total, bytes: bytes.slice_ref(piece) });
            }
            HubMessage::ParameterChunk { job, version, offset, total, bytes: piece } => {
                self.on_parameters(job, version, offset, total, bytes.slice_ref(piece), usage)?;
            }
            HubMessage::Train(work) => {
                if work.spans.len() > SPANS_MAX {
                    return Err(Violation::TooMany { what: "spans", count: work.spans.len(), most: SPANS_MAX });
                }
                let received = self.received(last_push_end, usage);
                self.begin(work.assignment, work.job, Command::Train { work, received });
            }
            HubMessage::Evaluate(work) => {
                self.stream_is_new = false;
                self.begin(work.assignment, work.job, Command::Evaluate(work));
            }
            HubMessage::PushOutcome { assignment, outcome: PushOutcome::Accepted { version, staleness } } => {
                debug!(%assignment, %version, staleness, "push accepted");
            }
            HubMessage::PushOutcome { assignment, outcome: PushOutcome::Refused { reason } } => {
                info!(%assignment, reason = %cut_reason(reason), "push refused");
            }
            HubMessage::Cancel { assignment } => {
                debug!(%assignment, "assignment cancelled");
                let computing = self.computing.contains(&assignment);
                self.effects.push(Effect::Cancel { assignment, computing });
            }
            HubMessage::JobEnded { job, reason } => self.on_job_ended(job, cut_reason(reason)),
            HubMessage::Closing { reason, reconnect } => {
                let reason = cut_reason(reason);
                let idle_after_work = self.job.is_none() && self.jobs_done > 0;
                self.effects.push(Effect::End(match reconnect {
                    true => End::Reconnect { reason },
                    false if idle_after_work => End::Done,
                    false => End::Dismissed { reason },
                }));
            }
        }
        Ok(())
    }

    fn on_offer(&mut self, offer: JobOffer) -> Result<(), Violation> {
        if offer.settings.len() > SETTINGS_MAX {
            return Err(Violation::TooMany { what: "settings", count: offer.settings.len(), most: SETTINGS_MAX });
        }
        info!(job = %offer.job, name = %offer.name, dataset = %offer.dataset, "job offered");
        let offer = Arc::new(offer);
        self.stream = None;
        let known = self.job.replace(Job { offer: Arc::clone(&offer), kernel: None, stream_bytes: None });
        if let Some(before) = known.as_ref().filter(|before| before.offer.job != offer.job) {
            self.effects.push(Effect::Ended(before.offer.job));
        }
        self.effects.push(Effect::Offered(offer.job));
        match self.guard.check(&offer) {
            Ok(signer) => info!(job = %offer.job, signer = signer.short(), "the kernel is signed by a trusted key"),
            Err(refusal) => {
                self.download = None; // what another offer began must not end in this one's kernel
                self.decline(offer.job, refusal.to_string());
                return Ok(());
            }
        }
        let known = known.filter(|job| job.offer.kernel_digest == offer.kernel_digest);
        let kernel = known.and_then(|job| job.kernel).or_else(|| self.store.load(&offer.kernel_digest));
        if let Some(kernel) = kernel {
            if let Some(job) = &mut self.job {
                job.kernel = Some(kernel.clone());
            }
            self.effects.push(Effect::Compute(Command::Prepare { offer, kernel }));
            return Ok(());
        }
        let resumed = self.download.take().filter(|download| download.is_of(&offer.kernel_digest));
        match resumed.map_or_else(|| Download::new(&offer), Ok) {
            Ok(download) => {
                let (digest, offset) = (offer.kernel_digest, download.offset());
                self.download = Some(download);
                self.send(AgentMessage::FetchKernel { digest, offset });
            }
            Err(cause) => self.decline(offer.job, cause.to_string()),
        }
        Ok(())
    }

    fn on_kernel(&mut self, digest: &[u8; 32], offset: u64, total: u64, piece: &[u8]) -> Result<(), Violation> {
        // Another kernel than the one asked for last is left over from a job that is no longer offered.
        let Some(download) = self.download.as_mut().filter(|download| download.is_of(digest)) else { return Ok(()) };
        download.accept(offset, total, piece)?;
        let Some(download) = self.download.take_if(|download| download.is_complete()) else { return Ok(()) };
        let Some(job) = self.job.as_mut().filter(|job| job.offer.kernel_digest == *digest) else { return Ok(()) };
        let offer = Arc::clone(&job.offer);
        match download.finish() {
            Ok(kernel) => {
                job.kernel = Some(kernel.clone());
                self.store.store(digest, &kernel);
                self.effects.push(Effect::Compute(Command::Prepare { offer, kernel }));
            }
            Err(cause) => self.decline(offer.job, cause.to_string()),
        }
        Ok(())
    }

    fn on_parameters(
        &mut self,
        job: JobId,
        version: Version,
        offset: u64,
        total: u64,
        bytes: Bytes,
        usage: impl Fn() -> Usage,
    ) -> Result<(), Violation> {
        let now = Instant::now();
        let Some(stream_bytes) =
            self.job.as_ref().filter(|known| known.offer.job == job).and_then(|job| job.stream_bytes)
        else {
            debug!(%job, "parameters of a job that the agent is not ready for");
            return Ok(());
        };
        if offset == 0 {
            self.stream = Some(Stream { version, next: 0, began: now, usage: usage(), last: now });
            self.stream_is_new = true;
        }
        let next = self.stream.as_ref().map(|stream| (stream.version, stream.next));
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= stream_bytes);
        let (Some(stream), Some(end)) = (&mut self.stream, end) else {
            return Err(wrong_parameters(version, offset, total, next, stream_bytes));
        };
        if next != Some((version, offset)) || total != stream_bytes || bytes.is_empty() {
            return Err(wrong_parameters(version, offset, total, next, stream_bytes));
        }
        stream.next = end;
        stream.last = now;
        self.effects.push(Effect::Compute(Command::Parameters { version, offset, total, bytes, permit: None }));
        Ok(())
    }

    /// When work came in: with the first piece of its parameters, if they came for it.
    fn received(&mut self, last_push_end: Option<Instant>, usage: impl Fn() -> Usage) -> Received {
        let is_new = std::mem::take(&mut self.stream_is_new);
        let (at, usage, download) = match &self.stream {
            Some(stream) if is_new => (stream.began, stream.usage, stream.last - stream.began),
            _ => (Instant::now(), usage(), Default::default()),
        };
        let wait = last_push_end.map(|end| at.saturating_duration_since(end));
        Received { usage, download, wait }
    }

    fn begin(&mut self, assignment: AssignmentId, job: JobId, command: Command) {
        if self.job.as_ref().is_none_or(|known| known.offer.job != job || known.stream_bytes.is_none()) {
            let message = format!("the agent is not ready for job {job}");
            return self.fail(assignment, ComputeError { failure: Failure::Kernel, message });
        }
        self.computing.insert(assignment);
        self.effects.push(Effect::Compute(command));
    }

    fn on_job_ended(&mut self, job: JobId, reason: String) {
        info!(%job, %reason, "job ended");
        if self.job.take_if(|known| known.offer.job == job).is_some() {
            self.jobs_done += 1;
            self.stream = None;
            self.effects.push(Effect::Ended(job));
            for &assignment in &self.computing {
                self.effects.push(Effect::Cancel { assignment, computing: true });
            }
            self.effects.push(Effect::Compute(Command::Drop(job)));
        }
        if self.exit_when_done {
            self.effects.push(Effect::End(End::Done));
        }
    }

    fn done_with(&mut self, assignment: AssignmentId) {
        self.computing.remove(&assignment);
        self.effects.push(Effect::Forget(assignment));
    }

    /// A result from the compute thread.
    pub(super) fn on_event(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Prepared { job, result } => {
                let Some(known) = self.job.as_mut().filter(|known| known.offer.job == job) else { return Ok(()) };
                match result {
                    Ok((mut ready, stream_bytes)) => {
                        let batch_max = self.batch_max.map(NonZeroU32::get);
                        ready.batch_max = ready.batch_max.into_iter().chain(batch_max).min();
                        debug!(%job, stream_bytes, "ready for the job");
                        known.stream_bytes = Some(stream_bytes);
                        self.effects.push(Effect::MakeRoom(stream_bytes));
                        self.send(AgentMessage::JobReady { job, ready });
                    }
                    Err(reason) => self.decline(job, reason),
                }
            }
            Event::FetchData { digest, offset, bytes } => self.send(AgentMessage::FetchData { digest, offset, bytes }),
            Event::Push { assignment, frames, permit, end } => {
                let is_last = end.is_some();
                self.effects.push(Effect::Push { assignment, frames, permit, end });
                if is_last {
                    self.done_with(assignment);
                }
            }
            Event::Evaluated { assignment, evaluation } => {
                self.done_with(assignment);
                let super::compute::Evaluation { samples, loss_sum, metric_sums } = evaluation;
                self.send(AgentMessage::Evaluated { assignment, samples, loss_sum, metric_sums });
            }
            Event::Failed { assignment, error } => {
                // Pieces of its gradient may still wait; they are void and would only delay the news.
                self.effects.push(Effect::Cancel { assignment, computing: false });
                self.done_with(assignment);
                self.fail(assignment, error);
            }
            Event::Dropped(assignment) => self.done_with(assignment),
            Event::BadParameters(message) => return Err(Violation::BadParameters(cut_reason(message))),
            Event::Panicked { assignment, message } => {
                if let Some(assignment) = assignment {
                    self.effects.push(Effect::Cancel { assignment, computing: false });
                    self.done_with(assignment);
                    self.fail(
                        assignment,
                        ComputeError { failure: Failure::Device, message: format!("computing panicked: {message}") },
                    );
                }
                // The parameters died with the compute thread, and the hub sends them again to an agent that is new to it.
                self.effects.push(Effect::End(End::Reconnect { reason: "the compute thread starts over".to_owned() }));
            }
        }
        Ok(())
    }
}

fn wrong_parameters(
    version: Version,
    offset: u64,
    total: u64,
    next: Option<(Version, u64)>,
    stream_bytes: u64,
) -> Violation {
    let expected = match next {
        Some((version, next)) => format!("version {version} at {next} of {stream_bytes} bytes"),
        None => format!("a stream of {stream_bytes} bytes from its beginning"),
    };
    Violation::Parameters { version, offset, total, expected }
}
