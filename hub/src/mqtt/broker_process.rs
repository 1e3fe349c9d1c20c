//! A broker of the hub's own, in a process beside it: a panic in it cannot harm the hub. It is started again when it ends, and ends
//! with the hub, however that ends, since nobody holds its standard input open any more.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::broker::Setup;
use crate::digest::Token;
use crate::limits::{BROKER_RESTART, BROKER_RESTART_MAX, BROKER_WAIT};

/// How often a broker that starts is asked whether it listens.
const CONNECT_EVERY: Duration = Duration::from_millis(20);

/// The broker's port cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the broker cannot listen on {listen}; is another one running there? give this one another --mqtt-listen, or use that with --mqtt"
)]
pub struct ListenError {
    listen: SocketAddr,
    #[source]
    cause: std::io::Error,
}

#[derive(Default)]
struct State {
    stopping: bool,
    /// Of the process that runs.
    input: Option<ChildStdin>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A broker that runs until it is stopped or dropped.
pub(crate) struct BrokerProcess {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl BrokerProcess {
    /// Starts a broker. Port 0 stands for any that is free.
    pub(crate) fn start(
        listen: SocketAddr,
        program: PathBuf,
        token: Option<Token>,
    ) -> Result<BrokerProcess, ListenError> {
        let failed = |cause| ListenError { listen, cause };
        // The process binds again; who takes the port in between is told of in the log.
        let address = TcpListener::bind(listen).and_then(|listener| listener.local_addr()).map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let setup = Setup::new(address, token).line();
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("broker".into());
        let thread = thread.spawn(move || keep_running(&program, &setup, &watched)).map_err(failed)?;
        Ok(BrokerProcess { address, shared, thread: Some(thread) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it does, but not for long.
    pub(crate) async fn listens(&self) {
        let address = super::own_address(self.address);
        let connects = async {
            while tokio::net::TcpStream::connect(address).await.is_err() {
                tokio::time::sleep(CONNECT_EVERY).await;
            }
        };
        tokio::time::timeout(BROKER_WAIT, connects).await.ok();
    }

    /// Ends the broker and waits for that.
    pub(crate) fn stop(mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let result = act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
        result
    }

    fn stop(&self) {
        self.with(|state| (state.stopping, state.input) = (true, None));
    }

    /// Waits, or until it is stopped; whether it is.
    fn pause(&self, wait: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let paused = self.changed.wait_timeout_while(state, wait, |state| !state.stopping);
        paused.unwrap_or_else(PoisonError::into_inner).0.stopping
    }
}

fn keep_running(program: &Path, setup: &str, shared: &Shared) {
    let mut wait = BROKER_RESTART;
    loop {
        let started = Instant::now();
        let ended = start(program, setup, shared).and_then(|child| match child {
            Some(mut child) => child.wait().map(Some),
            None => Ok(None),
        });
        if started.elapsed() > BROKER_RESTART_MAX {
            wait = BROKER_RESTART;
        }
        if shared.pause(Duration::ZERO) {
            return;
        }
        let status = ended.map(|status: Option<ExitStatus>| status.map(|status| status.to_string()));
        tracing::warn!(?status, again_in = ?wait, "the broker has ended, it is started again");
        if shared.pause(wait) {
            return;
        }
        wait = (wait * 2).min(BROKER_RESTART_MAX);
    }
}

/// Starts the process and tells it what to do; none if the broker was stopped before.
fn start(program: &Path, setup: &str, shared: &Shared) -> std::io::Result<Option<Child>> {
    let mut child = Command::new(program).arg("broker").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let mut input = child.stdin.take();
    let told = input.as_mut().map_or(Ok(()), |input| input.write_all(setup.as_bytes()));
    // A process that is not told, or not wanted any more, ends at the end of its input.
    let stopping = shared.with(|state| {
        if !state.stopping {
            state.input = input;
        }
        state.stopping
    });
    if let Err(error) = told {
        tracing::debug!(%error, "the broker ended before it was told where to listen");
    }
    if stopping {
        child.wait()?;
        return Ok(None);
    }
    Ok(Some(child))
}
