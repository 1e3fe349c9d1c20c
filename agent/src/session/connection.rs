//! Dialling a hub and shaking hands.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use omnilearn_wire::handshake::{self, HandshakeError, Hello, Welcome};
use omnilearn_wire::limits::{FRAME_BYTES_MAX, HANDSHAKE_BYTES_MAX, cut_reason};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as SocketError};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, protocol::CloseFrame};

use super::activity::{Activity, Watched};
use super::route::{BoxedStream, Route, RouteError};

/// How long each step of getting connected may take: a stream, WebSocket, handshake.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The WebSocket of a connection, over whatever stream.
pub(super) type Socket = WebSocketStream<Watched<BoxedStream>>;

/// A connection whose handshake is done.
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) activity: Activity,
    pub(super) protocol: u16,
    pub(super) welcome: Welcome,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error(transparent)]
    Route(#[from] RouteError),
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

    /// Whether [`Route::ready`] tells when another attempt is of use.
    pub(super) fn is_announced(&self) -> bool {
        matches!(self, DialError::Route(error) if error.is_announced())
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
pub(super) async fn dial(route: &Route, hello: &Hello) -> Result<Connection, DialError> {
    let stream = within("connecting", route.open()).await??;
    introduce(stream, &route.url(), hello).await
}

/// Introduces the agent over a stream of any kind.
pub(super) async fn introduce(stream: BoxedStream, url: &str, hello: &Hello) -> Result<Connection, DialError> {
    let activity = Activity::new();
    let watched = Watched::new(stream, activity.clone());
    let web_socket = tokio_tungstenite::client_async_with_config(url, watched, Some(limits()));
    let broken = |cause: SocketError| DialError::WebSocket(Box::new(cause));
    let (mut socket, _) = within("opening the WebSocket", web_socket).await?.map_err(broken)?;
    let greeting = Message::Binary(Bytes::from(handshake::encode_hello(hello)));
    within("saying hello", socket.send(greeting)).await?.map_err(broken)?;
    let (protocol, welcome) = within("waiting for the hub's welcome", answer(&mut socket)).await??;
    Ok(Connection { socket, activity, protocol, welcome })
}

async fn answer(socket: &mut Socket) -> Result<(u16, Welcome), DialError> {
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

#[cfg(test)]
mod tests {
    use omnilearn_wire::AgentId;
    use omnilearn_wire::message::Machine;

    use super::*;

    /// All that the session asks of a way to its hub is that bytes go in and come out.
    #[tokio::test]
    async fn hub_is_met_over_anything_that_carries_bytes() {
        let (near, far) = tokio::io::duplex(64);
        let hub = async {
            let mut socket = tokio_tungstenite::accept_async(far).await.unwrap();
            let Some(Ok(Message::Binary(hello))) = socket.next().await else { panic!("no hello") };
            let welcome = Welcome { agent: AgentId(4), heartbeat_ms: 1000, hub_version: "test".to_owned() };
            let answer = handshake::encode_welcome(handshake::PROTOCOL_MAX, &welcome);
            socket.send(Message::Binary(answer.into())).await.unwrap();
            handshake::decode_hello(&hello).unwrap().1
        };
        let hello = Hello { name: "pi".to_owned(), token: None, process: 3, machine: Machine::default() };
        let (connection, heard) = tokio::join!(introduce(Box::new(near), "ws://hub/agent", &hello), hub);
        assert_eq!((connection.unwrap().welcome.agent, heard.name.as_str()), (AgentId(4), "pi"));
    }
}
