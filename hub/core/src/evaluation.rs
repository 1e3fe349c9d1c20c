//! An evaluation of the test set, shared out to agents in proportion to their speed, all on one snapshot.
//!
//! Each agent has one planned share. Shares of agents that go, fail or take far too long are given to whoever is free.

use std::collections::BTreeMap;
use std::time::Duration;

use omnilearn_wire::{AgentId, AssignmentId};

use crate::Now;
use crate::batching::apportion::{Share, apportion};
use crate::model::Snapshot;

/// How many times the longest share so far a share may take before another agent gets it too.
const PATIENCE: u32 = 3;

/// Samples of the test set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Part {
    fn len(self) -> u32 {
        self.end - self.start
    }
}

#[derive(Clone, Copy, Debug)]
struct Running {
    agent: AgentId,
    part: Part,
    issued: Now,
}

#[derive(Clone, Debug)]
struct Sums {
    samples: u32,
    loss: f64,
    metrics: Vec<f64>,
}

/// Sums over the whole test set.
#[derive(Debug, PartialEq)]
pub(crate) struct Totals {
    pub(crate) samples: u32,
    pub(crate) loss: f64,
    pub(crate) metrics: Vec<f64>,
}

/// One evaluation under way.
#[derive(Debug)]
pub(crate) struct Evaluation {
    pub(crate) snapshot: Snapshot,
    /// Epochs of accepted samples when it began.
    pub(crate) epoch: f64,
    /// Training time when it began, in seconds.
    pub(crate) training_s: f64,
    test_samples: u32,
    planned: BTreeMap<AgentId, Part>,
    unplanned: Vec<Part>,
    running: BTreeMap<AssignmentId, Running>,
    samples_running: u32,
    done: BTreeMap<u32, Sums>,
    samples_done: u32,
    progress: Now,
    longest: Duration,
}

impl Evaluation {
    pub(crate) fn new(snapshot: Snapshot, test_samples: u32, (epoch, training_s): (f64, f64), now: Now) -> Evaluation {
        Evaluation {
            snapshot,
            epoch,
            training_s,
            test_samples,
            planned: BTreeMap::new(),
            unplanned: vec![Part { start: 0, end: test_samples }],
            running: BTreeMap::new(),
            samples_running: 0,
            done: BTreeMap::new(),
            samples_done: 0,
            progress: now,
            longest: Duration::ZERO,
        }
    }

    /// Plans what nobody has, for agents of these rates.
    pub(crate) fn plan(&mut self, agents: &[AgentId], rates: &[f64]) {
        let [whole] = self.unplanned[..] else { return };
        let shares = rates.iter().map(|&rate| Share { offset: 0.0, rate, min: 0, max: self.test_samples, step: 1 });
        let Ok(counts) = apportion(whole.len(), &shares.collect::<Vec<_>>()) else { return };
        self.unplanned.clear();
        let mut start = whole.start;
        for (&agent, count) in agents.iter().zip(counts) {
            if count > 0 {
                self.planned.insert(agent, Part { start, end: start + count });
            }
            start += count;
        }
    }

    /// The part that an agent without work should evaluate: its own, or else one that nobody has.
    pub(crate) fn next(&mut self, agent: AgentId) -> Option<Part> {
        self.planned.remove(&agent).or_else(|| self.unplanned.pop())
    }

    /// Whether nothing is left to be given out.
    pub(crate) fn is_given_out(&self) -> bool {
        self.planned.is_empty() && self.unplanned.is_empty()
    }

    pub(crate) fn issued(&mut self, id: AssignmentId, agent: AgentId, part: Part, now: Now) {
        self.running.insert(id, Running { agent, part, issued: now });
        self.samples_running += part.len();
        self.progress = now;
    }

    /// Takes a result. Returns false if the assignment is not under way, or the result is not its.
    pub(crate) fn result(
        &mut self,
        (agent, id): (AgentId, AssignmentId),
        samples: u32,
        (loss, metrics): (f64, Vec<f64>),
        metrics_expected: usize,
        now: Now,
    ) -> bool {
        let Some(running) = self.running.get(&id).filter(|running| running.agent == agent).copied() else {
            return false;
        };
        if samples != running.part.len() || metrics.len() != metrics_expected {
            return false;
        }
        self.running.remove(&id);
        self.samples_running -= samples;
        self.longest = self.longest.max(now.saturating_sub(running.issued));
        self.progress = now;
        self.done.insert(running.part.start, Sums { samples, loss, metrics });
        self.samples_done += samples;
        true
    }

    /// An agent will not evaluate what it has, or what is planned for it.
    pub(crate) fn lost(&mut self, agent: AgentId) {
        for (_, Running { part, .. }) in self.running.extract_if(.., |_, running| running.agent == agent) {
            self.samples_running -= part.len();
            self.unplanned.push(part);
        }
        self.unplanned.extend(self.planned.remove(&agent));
    }

    /// What is planned for agents who will not come for it is for others.
    pub(crate) fn release(&mut self, is_available: impl Fn(AgentId) -> bool) {
        let released = self.planned.extract_if(.., |&agent, _| !is_available(agent)).map(|(_, part)| part);
        self.unplanned.extend(released);
    }

    /// Whether an agent's part under way is this assignment.
    pub(crate) fn is_running(&self, agent: AgentId, id: AssignmentId) -> bool {
        self.running.get(&id).is_some_and(|running| running.agent == agent)
    }

    /// When the parts under way are given up, if there is someone else: long after the others were done.
    pub(crate) fn overdue_at(&self, deadline: Duration) -> Option<Now> {
        let waits = self.is_given_out() && !self.running.is_empty() && !self.done.is_empty();
        waits.then(|| self.progress + deadline + self.longest * PATIENCE)
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (AgentId, AssignmentId)> {
        self.running.iter().map(|(&id, running)| (running.agent, id))
    }

    /// The part of the test set that is under way. Parts are as large as agents are fast, so it is the part of the fleet's speed,
    /// too, that is not training.
    pub(crate) fn running_share(&self) -> f64 {
        f64::from(self.samples_running) / f64::from(self.test_samples)
    }

    pub(crate) fn samples_missing(&self) -> u32 {
        self.test_samples - self.samples_done
    }

    /// Since when nothing has happened.
    pub(crate) fn idle_since(&self) -> Option<Now> {
        self.running.is_empty().then_some(self.progress)
    }

    /// The sums, once every part is in. Added in the order of the test set, so that equal parts give equal bits.
    pub(crate) fn totals(&self) -> Option<Totals> {
        if self.samples_missing() > 0 {
            return None;
        }
        let mut totals = Totals { samples: 0, loss: 0.0, metrics: Vec::new() };
        for Sums { samples, loss, metrics } in self.done.values() {
            totals.samples += samples;
            totals.loss += loss;
            totals.metrics.resize(metrics.len(), 0.0);
            totals.metrics.iter_mut().zip(metrics).for_each(|(total, metric)| *total += metric);
        }
        Some(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Duration::ZERO;

    fn evaluation(test_samples: u32) -> Evaluation {
        Evaluation::new(Snapshot::new(&[0.0], &[]), test_samples, (0.0, 0.0), NOW)
    }

    #[test]
    fn the_test_set_is_shared_out_by_speed_and_summed() {
        let mut evaluation = evaluation(100);
        let agents = [AgentId(1), AgentId(2)];
        evaluation.plan(&agents, &[3.0, 1.0]);
        for (id, agent) in agents.into_iter().enumerate() {
            let part = evaluation.next(agent).unwrap();
            assert_eq!((part.start, part.end), [(0, 75), (75, 100)][id]);
            evaluation.issued(AssignmentId(id as u64), agent, part, NOW);
        }
        assert!(!evaluation.result((AgentId(1), AssignmentId(1)), 25, (1.0, vec![]), 0, NOW), "another agent's part");
        assert!(!evaluation.result((AgentId(2), AssignmentId(1)), 24, (1.0, vec![]), 0, NOW), "not all of its part");
        assert!(evaluation.result((AgentId(2), AssignmentId(1)), 25, (10.0, vec![20.0]), 1, NOW));
        assert_eq!(evaluation.totals(), None);
        assert!(evaluation.result((AgentId(1), AssignmentId(0)), 75, (5.0, vec![50.0]), 1, NOW));
        assert_eq!(evaluation.totals(), Some(Totals { samples: 100, loss: 15.0, metrics: vec![70.0] }));
    }

    #[test]
    fn parts_of_an_agent_that_goes_are_given_to_whoever_is_free() {
        let mut evaluation = evaluation(90);
        let agents = [AgentId(1), AgentId(2), AgentId(3)];
        evaluation.plan(&agents, &[1.0; 3]);
        let part = evaluation.next(AgentId(1)).unwrap();
        evaluation.issued(AssignmentId(1), AgentId(1), part, NOW);
        evaluation.lost(AgentId(1));
        evaluation.lost(AgentId(3));
        let parts = std::iter::from_fn(|| evaluation.next(AgentId(2))).map(|part| (part.start, part.end));
        let mut parts: Vec<_> = parts.collect();
        parts.sort_unstable();
        assert_eq!(parts, [(0, 30), (30, 60), (60, 90)]);
    }
}
