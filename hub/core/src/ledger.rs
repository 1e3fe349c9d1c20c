//! Assignments: those being worked on, and for a while what became of earlier ones, so that a late or repeated push is told
//! from a made-up one.

use std::collections::VecDeque;

use omnilearn_wire::message::{Computation, LocalSteps, Span};
use omnilearn_wire::{AgentId, AssignmentId, Version};

use crate::Now;
use crate::agents::AgentMap;
use crate::push::PushError;

/// Closed assignments remembered. A push for an older one is refused as unknown.
const CLOSED_MAX: usize = 4096;

/// One update to compute.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) id: AssignmentId,
    pub(crate) agent: AgentId,
    pub(crate) version: Version,
    pub(crate) spans: Vec<Span>,
    /// The samples in the spans; the weight of its update, where not fewer were done.
    pub(crate) samples: u32,
    pub(crate) computation: Computation,
    /// When it was issued, or when its push last made progress.
    pub(crate) progress: Now,
}

impl Assignment {
    /// The most samples that its agent is asked to take at once.
    pub(crate) fn local_batch(&self) -> u32 {
        match self.computation {
            Computation::Gradient | Computation::Timed { .. } => self.samples,
            Computation::Local(LocalSteps { steps, .. }) => self.samples.div_ceil(steps.max(1)),
        }
    }
}

/// What became of an assignment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Closed {
    /// Its update counts. A repeat is told the same.
    Accepted { version: Version, staleness: u64 },
    /// Its update was refused, and its agent was told.
    Refused(PushError),
    /// Its samples were issued again; its agent was not told by a refusal.
    Void(PushError),
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    issued: u64,
    /// An agent has one at a time.
    open: AgentMap<Assignment>,
    /// None of the open ones last made progress before this.
    progress: Now,
    /// In the order of their ends. Each update ends one, while few are ever looked for, so there is no index to keep.
    closed: VecDeque<(AssignmentId, AgentId, Closed)>,
}

impl Ledger {
    /// A number never used before.
    pub(crate) fn next_id(&mut self) -> AssignmentId {
        self.issued += 1;
        AssignmentId(self.issued)
    }

    /// The last number that was used.
    pub(crate) fn last_id(&self) -> AssignmentId {
        AssignmentId(self.issued)
    }

    pub(crate) fn open(&mut self, assignment: Assignment) {
        if self.open.is_empty() {
            self.progress = assignment.progress;
        }
        self.open.insert(assignment.agent, assignment);
    }

    /// What the agent is working on.
    pub(crate) fn get(&self, agent: AgentId) -> Option<&Assignment> {
        self.open.get(agent)
    }

    pub(crate) fn all_open(&self) -> impl Iterator<Item = &Assignment> {
        self.open.values()
    }

    /// When an open assignment last made progress, or earlier: exactly is known only to [`Ledger::without_progress`].
    pub(crate) fn first_progress(&self) -> Option<Now> {
        (!self.open.is_empty()).then_some(self.progress)
    }

    /// Agents whose assignments have made no progress since this time. It looks at every agent only where there may be such.
    pub(crate) fn without_progress(&mut self, since: Now) -> Vec<AgentId> {
        if since < self.progress {
            return Vec::new();
        }
        let later = self.open.values().map(|assignment| assignment.progress).filter(|&progress| progress > since);
        self.progress = later.min().unwrap_or(since);
        let late = self.open.values().filter(|assignment| assignment.progress <= since);
        late.map(|assignment| assignment.agent).collect()
    }

    /// Ends an agent's open assignment.
    pub(crate) fn close(&mut self, agent: AgentId, closed: Closed) -> Option<Assignment> {
        let assignment = self.open.remove(agent)?;
        self.remember(assignment.id, agent, closed);
        Some(assignment)
    }

    /// Notes what became of an assignment, or corrects it.
    pub(crate) fn record(&mut self, id: AssignmentId, agent: AgentId, closed: Closed) {
        match self.closed.iter_mut().rev().find(|(other, ..)| *other == id) {
            Some(known) => *known = (id, agent, closed),
            None => self.remember(id, agent, closed),
        }
    }

    fn remember(&mut self, id: AssignmentId, agent: AgentId, closed: Closed) {
        if self.closed.len() == CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back((id, agent, closed));
    }

    /// The agent's own open assignment; or what became of it; or why it is not the agent's to push for.
    pub(crate) fn find(
        &mut self,
        agent: AgentId,
        id: AssignmentId,
    ) -> Result<&mut Assignment, Result<Closed, PushError>> {
        let Ledger { open, closed, .. } = self;
        let is_open = |assignment: &Assignment| assignment.id == id;
        if open.get(agent).is_some_and(is_open) {
            return open.get_mut(agent).ok_or(Err(PushError::Unknown { assignment: id }));
        }
        Err(match closed.iter().rev().find(|(other, ..)| *other == id) {
            Some((_, owner, closed)) if *owner == agent => Ok(closed.clone()),
            None if !open.values().any(is_open) => Err(PushError::Unknown { assignment: id }),
            _ => Err(PushError::Foreign { assignment: id }),
        })
    }
}
