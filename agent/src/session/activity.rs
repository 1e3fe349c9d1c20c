//! Whether a connection is alive, by the bytes that move over it.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// When the peer last showed a sign of life: a byte arrived, or it made room for bytes that the operating system had
/// refused before, which it does only when the peer acknowledges. A message that is long under way counts while it moves,
/// so a slow link is not a dead one.
#[derive(Clone, Debug)]
pub(super) struct Activity(Rc<Cell<Instant>>);

impl Activity {
    /// A connection that is alive now.
    pub(super) fn new() -> Activity {
        Activity(Rc::new(Cell::new(Instant::now())))
    }

    /// The last sign of life.
    pub(super) fn last(&self) -> Instant {
        self.0.get()
    }

    fn touch(&self) {
        self.0.set(Instant::now());
    }
}

/// A stream that notes the peer's signs of life.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    activity: Activity,
    blocked: bool,
}

impl<S> Watched<S> {
    /// Watches `stream`.
    pub(super) fn new(stream: S, activity: Activity) -> Watched<S> {
        Watched { stream, activity, blocked: false }
    }

    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Pending => self.blocked = true,
            Poll::Ready(Ok(_)) if self.blocked => {
                self.blocked = false;
                self.activity.touch();
            }
            Poll::Ready(_) => (),
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.touch();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
