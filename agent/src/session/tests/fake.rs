//! A hub that a test plays message by message, and compute whose steps last as long as the test wants.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use omnilearn_kernel_host::KeyPair;
use omnilearn_wire::handshake::{self, Hello, Welcome};
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::{
    AgentMessage, Augment, Computation, Evaluate, Failure, HubMessage, JobOffer, JobReady, KernelSignature, Machine,
    Span, StepReport, StepTimings, Train,
};
use omnilearn_wire::partition::Partition;
use omnilearn_wire::{AgentId, AssignmentId, Codec, JobId, Version, frame};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use crate::config::{AgentConfig, HubAddress};
use crate::dataset::fetch::HubFiles;
use crate::session::{
    Compute, ComputeError, ComputeFactory, Evaluation, ParameterPiece, Prepared, RunError, Usage, run_with,
};

/// Longer than anything takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const KERNEL: &[u8] = b"a component, as far as anyone here looks";
pub(super) const JOB: JobId = JobId(7);

pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A listener on a port of its own, and an agent that dials it.
pub(super) struct Hub {
    listener: TcpListener,
    pub(super) cache: TempDir,
    pub(super) heartbeat_ms: u32,
}

impl Hub {
    pub(super) async fn new() -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Hub { listener, cache: TempDir::new().unwrap(), heartbeat_ms: 1000 }
    }

    pub(super) fn config(&self) -> AgentConfig {
        let address = format!("ws://{}", self.listener.local_addr().unwrap());
        let mut config = AgentConfig::new(HubAddress::parse(&address).unwrap());
        config.name = "pi".to_owned();
        config.cache = self.cache.path().to_owned();
        config
    }

    /// Puts the kernel where the agent finds it.
    pub(super) fn cache_kernel(&self) {
        let folder = self.cache.path().join("kernels");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{}.wasm", omnilearn_kernel_host::to_hex(&digest(KERNEL)))), KERNEL)
            .unwrap();
    }

    pub(super) fn start(&self, factory: &Arc<FakeFactory>) -> Running {
        start(self.config(), factory)
    }

    pub(super) async fn accept_tcp(&self) -> TcpStream {
        soon("a connection", self.listener.accept()).await.unwrap().0
    }

    /// Up to the hello, which the test answers.
    pub(super) async fn accept_hello(&self) -> (Peer, Hello) {
        let tcp = self.accept_tcp().await;
        let socket = soon("a WebSocket", tokio_tungstenite::accept_async(tcp)).await.unwrap();
        let mut peer = Peer { socket, heartbeats: 0 };
        let hello = peer.binary().await;
        (peer, handshake::decode_hello(&hello).unwrap().1)
    }

    /// Up to the welcome.
    pub(super) async fn accept(&self) -> Peer {
        let (mut peer, _) = self.accept_hello().await;
        peer.welcome(self.heartbeat_ms).await;
        peer
    }

    /// Up to an agent that is ready for the job, whose kernel it has.
    pub(super) async fn accept_ready(&self) -> Peer {
        let mut peer = self.accept().await;
        peer.send(&HubMessage::JobOffer(offer())).await;
        assert!(matches!(peer.next().await, AgentMessage::JobReady { job: JOB, .. }));
        peer
    }
}

/// An agent under way.
pub(super) struct Running {
    pub(super) shutdown: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Running {
    pub(super) async fn end(self) -> Result<(), RunError> {
        soon("the agent's end", self.task).await.unwrap()
    }

    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        self.end().await.unwrap();
    }
}

pub(super) fn start(config: AgentConfig, factory: &Arc<FakeFactory>) -> Running {
    let shutdown = CancellationToken::new();
    let factory: Arc<dyn ComputeFactory> = Arc::clone(factory) as _;
    Running { shutdown: shutdown.clone(), task: tokio::spawn(run_with(config, factory, shutdown)) }
}

/// The hub's end of a connection.
pub(super) struct Peer {
    pub(super) socket: WebSocketStream<TcpStream>,
    pub(super) heartbeats: u32,
}

impl Peer {
    async fn binary(&mut self) -> Bytes {
        loop {
            match soon("a message", self.socket.next()).await {
                Some(Ok(Message::Binary(bytes))) => return bytes,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => (),
                other => panic!("{other:?} instead of a message"),
            }
        }
    }

    pub(super) async fn raw(&mut self, bytes: Vec<u8>) {
        soon("room to send", self.socket.send(Message::Binary(Bytes::from(bytes)))).await.unwrap();
    }

    pub(super) async fn welcome(&mut self, heartbeat_ms: u32) {
        let welcome = Welcome { agent: AgentId(1), heartbeat_ms, hub_version: "test".to_owned() };
        self.raw(handshake::encode_welcome(handshake::PROTOCOL_MAX, &welcome)).await;
    }

    pub(super) async fn send(&mut self, message: &HubMessage<'_>) {
        self.raw(frame::encode(message).unwrap()).await;
    }

    /// The next message that is not a heartbeat.
    pub(super) async fn next(&mut self) -> AgentMessage<'static> {
        loop {
            let bytes = self.binary().await;
            match frame::decode::<AgentMessage<'_>>(&bytes).unwrap() {
                AgentMessage::Heartbeat => self.heartbeats += 1,
                AgentMessage::PushChunk { assignment, offset, bytes } => {
                    return AgentMessage::PushChunk { assignment, offset, bytes: bytes.to_vec().leak() };
                }
                message => return postcard_owned(&message),
            }
        }
    }

    /// The close frame's code and reason, after whatever else comes.
    pub(super) async fn closed(mut self) -> (u16, String) {
        loop {
            match soon("a close frame", self.socket.next()).await {
                Some(Ok(Message::Close(Some(frame)))) => return (frame.code.into(), frame.reason.to_string()),
                Some(Ok(_)) => (),
                other => panic!("{other:?} instead of a close frame"),
            }
        }
    }

    /// Waits until this many heartbeats have come, and nothing else.
    pub(super) async fn expect_heartbeats(&mut self, count: u32) {
        for _ in 0..count {
            let bytes = self.binary().await;
            assert_eq!(frame::decode::<AgentMessage<'_>>(&bytes).unwrap(), AgentMessage::Heartbeat);
        }
    }

    pub(super) async fn send_parameters(&mut self, version: u64, stream: &[u8]) {
        for (index, piece) in stream.chunks(CHUNK_BYTES).enumerate() {
            let (offset, total) = ((index * CHUNK_BYTES) as u64, stream.len() as u64);
            let version = Version(version);
            self.send(&HubMessage::ParameterChunk { job: JOB, version, offset, total, bytes: piece }).await;
        }
    }

    pub(super) async fn send_kernel(&mut self, offset: usize, end: usize) {
        let (digest, total) = (digest(KERNEL), KERNEL.len() as u64);
        let bytes = &KERNEL[offset..end];
        self.send(&HubMessage::KernelChunk { digest, offset: offset as u64, total, bytes }).await;
    }

    /// Reads one whole push: its stream and its report.
    pub(super) async fn push(&mut self, expected: AssignmentId) -> (Vec<u8>, StepReport) {
        let AgentMessage::PushBegin { job: JOB, assignment, bytes: total, .. } = self.next().await else {
            panic!("no push began");
        };
        assert_eq!(assignment, expected);
        let mut stream = Vec::new();
        loop {
            match self.next().await {
                AgentMessage::PushChunk { assignment, offset, bytes } => {
                    assert_eq!((assignment, offset), (expected, stream.len() as u64));
                    stream.extend_from_slice(bytes);
                }
                AgentMessage::PushEnd { assignment, report } => {
                    assert_eq!((assignment, total), (expected, stream.len() as u64));
                    return (stream, report);
                }
                other => panic!("{other:?} in a push"),
            }
        }
    }
}

/// A message without borrowed parts: only chunks have them.
fn postcard_owned(message: &AgentMessage<'_>) -> AgentMessage<'static> {
    let bytes: &'static [u8] = frame::encode(message).unwrap().leak();
    frame::decode(bytes).unwrap()
}

pub(super) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Secret of the hub's key, as long as a test does not take another.
pub(super) const HUB_SECRET: u8 = 1;

pub(super) fn key_pair(secret: u8) -> KeyPair {
    KeyPair::from_secret(&[secret; 32])
}

pub(super) fn signed(secret: u8, kernel: &[u8]) -> KernelSignature {
    KernelSignature::from(&key_pair(secret).sign(&digest(kernel)))
}

pub(super) fn offer() -> JobOffer {
    JobOffer {
        job: JOB,
        name: "a job".to_owned(),
        kernel_digest: digest(KERNEL),
        kernel_bytes: KERNEL.len() as u64,
        signatures: vec![signed(HUB_SECRET, KERNEL)],
        settings: Vec::new(),
        dataset: "fashion-mnist".to_owned(),
        layout_digest: [0; 32],
        codec: Codec::F32,
        seed: 1,
        calibration_batches: Vec::new(),
        batch_bounds: (1, 64),
        manifest: None,
        augment: Augment::default(),
        partition: Partition::Shared,
        frozen: None,
    }
}

pub(super) fn train(assignment: u64) -> HubMessage<'static> {
    HubMessage::Train(Train {
        job: JOB,
        assignment: AssignmentId(assignment),
        round: assignment,
        version: Version(0),
        spans: vec![Span { epoch: 0, start: 0, end: 16 }],
        seed: assignment,
        computation: Computation::Gradient,
    })
}

/// What a step of [`FakeFactory`] does.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Hands over the stream in pieces of this size.
    Push(usize),
    Fail(Failure),
    Panic,
    /// Waits for [`FakeFactory::release`] and then pushes.
    Held,
}

/// Compute that echoes the parameters as its gradient.
pub(super) struct FakeFactory {
    pub(super) stream_bytes: usize,
    pub(super) prepared: AtomicU32,
    pub(super) refuse: Mutex<Option<String>>,
    steps: Mutex<HashMap<u64, Step>>,
    release: mpsc::Sender<()>,
    released: Arc<Mutex<mpsc::Receiver<()>>>,
    begun: mpsc::Sender<u64>,
    begins: Mutex<mpsc::Receiver<u64>>,
}

impl FakeFactory {
    pub(super) fn new(stream_bytes: usize) -> Arc<FakeFactory> {
        let (release, released) = mpsc::channel();
        let (begun, begins) = mpsc::channel();
        Arc::new(FakeFactory {
            stream_bytes,
            prepared: AtomicU32::new(0),
            refuse: Mutex::new(None),
            steps: Mutex::new(HashMap::new()),
            release,
            released: Arc::new(Mutex::new(released)),
            begun,
            begins: Mutex::new(begins),
        })
    }

    /// Says what an assignment does; the others push in one piece.
    pub(super) fn on(&self, assignment: u64, step: Step) {
        self.steps.lock().unwrap().insert(assignment, step);
    }

    /// Lets one held step go on.
    pub(super) fn release(&self) {
        self.release.send(()).unwrap();
    }

    /// Waits until the compute thread is in this step.
    pub(super) async fn begun(self: &Arc<Self>, assignment: u64) {
        let this = Arc::clone(self);
        let begun = tokio::task::spawn_blocking(move || this.begins.lock().unwrap().recv_timeout(PATIENCE).unwrap());
        assert_eq!(begun.await.unwrap(), assignment);
    }
}

impl ComputeFactory for FakeFactory {
    fn machine(&self) -> Machine {
        Machine { cores: 3, ..Machine::default() }
    }

    fn usage(&self) -> Usage {
        Usage { quota_cores: Some(0.5), ..Usage::default() }
    }

    fn prepare(&self, offer: &JobOffer, kernel: &[u8], hub: &mut dyn HubFiles) -> Result<Prepared, String> {
        assert_eq!(kernel, KERNEL);
        self.prepared.fetch_add(1, Ordering::Relaxed);
        if let Some(manifest) = offer.manifest {
            // All that comes of one file, a piece after the other.
            let mut offset = 0;
            while offset < manifest.bytes {
                hub.ask(manifest.digest, offset, 4);
                offset += hub.piece().map_err(|error| error.to_string())?.bytes.len() as u64;
            }
        }
        let refusal = self.refuse.lock().unwrap().take();
        if let Some(reason) = refusal {
            assert!(!reason.contains("panic"), "{reason}");
            return Err(reason);
        }
        let compute = FakeCompute {
            parameters: vec![0; self.stream_bytes],
            steps: self.steps.lock().unwrap().clone(),
            released: Arc::clone(&self.released),
            begun: self.begun.clone(),
        };
        let ready = JobReady {
            train_samples: 60_000,
            test_samples: 10_000,
            batch_max: None,
            batch_step: 1,
            calibration: Vec::new(),
        };
        Ok(Prepared { compute: Box::new(compute), ready })
    }
}

struct FakeCompute {
    parameters: Vec<u8>,
    steps: HashMap<u64, Step>,
    released: Arc<Mutex<mpsc::Receiver<()>>>,
    begun: mpsc::Sender<u64>,
}

impl Compute for FakeCompute {
    fn stream_bytes(&self) -> u64 {
        self.parameters.len() as u64
    }

    fn take_parameters(&mut self, piece: ParameterPiece<'_>) -> Result<(), String> {
        let offset = piece.offset as usize;
        self.parameters[offset..offset + piece.bytes.len()].copy_from_slice(piece.bytes);
        Ok(())
    }

    fn train(
        &mut self,
        work: &Train,
        sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<StepReport, ComputeError> {
        let assignment = work.assignment.0;
        self.begun.send(assignment).unwrap();
        let piece_bytes = match self.steps.get(&assignment) {
            None => self.parameters.len(),
            Some(&Step::Push(piece_bytes)) => piece_bytes,
            Some(&Step::Fail(failure)) => {
                return Err(ComputeError { failure, message: format!("{failure:?} for a test") });
            }
            Some(Step::Panic) => panic!("for a test"),
            Some(Step::Held) => {
                self.released.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                self.parameters.len()
            }
        };
        for piece in self.parameters.chunks(piece_bytes) {
            if sink(piece).is_break() {
                break;
            }
        }
        let timings = StepTimings { load_s: 1.0, compute_s: 2.0, encode_s: 3.0, ..StepTimings::default() };
        Ok(StepReport { loss: 0.5, metric_sums: vec![8.0], timings: Some(timings), samples: 16 })
    }

    fn evaluate(&mut self, work: &Evaluate) -> Result<Evaluation, ComputeError> {
        Ok(Evaluation { samples: work.end - work.start, loss_sum: 2.0, metric_sums: vec![3.0] })
    }
}
