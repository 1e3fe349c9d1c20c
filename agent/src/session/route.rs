//! The way to the hub: a TCP connection, or a stream through a broker. What runs over it does not know which.

use std::io;
use std::rc::Rc;

use omnilearn_mqtt::stream::Dialer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::config::{AGENT_PATH, SocketAddress};

/// Most bytes that the operating system holds unsent: what a heartbeat may have to wait behind on a slow link.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES_MAX: u32 = 512 << 10;

/// What a WebSocket runs over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Any of them.
pub(super) type BoxedStream = Box<dyn Stream>;

/// The way to one hub.
pub(super) enum Route {
    /// To the hub itself.
    Socket(SocketAddress),
    /// Through a broker.
    Broker(watch::Receiver<Ferry>),
}

/// Whether a hub can be reached through the broker.
#[derive(Clone)]
pub(super) enum Ferry {
    /// The broker cannot be used.
    NoBroker {
        /// Why.
        reason: String,
    },
    /// There is no hub at the broker.
    NoHub,
    /// A hub has said that it is there.
    Ready(Rc<Dialer>),
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum RouteError {
    #[error("cannot reach the hub: {0}")]
    Stream(#[from] io::Error),
    #[error("the broker cannot be used: {reason}")]
    NoBroker { reason: String },
    #[error("no hub is at the broker")]
    NoHub,
}

impl RouteError {
    /// Whether [`Route::ready`] tells when it has changed.
    pub(super) fn is_announced(&self) -> bool {
        matches!(self, RouteError::NoBroker { .. } | RouteError::NoHub)
    }
}

impl Route {
    /// A stream to the hub.
    pub(super) async fn open(&self) -> Result<BoxedStream, RouteError> {
        match self {
            Route::Socket(address) => {
                let tcp = TcpStream::connect((address.host(), address.port())).await?;
                // Both are for latency only; a system without them is slower and no less right.
                let _ = tcp.set_nodelay(true);
                #[cfg(any(target_os = "linux", target_os = "android"))]
                let _ = socket2::SockRef::from(&tcp).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
                Ok(Box::new(tcp))
            }
            Route::Broker(ferry) => {
                let ferry = ferry.borrow().clone();
                match ferry {
                    Ferry::NoBroker { reason } => Err(RouteError::NoBroker { reason }),
                    Ferry::NoHub => Err(RouteError::NoHub),
                    Ferry::Ready(dialer) => Ok(Box::new(dialer.dial().await?)),
                }
            }
        }
    }

    /// Waits until a hub has been announced at the broker. A hub with an address of its own never is.
    pub(super) async fn ready(&self) {
        if let Route::Broker(ferry) = self
            && ferry.clone().wait_for(|ferry| matches!(ferry, Ferry::Ready(_))).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// What the WebSocket's opening request asks for.
    pub(super) fn url(&self) -> String {
        match self {
            Route::Socket(address) => address.url(),
            Route::Broker(_) => format!("ws://hub{AGENT_PATH}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn hub_at_a_broker_is_not_dialled_before_it_is_announced() {
        let ferry = watch::Sender::new(Ferry::NoBroker { reason: "connection refused".to_owned() });
        let route = Route::Broker(ferry.subscribe());
        let error = route.open().await.err().unwrap();
        assert!(error.is_announced() && error.to_string().contains("connection refused"), "{error}");
        ferry.send_replace(Ferry::NoHub);
        assert!(matches!(route.open().await, Err(RouteError::NoHub)));
        assert!(route.ready().now_or_never().is_none());
        assert_eq!(route.url(), "ws://hub/agent");
    }
}
