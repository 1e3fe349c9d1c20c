//! A way to the broker that can be cut.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Carries connections to another port. While it is cut, bytes are neither taken nor lost, as when a cable is out.
pub(crate) struct Relay {
    address: SocketAddr,
    cut: Arc<watch::Sender<bool>>,
    connections: Arc<Mutex<JoinSet<()>>>,
    _task: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn start(to: u16) -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(watch::channel(false).0);
        let mut task = JoinSet::new();
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let (switch, begun) = (Arc::clone(&cut), Arc::clone(&connections));
        task.spawn(async move {
            loop {
                let Ok((inner, _)) = listener.accept().await else { return };
                let switch = Arc::clone(&switch);
                begun.lock().unwrap().spawn(async move {
                    let Ok(outer) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else { return };
                    let ((inner_read, inner_write), (outer_read, outer_write)) =
                        (inner.into_split(), outer.into_split());
                    tokio::select! {
                        () = carry(inner_read, outer_write, switch.subscribe()) => {}
                        () = carry(outer_read, inner_write, switch.subscribe()) => {}
                    }
                });
            }
        });
        Relay { address, cut, connections, _task: task }
    }

    pub(crate) fn url(&self, prefix: &str) -> String {
        format!("mqtt://{}/{prefix}", self.address)
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }

    /// Ends all connections, with the bytes that are on the way.
    pub(crate) async fn sever(&self) {
        let mut connections = std::mem::take(&mut *self.connections.lock().unwrap());
        connections.shutdown().await;
    }
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await;
        if cut.wait_for(|cut| !cut).await.is_err() {
            return;
        }
        match read {
            Ok(0) | Err(_) => return,
            Ok(bytes) => {
                if to.write_all(&buffer[..bytes]).await.is_err() {
                    return;
                }
            }
        }
    }
}
