//! Connections that count their bytes, so that time-outs can measure lack of progress and not duration: a large
//! message on a slow link is progress, although no whole message has arrived.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use omnilearn_mqtt::stream::{Acceptor, MqttStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Pause after a failed `accept`, such as for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// What one connection has moved so far.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    discard: AtomicBool,
}

impl Meter {
    /// Bytes read from the peer.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that the operating system, or the stream over a broker, took for the peer.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// From now on, throws away what the peer sends. A peer in the middle of an oversize message must be read to the end, or
    /// the reset that answers unread bytes would overtake the close frame that tells it why.
    pub(crate) fn discard_reads(&self) {
        self.discard.store(true, Ordering::Relaxed);
    }
}

/// Which way a peer is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerAddress {
    /// A connection of its own.
    Tcp(SocketAddr),
    /// Over a broker, on the topics of the agent of this name.
    Mqtt(String),
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddress::Tcp(address) => write!(formatter, "tcp {address}"),
            PeerAddress::Mqtt(agent) => write!(formatter, "mqtt agents/{agent}"),
        }
    }
}

/// Who is at the other end of an HTTP request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: PeerAddress,
    pub(crate) meter: Arc<Meter>,
}

impl Connected<IncomingStream<'_, TcpMetered>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpMetered>) -> Peer {
        Peer { address: PeerAddress::Tcp(*stream.remote_addr()), meter: Arc::clone(&stream.io().meter) }
    }
}

impl Connected<IncomingStream<'_, MqttMetered>> for Peer {
    fn connect_info(stream: IncomingStream<'_, MqttMetered>) -> Peer {
        Peer { address: PeerAddress::Mqtt(stream.remote_addr().clone()), meter: Arc::clone(&stream.io().meter) }
    }
}

/// Accepts streams that agents open over a broker. Their address is the agent's name.
pub(crate) struct MqttMetered(pub(crate) Acceptor);

impl Listener for MqttMetered {
    type Io = MeteredStream<MqttStream>;
    type Addr = String;

    async fn accept(&mut self) -> (MeteredStream<MqttStream>, String) {
        let stream = self.0.accept().await;
        let agent = stream.peer().to_owned();
        (MeteredStream { stream, meter: Arc::default() }, agent)
    }

    fn local_addr(&self) -> std::io::Result<String> {
        Ok("mqtt".to_owned())
    }
}

/// Accepts TCP connections without Nagle's delay.
pub(crate) struct TcpMetered(pub(crate) TcpListener);

impl Listener for TcpMetered {
    type Io = MeteredStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (MeteredStream<TcpStream>, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok((stream, address)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%address, %error, "no TCP_NODELAY");
                    }
                    return (MeteredStream { stream, meter: Arc::default() }, address);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A connection with its [`Meter`].
#[derive(Debug)]
pub(crate) struct MeteredStream<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> MeteredStream<S> {
    fn count_written(&self, result: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = result {
            self.meter.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        while self.meter.discard.load(Ordering::Relaxed) {
            let mut thrown_away = [0u8; 16 << 10];
            let mut thrown_away = ReadBuf::new(&mut thrown_away);
            std::task::ready!(Pin::new(&mut self.stream).poll_read(context, &mut thrown_away))?;
            if thrown_away.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.meter.read_bytes.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count_written(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count_written(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
