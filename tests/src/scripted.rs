//! An agent that speaks the protocol but computes nothing: what it pushes, and when, is up to the test.

use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use omnilearn_wire::handshake::{Hello, decode_answer, encode_hello};
use omnilearn_wire::message::{
    AgentMessage, HubMessage, JobOffer, JobReady, Machine, PushOutcome, StepReport, StepTimings, Train,
};
use omnilearn_wire::{AssignmentId, dataset, frame};
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

/// Length of a piece of a gradient, as agents send it.
const CHUNK_BYTES: usize = 256 << 10;

/// A blocking connection to a hub.
pub struct ScriptedAgent {
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    /// The job that it takes part in.
    pub offer: JobOffer,
    /// Length of the job's parameter stream in bytes, known with the first parameters.
    pub stream_bytes: u64,
}

impl ScriptedAgent {
    /// Connects, waits for a job and says that it is ready.
    ///
    /// # Errors
    /// If the hub refuses.
    pub fn join(address: &str, name: &str) -> Result<ScriptedAgent> {
        let (socket, _) = tungstenite::connect(format!("ws://{address}/agent"))?;
        let mut agent = ScriptedAgent { socket, offer: no_offer(), stream_bytes: 0 };
        let machine = Machine { cores: 1, threads: 1, ..Machine::default() };
        let hello = Hello { name: name.to_owned(), token: None, process: u64::from(std::process::id()), machine };
        agent.socket.send(Message::Binary(encode_hello(&hello).into()))?;
        let answer = agent.receive_bytes()?;
        decode_answer(&answer)?;
        let offer = loop {
            let bytes = agent.receive_bytes()?;
            if let HubMessage::JobOffer(offer) = frame::decode(&bytes)? {
                break offer;
            }
        };
        let data = dataset::find(&offer.dataset).context("a data set of the catalogue")?;
        let ready = JobReady {
            train_samples: data.train_samples,
            test_samples: data.test_samples,
            batch_max: None,
            batch_step: 1,
            calibration: Vec::new(),
        };
        agent.send(&AgentMessage::JobReady { job: offer.job, ready })?;
        agent.offer = offer;
        Ok(agent)
    }

    /// Sends one message.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn send(&mut self, message: &AgentMessage<'_>) -> Result<()> {
        Ok(self.socket.send(Message::Binary(frame::encode(message)?.into()))?)
    }

    /// Sends bytes that may be anything.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn send_bytes(&mut self, bytes: Vec<u8>) -> Result<()> {
        Ok(self.socket.send(Message::Binary(bytes.into()))?)
    }

    /// The next binary message.
    ///
    /// # Errors
    /// If the hub closes, with its code and reason.
    pub fn receive_bytes(&mut self) -> Result<Vec<u8>> {
        loop {
            match self.socket.read()? {
                Message::Binary(bytes) => return Ok(bytes.to_vec()),
                Message::Close(close) => bail!("closed: {close:?}"),
                _ => {}
            }
        }
    }

    /// The next assignment to train on; parameters that come before it are counted and dropped.
    ///
    /// # Errors
    /// If the hub closes, or the job ends first.
    pub fn next_train(&mut self) -> Result<Train> {
        loop {
            let bytes = self.receive_bytes()?;
            match frame::decode(&bytes)? {
                HubMessage::Train(train) => return Ok(train),
                HubMessage::ParameterChunk { total, .. } => self.stream_bytes = total,
                HubMessage::JobEnded { reason, .. } => bail!("the job ended: {reason}"),
                _ => {}
            }
        }
    }

    /// What the hub says of an assignment.
    ///
    /// # Errors
    /// If the hub closes first.
    pub fn outcome(&mut self, wanted: AssignmentId) -> Result<PushOutcome> {
        loop {
            let bytes = self.receive_bytes()?;
            match frame::decode(&bytes)? {
                HubMessage::PushOutcome { assignment, outcome } if assignment == wanted => return Ok(outcome),
                HubMessage::ParameterChunk { total, .. } => self.stream_bytes = total,
                _ => {}
            }
        }
    }

    /// Pushes a gradient whose every element is `value`.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn push(&mut self, train: &Train, value: f32) -> Result<()> {
        ensure!(self.stream_bytes > 0, "parameters come before the first assignment");
        let (job, assignment, version) = (self.offer.job, train.assignment, train.version);
        self.send(&AgentMessage::PushBegin { job, assignment, version, bytes: self.stream_bytes })?;
        let chunk: Vec<u8> = value.to_le_bytes().repeat(CHUNK_BYTES / 4);
        let mut offset = 0;
        while offset < self.stream_bytes {
            let length = (self.stream_bytes - offset).min(CHUNK_BYTES as u64) as usize;
            self.send(&AgentMessage::PushChunk { assignment, offset, bytes: &chunk[..length] })?;
            offset += length as u64;
        }
        self.send(&AgentMessage::PushEnd { assignment, report: report(train) })
    }
}

/// A plausible report.
pub fn report(train: &Train) -> StepReport {
    let timings = StepTimings { compute_s: 0.01, cpu_s: 0.01, ..StepTimings::default() };
    StepReport { loss: 1.0, metric_sums: vec![0.0], timings: Some(timings), samples: train.samples() }
}

fn no_offer() -> JobOffer {
    JobOffer {
        job: omnilearn_wire::JobId(0),
        name: String::new(),
        kernel_digest: [0; 32],
        kernel_bytes: 0,
        signatures: Vec::new(),
        settings: Vec::new(),
        dataset: String::new(),
        layout_digest: [0; 32],
        codec: omnilearn_wire::Codec::F32,
        seed: 0,
        calibration_batches: Vec::new(),
        batch_bounds: (0, 0),
        manifest: None,
        augment: omnilearn_wire::message::Augment::default(),
        partition: omnilearn_wire::partition::Partition::Shared,
        frozen: None,
    }
}
