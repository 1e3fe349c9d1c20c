//! The agents of a job: who is here, what each does, and who gets no work for a while.

use std::collections::BTreeSet;
use std::time::Duration;

use omnilearn_wire::message::{JobReady, Machine, StepTimings};
use omnilearn_wire::{AgentId, AssignmentId, Version};

use crate::Now;
use crate::agents::AgentMap;
use crate::status::{AgentState, AgentStatus};

/// Failures in a row after which an agent gets no work for a while.
pub const FAILURES_MAX: u32 = 3;
/// The first such while. Each later one is twice as long, up to [`COOL_DOWN_MAX`].
pub const COOL_DOWN: Duration = Duration::from_secs(10);
/// The longest.
pub const COOL_DOWN_MAX: Duration = Duration::from_secs(600);

/// Part of a new step in smoothed figures.
const SMOOTHING: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Idle,
    Train,
    Evaluate,
}

#[derive(Clone, Debug)]
struct Bench {
    reason: String,
    until: Now,
    straggler: bool,
}

#[derive(Debug)]
struct Member {
    name: String,
    machine: Machine,
    connected: bool,
    unfit: Option<String>,
    work: Work,
    /// Parameters that the agent has, or that are on their way to it.
    held: Option<Version>,
    /// The last assignment that was issued to anybody before the agent came.
    since: AssignmentId,
    failures: u32,
    benched_times: u32,
    missed_times: u32,
    bench: Option<Bench>,
    figures: Figures,
}

#[derive(Debug, Default)]
struct Figures {
    step_s: Option<f64>,
    busy_s: Option<f64>,
    idle_share: Option<f64>,
    staleness: Option<u64>,
    staleness_sum: u64,
    updates: u64,
    samples: u64,
    refused: u64,
    failed: u64,
}

impl Member {
    fn is_fit(&self) -> bool {
        self.connected && self.unfit.is_none()
    }

    /// Could work, but gets none for a while.
    fn is_resting(&self, now: Now) -> bool {
        self.is_fit() && self.bench.as_ref().is_some_and(|bench| bench.until > now)
    }

    fn is_available(&self, now: Now) -> bool {
        self.is_fit() && !self.is_resting(now)
    }

    fn benched(
        &mut self,
        now: Now,
        (first, longest): (Duration, Duration),
        times: u32,
        reason: String,
        straggler: bool,
    ) {
        let wait = first.saturating_mul(1 << times.min(16)).min(longest);
        self.bench = Some(Bench { reason, until: now + wait, straggler });
    }
}

/// All agents that were ever ready for the job.
///
/// What is asked after each event is counted as it changes: a look at every agent after every push would make a round cost the
/// square of its agents.
#[derive(Debug, Default)]
pub(crate) struct Members {
    members: AgentMap<Member>,
    connected: usize,
    /// Connected, and able to work on the job.
    fit: usize,
    /// Those with a bench.
    benched: BTreeSet<AgentId>,
    /// Those fit without work, but for those put aside.
    idle: BTreeSet<AgentId>,
    /// Those fit without work who are not to get any for now.
    aside: BTreeSet<AgentId>,
    /// Counts what changes which agents can be given work.
    changes: u64,
}

impl Members {
    /// Takes an agent in, or back.
    pub(crate) fn join(
        &mut self,
        (agent, name): (AgentId, String),
        machine: Machine,
        unfit: Option<String>,
        since: AssignmentId,
    ) {
        let fresh = || Member {
            name: String::new(),
            machine: Machine::default(),
            connected: false,
            unfit: None,
            work: Work::Idle,
            held: None,
            since,
            failures: 0,
            benched_times: 0,
            missed_times: 0,
            bench: None,
            figures: Figures::default(),
        };
        let member = self.members.get_or_insert_with(agent, fresh);
        self.connected += usize::from(!member.connected);
        self.fit -= usize::from(member.is_fit());
        (member.name, member.machine, member.unfit) = (name, machine, unfit);
        (member.connected, member.held, member.since) = (true, None, since);
        self.fit += usize::from(member.is_fit());
        self.changes += 1;
        self.set_work(agent, Work::Idle);
        self.caught_up(agent);
    }

    /// Notes that an agent is gone. Returns what it was doing, if it was here.
    pub(crate) fn leave(&mut self, agent: AgentId) -> Option<Work> {
        let member = self.members.get_mut(agent).filter(|member| member.connected)?;
        self.connected -= 1;
        self.fit -= usize::from(member.is_fit());
        member.connected = false;
        member.held = None;
        let work = member.work;
        self.changes += 1;
        self.set_work(agent, Work::Idle);
        Some(work)
    }

    /// What changes which agents can be given work, counted.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn name(&self, agent: AgentId) -> (AgentId, String) {
        (agent, self.members.get(agent).map_or_else(String::new, |member| member.name.clone()))
    }

    pub(crate) fn connected(&self) -> usize {
        self.connected
    }

    /// How many can be given work.
    pub(crate) fn available_count(&self, now: Now) -> usize {
        let resting = |agent: &&AgentId| self.members.get(**agent).is_some_and(|member| member.is_resting(now));
        self.fit - self.benched.iter().filter(resting).count()
    }

    /// Agents that can be given work, by id.
    pub(crate) fn available(&self, now: Now) -> Vec<AgentId> {
        self.members.iter().filter(|(_, member)| member.is_available(now)).map(|(agent, _)| agent).collect()
    }

    pub(crate) fn is_available(&self, agent: AgentId, now: Now) -> bool {
        self.members.get(agent).is_some_and(|member| member.is_available(now))
    }

    /// Those that can be given work and have none.
    pub(crate) fn idle(&self, now: Now) -> Vec<AgentId> {
        self.idle.union(&self.aside).copied().filter(|&agent| self.is_available(agent, now)).collect()
    }

    /// The same without those put aside.
    pub(crate) fn next_idle(&self, now: Now) -> Vec<AgentId> {
        self.idle.iter().copied().filter(|&agent| self.is_available(agent, now)).collect()
    }

    /// An idle agent is not to be looked at until [`Members::bring_back`].
    pub(crate) fn put_aside(&mut self, agent: AgentId) {
        if self.idle.remove(&agent) {
            self.aside.insert(agent);
        }
    }

    /// Those put aside.
    pub(crate) fn aside(&self) -> impl Iterator<Item = AgentId> {
        self.aside.iter().copied()
    }

    pub(crate) fn bring_back(&mut self) {
        self.idle.append(&mut self.aside);
    }

    /// Whether the agent has no work.
    pub(crate) fn is_idle(&self, agent: AgentId) -> bool {
        self.members.get(agent).is_some_and(|member| member.work == Work::Idle)
    }

    /// An agent begins work on parameters. Returns whether it has them already.
    pub(crate) fn begin(&mut self, agent: AgentId, work: Work, version: Version) -> bool {
        self.set_work(agent, work);
        self.members.get_mut(agent).is_some_and(|member| member.held.replace(version) == Some(version))
    }

    /// Whether the agent is here, and was when the assignment was issued.
    pub(crate) fn has_since(&self, agent: AgentId, assignment: AssignmentId) -> bool {
        self.members.get(agent).is_some_and(|member| member.connected && member.since < assignment)
    }

    pub(crate) fn set_work(&mut self, agent: AgentId, work: Work) {
        let Some(member) = self.members.get_mut(agent) else { return };
        member.work = work;
        self.aside.remove(&agent);
        match member.is_fit() && work == Work::Idle {
            true => self.idle.insert(agent),
            false => self.idle.remove(&agent),
        };
    }

    /// Counts a failure. Returns until when the agent gets no work, if it has failed too often in a row.
    pub(crate) fn failed(&mut self, agent: AgentId, now: Now, reason: &str) -> Option<Now> {
        let member = self.members.get_mut(agent)?;
        member.failures += 1;
        if member.failures < FAILURES_MAX {
            return None;
        }
        let reason = format!("failed {FAILURES_MAX} times in a row, last: {reason}");
        member.benched(now, (COOL_DOWN, COOL_DOWN_MAX), member.benched_times, reason, false);
        self.benched.insert(agent);
        self.changes += 1;
        member.failures = 0;
        member.benched_times += 1;
        member.bench.as_ref().map(|bench| bench.until)
    }

    /// Counts a missed deadline: no work for a while, or until the agent shows that it is done with what it missed.
    pub(crate) fn missed(&mut self, agent: AgentId, now: Now, deadline: Duration) {
        if let Some(member) = self.members.get_mut(agent) {
            let reason = "missed a deadline".to_owned();
            member.benched(now, (deadline, deadline.saturating_mul(32)), member.missed_times, reason, true);
            self.benched.insert(agent);
            self.changes += 1;
            member.missed_times += 1;
        }
    }

    /// The agent is done with what it missed.
    pub(crate) fn caught_up(&mut self, agent: AgentId) {
        if let Some(member) = self.members.get_mut(agent)
            && member.bench.as_ref().is_some_and(|bench| bench.straggler)
        {
            member.bench = None;
            self.benched.remove(&agent);
            self.changes += 1;
        }
    }

    /// An update of the agent was accepted.
    pub(crate) fn accepted(&mut self, agent: AgentId, samples: u32, staleness: u64) {
        let Some(member) = self.members.get_mut(agent) else { return };
        (member.failures, member.benched_times, member.missed_times) = (0, 0, 0);
        let figures = &mut member.figures;
        figures.updates += 1;
        figures.samples += u64::from(samples);
        figures.staleness = Some(staleness);
        figures.staleness_sum += staleness;
    }

    /// A step of the agent took so long.
    pub(crate) fn timed(&mut self, agent: AgentId, timings: &StepTimings) {
        let Some(Member { figures, .. }) = self.members.get_mut(agent) else { return };
        let smooth = |figure: &mut Option<f64>, value: f64| {
            if value.is_finite() {
                *figure = Some(figure.map_or(value, |figure| figure + SMOOTHING * (value - figure)));
            }
        };
        if !timings.warm_up {
            let (busy_s, wait_s) = (timings.busy_s(), f64::from(timings.wait_s).max(0.0));
            figures.busy_s = Some(busy_s);
            smooth(&mut figures.step_s, timings.sustained_s());
            smooth(&mut figures.idle_share, wait_s / (wait_s + busy_s));
        }
    }

    pub(crate) fn count_refused(&mut self, agent: AgentId) {
        if let Some(member) = self.members.get_mut(agent) {
            member.figures.refused += 1;
        }
    }

    pub(crate) fn count_failed(&mut self, agent: AgentId) {
        if let Some(member) = self.members.get_mut(agent) {
            member.figures.failed += 1;
        }
    }

    /// Ends benches that are over.
    pub(crate) fn unbench(&mut self, now: Now) {
        let over = |bench: &Bench| bench.until <= now;
        let Members { members, benched, changes, .. } = self;
        let ended = benched.extract_if(.., |agent| {
            members.get_mut(*agent).is_none_or(|member| member.bench.take_if(|bench| over(bench)).is_some())
        });
        *changes += ended.count() as u64;
    }

    /// When the next bench is over.
    pub(crate) fn next_unbench(&self) -> Option<Now> {
        let benched = self.benched.iter().filter_map(|&agent| self.members.get(agent));
        let benches = benched.filter(|member| member.is_fit()).filter_map(|member| member.bench.as_ref());
        benches.map(|bench| bench.until).min()
    }

    /// How agents do; batches and memory are the batcher's.
    pub(crate) fn status(&self, now: Now) -> impl Iterator<Item = AgentStatus> {
        self.members.iter().filter(|(_, member)| member.connected).map(move |(agent, member)| {
            let figures = &member.figures;
            let bench = member.bench.as_ref().filter(|bench| bench.until > now);
            let state = match (&member.unfit, bench, member.work) {
                (Some(reason), ..) => AgentState::Unfit { reason: reason.clone() },
                (_, Some(bench), _) => AgentState::Benched { reason: bench.reason.clone(), until: bench.until },
                (.., Work::Idle) => AgentState::Idle,
                (.., Work::Train) => AgentState::Training,
                (.., Work::Evaluate) => AgentState::Evaluating,
            };
            AgentStatus {
                agent,
                name: member.name.clone(),
                machine: member.machine.clone(),
                state,
                local_batch: 0,
                step_s: figures.step_s,
                busy_s: figures.busy_s,
                idle_share: figures.idle_share,
                staleness: figures.staleness,
                staleness_mean: (figures.updates > 0).then(|| figures.staleness_sum as f64 / figures.updates as f64),
                updates: figures.updates,
                samples: figures.samples,
                refused: figures.refused,
                failed: figures.failed,
                batch_max: None,
            }
        })
    }
}

/// Why an agent cannot work on a job, if it cannot.
pub(crate) fn unfit(ready: &JobReady, train_samples: u32, test_samples: u32, batch_min: u32) -> Option<String> {
    if ready.train_samples != train_samples {
        return Some(format!("has {} training samples, the job has {train_samples}", ready.train_samples));
    }
    if test_samples > 0 && ready.test_samples != test_samples {
        return Some(format!("has {} test samples, the job has {test_samples}", ready.test_samples));
    }
    let batch_max = ready.batch_max.filter(|&max| max < batch_min)?;
    Some(format!("has memory for batches of {batch_max}, the job's smallest is {batch_min}"))
}
