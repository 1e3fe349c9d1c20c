//! Byte streams over a broker that outlive a connection to it.
//!
//! An agent opens a stream to the hub; its pieces travel on the agent's topics `up` and `down`. [`link`] keeps count of bytes,
//! this module moves segments between it, the client and whoever reads and writes.
//!
//! Segments are published and subscribed to with quality of service 1: a broker may drop a message of quality 0 whenever a
//! subscriber's socket is full. What is lost all the same (a broker that ends, a queue that it finds too long) is sent again, and
//! what comes twice is known by its offset. Measured with `examples/stream_rate.rs 300` and Mosquitto 2.0.11 on 2 shared cores, medians
//! of 10 runs with each quality in turn: 250 KB there and back 0.62 ms (0.51 ms with quality 0), 100 bytes 0.057 ms (0.038 ms), one
//! way 390 MB/s (330 MB/s; both within 300 to 540).
//!
//! A broker has so many messages under way to one subscriber before it waits for acknowledgements (Mosquitto's
//! `max_inflight_messages`, 20). That bounds a hub that is far from its broker; 0 lifts it.

mod acceptor;
mod byte_queue;
mod dialer;
mod link;
mod registry;
mod segment;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

pub use self::acceptor::Acceptor;
pub use self::dialer::Dialer;
use self::link::{Link, Over};
use self::segment::{HEADER_BYTES, Segment};
use crate::client::{Client, ClientState};

/// Largest payload of a segment, in bytes, where the broker carries more: pieces of this size keep both legs of the way busy,
/// and a heartbeat waits behind no more than one of them in each stream.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// How long a stream whose owner is gone tries to deliver what was written.
const LINGER: Duration = Duration::from_secs(10);

/// A reliable ordered stream of bytes whose pieces are messages at a broker. Dropping it delivers what was written, like TCP,
/// for as long as the runtime and the client live.
pub struct MqttStream {
    shared: Arc<Shared>,
}

/// What a stream's owner, its pump and the client's task share. Whoever changes the link sends what it has to send.
struct Shared {
    /// The agent's name.
    peer: String,
    /// Where segments go.
    topic: String,
    client: Client,
    state: Mutex<State>,
    /// Wakes the pump before its time.
    changed: Notify,
}

struct State {
    link: Link,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// When the owner let go of the stream.
    orphaned: Option<Instant>,
    /// When the pump wakes by itself.
    pump_wakes: Option<Instant>,
    /// Whether the client had no room.
    blocked: bool,
}

impl Shared {
    fn new(peer: &str, topic: String, client: Client, link: Link) -> Shared {
        let state = State { link, reader: None, writer: None, orphaned: None, pump_wakes: None, blocked: false };
        Shared { peer: peer.to_owned(), topic, client, state: Mutex::new(state), changed: Notify::new() }
    }

    /// A panic while the lock is held would leave a count of bytes, which is whole at every point where one could happen.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment came from the other end.
    fn on_segment(&self, segment: &Segment) {
        let mut state = self.lock();
        state.link.on_segment(segment, Instant::now());
        self.transmit(&mut state);
        if state.link.over().is_some() {
            self.changed.notify_one();
        }
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Sends what the link has to send and the client has room for, and wakes the pump where that changes what it waits for.
    fn transmit(&self, state: &mut State) {
        if self.fill(state) {
            self.changed.notify_one();
        }
    }

    /// Sends what the link has to send and the client has room for. Returns whether the pump has something new to wait for. (The pump
    /// must not wake itself, or it would spin for as long as there is no room.)
    fn fill(&self, state: &mut State) -> bool {
        let now = Instant::now();
        let Some(payload_max) = self.client.payload_bytes_max(&self.topic) else { return false };
        let payload_max = payload_max.saturating_sub(HEADER_BYTES).clamp(1, PAYLOAD_BYTES_MAX);
        loop {
            if !self.client.has_room_for_segments() {
                return !std::mem::replace(&mut state.blocked, true);
            }
            let Some(message) = state.link.next_segment(payload_max, now) else { break };
            if self.client.publish_segment(&self.topic, message).is_err() {
                return false; // the connection is lost, and the next one begins with what is not acknowledged
            }
        }
        let deadline = state.link.deadline();
        deadline.is_some_and(|deadline| state.pump_wakes.is_none_or(|wakes| deadline < wakes))
    }

    /// Ends the stream here.
    fn abandon(&self) {
        let mut state = self.lock();
        state.link.abandon();
        self.transmit(&mut state);
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        self.changed.notify_one();
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Keeps time for a stream until it is over.
    async fn pump(self: Arc<Shared>, connection: u64) {
        let mut connection_seen = connection;
        let mut client_state = self.client.state();
        loop {
            let (wakes, blocked) = {
                let mut state = self.lock();
                let now = Instant::now();
                let connected = match *client_state.borrow_and_update() {
                    ClientState::Connected { connection, .. } => {
                        if connection != connection_seen {
                            connection_seen = connection;
                            state.link.on_reconnected(now);
                        }
                        true
                    }
                    ClientState::Connecting { .. } => false,
                    ClientState::Closed => break,
                };
                if state.is_finished(now) {
                    break;
                }
                state.blocked = false;
                if connected {
                    state.link.on_deadline(now, !self.client.has_room_for_segments());
                    self.fill(&mut state);
                    if state.link.over().is_some() {
                        break;
                    }
                }
                let blocked = state.blocked;
                let linger = state.orphaned.map(|since| since + LINGER);
                let deadline = state.link.deadline().filter(|_| connected && !blocked);
                state.pump_wakes = [linger, deadline].into_iter().flatten().min();
                (state.pump_wakes, blocked)
            };
            let sleep = async {
                match wakes {
                    Some(wakes) => tokio::time::sleep_until(wakes.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.changed.notified() => {}
                () = self.client.room_for_segments(), if blocked => {}
                changed = client_state.changed() => if changed.is_err() { break },
            }
        }
        self.abandon();
    }
}

impl State {
    /// Whether nothing is left to do for the pump.
    fn is_finished(&self, now: Instant) -> bool {
        let Some(since) = self.orphaned else { return self.link.over().is_some() };
        let delivered = self.link.is_delivered() && self.link.is_finished_by_peer();
        delivered || self.link.over().is_some() || self.link.is_opening() || now >= since + LINGER
    }
}

impl MqttStream {
    /// The agent's name.
    pub fn peer(&self) -> &str {
        &self.shared.peer
    }
}

impl fmt::Debug for MqttStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MqttStream({})", self.shared.peer)
    }
}

fn error(over: Over) -> io::Error {
    match over {
        Over::Reset => io::Error::new(io::ErrorKind::ConnectionReset, "the other end of the stream is gone"),
        Over::Violation => io::Error::new(io::ErrorKind::InvalidData, "the other end of the stream sent nonsense"),
        Over::Abandoned => io::Error::new(io::ErrorKind::ConnectionAborted, "the stream was ended here"),
    }
}

impl AsyncRead for MqttStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        let empty = buffer.filled().len();
        while buffer.remaining() > 0
            && let Some(bytes) = state.link.read(buffer.remaining())
        {
            buffer.put_slice(&bytes);
        }
        if buffer.filled().len() > empty {
            self.shared.transmit(&mut state); // the window may have opened
            return Poll::Ready(Ok(()));
        }
        if state.link.is_finished_by_peer() || buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(over) = state.link.over() {
            return Poll::Ready(Err(error(over)));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for MqttStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        if let Some(over) = state.link.over() {
            return Poll::Ready(Err(error(over)));
        }
        if state.link.is_finishing() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        match state.link.write(bytes) {
            0 if !bytes.is_empty() => {
                state.writer = Some(context.waker().clone());
                Poll::Pending
            }
            taken => {
                self.shared.transmit(&mut state);
                Poll::Ready(Ok(taken))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // what was written is on its way or waits for the window, as with TCP
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        state.link.finish();
        self.shared.transmit(&mut state);
        Poll::Ready(Ok(()))
    }
}

impl Drop for MqttStream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.orphaned = Some(Instant::now());
        state.link.finish();
        state.link.discard();
        self.shared.transmit(&mut state);
        self.shared.changed.notify_one();
    }
}
