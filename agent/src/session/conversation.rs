//! One connection from welcome to end: the shell around [`Session`].

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use omnilearn_wire::message::AgentMessage;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Ended;
use super::activity::Activity;
use super::compute::{Command, ComputeFactory, ComputeThread, Event, Uplink};
use super::connection::{self, Connection, Socket};
use super::orders::Orders;
use super::outbox::Outbox;
use super::recorder::Recorder;
use super::state::{Effect, Session, Violation};

/// Without a sign of life from the hub for this many heartbeat periods the connection is given up.
const SILENT_PERIODS_MAX: u32 = 3;
/// Shortest heartbeat period that an agent takes from a hub.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);
/// How long saying goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long answering a close frame, or waiting for the answer, may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// A connection with everything that it needs.
pub(super) struct Conversation<'a> {
    sink: SplitSink<Socket, Message>,
    shell: Shell<'a>,
}

struct Shell<'a> {
    stream: SplitStream<Socket>,
    activity: Activity,
    period: Duration,
    session: &'a mut Session,
    compute: &'a mut ComputeThread,
    factory: &'a dyn ComputeFactory,
    outbox: Outbox,
    uplink: Uplink,
    events: mpsc::Receiver<Event>,
    /// The sign of life that the last heartbeat saw, and how many heartbeats have seen no newer one.
    seen: Option<tokio::time::Instant>,
    silent_beats: u32,
    /// Effects from a piece of parameters on for which the compute thread has no room. Nothing is read meanwhile.
    parked: Vec<Effect>,
}

/// Why the loop was left.
enum Left {
    Ended(Ended),
    Violation(Violation),
    Broken(SocketError),
}

impl From<Violation> for Left {
    fn from(violation: Violation) -> Left {
        Left::Violation(violation)
    }
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        connection: Connection,
        session: &'a mut Session,
        compute: &'a mut ComputeThread,
        factory: &'a dyn ComputeFactory,
        recorder: Option<Recorder>,
    ) -> Conversation<'a> {
        let Connection { socket, activity, welcome, .. } = connection;
        let (sink, stream) = socket.split();
        let (uplink, events) = Uplink::new();
        let period = Duration::from_millis(u64::from(welcome.heartbeat_ms)).max(HEARTBEAT_MIN);
        let outbox = Outbox::new(recorder);
        let shell = Shell {
            stream,
            activity,
            period,
            session,
            compute,
            factory,
            outbox,
            uplink,
            events,
            seen: None,
            silent_beats: 0,
            parked: Vec::new(),
        };
        Conversation { sink, shell }
    }

    /// Talks until the connection ends for whatever reason, and closes it as well as it still can.
    pub(super) async fn run(self, shutdown: &CancellationToken, orders: &mut watch::Receiver<Orders>) -> Ended {
        let Conversation { mut sink, mut shell } = self;
        let (outbox, factory) = (shell.outbox.clone(), shell.factory);
        let left = {
            let writer = outbox.write(&mut sink, || factory.usage(), false);
            let mut writer = pin!(writer);
            tokio::select! {
                left = shell.talk(shutdown, orders) => left,
                result = &mut writer => match result {
                    Ok(()) => Left::Ended(Ended::Lost { reason: "the connection was closed".to_owned() }),
                    Err(cause) => Left::Broken(cause),
                },
            }
        };
        shell.uplink.close();
        outbox.drop_pushes();
        let mut patience = GOODBYE_TIMEOUT;
        let (ended, close) = match left {
            Left::Broken(cause) => {
                let close = connection::close_frame_for(&cause);
                (Ended::Lost { reason: cause.to_string() }, close)
            }
            Left::Violation(violation) => {
                let reason = violation.to_string();
                warn!(%reason, "the hub broke the protocol");
                let close = connection::close_frame(CloseCode::Policy, reason.clone());
                (Ended::Lost { reason }, Some(close))
            }
            Left::Ended(Ended::Lost { reason }) => {
                // Answers the hub's close frame if that is how it ended.
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, sink.close()).await;
                return Ended::Lost { reason };
            }
            Left::Ended(ended) => {
                let reason = match &ended {
                    Ended::OnPurpose(end) => end.to_string(),
                    Ended::Ordered { reason } => (*reason).to_owned(),
                    Ended::Shutdown | Ended::Lost { .. } => "the agent is shutting down".to_owned(),
                };
                outbox.control(&AgentMessage::Leaving { reason: reason.clone() });
                patience = CLOSE_TIMEOUT; // a hub that breaks no rules reads its messages
                (ended, Some(connection::close_frame(CloseCode::Normal, reason)))
            }
        };
        if let Some(close) = close {
            outbox.raw(Message::Close(Some(close)));
            let goodbye = async {
                let _ = outbox.write(&mut sink, || factory.usage(), true).await; // the peer may be gone already
                let _ = sink.close().await;
                // A socket that is dropped with bytes unread is reset, and the peer never sees what was said last.
                let Ok(mut socket) = sink.reunite(shell.stream) else { return };
                let mut unread = [0; 4096];
                let drain = async { while socket.get_mut().read(&mut unread).await.is_ok_and(|bytes| bytes > 0) {} };
                let _ = tokio::time::timeout(patience, drain).await;
            };
            let _ = tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await;
        }
        ended
    }
}

impl Shell<'_> {
    async fn talk(&mut self, shutdown: &CancellationToken, orders: &mut watch::Receiver<Orders>) -> Left {
        match self.exchange(shutdown, orders).await {
            Ok(ended) => Left::Ended(ended),
            Err(left) => left,
        }
    }

    async fn exchange(
        &mut self,
        shutdown: &CancellationToken,
        orders: &mut watch::Receiver<Orders>,
    ) -> Result<Ended, Left> {
        self.session.connected();
        if self.compute.connect(self.uplink.clone()).is_err() {
            return Ok(self.lost("too many messages wait for the compute thread"));
        }
        let mut heartbeat = tokio::time::interval(self.period);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = self.parked.first().map_or(0, needed_room);
            // Every arm is safe to drop: what it waits for stays where it is.
            tokio::select! {
                biased; // shutdown and orders, heartbeat, results, then traffic
                () = shutdown.cancelled() => return Ok(Ended::Shutdown),
                Ok(()) = orders.changed() => return Ok(Ended::Ordered { reason: orders.borrow().reason }),
                _ = heartbeat.tick() => if let Some(ended) = self.beat() {
                    return Ok(ended);
                },
                Some(event) = self.events.recv() => self.session.on_event(event)?,
                permit = ComputeThread::wait_for_room(self.compute.inbox(), room), if room > 0 => {
                    if let Some(Effect::Compute(Command::Parameters { permit: place, .. })) = self.parked.first_mut() {
                        *place = Some(permit);
                    }
                    let parked = std::mem::take(&mut self.parked);
                    if let Some(ended) = self.perform(parked) {
                        return Ok(ended);
                    }
                }
                message = self.stream.next(), if room == 0 => match message {
                    Some(Ok(Message::Binary(frame))) => self.on_frame(&frame)?,
                    Some(Ok(Message::Text(_))) => return Ok(self.lost("the hub sent text")),
                    Some(Ok(Message::Close(frame))) => {
                        let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                        return Ok(self.lost(if reason.is_empty() { "the hub closed the connection" } else { &reason }));
                    }
                    Some(Ok(_)) => (),
                    Some(Err(cause)) => return Err(Left::Broken(cause)),
                    None => return Ok(self.lost("the connection was closed")),
                },
            }
            let effects = self.session.take_effects();
            if let Some(ended) = self.perform(effects) {
                return Ok(ended);
            }
        }
    }

    fn lost(&self, reason: &str) -> Ended {
        Ended::Lost { reason: reason.to_owned() }
    }

    fn on_frame(&mut self, frame: &Bytes) -> Result<(), Violation> {
        let factory = self.factory;
        self.session.on_frame(frame, self.outbox.last_push_end(), || factory.usage())
    }

    /// A heartbeat and a ping, which the hub's end answers even when it has nothing to say. A connection without a sign of
    /// life over some periods is given up, unless it is this end that does not read. Periods are counted and not timed, so
    /// that a process that was stopped for a while first reads what has come in.
    fn beat(&mut self) -> Option<Ended> {
        let last = self.activity.last();
        let is_silent = self.seen == Some(last) && self.parked.is_empty();
        self.silent_beats = if is_silent { self.silent_beats + 1 } else { 0 };
        self.seen = Some(last);
        if self.silent_beats >= SILENT_PERIODS_MAX {
            return Some(self.lost(&format!("nothing from the hub for {:.1} s", last.elapsed().as_secs_f64())));
        }
        self.outbox.control(&AgentMessage::Heartbeat);
        self.outbox.raw(Message::Ping(Bytes::new()));
        None
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Option<Ended> {
        let mut effects = effects.into_iter();
        while let Some(effect) = effects.next() {
            match effect {
                Effect::Send(message) => self.outbox.control(&message),
                Effect::Push { assignment, frames, permit, end } => self.outbox.push(assignment, frames, end, permit),
                Effect::Cancel { assignment, computing } => {
                    if computing {
                        self.uplink.cancel(assignment);
                    }
                    self.outbox.drop_push(assignment);
                }
                Effect::MakeRoom(stream_bytes) => self.compute.make_room(stream_bytes),
                Effect::Forget(assignment) => self.uplink.forget(assignment),
                Effect::Data { digest, offset, total, bytes } => self.uplink.desk.put(&digest, offset, total, bytes),
                Effect::Offered(job) => self.uplink.desk.offered(job),
                Effect::Ended(job) => self.uplink.desk.ended(job),
                Effect::End(end) => return Some(Ended::OnPurpose(end)),
                Effect::Compute(mut command) => {
                    if !self.take_room(&mut command) {
                        self.parked.push(Effect::Compute(command));
                        self.parked.extend(effects);
                        return None;
                    }
                    let is_start = matches!(command, Command::Prepare { .. });
                    // A thread that died while it got ready for a job is started for the next one.
                    let sent = match is_start && self.compute.is_dead() {
                        true => self.compute.connect(self.uplink.clone()),
                        false => Ok(()),
                    };
                    if let Err(cause) = sent.and_then(|()| self.compute.send(command)) {
                        return Some(self.lost(&cause.to_string()));
                    }
                }
            }
        }
        None
    }

    /// Gives a piece of parameters its permit; false if there is no room for it.
    fn take_room(&self, command: &mut Command) -> bool {
        let Command::Parameters { bytes, permit: permit @ None, .. } = command else { return true };
        if self.parked.is_empty() {
            *permit = self.compute.try_room(bytes.len());
        }
        permit.is_some()
    }
}

fn needed_room(effect: &Effect) -> usize {
    match effect {
        Effect::Compute(Command::Parameters { bytes, permit: None, .. }) => bytes.len(),
        _ => 0,
    }
}
