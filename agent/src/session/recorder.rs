//! Keeps what each step took for the broker, if there is one. Training never waits for it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::{STEPS_MAX_DEFAULT, TimedStep, TimingsBuffer, TimingsFormat};
use omnilearn_wire::AssignmentId;
use omnilearn_wire::message::StepTimings;
use tokio::sync::Notify;

use super::compute::Step;
use crate::config::TimingsWay;

/// A bounded queue of timings: when it is full, the oldest are dropped and counted. It outlives connections to hub and broker.
#[derive(Clone, Debug)]
pub(super) struct Recorder(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    buffer: RefCell<TimingsBuffer>,
    filled: Notify,
    way: TimingsWay,
    began: Instant,
}

impl Recorder {
    /// Nothing is recorded yet. The process began now.
    pub(super) fn new(agent: &str, format: TimingsFormat, way: TimingsWay) -> Recorder {
        let buffer = RefCell::new(TimingsBuffer::new(agent, format, STEPS_MAX_DEFAULT));
        Recorder(Rc::new(Shared { buffer, filled: Notify::new(), way, began: Instant::now() }))
    }

    /// Whether the hub is told with each push as well.
    pub(super) fn is_with_push(&self) -> bool {
        self.0.way == TimingsWay::Push
    }

    /// Keeps the timings of a push that ended at `at`.
    pub(super) fn record(
        &self,
        assignment: AssignmentId,
        step: Step,
        samples: u32,
        timings: &StepTimings,
        at: Instant,
    ) {
        let Step { job, round, version } = step;
        let timed = TimedStep {
            at_s: at.saturating_duration_since(self.0.began).as_secs_f64(),
            job: job.0,
            assignment: assignment.0,
            round,
            version: version.0,
            samples,
            ..TimedStep::default()
        };
        self.0.buffer.borrow_mut().push(timed.with_timings(timings));
        self.0.filled.notify_one();
    }

    /// Waits until something is there to be sent.
    pub(super) async fn filled(&self) {
        while self.is_empty() {
            self.0.filled.notified().await;
        }
    }

    /// Whether everything has been acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.0.buffer.borrow().waiting() == 0
    }

    /// What is to be sent next, of at most `bytes_max` bytes. What was under way is sent again.
    pub(super) fn next_batch(&self, session: SessionMark, bytes_max: usize) -> Option<Vec<u8>> {
        let mut buffer = self.0.buffer.borrow_mut();
        buffer.failed();
        buffer.next_batch(session, bytes_max)
    }

    /// The broker has what was sent last.
    pub(super) fn acknowledged(&self) {
        self.0.buffer.borrow_mut().acknowledged();
    }
}
