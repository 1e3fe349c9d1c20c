//! What waits to be sent to one agent: control messages first, then work with its parameter streams, in order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::HubMessage;
use omnilearn_wire::{AssignmentId, frame};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::limits::{OUTBOUND_BYTES_MAX, OUTBOUND_ITEMS_MAX};
use crate::parameter_stream::ParameterStream;

/// The peer does not take what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too slow: {items} messages of {bytes} bytes already wait for it")]
pub(crate) struct Full {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
}

/// Why a connection ends, as both sides' logs show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Close {
    pub(crate) code: u16,
    pub(crate) reason: String,
    /// Whether the agent should try again.
    pub(crate) reconnect: bool,
}

enum Ordered {
    Frame { bytes: Bytes, assignment: Option<AssignmentId> },
    Parameters { stream: Arc<ParameterStream>, next: usize },
    Kernel { digest: [u8; 32], component: Bytes, offset: usize },
}

#[derive(Default)]
struct Queues {
    control: VecDeque<Bytes>,
    ordered: VecDeque<Ordered>,
    bytes: usize,
    close: Option<Close>,
}

/// The queue of one connection. Any task puts in without waiting; the connection's writer takes out.
#[derive(Default)]
pub(crate) struct Outbound {
    queues: Mutex<Queues>,
    filled: Notify,
    closing: CancellationToken,
}

/// What the writer does next.
pub(crate) enum Next {
    Frame(Bytes),
    Close(Close),
    Empty,
}

impl Outbound {
    fn with<T>(&self, act: impl FnOnce(&mut Queues) -> T) -> T {
        // A panic while the lock is held leaves a queue that is still a queue.
        let result = act(&mut self.queues.lock().unwrap_or_else(PoisonError::into_inner));
        self.filled.notify_one();
        result
    }

    fn put(queues: &mut Queues, bytes: usize) -> Result<(), Full> {
        let items = queues.control.len() + queues.ordered.len();
        if queues.bytes + bytes > OUTBOUND_BYTES_MAX || items >= OUTBOUND_ITEMS_MAX {
            return Err(Full { items, bytes: queues.bytes });
        }
        queues.bytes += bytes;
        Ok(())
    }

    /// Sends before everything that waits but other control messages.
    pub(crate) fn control(&self, message: &HubMessage<'_>) -> Result<(), Full> {
        let bytes = encode(message);
        self.with(|queues| {
            Self::put(queues, bytes.len())?;
            queues.control.push_back(bytes);
            Ok(())
        })
    }

    /// Sends after everything that waits; `parameters` go just before the message, in place of others whose work was taken back:
    /// a slow link would else carry one version after another that nobody wants, and keep them all in memory.
    pub(crate) fn ordered(
        &self,
        message: &HubMessage<'_>,
        parameters: Option<Arc<ParameterStream>>,
    ) -> Result<(), Full> {
        let assignment = match message {
            HubMessage::Train(work) => Some(work.assignment),
            HubMessage::Evaluate(work) => Some(work.assignment),
            _ => None,
        };
        let bytes = encode(message);
        self.with(|queues| {
            Self::put(queues, bytes.len())?;
            if let Some(stream) = parameters {
                while let Some(Ordered::Parameters { .. }) = queues.ordered.back() {
                    queues.ordered.pop_back();
                }
                queues.ordered.push_back(Ordered::Parameters { stream, next: 0 });
            }
            queues.ordered.push_back(Ordered::Frame { bytes, assignment });
            Ok(())
        })
    }

    /// Sends a kernel from a byte on.
    pub(crate) fn kernel(&self, digest: [u8; 32], component: Bytes, offset: usize) -> Result<(), Full> {
        self.with(|queues| {
            Self::put(queues, 0)?;
            queues.ordered.push_back(Ordered::Kernel { digest, component, offset });
            Ok(())
        })
    }

    /// Takes back an assignment, or tells the agent if it is no longer here.
    pub(crate) fn cancel(&self, assignment: AssignmentId) -> Result<(), Full> {
        let taken_back = self.with(|queues| {
            let position = queues.ordered.iter().position(
                |item| matches!(item, Ordered::Frame { assignment: Some(queued), .. } if *queued == assignment),
            );
            match position.and_then(|position| queues.ordered.remove(position)) {
                Some(Ordered::Frame { bytes, .. }) => {
                    queues.bytes -= bytes.len();
                    true
                }
                _ => false,
            }
        });
        if taken_back { Ok(()) } else { self.control(&HubMessage::Cancel { assignment }) }
    }

    /// Ends the connection; nothing that waits is sent but a goodbye. The first reason stays.
    pub(crate) fn close(&self, close: Close) {
        self.with(|queues| {
            queues.control.clear();
            queues.ordered.clear();
            queues.bytes = 0;
            queues.close.get_or_insert(close);
        });
        self.closing.cancel();
    }

    /// Is done once [`Outbound::close`] was called.
    pub(crate) async fn closing(&self) {
        self.closing.cancelled().await;
    }

    /// Takes the next frame. A stream's memory is let go with its last frame, before that is sent.
    pub(crate) fn next(&self) -> Next {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(close) = &queues.close {
            return Next::Close(close.clone());
        }
        if let Some(bytes) = queues.control.pop_front() {
            queues.bytes -= bytes.len();
            return Next::Frame(bytes);
        }
        loop {
            match queues.ordered.front_mut() {
                None => return Next::Empty,
                Some(Ordered::Frame { .. }) => {
                    let Some(Ordered::Frame { bytes, .. }) = queues.ordered.pop_front() else { continue };
                    queues.bytes -= bytes.len();
                    return Next::Frame(bytes);
                }
                Some(Ordered::Parameters { stream, next }) => {
                    let (stream, index) = (Arc::clone(stream), *next);
                    *next += 1;
                    if index + 1 >= stream.frames() {
                        queues.ordered.pop_front();
                    }
                    if index < stream.frames() {
                        drop(queues); // encoding takes its time, and the job task must not wait for it
                        return Next::Frame(stream.frame(index));
                    }
                }
                Some(Ordered::Kernel { digest, component, offset }) => {
                    let end = (*offset + CHUNK_BYTES).min(component.len());
                    let message = HubMessage::KernelChunk {
                        digest: *digest,
                        offset: *offset as u64,
                        total: component.len() as u64,
                        bytes: component.get(*offset..end).unwrap_or_default(),
                    };
                    let bytes = encode(&message);
                    *offset = end;
                    if end >= component.len() {
                        queues.ordered.pop_front();
                    }
                    return Next::Frame(bytes);
                }
            }
        }
    }

    /// Waits until something was put in since the last call.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }
}

fn encode(message: &HubMessage<'_>) -> Bytes {
    frame::encode(message).expect("the hub makes no message over the frame limit").into()
}

#[cfg(test)]
mod tests {
    use omnilearn_hub_core::Snapshot;
    use omnilearn_wire::layout::TensorShape;
    use omnilearn_wire::message::{Computation, PushOutcome, Train};
    use omnilearn_wire::{Codec, JobId, Layout, Version};

    use super::*;

    fn train(assignment: u64) -> HubMessage<'static> {
        HubMessage::Train(Train {
            job: JobId(1),
            assignment: AssignmentId(assignment),
            round: 0,
            version: Version(0),
            spans: vec![],
            seed: 0,
            computation: Computation::Gradient,
        })
    }

    fn parameters() -> Arc<ParameterStream> {
        let layout = Layout::new(vec![TensorShape { name: "w".into(), shape: vec![150_000] }], vec![]).unwrap();
        let values = vec![0.5f32; 150_000];
        let snapshot = Snapshot {
            version: Version(0),
            parameters: values.chunks(262_144).map(Arc::from).collect(),
            buffers: Arc::from(&[][..]),
        };
        Arc::new(ParameterStream::new(JobId(1), Codec::F32, &layout, snapshot))
    }

    fn sent(outbound: &Outbound) -> String {
        let Next::Frame(bytes) = outbound.next() else { return "nothing".into() };
        match frame::decode::<HubMessage<'_>>(&bytes).unwrap() {
            HubMessage::ParameterChunk { offset, .. } => format!("chunk {offset}"),
            HubMessage::Train(work) => format!("train {}", work.assignment),
            HubMessage::Cancel { assignment } => format!("cancel {assignment}"),
            HubMessage::PushOutcome { assignment, .. } => format!("outcome {assignment}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn control_messages_pass_between_chunks_and_work_follows_its_parameters() {
        let outbound = Outbound::default();
        outbound.ordered(&train(1), Some(parameters())).unwrap();
        assert_eq!(sent(&outbound), "chunk 0");
        let outcome = PushOutcome::Refused { reason: String::new() };
        outbound.control(&HubMessage::PushOutcome { assignment: AssignmentId(9), outcome }).unwrap();
        assert_eq!(sent(&outbound), "outcome 9");
        assert_eq!(sent(&outbound), "chunk 262144");
        assert_eq!(sent(&outbound), "chunk 524288");
        assert_eq!(sent(&outbound), "train 1");
        assert_eq!(sent(&outbound), "nothing");
    }

    #[test]
    fn a_cancelled_assignment_that_still_waits_is_never_sent() {
        let outbound = Outbound::default();
        outbound.ordered(&train(1), None).unwrap();
        outbound.ordered(&train(2), None).unwrap();
        outbound.cancel(AssignmentId(1)).unwrap();
        outbound.cancel(AssignmentId(7)).unwrap();
        assert_eq!(sent(&outbound), "cancel 7");
        assert_eq!(sent(&outbound), "train 2");
        assert_eq!(sent(&outbound), "nothing");
    }

    #[test]
    fn parameters_whose_work_was_taken_back_make_room_for_newer_ones() {
        let outbound = Outbound::default();
        let old = parameters();
        let watch = Arc::downgrade(&old);
        outbound.ordered(&train(1), Some(old)).unwrap();
        assert_eq!(sent(&outbound), "chunk 0");
        outbound.cancel(AssignmentId(1)).unwrap();
        outbound.ordered(&train(2), Some(parameters())).unwrap();
        assert!(watch.upgrade().is_none());
        for expected in ["chunk 0", "chunk 262144", "chunk 524288", "train 2", "nothing"] {
            assert_eq!(sent(&outbound), expected);
        }
    }

    #[test]
    fn a_stream_is_let_go_before_its_last_frame_is_sent() {
        let outbound = Outbound::default();
        let stream = parameters();
        let watch = Arc::downgrade(&stream);
        outbound.ordered(&train(1), Some(stream)).unwrap();
        for _ in 0..3 {
            assert!(watch.upgrade().is_some());
            sent(&outbound);
        }
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn a_peer_that_takes_nothing_fills_its_queue() {
        let outbound = Outbound::default();
        for assignment in 0..OUTBOUND_ITEMS_MAX as u64 {
            outbound.ordered(&train(assignment), None).unwrap();
        }
        let full = outbound.ordered(&train(0), None).unwrap_err();
        assert_eq!(full.items, OUTBOUND_ITEMS_MAX);
    }
}
