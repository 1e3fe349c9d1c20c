//! Byte streams over a broker that outlive a connection to it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::Client;
use crate::topics::Topics;

/// A reliable ordered stream of bytes whose pieces are messages at a broker.
#[derive(Debug)]
pub struct MqttStream {}

impl MqttStream {
    /// The agent's name.
    pub fn peer(&self) -> &str {
        todo!()
    }
}

impl AsyncRead for MqttStream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        todo!()
    }
}

impl AsyncWrite for MqttStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        todo!()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        todo!()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        todo!()
    }
}

/// An agent's end: opens streams to the hub.
#[derive(Debug)]
pub struct Dialer {}

impl Dialer {
    /// A dialer of the agent `agent`; subscribes to what comes for it.
    pub fn new(_client: Client, _topics: Topics, _agent: &str) -> Dialer {
        todo!()
    }

    /// Opens a stream. Asks again until a hub answers, for at most 10 s.
    ///
    /// # Errors
    /// `TimedOut` if no hub answers.
    pub async fn dial(&self) -> io::Result<MqttStream> {
        todo!()
    }
}

/// The hub's end: takes streams of agents.
#[derive(Debug)]
pub struct Acceptor {}

impl Acceptor {
    /// An acceptor; subscribes to what comes from agents.
    pub fn new(_client: Client, _topics: Topics) -> Acceptor {
        todo!()
    }

    /// The next stream that an agent opens.
    pub async fn accept(&mut self) -> MqttStream {
        todo!()
    }
}
