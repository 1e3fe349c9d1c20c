//! One agent of the virtual fleet: what its work takes, and what it holds.

use std::time::Duration;

use omnilearn_hub_core::cursor::cut;
use omnilearn_hub_core::{Now, Snapshot};
use omnilearn_wire::AssignmentId;
use omnilearn_wire::message::{CalibrationPoint, Computation, Evaluate, JobReady, Machine, Train};

use crate::fleet::AgentSpec;
use crate::noise;

/// A forward pass takes this part of a training step: the backward pass takes twice as long as the forward pass.
const FORWARD_PART: f64 = 1.0 / 3.0;

/// The first steps of an agent are marked as not representative, as a real agent marks them.
const WARM_UP_STEPS: u32 = 2;

/// Longest time of one piece of work; a step of more is as good as none.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// What draws of noise are for, beside agent and assignment.
const CALIBRATION: u64 = u64::MAX;

/// Seconds as virtual time, which has steps of a nanosecond.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(LONGEST).min(LONGEST)
}

/// What an agent is to do.
#[derive(Debug)]
pub(crate) enum Task {
    /// A gradient over so many samples.
    Train(Train, u32),
    /// A part of the test set.
    Evaluate(Evaluate),
}

impl Task {
    pub(crate) fn assignment(&self) -> AssignmentId {
        match self {
            Task::Train(work, _) => work.assignment,
            Task::Evaluate(work) => work.assignment,
        }
    }
}

/// A task under way, with what its phases have taken so far, in seconds.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) task: Task,
    /// What it is computed from, where anyone computes.
    pub(crate) parameters: Option<Snapshot>,
    /// The hub wants it no more.
    pub(crate) cancelled: bool,
    /// When the parameters' transfer began.
    pub(crate) issued: Now,
    pub(crate) wait_s: f64,
    pub(crate) load_s: f64,
    pub(crate) compute_s: f64,
    /// When the gradient's transfer began.
    pub(crate) computed: Now,
    pub(crate) send_s: f64,
}

/// An agent while the job runs.
#[derive(Debug)]
pub(crate) struct VirtualAgent {
    /// The hub takes it for connected.
    pub(crate) connected: bool,
    /// It works.
    pub(crate) alive: bool,
    /// What it does, and what it was told to do after that.
    pub(crate) works: Vec<Work>,
    /// The parameters that it holds, where anyone computes.
    pub(crate) held: Option<Snapshot>,
    /// When it is done computing.
    pub(crate) free_at: Now,
    /// When it was done sending, or evaluating.
    pub(crate) idle_since: Option<Now>,
    steps: u32,
    sizes_seen: Vec<u32>,
}

impl VirtualAgent {
    pub(crate) fn new() -> VirtualAgent {
        VirtualAgent {
            connected: false,
            alive: false,
            works: Vec::new(),
            held: None,
            free_at: Now::ZERO,
            idle_since: None,
            steps: 0,
            sizes_seen: Vec::new(),
        }
    }

    pub(crate) fn work(&mut self, assignment: AssignmentId) -> Option<&mut Work> {
        self.works.iter_mut().find(|work| work.task.assignment() == assignment)
    }

    pub(crate) fn take_work(&mut self, assignment: AssignmentId) -> Option<Work> {
        let index = self.works.iter().position(|work| work.task.assignment() == assignment)?;
        Some(self.works.swap_remove(index))
    }

    /// Counts a step. Returns whether a real agent would mark it as not representative: it is one of the first, or the first of
    /// this size.
    pub(crate) fn is_warm_up(&mut self, samples: u32) -> bool {
        let early = self.steps < WARM_UP_STEPS;
        self.steps = self.steps.saturating_add(1);
        match self.sizes_seen.binary_search(&samples) {
            Ok(_) => early,
            Err(place) => {
                self.sizes_seen.insert(place, samples);
                true
            }
        }
    }
}

impl AgentSpec {
    /// X at a time and epoch: that of the last change that has come, in samples per second.
    pub(crate) fn speed(&self, now: Now, epoch: f64) -> f64 {
        let come = self.changes.iter().rev().find(|change| change.from.has_come(now, epoch));
        come.map_or(self.samples_per_s, |change| change.samples_per_s)
    }

    /// Time of a training step that begins at this time and epoch: (o + b/X)·noise, in seconds.
    pub(crate) fn step_s(&self, samples: u32, (now, epoch): (Now, f64), seed: u64, parts: &[u64]) -> f64 {
        let exact = self.overhead_s + f64::from(samples) / self.speed(now, epoch);
        exact * noise::factor(self.noise, seed, parts)
    }

    /// Time of an assignment of so many samples, in seconds. Where the time is what is given, the work becomes the gradient of as many
    /// of them as are done by then, at least one; and local steps have the overhead each.
    pub(crate) fn train(
        &self,
        work: &mut Train,
        samples: &mut u32,
        (now, epoch): (Now, f64),
        (seed, parts): (u64, &[u64]),
    ) -> f64 {
        let passes = match work.computation {
            Computation::Gradient => 1,
            Computation::Local(local) => local.steps.min(*samples),
            Computation::Timed { compute_s } => {
                let exact_s = f64::from(compute_s) / noise::factor(self.noise, seed, parts);
                let done = (exact_s - self.overhead_s) * self.speed(now, epoch);
                *samples = (done as u32).clamp(1, (*samples).max(1));
                (work.spans, _) = cut(std::mem::take(&mut work.spans), *samples);
                work.computation = Computation::Gradient;
                1
            }
        };
        let more_s = f64::from(passes.saturating_sub(1)) * self.overhead_s * noise::factor(self.noise, seed, parts);
        self.step_s(*samples, (now, epoch), seed, parts) + more_s
    }

    /// Time of an evaluation: each of its forward passes has the overhead, and a third of all that a step would take.
    pub(crate) fn evaluation_s(&self, work: &Evaluate, (now, epoch): (Now, f64), seed: u64, parts: &[u64]) -> f64 {
        let samples = work.end.saturating_sub(work.start);
        let passes = samples.div_ceil(work.batch.max(1));
        let exact = f64::from(passes) * self.overhead_s + f64::from(samples) / self.speed(now, epoch);
        FORWARD_PART * exact * noise::factor(self.noise, seed, parts)
    }

    /// Time to bring so many bytes to the agent over its own link, without latency.
    pub(crate) fn download_s(&self, bytes: u64) -> f64 {
        self.downlink_bytes_per_s.map_or(0.0, |bytes_per_s| bytes as f64 / bytes_per_s)
    }

    /// Time to bring so many bytes from the agent to the hub over the agent's own link, without latency.
    pub(crate) fn upload_s(&self, bytes: u64) -> f64 {
        self.uplink_bytes_per_s.map_or(0.0, |bytes_per_s| bytes as f64 / bytes_per_s)
    }

    /// What the agent tells the hub of its machine.
    pub(crate) fn machine(&self) -> Machine {
        Machine {
            architecture: "virtual".to_owned(),
            os: "virtual".to_owned(),
            cores: self.cores.ceil() as u32,
            quota_cores: Some(self.cores as f32),
            threads: self.cores.ceil() as u32,
            memory_bytes: 0,
            compute_device: "virtual".to_owned(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// What the agent found out while it got ready. It times itself as a real agent does; the time for that is not counted.
    pub(crate) fn ready(
        &self,
        (train_samples, test_samples): (u32, u32),
        calibration_batches: &[u32],
        (now, epoch): (Now, f64),
        (seed, agent): (u64, u64),
    ) -> JobReady {
        let within = |batch: &&u32| self.batch_max.is_none_or(|batch_max| **batch <= batch_max);
        let point = |&samples: &u32| {
            let step_s = self.step_s(samples, (now, epoch), seed, &[agent, CALIBRATION, u64::from(samples)]);
            CalibrationPoint { samples, step_s }
        };
        JobReady {
            train_samples,
            test_samples,
            batch_max: self.batch_max,
            batch_step: 1,
            calibration: calibration_batches.iter().filter(within).map(point).collect(),
        }
    }
}
