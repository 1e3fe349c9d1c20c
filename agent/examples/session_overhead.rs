//! What does a step cost besides computing? Runs a session over loopback against an echo hub with compute that does nothing,
//! and prints CPU time per step of the network and the compute thread, wall time per step, and bytes per step.
//!
//! ```text
//! cargo run -p omnilearn-agent --example session_overhead -- [STREAM_BYTES] [STEPS]
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{SinkExt, StreamExt};
use omnilearn_agent::config::{AgentConfig, HubAddress};
use omnilearn_agent::dataset::fetch::HubFiles;
use omnilearn_agent::session::{
    Compute, ComputeError, ComputeFactory, Evaluation, ParameterPiece, Prepared, Usage, run_with,
};
use omnilearn_kernel_host::KeyPair;
use omnilearn_wire::handshake::{self, Welcome};
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::{
    AgentMessage, Augment, Computation, Evaluate, HubMessage, JobOffer, JobReady, KernelSignature, Machine, Span,
    StepReport, StepTimings, Train,
};
use omnilearn_wire::partition::Partition;
use omnilearn_wire::{AgentId, AssignmentId, Codec, JobId, Version, frame};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

const JOB: JobId = JobId(1);
const WARM_UP_STEPS: u64 = 50;

struct Echo(usize);

impl ComputeFactory for Echo {
    fn machine(&self) -> Machine {
        Machine::default()
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn prepare(&self, _: &JobOffer, _: &[u8], _: &mut dyn HubFiles) -> Result<Prepared, String> {
        let ready =
            JobReady { train_samples: 1, test_samples: 1, batch_max: None, batch_step: 1, calibration: Vec::new() };
        Ok(Prepared { compute: Box::new(EchoCompute(vec![0; self.0])), ready })
    }
}

struct EchoCompute(Vec<u8>);

impl Compute for EchoCompute {
    fn stream_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn take_parameters(&mut self, piece: ParameterPiece<'_>) -> Result<(), String> {
        let offset = piece.offset as usize;
        self.0[offset..offset + piece.bytes.len()].copy_from_slice(piece.bytes);
        Ok(())
    }

    fn train(&mut self, _: &Train, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<StepReport, ComputeError> {
        let _ = sink(&self.0); // Break means that nobody wants the rest, and there is none
        Ok(StepReport { loss: 1.0, metric_sums: vec![1.0], timings: Some(StepTimings::default()), samples: 1 })
    }

    fn evaluate(&mut self, _: &Evaluate) -> Result<Evaluation, ComputeError> {
        Ok(Evaluation::default())
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn send(socket: &mut WebSocketStream<TcpStream>, message: &HubMessage<'_>) -> Result<(), Failure> {
    Ok(socket.feed(Message::Binary(frame::encode(message)?.into())).await?)
}

/// CPU time of the threads with this name so far, in seconds.
fn cpu_s(name: &str) -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanoseconds = threads.map(|thread| {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let is_named = read("comm").trim() == name;
        let first = read("schedstat").split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
        if is_named { first } else { 0 }
    });
    nanoseconds.sum::<u64>() as f64 * 1e-9
}

async fn hub(listener: TcpListener, stream_bytes: usize, steps: u64) -> Result<(), Failure> {
    let (tcp, _) = listener.accept().await?;
    tcp.set_nodelay(true)?;
    let mut socket = tokio_tungstenite::accept_async(tcp).await?;
    socket.next().await.ok_or("no hello")??;
    let welcome = Welcome { agent: AgentId(1), heartbeat_ms: 5000, hub_version: String::new() };
    let welcome = handshake::encode_welcome(handshake::PROTOCOL_MAX, &welcome);
    socket.send(Message::Binary(welcome.into())).await?;
    let kernel = b"kernel";
    let digest: [u8; 32] = Sha256::digest(kernel).into();
    let offer = JobOffer {
        job: JOB,
        name: String::new(),
        kernel_digest: digest,
        kernel_bytes: kernel.len() as u64,
        signatures: vec![KernelSignature::from(&KeyPair::from_secret(&[1; 32]).sign(&digest))],
        settings: Vec::new(),
        dataset: String::new(),
        layout_digest: [0; 32],
        codec: Codec::F32,
        seed: 0,
        calibration_batches: Vec::new(),
        batch_bounds: (1, 1),
        manifest: None,
        augment: Augment::default(),
        partition: Partition::Shared,
        frozen: None,
    };
    send(&mut socket, &HubMessage::JobOffer(offer)).await?;
    socket.flush().await?;
    let parameters = vec![1u8; stream_bytes];
    let mut step = 0;
    let mut start = (Instant::now(), 0.0, 0.0);
    let (mut wait, mut send_s) = (0.0, 0.0);
    while let Some(message) = socket.next().await {
        let Message::Binary(bytes) = message? else { continue };
        match frame::decode::<AgentMessage<'_>>(&bytes)? {
            AgentMessage::FetchKernel { .. } => {
                send(
                    &mut socket,
                    &HubMessage::KernelChunk { digest, offset: 0, total: kernel.len() as u64, bytes: kernel },
                )
                .await?;
                socket.flush().await?;
                continue;
            }
            AgentMessage::PushEnd { report, .. } => {
                let timings = report.timings.unwrap_or_default();
                wait += f64::from(timings.wait_s);
                send_s += f64::from(timings.send_s);
            }
            AgentMessage::JobReady { .. } => (),
            _ => continue,
        }
        step += 1;
        if step == WARM_UP_STEPS {
            start = (Instant::now(), cpu_s("olrn-network"), cpu_s("olrn-compute"));
            (wait, send_s) = (0.0, 0.0);
        }
        if step == WARM_UP_STEPS + steps {
            let per_step = |seconds: f64| seconds / steps as f64 * 1e3;
            let (network, compute) = (cpu_s("olrn-network") - start.1, cpu_s("olrn-compute") - start.2);
            println!("stream {stream_bytes} bytes each way, {steps} steps");
            println!("wall     {:.3} ms per step", per_step(start.0.elapsed().as_secs_f64()));
            println!("network  {:.3} ms CPU per step", per_step(network));
            println!("compute  {:.3} ms CPU per step", per_step(compute));
            println!("together {:.3} ms CPU per step", per_step(network + compute));
            println!("reported wait {:.3} ms, send {:.3} ms", per_step(wait), per_step(send_s));
            return Ok(());
        }
        for (index, bytes) in parameters.chunks(CHUNK_BYTES).enumerate() {
            let (offset, total, version) = ((index * CHUNK_BYTES) as u64, stream_bytes as u64, Version(step));
            send(&mut socket, &HubMessage::ParameterChunk { job: JOB, version, offset, total, bytes }).await?;
        }
        let spans = vec![Span { epoch: 0, start: 0, end: 1 }];
        let work = Train {
            job: JOB,
            assignment: AssignmentId(step),
            round: step,
            version: Version(step),
            spans,
            seed: 0,
            computation: Computation::Gradient,
        };
        send(&mut socket, &HubMessage::Train(work)).await?;
        socket.flush().await?;
    }
    Err("the agent has gone".into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let stream_bytes = arguments.next().map_or(Ok(247_000), |bytes| bytes.parse())?;
    let steps = arguments.next().map_or(Ok(2000), |steps| steps.parse())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut config = AgentConfig::new(HubAddress::parse(&format!("ws://{}", listener.local_addr()?))?);
    config.cache = std::env::temp_dir().join(format!("omnilearn-overhead-{}", std::process::id()));
    let cache = config.cache.clone();
    let shutdown = CancellationToken::new();
    let agent = tokio::spawn(run_with(config, Arc::new(Echo(stream_bytes)), shutdown.clone()));
    let result = hub(listener, stream_bytes, steps).await;
    shutdown.cancel();
    agent.await??;
    std::fs::remove_dir_all(cache)?;
    result
}
