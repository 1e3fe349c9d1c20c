//! Dialling a hub and shaking hands.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use omnilearn_wire::handshake::{self, HandshakeError, Hello, Welcome};
use omnilearn_wire::limits::{FRAME_BYTES_MAX, HANDSHAKE_BYTES_MAX, cut_reason};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as SocketError};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, protocol::CloseFrame};

use super::activity::{Activity, Watched};
use crate::config::HubAddress;

/// How long each step of getting connected may take: name look-up and TCP, WebSocket, handshake.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes that the operating system holds unsent: what a heartbeat may have to wait behind on a slow link.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES_MAX: u32 = 512 << 10;

/// A connection whose handshake is done.
pub(super) struct Connection {
    pub(super) socket: WebSocketStream<Watched<TcpStream>>,
    pub(super) activity: Activity,
    pub(super) protocol: u16,
    pub(super) welcome: Welcome,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("cannot reach the hub: {0}")]
    Tcp(#[source] std::io::Error),
    #[error("no answer within {} s while {doing}", STEP_TIMEOUT.as_secs())]
    TimeOut { doing: &'static str },
    #[error("the WebSocket handshake failed: {0}")]
    WebSocket(#[source] Box<SocketError>),
    #[error("the connection was closed in the handshake{}", reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    Closed { reason: Option<String> },
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl DialError {
    /// Whether another attempt is of no use: the hub answered, and its answer will be the same.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, DialError::Handshake(_))
    }

    /// Whether the hub refused this agent, and not what it speaks.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, DialError::Handshake(HandshakeError::Refused { .. }))
    }
}

async fn within<T>(doing: &'static str, step: impl Future<Output = T>) -> Result<T, DialError> {
    tokio::time::timeout(STEP_TIMEOUT, step).await.map_err(|_| DialError::TimeOut { doing })
}

/// Limits that both ends enforce; tungstenite checks a frame's length before it makes room for it.
fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(FRAME_BYTES_MAX))
        .max_frame_size(Some(FRAME_BYTES_MAX))
        .max_write_buffer_size(4 * FRAME_BYTES_MAX)
}

/// Connects and introduces the agent.
pub(super) async fn dial(hub: &HubAddress, hello: &Hello) -> Result<Connection, DialError> {
    let tcp = within("connecting", TcpStream::connect((hub.host(), hub.port()))).await?.map_err(DialError::Tcp)?;
    // Both are for latency only; a system without them is slower and no less right.
    let _ = tcp.set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket2::SockRef::from(&tcp).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
    let activity = Activity::new();
    let watched = Watched::new(tcp, activity.clone());
    let web_socket = tokio_tungstenite::client_async_with_config(hub.url(), watched, Some(limits()));
    let broken = |cause: SocketError| DialError::WebSocket(Box::new(cause));
    let (mut socket, _) = within("opening the WebSocket", web_socket).await?.map_err(broken)?;
    let greeting = Message::Binary(Bytes::from(handshake::encode_hello(hello)));
    within("saying hello", socket.send(greeting)).await?.map_err(broken)?;
    let (protocol, welcome) = within("waiting for the hub's welcome", answer(&mut socket)).await??;
    Ok(Connection { socket, activity, protocol, welcome })
}

async fn answer(socket: &mut WebSocketStream<Watched<TcpStream>>) -> Result<(u16, Welcome), DialError> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Binary(answer))) if answer.len() <= HANDSHAKE_BYTES_MAX => {
                return Ok(handshake::decode_answer(&answer)?);
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => (),
            Some(Ok(Message::Close(frame))) => {
                let reason =
                    frame.map(|frame| cut_reason(frame.reason.to_string())).filter(|reason| !reason.is_empty());
                return Err(DialError::Closed { reason });
            }
            Some(Ok(_)) => return Err(HandshakeError::NotOmniLearn { expected: "hub" }.into()),
            Some(Err(cause)) => return Err(DialError::WebSocket(Box::new(cause))),
            None => return Err(DialError::Closed { reason: None }),
        }
    }
}

/// What to tell the peer when the connection is closed because of `cause`, where there is something to tell.
pub(super) fn close_frame_for(cause: &SocketError) -> Option<CloseFrame> {
    match cause {
        SocketError::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            Some(close_frame(CloseCode::Size, format!("message of {size} bytes, at most {max_size} allowed")))
        }
        _ => None,
    }
}

/// A close frame; its reason is cut to what WebSocket allows.
pub(super) fn close_frame(code: CloseCode, mut reason: String) -> CloseFrame {
    const REASON_BYTES_MAX: usize = 123;
    let end = (0..=reason.len().min(REASON_BYTES_MAX)).rev().find(|&end| reason.is_char_boundary(end)).unwrap_or(0);
    reason.truncate(end);
    CloseFrame { code, reason: reason.into() }
}
