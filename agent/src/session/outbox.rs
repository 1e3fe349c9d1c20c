//! What waits to be sent to the hub, and the loop that sends it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::{Sink, SinkExt};
use omnilearn_wire::message::AgentMessage;
use omnilearn_wire::{AssignmentId, frame};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tracing::{error, trace};

use super::compute::{PushEnd, Usage};
use super::recorder::Recorder;

/// Two queues: control messages, which go first, and pushes in order. A gradient of any size therefore delays a heartbeat
/// by one chunk at most.
#[derive(Clone, Debug)]
pub(super) struct Outbox(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    queues: RefCell<Queues>,
    filled: Notify,
    last_push_end: Cell<Option<Instant>>,
    recorder: Option<Recorder>,
}

#[derive(Debug, Default)]
struct Queues {
    control: VecDeque<Message>,
    bulk: VecDeque<Bulk>,
}

#[derive(Debug)]
struct Bulk {
    assignment: AssignmentId,
    frames: VecDeque<Bytes>,
    end: Option<PushEnd>,
    /// The bytes count against the compute thread's bound until they are written.
    _permit: OwnedSemaphorePermit,
}

enum Next {
    Message(Message),
    End(AssignmentId, PushEnd),
    Nothing,
}

impl Outbox {
    /// Nothing waits yet. The recorder gets the timings of every push.
    pub(super) fn new(recorder: Option<Recorder>) -> Outbox {
        let (queues, filled, last_push_end) = Default::default();
        Outbox(Rc::new(Shared { queues, filled, last_push_end, recorder }))
    }

    /// Sends a message before everything that is not one yet.
    pub(super) fn control(&self, message: &AgentMessage<'_>) {
        match frame::encode(message) {
            Ok(frame) => self.raw(Message::Binary(Bytes::from(frame))),
            // Only a kernel with absurdly many metrics gets here; the hub hears nothing of this assignment and issues it again.
            Err(cause) => error!(%cause, "message is too large to send"),
        }
    }

    /// Sends a frame of the WebSocket protocol itself.
    pub(super) fn raw(&self, message: Message) {
        self.0.queues.borrow_mut().control.push_back(message);
        self.0.filled.notify_one();
    }

    /// Sends complete frames of a push, and what closes it.
    pub(super) fn push(
        &self,
        assignment: AssignmentId,
        frames: Vec<Bytes>,
        end: Option<PushEnd>,
        permit: OwnedSemaphorePermit,
    ) {
        let bulk = Bulk { assignment, frames: frames.into(), end, _permit: permit };
        self.0.queues.borrow_mut().bulk.push_back(bulk);
        self.0.filled.notify_one();
    }

    /// Drops what has not been sent of a push. The hub took the assignment back, so it waits for no end.
    pub(super) fn drop_push(&self, assignment: AssignmentId) {
        self.0.queues.borrow_mut().bulk.retain(|bulk| bulk.assignment != assignment);
    }

    /// Drops every push.
    pub(super) fn drop_pushes(&self) {
        self.0.queues.borrow_mut().bulk.clear();
    }

    /// When the last byte of the last gradient was handed to the operating system.
    pub(super) fn last_push_end(&self) -> Option<Instant> {
        self.0.last_push_end.get()
    }

    fn next(&self) -> Next {
        let mut queues = self.0.queues.borrow_mut();
        if let Some(message) = queues.control.pop_front() {
            return Next::Message(message);
        }
        while let Some(bulk) = queues.bulk.front_mut() {
            if let Some(frame) = bulk.frames.pop_front() {
                return Next::Message(Message::Binary(frame));
            }
            let bulk = queues.bulk.pop_front().expect("its front was just looked at");
            if let Some(end) = bulk.end {
                return Next::End(bulk.assignment, end);
            }
        }
        Next::Nothing
    }

    /// Sends until the connection breaks or `until_empty` finds nothing left.
    ///
    /// `send_s` of a push lasts until everything before its `PushEnd` was handed to the operating system; only then can it
    /// be written into the `PushEnd`, whose own bytes are not counted.
    pub(super) async fn write<S>(
        &self,
        sink: &mut S,
        usage: impl Fn() -> Usage,
        until_empty: bool,
    ) -> Result<(), SocketError>
    where
        S: Sink<Message, Error = SocketError> + Unpin,
    {
        let mut dirty = false;
        loop {
            match self.next() {
                Next::Message(message) => {
                    dirty = true;
                    sink.feed(message).await?;
                }
                Next::End(assignment, end) => {
                    sink.flush().await?;
                    let now = Instant::now();
                    self.0.last_push_end.set(Some(now));
                    let end = close_push(assignment, end, now, usage(), self.0.recorder.as_ref());
                    dirty = true;
                    match frame::encode(&end) {
                        Ok(frame) => sink.feed(Message::Binary(Bytes::from(frame))).await?,
                        Err(cause) => error!(%cause, "message is too large to send"),
                    }
                }
                Next::Nothing if dirty => {
                    sink.flush().await?;
                    dirty = false;
                }
                Next::Nothing if until_empty => return Ok(()),
                Next::Nothing => self.0.filled.notified().await,
            }
        }
    }
}

fn close_push(
    assignment: AssignmentId,
    end: PushEnd,
    now: Instant,
    usage: Usage,
    recorder: Option<&Recorder>,
) -> AgentMessage<'static> {
    let PushEnd { mut report, step, received, encoded, blocked } = end;
    let timings = report.timings.get_or_insert_default();
    timings.wait_s = received.wait.unwrap_or_default().as_secs_f32();
    timings.send_s = (now.saturating_duration_since(encoded) + blocked).as_secs_f32();
    timings.cpu_s = usage.cpu.saturating_sub(received.usage.cpu).as_secs_f32();
    timings.throttled_s = usage.throttled.saturating_sub(received.usage.throttled).as_secs_f32();
    timings.quota_cores = usage.quota_cores;
    trace!(%assignment, ?timings, "push sent");
    if let Some(recorder) = recorder {
        recorder.record(assignment, step, report.samples, timings, now);
        report.timings = report.timings.filter(|_| recorder.is_with_push());
    }
    AgentMessage::PushEnd { assignment, report }
}

#[cfg(test)]
mod tests {
    use omnilearn_mqtt::timings::TimingsFormat;
    use omnilearn_wire::message::{StepReport, StepTimings};
    use omnilearn_wire::{JobId, Version};

    use super::super::compute::{Received, Step};
    use super::*;
    use crate::config::TimingsWay;

    fn closed(recorder: Option<&Recorder>) -> Option<StepTimings> {
        let now = Instant::now();
        let timings = Some(StepTimings { compute_s: 2.0, ..StepTimings::default() });
        let end = PushEnd {
            report: StepReport { loss: 0.5, metric_sums: Vec::new(), timings, samples: 16 },
            step: Step { job: JobId(7), round: 3, version: Version(2) },
            received: Received { usage: Usage::default(), download: Default::default(), wait: None },
            encoded: now,
            blocked: Default::default(),
        };
        match close_push(AssignmentId(5), end, now, Usage::default(), recorder) {
            AgentMessage::PushEnd { report, .. } => report.timings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn timings_are_in_the_push_unless_they_come_by_mqtt_and_recorded_where_there_is_a_broker() {
        assert_eq!(closed(None).unwrap().compute_s, 2.0);
        for (way, pushed) in [(TimingsWay::Push, Some(2.0)), (TimingsWay::Mqtt, None)] {
            let recorder = Recorder::new("pi", TimingsFormat::Json, way);
            assert_eq!(closed(Some(&recorder)).map(|timings| timings.compute_s), pushed);
            let step = recorder.taken().steps[0];
            assert_eq!((step.job, step.assignment, step.round, step.version, step.samples), (7, 5, 3, 2, 16));
            assert_eq!((step.seq, step.timings().compute_s), (0, 2.0));
        }
    }
}
