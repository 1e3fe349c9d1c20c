//! Where the compute thread waits for pieces of files that the network thread hands over. Good for one connection.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use omnilearn_wire::JobId;
use omnilearn_wire::limits::CHUNK_BYTES;

use super::compute::{Event, Uplink};
use crate::dataset::fetch::{HubFiles, IN_FLIGHT_MAX, Interrupted, Piece};

/// Pieces that were asked for and those that have come, of which there are at most [`IN_FLIGHT_MAX`] together.
#[derive(Debug, Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    asked: VecDeque<([u8; 32], u64)>,
    arrived: VecDeque<Piece>,
    /// The job for which someone waits, and whether it is still wanted.
    job: Option<JobId>,
    /// Jobs that ended before anybody got ready for them; there is one offer at a time, so the last is enough.
    ended: Option<JobId>,
    closed: bool,
}

impl State {
    fn is_over(&self, job: JobId) -> bool {
        self.closed || self.job != Some(job) || self.ended == Some(job)
    }
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves queues that are still queues.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a piece that came. One that nobody asked for is left over from a job that ended, and is dropped.
    pub(super) fn put(&self, digest: &[u8; 32], offset: u64, total: u64, bytes: Bytes) {
        let mut state = self.state();
        if state.asked.front() == Some(&(*digest, offset)) && bytes.len() <= CHUNK_BYTES {
            state.asked.pop_front();
            state.arrived.push_back(Piece { total, bytes });
            self.changed.notify_all();
        }
    }

    /// The connection is gone: whoever waits, waits in vain.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// A job was offered: it is wanted, whatever became of it before.
    pub(super) fn offered(&self, job: JobId) {
        self.state().ended.take_if(|ended| *ended == job);
    }

    /// A job is over: whoever waits for its files, waits in vain.
    pub(super) fn ended(&self, job: JobId) {
        self.state().ended = Some(job);
        self.changed.notify_all();
    }
}

/// The hub, as the compute thread sees it while it gets ready for a job.
pub(super) struct Fetching {
    uplink: Uplink,
    job: JobId,
}

impl Fetching {
    /// Begins to get ready for a job; pieces for another are void.
    pub(super) fn new(uplink: Uplink, job: JobId) -> Fetching {
        let mut state = uplink.desk.state();
        state.job = Some(job);
        state.asked.clear();
        state.arrived.clear();
        drop(state);
        Fetching { uplink, job }
    }

    /// Waits until `ready` gives something, the time is over (none), or the job.
    fn wait<T>(
        &self,
        time: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Interrupted> {
        let desk = &self.uplink.desk;
        let until = time.map(|time| Instant::now() + time);
        let mut state = desk.state();
        loop {
            if state.is_over(self.job) {
                return Err(Interrupted);
            }
            if let Some(ready) = ready(&mut state) {
                return Ok(Some(ready));
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => desk.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => desk.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let mut state = self.uplink.desk.state();
        state.job = None;
        state.asked.clear();
        state.arrived.clear();
    }
}

impl HubFiles for Fetching {
    fn ask(&mut self, digest: [u8; 32], offset: u64, bytes: u32) {
        let mut state = self.uplink.desk.state();
        debug_assert!(state.asked.len() + state.arrived.len() < IN_FLIGHT_MAX, "more asked than may come");
        state.asked.push_back((digest, offset));
        drop(state);
        self.uplink.send(Event::FetchData { digest, offset, bytes });
    }

    fn piece(&mut self) -> Result<Piece, Interrupted> {
        self.wait(None, |state| state.arrived.pop_front())?.ok_or(Interrupted)
    }

    fn pause(&mut self, time: Duration) -> Result<(), Interrupted> {
        self.wait(Some(time), |_| None::<()>).map(drop)
    }
}
