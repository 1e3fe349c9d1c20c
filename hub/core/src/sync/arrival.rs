//! Rules that make a step of each update as it comes, and give its agent fresh parameters and new work at once, unless it is
//! too far ahead of the others: θ ← step(θ, c·u). A rule says who may begin, and the coefficient c.

use std::collections::BTreeSet;
use std::fmt::Debug;

use omnilearn_wire::AgentId;

use super::clocks::Clocks;
use super::{Lost, SyncRule, first_overdue, give_up_straggler, overdue, step_record};
use crate::Now;
use crate::aggregate::Scaled;
use crate::buffers;
use crate::cursor::Which;
use crate::push::{PushError, Update};
use crate::state::{Order, State, Step};
use crate::status::Waiting;

/// What tells rules of this family apart.
pub(super) trait ArrivalPlan: Debug + Send {
    /// What an agent gets whose local batch is this.
    fn order(&self, _state: &State, batch: u32) -> Order {
        Order::gradient(batch)
    }

    /// c.
    fn coefficient(&self, arrival: Arrival) -> f64;

    /// Largest staleness that counts; an older update is refused, and its samples are issued again.
    fn staleness_max(&self) -> Option<u64> {
        None
    }

    /// How many pushes ahead of the slowest an agent may still begin one.
    fn lead_max(&self) -> Option<u64> {
        None
    }
}

/// An update as it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// b_k.
    samples: u32,
    /// B.
    global_batch: u32,
    /// K.
    agents: usize,
    /// Versions since it was begun.
    pub(super) staleness: u64,
}

impl Arrival {
    /// b_k/B: K updates together weigh as much as one step over the global batch.
    pub(super) fn share(self) -> f64 {
        f64::from(self.samples) / f64::from(self.global_batch)
    }

    /// b_k·K/B: the mean over agents is 1.
    pub(super) fn relative(self) -> f64 {
        self.share() * self.agents()
    }

    /// K.
    pub(super) fn agents(self) -> f64 {
        self.agents as f64
    }
}

#[derive(Debug)]
pub(super) struct Arrivals<P> {
    plan: P,
    clocks: Clocks,
    /// Agents whose last update was too old. They do not get samples that were given back, which may be their own: others are
    /// more likely to bring those home.
    stale: BTreeSet<AgentId>,
    /// The clock of those furthest behind when agents were last put aside as too far ahead of them.
    slowest: u64,
    /// Updates since batches were looked at, and what had changed who can be given work by then.
    updates: usize,
    changes: Option<u64>,
}

impl<P: ArrivalPlan> Arrivals<P> {
    pub(super) fn new(plan: P) -> Arrivals<P> {
        Arrivals { plan, clocks: Clocks::default(), stale: BTreeSet::new(), slowest: 0, updates: 0, changes: None }
    }

    /// Brings batches up to date, once all agents together may have been heard of: a look at every agent after every update would
    /// make what a fleet does in a second cost the square of its agents.
    fn update_batches(&mut self, state: &mut State, now: Now) {
        let changes = Some(state.members.changes());
        if self.changes == changes && self.updates < state.batcher.agents() && !state.batcher.is_outdated() {
            return;
        }
        (self.changes, self.updates) = (changes, 0);
        state.update_batches(now);
        let agents: Vec<AgentId> = state.batcher.batches().into_iter().map(|(agent, _)| agent).collect();
        self.clocks.follow(&agents);
        self.bring_back(state);
    }

    /// Those who could not begin are looked at again.
    fn bring_back(&mut self, state: &mut State) {
        self.slowest = self.clocks.slowest();
        state.members.bring_back();
    }

    /// Work for those without, where they may begin.
    fn give_out(&mut self, state: &mut State, now: Now) {
        if self.slowest != self.clocks.slowest() {
            self.bring_back(state);
        }
        for agent in state.members.next_idle(now) {
            let batch = state.batcher.batch(agent);
            let is_ahead = self.plan.lead_max().is_some_and(|lead_max| !self.clocks.may_begin(agent, lead_max));
            if batch == 0 || is_ahead {
                state.members.put_aside(agent);
                continue;
            }
            let order = self.plan.order(state, batch);
            let which = if self.stale.contains(&agent) { Which::Fresh } else { order.which };
            state.issue(agent, Order { which, ..order }, now);
        }
    }
}

impl<P: ArrivalPlan> SyncRule for Arrivals<P> {
    fn adds_pieces(&self) -> bool {
        false
    }

    fn advance(&mut self, state: &mut State, now: Now) {
        for agent in overdue(state, now) {
            let message = "an agent made no progress, its samples are issued again";
            give_up_straggler(state, now, agent, PushError::Overdue, message);
        }
        if state.is_ending() {
            self.abandon(state, &PushError::JobOver);
        }
        if state.is_over() || state.evaluate_in_passing(now) || !state.may_start(now) {
            return;
        }
        self.update_batches(state, now);
        self.give_out(state, now);
    }

    fn update(&mut self, state: &mut State, now: Now, update: &mut Update) -> Result<(), PushError> {
        let agent = update.assignment.agent;
        let staleness = update.assignment.version.staleness_at(state.model.version);
        if let Some(staleness_max) = self.plan.staleness_max().filter(|&staleness_max| staleness > staleness_max) {
            // Its time is as good as any: without it, a controller would never hear of an agent that is always too slow.
            state.observe_refused(&update.assignment, update.report.timings);
            self.stale.insert(agent);
            return Err(PushError::TooStale { staleness, staleness_max });
        }
        let gradient = update.gradient.as_ref().ok_or(PushError::RoundClosed)?;
        let samples = update.assignment.samples;
        let global_batch = state.batcher.effective_global_batch();
        let agents = state.batcher.agents().max(1);
        let factor = self.plan.coefficient(Arrival { samples, global_batch, agents, staleness }) as f32;
        let parameter_bytes = state.stream.parameter_bytes as usize;
        let scaled = Scaled::new(state.config.codec, &gradient[..parameter_bytes], factor)
            .map_err(|error| PushError::from_add(error, &state.layout))?;
        let gradient_norm = state.apply(&scaled);
        if !update.buffers.is_empty() {
            let local_batch = update.assignment.local_batch();
            buffers::blend(&mut state.model.buffers, &update.buffers, local_batch, global_batch);
        }
        let version = state.model.version;
        state.accept(&update.assignment, version, staleness);
        state.cursor.commit(&update.assignment.spans);
        self.stale.remove(&agent);
        self.clocks.tick(agent);
        self.updates += 1;
        let spans = std::mem::take(&mut update.assignment.spans);
        let mut record = step_record(update, spans, staleness, now);
        record.version = version;
        let loss = f64::from(record.loss);
        state.count_accepted(record, update.bytes);
        state.finish_step(now, Step { loss, samples, updates: 1, gradient_norm });
        Ok(())
    }

    fn lost(&mut self, state: &mut State, _now: Now, lost: Lost) {
        state.give_back(lost.assignment.spans);
    }

    fn progress(&mut self, _now: Now, _agent: AgentId) {}

    fn deadline(&self, state: &State) -> Option<Now> {
        first_overdue(state)
    }

    fn waiting(&self, state: &State) -> Option<Waiting> {
        let lead_max = self.plan.lead_max()?;
        let waiting = state.members.aside().filter(|&agent| state.batcher.batch(agent) > 0).count() as u32;
        let agents = self.clocks.behind().map(|agent| state.members.name(agent)).collect();
        (waiting > 0).then_some(Waiting::Lead { agents, waiting, lead_max })
    }

    fn abandon(&mut self, state: &mut State, why: &PushError) {
        for agent in state.ledger.all_open().map(|assignment| assignment.agent).collect::<Vec<_>>() {
            state.give_up(agent, why.clone());
        }
    }
}
