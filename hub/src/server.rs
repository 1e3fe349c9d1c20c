//! The hub as a whole: opens the state folder, serves, and ends in order.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use omnilearn_datasets::Library;
use omnilearn_kernel_host::KeyPair;
use omnilearn_wire::JobId;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api};
use crate::connection::Gate;
use crate::counters::Counters;
use crate::digest::Token;
use crate::frozen_store::FrozenStore;
use crate::job_task::{JobTask, Outcome, Request};
use crate::kernel_store::KernelStore;
use crate::key_file::{self, KeyFileError};
use crate::limits::{INBOX, INBOX_CHUNK_BYTES, REQUESTS, SHUTDOWN_WAIT};
use crate::metered::{Peer, TcpMetered};
use crate::mqtt::{Mqtt, MqttConfig, MqttError, MqttTasks, NewTimings};
use crate::plan::{Materials, Plan};
use crate::registry::Registry;
use crate::signing::Signatures;
use crate::store::{Store, StoreError, StoredJob, interrupted};
use crate::view::{JobState, JobView};
use crate::weights_store::WeightsStore;

/// How a hub is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The state folder.
    pub state: PathBuf,
    /// The file with the hub's own key; by default one in the state folder, made where it is missing.
    pub key: Option<PathBuf>,
    /// The shared token that agents and clients must show, if any.
    pub token: Option<Token>,
    /// Whether the hub ends once no job is left, after at least one.
    pub exit_when_done: bool,
    /// The broker, if the hub has one.
    pub mqtt: Option<MqttConfig>,
}

/// Why a hub cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The state folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The hub's own key.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The broker.
    #[error(transparent)]
    Mqtt(#[from] MqttError),
    /// The network.
    #[error("cannot serve: {0}")]
    Serve(#[from] std::io::Error),
    /// A bug in the hub.
    #[error("the task that owns the jobs failed: {0}")]
    JobTask(#[source] tokio::task::JoinError),
}

/// Serves agents and users on `listener` until `shutdown` is cancelled, or until all jobs are done if the hub is set up so.
/// Ends within two seconds: agents are told, the running job's weights and all records are written.
///
/// # Errors
/// [`RunError`] if the state folder or the key in it cannot be used.
pub async fn run(listener: TcpListener, config: Config, shutdown: CancellationToken) -> Result<Outcome, RunError> {
    let address = listener.local_addr()?;
    let holder = format!("process {} at {address}", std::process::id());
    let (directory, given_key) = (config.state.clone(), config.key.clone());
    let opened = tokio::task::spawn_blocking(move || {
        let store = Store::open(&directory, &holder)?;
        let key = match given_key {
            Some(path) => key_file::read_given(&path)?,
            None => key_file::read_or_create(&store.hub_key())?,
        };
        Ok::<_, RunError>((store, key))
    });
    let (store, key) = opened.await.unwrap_or(Err(StoreError::ShuttingDown.into()))?;
    let key = Arc::new(key);
    tracing::info!(key = %key.public(), "kernels are signed with the hub's key");
    let (mqtt, broker) = match config.mqtt {
        Some(config) => Mqtt::claim(config).await.map(|(mqtt, tasks)| (Some(mqtt), Some(tasks)))?,
        None => (None, None),
    };
    let kernels = KernelStore::new(store.clone());
    let weights = WeightsStore::new(store.clone());
    let library = Library::at(&store.datasets());
    let frozen = FrozenStore::new(store.clone());
    let counters = Arc::new(Counters::default());
    let (inbox, from_agents) = mpsc::channel(INBOX);
    let (jobs, requests) = mpsc::channel(REQUESTS);
    let (alive, mut all_gone) = mpsc::channel::<()>(1);

    let stored = store.jobs().await?;
    let next_job = stored.iter().map(|stored| stored.view.id + 1).max().unwrap_or(1);
    let ending = CancellationToken::new();
    let (kept, counted) = ((store.clone(), frozen.clone()), Arc::clone(&counters));
    let mut job_task = JobTask::new(kept, counted, ending.clone(), config.exit_when_done, next_job);
    for stored in stored {
        let view = stored.view.clone();
        if view.state == JobState::Queued {
            let (kernels, weights, key, library) =
                (kernels.clone(), weights.clone(), Arc::clone(&key), library.clone());
            let planned = tokio::task::spawn_blocking(move || requeue(&kernels, &weights, &key, &library, stored));
            if let Ok(Some((view, plan))) = planned.await {
                job_task.requeue(view, plan);
                continue;
            }
        }
        if let Some(view) = interrupted(view) {
            tracing::warn!(job = view.id, name = view.name, "job was interrupted");
            store.job(&view);
        }
    }
    let known = store.agents().await?.into_iter().map(|(agent, name, _)| (agent, name));
    let gate = Arc::new(Gate {
        registry: Registry::new(known),
        token: config.token,
        key,
        kernels,
        library,
        frozen,
        store: store.clone(),
        counters,
        inbox,
        chunk_room: Arc::new(Semaphore::new(INBOX_CHUNK_BYTES)),
        next_session: AtomicU64::new(1),
        alive,
    });

    let api = Api { gate, weights, jobs, mqtt };
    let router = api::router(api.clone());
    let served = CancellationToken::new();
    let broker = broker.map(|tasks| begin(tasks, api, served.clone()));
    let server = axum::serve(TcpMetered(listener), router.into_make_service_with_connect_info::<Peer>())
        .with_graceful_shutdown(served.clone().cancelled_owned());
    let mut server = tokio::spawn(server.into_future());
    for address in reachable(address) {
        tracing::info!(agents = %format!("ws://{address}/agent"), users = %format!("http://{address}"), "listening");
    }

    let mut job_task = tokio::spawn(job_task.run(from_agents, requests));
    let joined = tokio::select! {
        joined = &mut job_task => Some(joined),
        () = shutdown.cancelled() => None,
    };
    ending.cancel();
    served.cancel();
    let rest = async {
        let joined = match joined {
            Some(joined) => joined,
            None => (&mut job_task).await,
        };
        while all_gone.recv().await.is_some() {}
        (&mut server).await.ok();
        if let Some(broker) = broker {
            broker.close().await;
        }
        joined
    };
    match timeout(SHUTDOWN_WAIT, rest).await {
        Ok(joined) => joined.map_err(RunError::JobTask),
        Err(_) => {
            tracing::warn!("not everything ended in time");
            job_task.abort();
            server.abort();
            Ok(Outcome::default())
        }
    }
}

/// Lets agents and their timings in over the broker.
fn begin(mut tasks: MqttTasks, api: Api, served: CancellationToken) -> MqttTasks {
    let (timings, mut new) = mpsc::channel::<NewTimings>(1); // looked at one after the other, as the job task takes them
    tasks.begin(api::agent_router(api.clone()), timings, served.clone());
    tasks.spawn(async move {
        loop {
            let new = tokio::select! {
                () = served.cancelled() => break,
                new = new.recv() => new,
            };
            let Some(NewTimings { agent, steps }) = new else { break };
            let Some(agent) = api.gate.registry.number(&agent) else { continue }; // never asked to do any
            if api.jobs.send(Request::Timings { agent, steps }).await.is_err() {
                break;
            }
        }
    });
    tasks
}

/// Plans a job again that waited when the hub last ended; none if that is no longer possible. May block.
fn requeue(
    kernels: &KernelStore,
    weights: &WeightsStore,
    key: &KeyPair,
    library: &Library,
    stored: StoredJob,
) -> Option<(JobView, Box<Plan>)> {
    let (kernel, kernel_bytes) = kernels.open(&stored.kernel)?;
    let signatures = Signatures::new(key, &stored.kernel, stored.author.as_deref()).ok()?;
    let weights = match stored.weights {
        Some(digest) => Some(weights.open(&digest)?),
        None => None,
    };
    let materials = Materials { kernel: &kernel, kernel_bytes, signatures, weights, library };
    let mut plan = Plan::new(&stored.job_file, materials).ok()?;
    plan.config.job = JobId(stored.view.id);
    Some((stored.view, Box::new(plan)))
}

/// Addresses under which others reach the hub; for a wildcard, this machine's own.
fn reachable(address: SocketAddr) -> Vec<SocketAddr> {
    if !address.ip().is_unspecified() {
        return vec![address];
    }
    let loopback: [IpAddr; 2] = [[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()];
    // Connecting a UDP socket sends nothing; it only asks which own address routes there. (Addresses for documentation.)
    let outward =
        [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")].into_iter().filter_map(|(own, other)| {
            let socket = UdpSocket::bind(own).ok()?;
            socket.connect(other).ok()?;
            socket.local_addr().ok().map(|address| address.ip())
        });
    let own: Vec<IpAddr> = loopback.into_iter().chain(outward).filter(|ip| address.is_ipv6() || ip.is_ipv4()).collect();
    own.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect()
}

#[cfg(test)]
mod tests;
