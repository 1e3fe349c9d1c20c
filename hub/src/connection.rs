//! One agent's connection: handshake, a reader and a writer that do not wait for each other, and an end with a reason.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use omnilearn_datasets::{Library, to_hex};
use omnilearn_kernel_host::KeyPair;
use omnilearn_wire::handshake::{self, Hello, Welcome};
use omnilearn_wire::limits::{CHUNK_BYTES, FRAME_BYTES_MAX, HANDSHAKE_BYTES_MAX, cut_reason};
use omnilearn_wire::message::{AgentMessage, HubMessage};
use omnilearn_wire::{AgentId, frame};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite;
use tracing::Instrument;

use crate::counters::Counters;
use crate::digest::Token;
use crate::frozen_store::FrozenStore;
use crate::inbox::{FromAgent, Report};
use crate::kernel_store::KernelStore;
use crate::limits::{CLOSE_WAIT, HANDSHAKE_WAIT, HEARTBEAT, HEARTBEATS_MISSED_MAX, PING_EVERY, STALL_MAX};
use crate::metered::{Meter, Peer, PeerAddress};
use crate::outbound::{Close, Next, Outbound};
use crate::registry::{Registry, Session};
use crate::store::Store;

/// Longest text in a close frame, by the WebSocket protocol.
const CLOSE_REASON_BYTES_MAX: usize = 123;

/// Looks at a silent connection twice a heartbeat, so that it is lost within the periods allowed and not after one more.
const SILENCE_LOOKS_MAX: u32 = HEARTBEATS_MISSED_MAX * 2 - 1;

/// What connections share.
pub(crate) struct Gate {
    pub(crate) registry: Registry,
    pub(crate) token: Option<Token>,
    /// Signs kernels.
    pub(crate) key: Arc<KeyPair>,
    pub(crate) kernels: KernelStore,
    /// Data sets that were added at the hub.
    pub(crate) library: Library,
    /// Values of the frozen parameters of the job that runs.
    pub(crate) frozen: FrozenStore,
    pub(crate) store: Store,
    pub(crate) counters: Arc<Counters>,
    pub(crate) inbox: mpsc::Sender<FromAgent>,
    /// Bytes of gradients that may wait for the job task.
    pub(crate) chunk_room: Arc<Semaphore>,
    pub(crate) next_session: AtomicU64,
    /// Dropped with the last connection.
    pub(crate) alive: mpsc::Sender<()>,
}

/// Serves one agent from its first frame to its last.
pub(crate) async fn serve(gate: Arc<Gate>, socket: WebSocket, peer: Peer) {
    let _alive = gate.alive.clone();
    let number = gate.next_session.fetch_add(1, Ordering::Relaxed);
    let span = tracing::info_span!("connection", number, address = %peer.address);
    serve_in_span(gate, socket, peer, number).instrument(span).await;
}

async fn serve_in_span(gate: Arc<Gate>, mut socket: WebSocket, peer: Peer, number: u64) {
    let (protocol, hello) = match receive_hello(&gate, &mut socket, &peer.address).await {
        Ok(agreed) => agreed,
        Err(reason) => return refuse(&gate, socket, &reason).await,
    };
    let session = Session {
        number,
        process: hello.process,
        address: peer.address.clone(),
        machine: hello.machine.clone(),
        outbound: Arc::default(),
        meter: Arc::clone(&peer.meter),
    };
    let outbound = Arc::clone(&session.outbound);
    let (agent, replaced) = match gate.registry.enter(&hello.name, session) {
        Ok(entered) => entered,
        Err(error) => return refuse(&gate, socket, &error.to_string()).await,
    };
    if let Some(replaced) = replaced {
        let reason = "replaced by a newer connection of the same process".to_owned();
        replaced.outbound.close(Close { code: close_code::POLICY, reason, reconnect: false });
    }
    let welcome = Welcome {
        agent,
        heartbeat_ms: HEARTBEAT.as_millis() as u32,
        hub_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let welcome = Message::Binary(handshake::encode_welcome(protocol, &welcome).into());
    let connected = FromAgent {
        agent,
        session: number,
        report: Report::Connected {
            name: hello.name.clone(),
            machine: hello.machine.clone(),
            outbound: Arc::clone(&outbound),
        },
    };
    let conversation = Conversation { gate: &gate, meter: &peer.meter, outbound: &outbound, agent, session: number };
    if !matches!(timeout(HANDSHAKE_WAIT, socket.send(welcome)).await, Ok(Ok(()))) {
        tracing::info!(agent = %hello.name, id = %agent, "connection lost in the handshake");
        return conversation.leave().await;
    }
    tracing::info!(agent = %hello.name, id = %agent, "agent connected");
    gate.store.agent(agent, &hello.name, &hello.machine);
    if gate.inbox.send(connected).await.is_ok() {
        let reason = conversation.hold(socket).await;
        tracing::info!(agent = %hello.name, id = %agent, reason, "agent disconnected");
    }
}

async fn receive_hello(gate: &Gate, socket: &mut WebSocket, address: &PeerAddress) -> Result<(u16, Hello), String> {
    let bytes = loop {
        match timeout(HANDSHAKE_WAIT, socket.recv()).await {
            Err(_) => return Err(format!("no hello within {} s", HANDSHAKE_WAIT.as_secs())),
            Ok(Some(Ok(Message::Binary(bytes)))) => break bytes,
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
            Ok(Some(Ok(Message::Text(_)))) => return Err("the first frame is text, not a hello".to_owned()),
            Ok(Some(Ok(Message::Close(_))) | None) => return Err("closed before its hello".to_owned()),
            Ok(Some(Err(error))) => return Err(error.to_string()),
        }
    };
    if bytes.len() > HANDSHAKE_BYTES_MAX {
        return Err(format!("hello of {} bytes, at most {HANDSHAKE_BYTES_MAX} allowed", bytes.len()));
    }
    let (protocol, hello) = handshake::decode_hello(&bytes).map_err(|error| error.to_string())?;
    if let PeerAddress::Mqtt(agent) = address
        && *agent != hello.name
    {
        return Err(format!("the hello is of `{}`, and came on the topics of agent `{agent}`", hello.name));
    }
    match (&gate.token, &hello.token) {
        (None, _) => {}
        (Some(token), Some(shown)) if token.accepts(shown) => {}
        (Some(_), Some(_)) => return Err("the token is not this hub's".to_owned()),
        (Some(_), None) => {
            return Err("this hub asks for a token; give the agent --token-file or OMNILEARN_TOKEN".to_owned());
        }
    }
    Ok((protocol, hello))
}

async fn refuse(gate: &Gate, mut socket: WebSocket, reason: &str) {
    gate.counters.handshakes_refused.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(reason, "agent refused");
    let close = close_frame(close_code::POLICY, reason);
    let goodbye = async {
        socket.send(Message::Binary(handshake::encode_refusal(reason).into())).await?;
        socket.send(Message::Close(Some(close))).await?;
        while let Some(Ok(_)) = socket.recv().await {}
        Ok::<(), axum::Error>(())
    };
    timeout(CLOSE_WAIT, goodbye).await.ok();
}

fn close_frame(code: u16, reason: &str) -> CloseFrame {
    let end = (0..=CLOSE_REASON_BYTES_MAX.min(reason.len())).rev().find(|&end| reason.is_char_boundary(end));
    CloseFrame { code, reason: reason[..end.unwrap_or(0)].into() }
}

/// How a conversation ended.
enum End {
    /// The peer has closed, or is gone.
    Peer,
    /// The hub has a reason to close.
    Hub(Close),
    /// The writer is done: the connection was closed elsewhere, or the peer took nothing.
    Writer(String),
}

/// One welcomed connection.
struct Conversation<'a> {
    gate: &'a Arc<Gate>,
    meter: &'a Arc<Meter>,
    outbound: &'a Arc<Outbound>,
    agent: AgentId,
    session: u64,
}

impl Conversation<'_> {
    /// From welcome to goodbye; why it ended. The job task hears of the end before the goodbye, which may take a while.
    async fn hold(&self, socket: WebSocket) -> String {
        let (sink, mut stream) = socket.split();
        let writer = write_all(sink, Arc::clone(self.outbound), Arc::clone(self.meter));
        let mut writer = tokio::spawn(writer.in_current_span());
        let end = tokio::select! {
            end = self.read_all(&mut stream) => end,
            written = &mut writer => End::Writer(written.unwrap_or_else(|error| error.to_string())),
        };
        self.leave().await;
        let readable = !matches!(&end, End::Hub(close) if close.code == close_code::SIZE);
        let reason = match end {
            End::Peer => {
                writer.abort();
                "closed by the agent".to_owned()
            }
            End::Hub(close) => {
                let reason = close.reason.clone();
                self.outbound.close(close);
                timeout(CLOSE_WAIT * 2, &mut writer).await.ok();
                writer.abort();
                reason
            }
            End::Writer(reason) => reason,
        };
        // Lets the peer read why, and sends the answer to its close frame. After a message that is too long the stream is at
        // its end for us, while the peer may still be writing: closing at once would reset what it has not read.
        match readable {
            true => drop(timeout(CLOSE_WAIT, drain(&mut stream)).await),
            false => tokio::time::sleep(CLOSE_WAIT).await,
        }
        reason
    }

    async fn leave(&self) {
        let Conversation { agent, session, .. } = *self;
        self.gate.registry.leave(agent, session);
        self.gate.inbox.send(FromAgent { agent, session, report: Report::Gone }).await.ok();
    }

    /// Reads until the peer closes, or until the hub has a reason to.
    async fn read_all(&self, stream: &mut SplitStream<WebSocket>) -> End {
        loop {
            let message = match self.next(stream).await {
                Ok(Some(message)) => message,
                Ok(None) => return End::Peer,
                Err(close) => return End::Hub(close),
            };
            match message {
                Message::Binary(bytes) => match self.take(bytes).await {
                    Ok(true) => {}
                    Ok(false) => return End::Peer,
                    Err(close) => return End::Hub(close),
                },
                Message::Text(_) => {
                    self.gate.counters.frames_refused.fetch_add(1, Ordering::Relaxed);
                    let reason = "text frame, where all messages are binary".to_owned();
                    return End::Hub(closing(close_code::UNSUPPORTED, reason));
                }
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Close(_) => return End::Peer,
            }
        }
    }

    /// The next message; none when the peer has gone.
    async fn next(&self, stream: &mut SplitStream<WebSocket>) -> Result<Option<Message>, Close> {
        let mut read_bytes = self.meter.read_bytes();
        let mut silent_looks = 0;
        loop {
            match timeout(HEARTBEAT / 2, stream.next()).await {
                Ok(Some(Ok(message))) => return Ok(Some(message)),
                Ok(Some(Err(error))) => return self.explain(error),
                Ok(None) => return Ok(None),
                Err(_) if self.meter.read_bytes() != read_bytes => {
                    read_bytes = self.meter.read_bytes();
                    silent_looks = 0;
                }
                Err(_) => {
                    silent_looks += 1;
                    if silent_looks >= SILENCE_LOOKS_MAX {
                        let silence = HEARTBEAT / 2 * silent_looks;
                        let reason = format!("lost: nothing heard for {:.1} s", silence.as_secs_f64());
                        return Err(closing(close_code::POLICY, reason));
                    }
                }
            }
        }
    }

    /// What a failed read means: a peer that has gone, or one that breaks the rules.
    fn explain(&self, error: axum::Error) -> Result<Option<Message>, Close> {
        let error = error.into_inner();
        match error.downcast_ref::<tungstenite::Error>() {
            Some(tungstenite::Error::Capacity(_)) => {
                self.gate.counters.frames_oversize.fetch_add(1, Ordering::Relaxed);
                self.meter.discard_reads();
                let reason = format!("message too long, at most {FRAME_BYTES_MAX} bytes allowed");
                Err(closing(close_code::SIZE, reason))
            }
            Some(tungstenite::Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => {
                Ok(None)
            }
            Some(tungstenite::Error::Protocol(problem)) => {
                self.gate.counters.frames_refused.fetch_add(1, Ordering::Relaxed);
                Err(closing(close_code::PROTOCOL, problem.to_string()))
            }
            Some(tungstenite::Error::Utf8(problem)) => {
                self.gate.counters.frames_refused.fetch_add(1, Ordering::Relaxed);
                Err(closing(close_code::INVALID, problem.clone()))
            }
            _ => Ok(None),
        }
    }

    /// Deals with one message; false if it was the last.
    async fn take(&self, bytes: Bytes) -> Result<bool, Close> {
        let message = frame::decode::<AgentMessage<'_>>(&bytes).map_err(|error| {
            self.gate.counters.frames_refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "malformed frame");
            closing(close_code::INVALID, error.to_string())
        })?;
        let report = match message {
            AgentMessage::Heartbeat => return Ok(true),
            AgentMessage::FetchKernel { digest, offset } => {
                self.send_kernel(digest, offset).await?;
                return Ok(true);
            }
            AgentMessage::FetchData { digest, offset, bytes } => {
                self.send_data(digest, offset, bytes).await?;
                return Ok(true);
            }
            AgentMessage::Leaving { reason } => {
                tracing::info!(reason = cut_reason(reason), "agent leaves");
                return Ok(false);
            }
            AgentMessage::JobReady { job, ready } => Report::Ready { job, ready },
            AgentMessage::JobDeclined { job, reason } => Report::Declined { job, reason: cut_reason(reason) },
            AgentMessage::PushBegin { job, assignment, version, bytes } => {
                Report::PushBegin { job, assignment, version, bytes }
            }
            AgentMessage::PushChunk { assignment, offset, bytes: chunk } => {
                let room = Arc::clone(&self.gate.chunk_room).acquire_many_owned(chunk.len() as u32);
                let room = room.await.map_err(|_| shutting_down())?;
                Report::PushChunk { assignment, offset, bytes: bytes.slice_ref(chunk), _room: room }
            }
            AgentMessage::PushEnd { assignment, report } => Report::PushEnd { assignment, report },
            AgentMessage::Evaluated { assignment, samples, loss_sum, metric_sums } => {
                Report::Evaluated { assignment, samples, loss_sum, metric_sums }
            }
            AgentMessage::AssignmentFailed { assignment, failure, message } => {
                Report::Failed { assignment, failure, message: cut_reason(message) }
            }
        };
        let (agent, session) = (self.agent, self.session);
        let sent = self.gate.inbox.send(FromAgent { agent, session, report }).await;
        sent.map(|()| true).map_err(|_| shutting_down())
    }

    async fn send_kernel(&self, digest: [u8; 32], offset: u64) -> Result<(), Close> {
        let kernels = self.gate.kernels.clone();
        let component = tokio::task::spawn_blocking(move || kernels.load(&digest)).await.ok().flatten();
        let Some(component) = component else {
            return Err(closing(close_code::POLICY, "asked for a kernel that this hub does not have".to_owned()));
        };
        let offset = offset.min(component.len() as u64) as usize;
        self.outbound.kernel(digest, component, offset).map_err(|full| closing(close_code::POLICY, full.to_string()))
    }

    /// Answers with one piece, read from disk now: an agent that stops asking leaves nothing behind. One that asks for much without
    /// taking it fills its queue and is closed as too slow.
    async fn send_data(&self, digest: [u8; 32], offset: u64, bytes: u32) -> Result<(), Close> {
        let (library, frozen) = (self.gate.library.clone(), self.gate.frozen.clone());
        let bytes_max = (bytes as usize).min(CHUNK_BYTES);
        let read = move || match library.piece(&digest, offset, bytes_max)? {
            Some(found) => Ok(Some(found)),
            None => frozen.piece(&digest, offset, bytes_max),
        };
        let read: std::io::Result<_> = tokio::task::spawn_blocking(read).await.map_err(|_| shutting_down())?;
        let (piece, total) = match read {
            Ok(found) => found.unwrap_or_default(), // a total of 0 says that it is not here
            Err(error) => {
                tracing::error!(file = to_hex(&digest), %error, "a file that an agent asks for cannot be read");
                (Vec::new(), 0)
            }
        };
        let message = HubMessage::DataChunk { digest, offset, total, bytes: &piece };
        self.outbound.ordered(&message, None).map_err(|full| closing(close_code::POLICY, full.to_string()))
    }
}

async fn drain(stream: &mut SplitStream<WebSocket>) {
    while let Some(Ok(_)) = stream.next().await {}
}

fn shutting_down() -> Close {
    closing(close_code::AWAY, "the hub is shutting down".to_owned())
}

fn closing(code: u16, reason: String) -> Close {
    Close { code, reason, reconnect: true }
}

/// Sends what is put into `outbound`, until that is closed or the peer takes nothing; why it ended.
async fn write_all(mut sink: SplitSink<WebSocket, Message>, outbound: Arc<Outbound>, meter: Arc<Meter>) -> String {
    loop {
        let sent = match outbound.next() {
            Next::Frame(bytes) => progressing(&outbound, &meter, sink.feed(Message::Binary(bytes))).await,
            Next::Close(close) => {
                let closing =
                    HubMessage::Closing { reason: cut_reason(close.reason.clone()), reconnect: close.reconnect };
                let closing = frame::encode(&closing).expect("a cut reason fits a frame");
                let goodbye = async {
                    sink.feed(Message::Binary(closing.into())).await?;
                    sink.send(Message::Close(Some(close_frame(close.code, &close.reason)))).await
                };
                timeout(CLOSE_WAIT, goodbye).await.ok();
                return close.reason;
            }
            Next::Empty => match progressing(&outbound, &meter, sink.flush()).await {
                Ok(()) => match timeout(PING_EVERY, outbound.filled()).await {
                    Ok(()) => Ok(()),
                    Err(_) => progressing(&outbound, &meter, sink.send(Message::Ping(Bytes::new()))).await,
                },
                failed => failed,
            },
        };
        if let Err(reason) = sent {
            return reason;
        }
    }
}

/// Waits for `sending` as long as the peer takes bytes, however slowly.
async fn progressing(
    outbound: &Outbound,
    meter: &Meter,
    sending: impl Future<Output = Result<(), axum::Error>>,
) -> Result<(), String> {
    let mut sending = pin!(sending);
    let mut written_bytes = meter.written_bytes();
    loop {
        tokio::select! {
            biased;
            sent = &mut sending => return sent.map_err(|error| error.to_string()),
            () = outbound.closing() => {
                // No room for a goodbye unless the frame in flight gets through.
                return match timeout(CLOSE_WAIT, sending).await {
                    Ok(sent) => sent.map_err(|error| error.to_string()),
                    Err(_) => Err("closed while it took nothing".to_owned()),
                };
            }
            () = tokio::time::sleep(STALL_MAX) => {
                if meter.written_bytes() == written_bytes {
                    let stall: Duration = STALL_MAX;
                    return Err(format!("stalled: it took no byte for {} s", stall.as_secs()));
                }
                written_bytes = meter.written_bytes();
            }
        }
    }
}
