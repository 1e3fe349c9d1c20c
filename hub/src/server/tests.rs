//! The hub over real sockets, with agents that compute nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use omnilearn_kernel_host::Signature;
use omnilearn_wire::handshake::{self, HandshakeError, Hello, PROTOCOL_MAX};
use omnilearn_wire::limits::{CHUNK_BYTES, FRAME_BYTES_MAX};
use omnilearn_wire::message::{
    AgentMessage, HubMessage, JobOffer, JobReady, Machine, PushOutcome, StepReport, StepTimings,
};
use omnilearn_wire::{AssignmentId, Version, frame};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::*;
use crate::client::{ClientError, HubClient};

struct Hub {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<Outcome, RunError>>,
}

impl Hub {
    async fn start(state: &Path, token: Option<&str>) -> Hub {
        Hub::start_with(Config {
            state: state.to_owned(),
            key: None,
            token: token.map(Token::new),
            exit_when_done: false,
            mqtt: None,
        })
        .await
    }

    async fn start_with(config: Config) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(run(listener, config, shutdown.clone()));
        Hub { address, shutdown, task }
    }

    async fn call<T: Send + 'static>(&self, call: impl FnOnce(HubClient) -> T + Send + 'static) -> T {
        let client = HubClient::new(&format!("http://{}", self.address), None);
        tokio::task::spawn_blocking(move || call(client)).await.unwrap()
    }

    async fn counter(&self, name: &'static str) -> u64 {
        self.call(move |client| client.health().unwrap().counters[name]).await
    }

    async fn submit(&self, keys: &str) -> Result<JobView, ClientError> {
        let text = format!("dataset = \"mnist\"\n{keys}\n");
        let component = component();
        self.call(move |client| client.submit(&text, &component, None, None)).await
    }

    /// Asks until the job is as wanted; fails after half a minute.
    async fn job_when(&self, job: u64, wanted: impl Fn(&JobView) -> bool) -> JobView {
        let give_up = Instant::now() + Duration::from_secs(30);
        loop {
            let view = self.call(move |client| client.job(job).unwrap()).await;
            if wanted(&view) {
                return view;
            }
            assert!(Instant::now() < give_up, "{view:?}");
            tokio::task::yield_now().await;
        }
    }

    async fn stop(self) -> Outcome {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap()
    }
}

fn component() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/target/components/mlp.wasm");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask kernels`", path.display()))
}

const KERNEL: &str = "[kernel]\npath = \"mlp.wasm\"";

struct Agent {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

fn hello(name: &str, process: u64) -> Hello {
    Hello { name: name.into(), token: None, process, machine: Machine::default() }
}

impl Agent {
    async fn dial(hub: &Hub) -> Agent {
        let (socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/agent", hub.address)).await.unwrap();
        Agent { socket }
    }

    async fn connect(hub: &Hub, name: &str, process: u64) -> Agent {
        let mut agent = Agent::dial(hub).await;
        agent.send_raw(Message::Binary(handshake::encode_hello(&hello(name, process)).into())).await;
        let Some(Message::Binary(answer)) = agent.receive_raw().await else { panic!("no answer") };
        let (protocol, welcome) = handshake::decode_answer(&answer).unwrap();
        assert_eq!((protocol, welcome.heartbeat_ms), (PROTOCOL_MAX, 5_000));
        agent
    }

    async fn send_raw(&mut self, message: Message) {
        self.socket.send(message).await.unwrap();
    }

    async fn receive_raw(&mut self) -> Option<Message> {
        let message = tokio::time::timeout(Duration::from_secs(20), self.socket.next()).await.unwrap();
        message.and_then(Result::ok)
    }

    async fn send(&mut self, message: &AgentMessage<'_>) {
        self.send_raw(Message::Binary(frame::encode(message).unwrap().into())).await;
    }

    /// The next message of the hub, as an owned frame; none once the hub has closed.
    async fn receive(&mut self) -> Option<bytes::Bytes> {
        loop {
            match self.receive_raw().await? {
                Message::Binary(bytes) => return Some(bytes),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    /// What the hub answers to a first frame that it does not take.
    async fn refusal(&mut self, first: Message) -> (String, CloseFrame) {
        self.send_raw(first).await;
        let Some(Message::Binary(answer)) = self.receive_raw().await else { panic!("no answer") };
        let Err(HandshakeError::Refused { reason }) = handshake::decode_answer(&answer) else { panic!("no refusal") };
        (reason, self.close_frame().await)
    }

    async fn close_frame(&mut self) -> CloseFrame {
        loop {
            match self.receive_raw().await {
                Some(Message::Close(Some(close))) => return close,
                Some(_) => {}
                None => panic!("no close frame"),
            }
        }
    }

    async fn offer(&mut self) -> JobOffer {
        let bytes = self.receive().await.unwrap();
        let HubMessage::JobOffer(offer) = frame::decode(&bytes).unwrap() else { panic!("no offer") };
        offer
    }

    async fn get_ready(&mut self) -> JobOffer {
        let offer = self.offer().await;
        self.say_ready(offer.job).await;
        offer
    }

    async fn say_ready(&mut self, job: JobId) {
        let ready = JobReady {
            train_samples: 60_000,
            test_samples: 10_000,
            batch_max: None,
            batch_step: 1,
            calibration: vec![],
        };
        self.send(&AgentMessage::JobReady { job, ready }).await;
    }

    async fn push(&mut self, job: JobId, work: (AssignmentId, Version, u32), gradient: &[u8]) {
        let (assignment, version, samples) = work;
        let bytes = gradient.len() as u64;
        self.send(&AgentMessage::PushBegin { job, assignment, version, bytes }).await;
        for (index, chunk) in gradient.chunks(CHUNK_BYTES).enumerate() {
            let offset = (index * CHUNK_BYTES) as u64;
            self.send(&AgentMessage::PushChunk { assignment, offset, bytes: chunk }).await;
        }
        let timings = StepTimings { compute_s: 0.01, cpu_s: 0.01, ..StepTimings::default() };
        let report = StepReport { loss: 1.0, metric_sums: vec![0.0], timings: Some(timings), samples };
        self.send(&AgentMessage::PushEnd { assignment, report }).await;
    }

    /// Takes part with a gradient of 0.001 times the parameters until the hub or the job ends. Returns the pushes accepted.
    async fn work(mut self) -> usize {
        let mut parameters = Vec::new();
        let mut held = None;
        let mut accepted = 0;
        let mut job = JobId(0);
        while let Some(bytes) = self.receive().await {
            match frame::decode(&bytes).unwrap() {
                HubMessage::JobOffer(offer) => {
                    job = offer.job;
                    self.say_ready(job).await;
                }
                HubMessage::ParameterChunk { version, offset, total, bytes, .. } => {
                    if offset == 0 {
                        parameters.clear();
                    }
                    assert_eq!(offset, parameters.len() as u64);
                    parameters.extend_from_slice(bytes);
                    if parameters.len() as u64 == total {
                        held = Some(version);
                    }
                }
                HubMessage::Train(work) => {
                    assert_eq!(held, Some(work.version));
                    let values = parameters.as_chunks::<4>().0.iter();
                    let gradient: Vec<u8> =
                        values.flat_map(|bytes| (f32::from_le_bytes(*bytes) * 1e-3).to_le_bytes()).collect();
                    self.push(job, (work.assignment, work.version, work.samples()), &gradient).await;
                }
                HubMessage::Evaluate(work) => {
                    assert_eq!(held, Some(work.version));
                    let samples = work.end - work.start;
                    let metric_sums = vec![f64::from(samples) / 2.0];
                    let loss_sum = f64::from(samples);
                    let assignment = work.assignment;
                    self.send(&AgentMessage::Evaluated { assignment, samples, loss_sum, metric_sums }).await;
                }
                HubMessage::PushOutcome { outcome, .. } => match outcome {
                    PushOutcome::Accepted { .. } => accepted += 1,
                    PushOutcome::Refused { reason } => panic!("refused: {reason}"),
                },
                HubMessage::Cancel { .. } => {}
                HubMessage::JobEnded { .. } | HubMessage::Closing { .. } => return accepted,
                other => panic!("{other:?}"),
            }
        }
        accepted
    }
}

#[tokio::test]
async fn a_job_runs_to_its_end_and_leaves_weights_and_records() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let agents = ["pi", "jetson"].map(|name| (name, name.len() as u64));
    let mut working = Vec::new();
    for (name, process) in agents {
        working.push(tokio::spawn(Agent::connect(&hub, name, process).await.work()));
    }
    let keys = format!("[fleet]\nwait_for_agents = 2\n[stop]\nsteps = 20\n[evaluate]\nevery_steps = 10\n{KERNEL}");
    let job = hub.submit(&keys).await.unwrap();
    let view = hub.job_when(job.id, |view| view.state.is_final()).await;
    assert_eq!((view.state, view.message.as_str()), (JobState::Done, "20 steps are done"));
    let progress = view.progress.unwrap();
    assert_eq!((progress.version, progress.accuracy), (20, Some(0.5)));
    let mut accepted = 0;
    for work in working {
        accepted += work.await.unwrap();
    }
    assert_eq!(accepted, 40);

    let page = hub.call(|client| client.records(1, 0).unwrap()).await;
    assert_eq!((page.rounds.len(), page.evaluations.len(), page.steps.len()), (20, 2, 40));
    assert!(page.rounds.iter().all(|round| round.samples == 256));
    assert_eq!(page.steps.iter().map(|step| step.agent).collect::<BTreeSet<_>>().len(), 2);

    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.safetensors");
    let (weights, csv) = (path.clone(), out.path().to_owned());
    let rows = hub.call(move |client| {
        crate::export::weights(&client, 1, &weights).unwrap();
        crate::export::csv(&client, 1, &csv).unwrap()
    });
    assert_eq!(rows.await as usize, 20 + 2 + 40 + page.batches.len());
    let bytes = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let elements: usize = tensors.iter().map(|(_, tensor)| tensor.shape().iter().product::<usize>()).sum();
    assert_eq!(elements as u64, view.parameters);
    assert_eq!(std::fs::read_to_string(out.path().join("rounds.csv")).unwrap().lines().count(), 21);
    hub.stop().await;
}

#[tokio::test]
async fn the_hub_ends_in_order_and_a_restart_knows_what_was_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let mut agent = Agent::connect(&hub, "pi", 1).await;
    let running = hub.submit(KERNEL).await.unwrap();
    let queued = hub.submit(KERNEL).await.unwrap();
    agent.get_ready().await;
    hub.job_when(running.id, |view| view.progress.as_ref().is_some_and(|progress| progress.phase == "training")).await;
    let stopping = Instant::now();
    hub.stop().await;
    assert!(stopping.elapsed() < Duration::from_secs(2));
    let mut closing = None;
    while let Some(bytes) = agent.receive().await {
        if let HubMessage::Closing { reason, reconnect } = frame::decode(&bytes).unwrap() {
            closing = Some((reason, reconnect));
        }
    }
    assert_eq!(closing, Some(("the hub is shutting down".to_owned(), true)));

    let hub = Hub::start(folder.path(), None).await;
    let view = hub.job_when(running.id, |_| true).await;
    assert_eq!(view.state, JobState::Interrupted);
    let weights = hub.call(move |client| {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut client.weights(running.id).unwrap(), &mut bytes).unwrap();
        bytes
    });
    safetensors::SafeTensors::deserialize(&weights.await).unwrap();
    // The job that waited goes on, and so does the agent's number.
    hub.job_when(queued.id, |view| view.state == JobState::Running).await;
    let mut agent = Agent::connect(&hub, "pi", 2).await;
    assert_eq!(agent.offer().await.job, JobId(queued.id));
    let agents = hub.call(|client| client.agents().unwrap()).await;
    assert_eq!(agents.iter().map(|agent| (agent.id, agent.connected)).collect::<Vec<_>>(), [(1, true)]);
    hub.stop().await;
}

#[tokio::test]
async fn agents_time_themselves_at_sizes_within_the_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    for (job, (keys, expected)) in [
        ("", &[4, 16][..]),
        ("[training]\nglobal_batch = 8", &[4]),
        ("[batching]\ncalibration_batches = [2]", &[2]),
        ("[batching]\ncalibration_batches = []", &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut agent = Agent::connect(&hub, "pi", 1).await;
        hub.submit(&format!("{keys}\n{KERNEL}")).await.unwrap();
        assert_eq!(agent.offer().await.calibration_batches, expected);
        hub.call(move |client| client.stop(job as u64 + 1).unwrap()).await;
    }
    hub.stop().await;
}

#[tokio::test]
async fn exit_when_done_ends_the_hub_and_sends_agents_home() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { state: folder.path().to_owned(), key: None, token: None, exit_when_done: true, mqtt: None };
    let hub = Hub::start_with(config).await;
    let agent = tokio::spawn(Agent::connect(&hub, "pi", 1).await.work());
    hub.submit(&format!("[stop]\nsteps = 3\n{KERNEL}")).await.unwrap();
    assert_eq!(hub.task.await.unwrap().unwrap(), Outcome { ended: 1, failed: 0 });
    assert_eq!(agent.await.unwrap(), 3);
}

#[tokio::test]
async fn a_stopped_job_makes_way_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let first = hub.submit(KERNEL).await.unwrap();
    let second = hub.submit(KERNEL).await.unwrap();
    let third = hub.submit(KERNEL).await.unwrap();
    hub.job_when(first.id, |view| view.state == JobState::Running).await;
    hub.call(move |client| client.stop(third.id).unwrap()).await;
    hub.call(move |client| client.stop(first.id).unwrap()).await;
    hub.job_when(first.id, |view| view.state == JobState::Stopped).await;
    let view = hub.job_when(second.id, |view| view.state == JobState::Running).await;
    let waiting = &view.progress.unwrap().waiting;
    assert_eq!(waiting, &["waiting for agents: 0 of 1 ready"]);
    assert_eq!(hub.job_when(third.id, |_| true).await.state, JobState::Stopped);
    let error = hub.call(move |client| client.stop(third.id).unwrap_err()).await;
    assert_eq!(error.to_string(), "job 3 is stopped already");
    hub.stop().await;
}

#[tokio::test]
async fn a_kernel_is_sent_from_any_byte_on() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let mut agent = Agent::connect(&hub, "pi", 1).await;
    hub.submit(KERNEL).await.unwrap();
    let offer = agent.offer().await;
    let component = component();
    assert_eq!(offer.kernel_bytes, component.len() as u64);
    for offset in [0, 1_000, component.len() as u64] {
        agent.send(&AgentMessage::FetchKernel { digest: offer.kernel_digest, offset }).await;
        let bytes = agent.receive().await.unwrap();
        let HubMessage::KernelChunk { digest, offset: found, bytes, total } = frame::decode(&bytes).unwrap() else {
            panic!("no kernel");
        };
        assert_eq!((digest, found, total), (offer.kernel_digest, offset, offer.kernel_bytes));
        assert!(bytes == &component[offset as usize..]);
    }
    agent.send(&AgentMessage::FetchKernel { digest: [0; 32], offset: 0 }).await;
    assert_eq!(agent.close_frame().await.reason.as_str(), "asked for a kernel that this hub does not have");
    hub.stop().await;
}

#[tokio::test]
async fn every_refused_hello_gets_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), Some("secret")).await;
    let binary = |bytes: Vec<u8>| Message::Binary(bytes.into());
    let with_token =
        |token: Option<&str>| handshake::encode_hello(&Hello { token: token.map(str::to_owned), ..hello("pi", 1) });
    let mut future = with_token(Some("secret"));
    future[4..8].copy_from_slice(&[9, 0, 9, 0]);
    let cases = [
        (binary(with_token(None)), "this hub asks for a token"),
        (binary(with_token(Some("guess"))), "the token is not this hub's"),
        (binary(future), "protocol 9..=9 not supported, need 1..=1"),
        (binary(b"GET / HTTP/1.1".to_vec()), "the peer is not an OmniLearn agent"),
        (binary(vec![0; 20_000]), "hello of 20000 bytes, at most 16384 allowed"),
        (Message::Text("hello".into()), "the first frame is text, not a hello"),
    ];
    let count = cases.len() as u64;
    for (first, expected) in cases {
        let (reason, close) = Agent::dial(&hub).await.refusal(first).await;
        assert!(reason.starts_with(expected), "{reason}");
        assert_eq!(u16::from(close.code), 1008);
    }
    assert_eq!(hub.counter("handshakes_refused").await, count);
    hub.stop().await;
}

#[tokio::test]
async fn of_two_processes_with_one_name_the_first_stays_and_of_two_connections_of_one_process_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let mut first = Agent::connect(&hub, "pi", 1).await;
    let other = Message::Binary(handshake::encode_hello(&hello("pi", 2)).into());
    let (reason, _) = Agent::dial(&hub).await.refusal(other).await;
    assert!(reason.starts_with("the name `pi` is taken by another process, connected from tcp 127.0.0.1:"), "{reason}");
    let mut second = Agent::connect(&hub, "pi", 1).await;
    assert_eq!(first.close_frame().await.reason.as_str(), "replaced by a newer connection of the same process");
    hub.submit(KERNEL).await.unwrap();
    second.offer().await;
    hub.stop().await;
}

#[tokio::test]
async fn an_oversize_message_is_answered_with_1009_and_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let mut agent = Agent::connect(&hub, "pi", 1).await;
    agent.send_raw(Message::Binary(vec![0; FRAME_BYTES_MAX + 1].into())).await;
    let close = agent.close_frame().await;
    assert_eq!(u16::from(close.code), 1009);
    assert_eq!(close.reason.as_str(), format!("message too long, at most {FRAME_BYTES_MAX} bytes allowed"));
    assert_eq!(hub.counter("frames_oversize").await, 1);
    // Not for ever: the same agent comes back.
    Agent::connect(&hub, "pi", 1).await;
    hub.stop().await;
}

#[tokio::test]
async fn a_malformed_message_is_counted_and_answered_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    for (message, code, expected) in [
        (Message::Binary(vec![0xFF; 32].into()), 1007, "frame of 32 bytes is not a message"),
        (Message::Binary(vec![0, 0].into()), 1007, "frame has 1 bytes after its message"),
        (Message::Text("heartbeat".into()), 1003, "text frame"),
    ] {
        let mut agent = Agent::connect(&hub, "pi", 1).await;
        agent.send_raw(message).await;
        let close = agent.close_frame().await;
        assert_eq!(u16::from(close.code), code);
        assert!(close.reason.starts_with(expected), "{}", close.reason);
    }
    assert_eq!(hub.counter("frames_refused").await, 3);
    hub.stop().await;
}

#[tokio::test]
async fn a_push_without_a_job_changes_nothing_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let mut agent = Agent::connect(&hub, "pi", 1).await;
    hub.submit(KERNEL).await.unwrap();
    let offer = agent.offer().await;
    agent.push(offer.job, (AssignmentId(1), Version(0), 1), &[0; 64]).await; // not ready yet
    agent.say_ready(JobId(77)).await; // for another job
    let give_up = Instant::now() + Duration::from_secs(20);
    while hub.counter("reports_out_of_place").await < 4 {
        assert!(Instant::now() < give_up);
    }
    hub.stop().await;
}

#[tokio::test]
async fn an_agent_that_cannot_take_part_is_named_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let mut agent = Agent::connect(&hub, "pi", 1).await;
    let job = hub.submit(KERNEL).await.unwrap();
    let offer = agent.offer().await;
    agent.send(&AgentMessage::JobDeclined { job: offer.job, reason: "no mnist here".into() }).await;
    let view = hub.job_when(job.id, |view| view.progress.as_ref().is_some_and(|it| !it.declined.is_empty())).await;
    assert_eq!(view.progress.unwrap().declined["pi"], "no mnist here");
    hub.stop().await;
}

#[tokio::test]
async fn a_job_that_cannot_start_is_refused_with_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    for (keys, expected) in [
        (
            "[optimizer]\nlearning_rat = 1.0",
            "line 3: unknown key `learning_rat` in [optimizer], did you mean `learning_rate`?",
        ),
        ("[training]\nglobal_batch = 0", "[training] global_batch: 0 is not between 1 and the 60000 training samples"),
        (
            "[batching]\nbatch_min = 100\n[fleet]\nagents_min = 3",
            "[batching] batch_min: 3 agents with at least 100 samples each need a global batch of 300, it is 256",
        ),
        (
            "[batching]\nbatch_max = 100\n[fleet]\nwait_for_agents = 2",
            "[batching] batch_max: 2 agents with at most 100 samples each make a global batch of 200, it is 256",
        ),
        ("[schedule]\nkind = \"step\"", "[schedule] milestones: kind = \"step\" needs the steps"),
        (
            "[evaluate]\nevery_steps = 1\nevery_epochs = 1",
            "[evaluate]: every_steps and every_epochs exclude each other",
        ),
        (
            "[kernel.settings]\nclasses = 3",
            "kernel and data set do not fit: mnist has 10 classes, the kernel is set to 3",
        ),
        ("[kernel.settings]\nclases = 10", "[kernel.settings]: "),
    ] {
        let error = hub.submit(&format!("{keys}\n{KERNEL}")).await.unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(matches!(error, ClientError::Refused { status: 422, .. }));
    }
    let component = component();
    let text = format!("dataset = \"fashion-mnits\"\n{KERNEL}");
    let error = hub.call(move |client| client.submit(&text, &component, None, None).unwrap_err()).await;
    assert_eq!(error.to_string(), "dataset: no data set is named \"fashion-mnits\", did you mean \"fashion-mnist\"?");
    let error = hub.call(|client| client.submit("", b"\0asm\x01\0\0\0", None, None).unwrap_err()).await;
    assert!(matches!(error, ClientError::Refused { status: 422, .. }), "{error}");
    assert_eq!(hub.call(|client| client.jobs().unwrap()).await, []);
    hub.stop().await;
}

#[tokio::test]
async fn the_hub_signs_with_the_key_that_it_made_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys = BTreeSet::new();
    for _ in 0..2 {
        let hub = Hub::start(folder.path(), None).await;
        keys.insert(hub.call(|client| client.health().unwrap().key).await);
        hub.submit(KERNEL).await.unwrap();
        let offer = Agent::connect(&hub, "pi", 1).await.offer().await;
        let [signature] = offer.signatures[..] else { panic!("{:?}", offer.signatures) };
        let signature = Signature::from(&signature);
        signature.verify(&offer.kernel_digest).unwrap();
        keys.insert(signature.key().to_string());
        hub.stop().await;
    }
    assert_eq!(keys.len(), 1, "{keys:?}");
    let key = crate::key_file::read(&folder.path().join("hub.key")).unwrap();
    assert!(keys.contains(&key.public().to_string()));
}

#[tokio::test]
async fn a_key_that_is_provided_as_a_secret_is_used_and_none_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let key = crate::key_file::create(&file).unwrap().public().to_string();
    let state = folder.path().join("state");
    let config = |key| Config { state: state.clone(), key: Some(key), token: None, exit_when_done: false, mqtt: None };
    let hub = Hub::start_with(config(file.clone())).await;
    assert_eq!(hub.call(|client| client.health().unwrap().key).await, key);
    hub.stop().await;
    assert!(!state.join("hub.key").exists());
    // A secret that is missing is not replaced by another one.
    std::fs::remove_file(&file).unwrap();
    let error = Hub::start_with(config(file)).await.task.await.unwrap().unwrap_err();
    assert!(matches!(error, RunError::Key(_)), "{error}");
}

#[tokio::test]
async fn an_authors_signature_is_checked_and_handed_on_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let component = component();
    let (author, digest) = (KeyPair::from_secret(&[9; 32]), crate::digest::sha256(&component));
    let submit = |signature: String| {
        let component = component.clone();
        let text = format!("dataset = \"mnist\"\n{KERNEL}\n");
        hub.call(move |client| client.submit(&text, &component, Some(signature), None))
    };
    let right = author.sign(&digest).to_string();
    let other_key = right.replace(&author.public().to_string(), &KeyPair::from_secret(&[8; 32]).public().to_string());
    for (signature, expected) in [
        (author.sign(&[0; 32]).to_string(), "the component has changed since it was signed"),
        (other_key, "another key is named than the one that signed"),
        ("key 12".to_owned(), "the kernel's signature: a signature has the lines"),
    ] {
        let error = submit(signature).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(matches!(error, ClientError::Refused { status: 422, .. }));
    }
    assert_eq!(hub.call(|client| client.jobs().unwrap()).await, []);

    let first = submit(right.clone()).await.unwrap();
    let waiting = submit(right).await.unwrap();
    let signers = |offer: JobOffer| {
        let signatures: Vec<Signature> = offer.signatures.iter().map(Signature::from).collect();
        assert!(signatures.iter().all(|signature| signature.verify(&digest).is_ok()));
        signatures.iter().map(|signature| signature.key().to_string()).collect::<Vec<_>>()
    };
    let expected = [hub.call(|client| client.health().unwrap().key).await, author.public().to_string()];
    let mut agent = Agent::connect(&hub, "pi", 1).await;
    let offer = agent.offer().await;
    assert_eq!(offer.job, JobId(first.id));
    assert_eq!(signers(offer), expected);
    hub.stop().await;
    let hub = Hub::start(folder.path(), None).await;
    let mut agent = Agent::connect(&hub, "pi", 1).await;
    let offer = agent.offer().await;
    assert_eq!(offer.job, JobId(waiting.id));
    assert_eq!(signers(offer), expected);
    hub.stop().await;
}

/// The tensors of a job that waits for its first agent, as (name, bytes).
async fn first_values(hub: &Hub, job: u64) -> (Vec<u8>, std::collections::BTreeMap<String, Vec<u8>>) {
    hub.job_when(job, |view| view.state == JobState::Running).await;
    let bytes = hub.call(move |client| {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut client.weights(job).unwrap(), &mut bytes).unwrap();
        bytes
    });
    let bytes = bytes.await;
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors = tensors.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect();
    (bytes, tensors)
}

#[tokio::test]
async fn a_job_begins_with_given_weights_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let drawn = hub.submit(&format!("seed = 1\n{KERNEL}")).await.unwrap();
    let (bytes, drawn_values) = first_values(&hub, drawn.id).await;

    let user = tempfile::tempdir().unwrap();
    std::fs::write(user.path().join("mlp.wasm"), component()).unwrap();
    std::fs::write(user.path().join("first.safetensors"), bytes).unwrap();
    let submit = async |except: &str| {
        let text = format!(
            "dataset = \"mnist\"\nseed = 2\n{KERNEL}\nweights = \"first.safetensors\"\nweights_except = [{except}]\n"
        );
        let path = user.path().join("job.toml");
        std::fs::write(&path, text).unwrap();
        hub.call(move |client| client.submit_file(&path).unwrap()).await
    };
    let given = submit("").await;
    let partly = submit("\"*.bias\"").await;
    assert_eq!((given.state, given.message.as_str()), (JobState::Queued, ""));
    hub.stop().await;
    let kept = std::fs::read_dir(folder.path().join("given-weights")).unwrap();
    assert_eq!(kept.count(), 1, "two jobs share one file");

    let hub = Hub::start(folder.path(), None).await;
    let (_, given_values) = first_values(&hub, given.id).await;
    assert!(given_values == drawn_values);
    hub.call(move |client| client.stop(given.id).unwrap()).await;
    let (_, partly_values) = first_values(&hub, partly.id).await;
    for (name, values) in &drawn_values {
        assert_eq!(partly_values[name] == *values, !name.ends_with(".bias"), "{name}");
    }
    hub.stop().await;
}

#[tokio::test]
async fn weights_that_do_not_fit_the_kernel_are_refused_with_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let drawn = hub.submit(KERNEL).await.unwrap();
    let (bytes, _) = first_values(&hub, drawn.id).await;
    hub.call(move |client| client.stop(drawn.id).unwrap()).await;
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (last, view) = whole.tensors().into_iter().max_by_key(|(name, _)| name.clone()).unwrap();
    let others = || whole.tensors().into_iter().filter(|(name, _)| *name != last);
    let renamed = others().chain([("other.weight".to_owned(), view.clone())]);
    let renamed = safetensors::serialize(renamed, None).unwrap();

    let user = tempfile::tempdir().unwrap();
    let path = user.path().join("renamed.safetensors");
    std::fs::write(&path, &renamed).unwrap();
    let weights = hub.call(move |client| client.send_weights(&path).unwrap()).await;
    assert_eq!(weights, crate::digest::to_hex(&crate::digest::sha256(&renamed)));
    let submit = async |keys: &str, weights: Option<String>| {
        let (text, component) = (format!("dataset = \"mnist\"\n{KERNEL}\n{keys}\n"), component());
        hub.call(move |client| client.submit(&text, &component, None, weights)).await
    };
    let named = "weights = \"renamed.safetensors\"";
    for (keys, weights, expected) in [
        (named, Some(weights.clone()), format!("[kernel] weights: the file has no tensor `{last}` ")),
        (named, None, "[kernel] weights: the submission comes without the file".to_owned()),
        ("", Some(weights.clone()), "[kernel] weights: the submission comes with a file".to_owned()),
        (named, Some("00".repeat(32)), format!("no weights {} are here", "00".repeat(32))),
        ("weights_except = [\"fc.*\"]", None, "[kernel] weights_except: there are no `weights`".to_owned()),
        (
            &format!("{named}\nweights_except = [\"head.*\"]"),
            Some(weights.clone()),
            "[kernel] weights_except: no tensor of the kernel is named as \"head.*\" says; its first are ".to_owned(),
        ),
    ] {
        let error = submit(keys, weights).await.unwrap_err();
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(matches!(error, ClientError::Refused { status: 422, .. }));
    }
    assert_eq!(hub.call(|client| client.jobs().unwrap()).await.len(), 1);

    let job = submit(&format!("{named}\nweights_except = [\"{last}\"]"), Some(weights)).await.unwrap();
    assert_eq!(job.message, "a tensor of the weights file is not in the kernel and not used: `other.weight`");
    hub.stop().await;
}

#[tokio::test]
async fn frozen_parameters_are_fetched_once_never_stepped_and_exported_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let drawn = hub.submit(&format!("seed = 1\n{KERNEL}")).await.unwrap();
    let (bytes, drawn_values) = first_values(&hub, drawn.id).await;
    let keys = format!("seed = 1\n[stop]\nsteps = 3\n[evaluate]\nevery_steps = 100\n{KERNEL}\nfrozen = [\"*.weight\"]");
    let job = hub.submit(&keys).await.unwrap();
    let elements = |end: &str| -> usize {
        drawn_values.iter().filter(|(name, _)| name.ends_with(end)).map(|(_, values)| values.len() / 4).sum()
    };
    assert_eq!((job.parameters_frozen, job.parameters), (elements("weight") as u64, elements("") as u64));
    hub.stop().await;

    let hub = Hub::start(folder.path(), None).await;
    hub.job_when(job.id, |view| view.state == JobState::Running).await;
    let mut reader = Agent::connect(&hub, "reader", 1).await;
    let frozen = reader.offer().await.frozen.unwrap();
    assert_eq!(frozen.bytes, 4 * elements("weight") as u64);
    let mut fetched = Vec::new();
    while (fetched.len() as u64) < frozen.bytes {
        let (digest, offset) = (frozen.digest, fetched.len() as u64);
        reader.send(&AgentMessage::FetchData { digest, offset, bytes: 100_000 }).await;
        let frame = reader.receive().await.unwrap();
        let HubMessage::DataChunk { bytes, total, .. } = frame::decode(&frame).unwrap() else { panic!("no piece") };
        assert!(total == frozen.bytes && !bytes.is_empty());
        fetched.extend_from_slice(bytes);
    }
    assert_eq!(crate::digest::sha256(&fetched), frozen.digest);
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let in_order = header.offset_keys().into_iter().filter(|name| name.ends_with(".weight"));
    assert!(fetched == in_order.flat_map(|name| drawn_values[&name].clone()).collect::<Vec<u8>>());
    drop(reader);

    let working = tokio::spawn(Agent::connect(&hub, "pi", 2).await.work());
    let view = hub.job_when(job.id, |view| view.state.is_final()).await;
    assert_eq!(view.state, JobState::Done);
    let pushed = view.progress.unwrap().counters["push_bytes"];
    assert_eq!(pushed, working.await.unwrap() as u64 * 4 * elements("bias") as u64);
    let exported = hub.call(move |client| {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut client.weights(job.id).unwrap(), &mut bytes).unwrap();
        bytes
    });
    let exported = exported.await;
    let tensors = safetensors::SafeTensors::deserialize(&exported).unwrap();
    assert_eq!(tensors.len(), drawn_values.len());
    for (name, values) in &drawn_values {
        assert_eq!(tensors.tensor(name).unwrap().data() == values, name.ends_with(".weight"), "{name}");
    }
    hub.stop().await;
}

#[tokio::test]
async fn patterns_of_frozen_parameters_that_fit_none_or_all_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    for (patterns, expected) in [
        (
            "\"head.*\"",
            "[kernel] frozen: no parameter of the kernel is named as \"head.*\" says; its first are fc1.weight, ",
        ),
        (
            "\"fc1.*\", \"*.weight\", \"*.bias\"",
            "[kernel] frozen: all 4 parameters are frozen, nothing is left to train",
        ),
    ] {
        let error = hub.submit(&format!("{KERNEL}\nfrozen = [{patterns}]")).await.unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(matches!(error, ClientError::Refused { status: 422, .. }));
    }
    hub.stop().await;
}

#[tokio::test]
async fn an_upload_that_is_too_long_or_no_weights_leaves_nothing() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), None).await;
    let mut socket = TcpStream::connect(hub.address).await.unwrap();
    let request = format!("POST /api/v1/weights HTTP/1.1\r\nhost: hub\r\ncontent-length: {}\r\n\r\n", 3u64 << 30);
    socket.write_all(request.as_bytes()).await.unwrap(); // and not one byte more
    let mut answer = vec![0; 1_000];
    let read = socket.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("at most 2147483648 are taken"), "{answer}");

    let user = tempfile::tempdir().unwrap();
    let path = user.path().join("model.pt");
    std::fs::write(&path, b"PK\x03\x04 a zip file of PyTorch").unwrap();
    let error = hub.call(move |client| client.send_weights(&path).unwrap_err()).await;
    assert!(error.to_string().starts_with("the weights: not a safetensors file: "), "{error}");
    assert!(matches!(error, ClientError::Refused { status: 422, .. }), "{error}");
    let long = user.path().join("long.safetensors");
    std::fs::File::create(&long).unwrap().set_len(3 << 30).unwrap();
    let error = hub.call(move |client| client.send_weights(&long).unwrap_err()).await;
    assert!(matches!(error, ClientError::TooLong { .. }), "{error}");

    // An upload that breaks off.
    let mut socket = TcpStream::connect(hub.address).await.unwrap();
    let request = b"POST /api/v1/weights HTTP/1.1\r\nhost: hub\r\ncontent-length: 1000\r\n\r\nhalf";
    socket.write_all(request).await.unwrap();
    drop(socket);
    hub.stop().await;
    assert_eq!(std::fs::read_dir(folder.path().join("given-weights")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_hub_whose_key_is_damaged_says_so_and_makes_no_other() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hub.key"), "").unwrap();
    let error = Hub::start(folder.path(), None).await.task.await.unwrap().unwrap_err();
    assert!(matches!(error, RunError::Key(_)) && error.to_string().ends_with("hub.key"), "{error}");
    assert_eq!(std::fs::read(folder.path().join("hub.key")).unwrap(), b"");
}

#[tokio::test]
async fn a_request_without_the_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), Some("secret")).await;
    let error = hub.call(|client| client.jobs().unwrap_err()).await;
    assert!(matches!(error, ClientError::Refused { status: 401, .. }), "{error}");
    let address = format!("http://{}", hub.address);
    let jobs = tokio::task::spawn_blocking(move || HubClient::new(&address, Some("secret")).jobs());
    assert_eq!(jobs.await.unwrap().unwrap(), []);
    assert_eq!(hub.counter("requests_unauthorized").await, 1);
    hub.stop().await;
}

#[tokio::test]
async fn a_second_hub_on_the_same_state_is_refused_by_the_name_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let first = Hub::start(folder.path(), None).await;
    first.counter("frames_refused").await; // it is up
    let second = Hub::start(folder.path(), None).await;
    let error = second.task.await.unwrap().unwrap_err().to_string();
    let holder = format!("in use by process {} at {}", std::process::id(), first.address);
    assert!(error.contains(&holder), "{error}");
    first.stop().await;
}

#[test]
fn a_wildcard_address_is_shown_as_addresses_that_can_be_dialled() {
    let shown = reachable(SocketAddr::from(([0, 0, 0, 0], 7700)));
    assert_eq!(shown[0], SocketAddr::from(([127, 0, 0, 1], 7700)));
    assert!(shown.iter().all(|address| !address.ip().is_unspecified() && address.is_ipv4()));
}
