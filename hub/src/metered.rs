//! TCP connections that count their bytes, so that time-outs can measure lack of progress and not duration: a large
//! message on a slow link is progress, although no whole message has arrived.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
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

    /// Bytes that the operating system took for the peer.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// From now on, throws away what the peer sends. A peer in the middle of an oversize message must be read to the end, or
    /// the reset that answers unread bytes would overtake the close frame that tells it why.
    pub(crate) fn discard_reads(&self) {
        self.discard.store(true, Ordering::Relaxed);
    }
}

/// Who is at the other end of an HTTP request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) meter: Arc<Meter>,
}

impl Connected<IncomingStream<'_, MeteredListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, MeteredListener>) -> Peer {
        Peer { address: *stream.remote_addr(), meter: Arc::clone(&stream.io().meter) }
    }
}

/// Accepts [`MeteredStream`]s without Nagle's delay.
pub(crate) struct MeteredListener(pub(crate) TcpListener);

impl Listener for MeteredListener {
    type Io = MeteredStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (MeteredStream, SocketAddr) {
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

/// A TCP connection with its [`Meter`].
#[derive(Debug)]
pub(crate) struct MeteredStream {
    stream: TcpStream,
    meter: Arc<Meter>,
}

impl MeteredStream {
    fn count_written(&self, result: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = result {
            self.meter.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncRead for MeteredStream {
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

impl AsyncWrite for MeteredStream {
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
