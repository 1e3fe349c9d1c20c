//! Keeps what each step took for the broker, if there is one. Training never waits for it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use omnilearn_mqtt::client::Client;
use omnilearn_mqtt::session::SessionMark;
use omnilearn_mqtt::timings::{STEPS_MAX_DEFAULT, TimedStep, TimingsBuffer, TimingsFormat, TimingsPublisher};
use omnilearn_mqtt::topics::Topics;
use omnilearn_wire::AssignmentId;
use omnilearn_wire::message::StepTimings;

use super::compute::Step;
use crate::config::TimingsWay;

/// A bounded queue of timings: when it is full, the oldest are dropped and counted. It outlives connections to hub and broker.
#[derive(Clone, Debug)]
pub(super) struct Recorder(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    buffer: Arc<Mutex<TimingsBuffer>>,
    /// Who sends them, while there is a client for the broker.
    publisher: RefCell<Option<TimingsPublisher>>,
    way: TimingsWay,
    began: Instant,
}

impl Recorder {
    /// Nothing is recorded yet. The process began now.
    pub(super) fn new(agent: &str, format: TimingsFormat, way: TimingsWay) -> Recorder {
        let buffer = Arc::new(Mutex::new(TimingsBuffer::new(agent, format, STEPS_MAX_DEFAULT)));
        Recorder(Rc::new(Shared { buffer, publisher: RefCell::default(), way, began: Instant::now() }))
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
        let timed = timed.with_timings(timings);
        match &*self.0.publisher.borrow() {
            Some(publisher) => publisher.push(timed),
            None => self.0.buffer.lock().unwrap_or_else(PoisonError::into_inner).push(timed),
        };
    }

    /// Sends what is recorded through this client, at most a batch in `every`, in the place of any other.
    pub(super) fn publish(&self, client: Client, topics: &Topics, session: SessionMark, every: Duration) {
        let publisher = TimingsPublisher::start(client, topics, Arc::clone(&self.0.buffer), session, every);
        self.0.publisher.replace(Some(publisher));
    }

    /// Keeps what is recorded for another client.
    pub(super) fn keep(&self) {
        self.0.publisher.take();
    }

    /// Sends what is left, for at most `longest`.
    pub(super) async fn finish(&self, longest: Duration) {
        let publisher = self.0.publisher.take();
        if let Some(publisher) = publisher {
            publisher.finish(longest).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use omnilearn_mqtt::timings::TimingsBatch;

    use super::*;

    impl Recorder {
        /// Takes what is recorded.
        pub(in crate::session) fn taken(&self) -> TimingsBatch {
            let mut buffer = self.0.buffer.lock().unwrap();
            let session = SessionMark { process: 1, epoch: 2 };
            let batch = buffer.next_batch(session, 1 << 20).expect("something is recorded");
            buffer.received(u64::MAX);
            TimingsBatch::decode("pi", &batch).unwrap()
        }
    }
}
