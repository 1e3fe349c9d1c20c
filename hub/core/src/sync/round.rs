//! Rules that make one step of many updates. A round opens when enough agents are ready, and closes when as many updates are in
//! as the rule waits for; or when nothing has arrived for the deadline and a quorum is in: then those missing are given up. The
//! step is the mean over what is there. Samples of missing updates are issued again in a later round.

use std::fmt::Debug;

use omnilearn_wire::{AgentId, AssignmentId};

use super::{Lost, SyncRule, first_overdue, give_up_straggler, overdue, step_record};
use crate::Now;
use crate::action::Level;
use crate::agents::AgentMap;
use crate::buffers;
use crate::cursor::{Which, cut};
use crate::ledger::{Assignment, Closed};
use crate::push::{PushError, Update};
use crate::record::StepRecord;
use crate::state::{Order, State, Step};
use crate::status::Waiting;

/// What tells a rule of rounds from BSP.
pub(super) trait RoundPlan: Debug + Send {
    /// As [`SyncRule::adds_pieces`].
    fn adds_pieces(&self) -> bool {
        true
    }

    /// What an agent gets whose local batch is this.
    fn order(&self, _state: &State, _agent: AgentId, batch: u32) -> Order {
        Order::gradient(batch)
    }

    /// Most samples that the updates of one round have together, where agents are given so many.
    fn samples_max(&self, _global_batch: u32, ordered: u32) -> u32 {
        ordered
    }

    /// b: how many of its K agents a round does not wait for.
    fn backups(&self) -> u32 {
        0
    }

    /// How many rounds late an update may come that a round has not waited for. None: it is taken back at once.
    fn staleness_max(&self) -> Option<u64> {
        None
    }

    /// An update of so many samples is in.
    fn accepted(&mut self, _agent: AgentId, _samples: u32) {}

    /// As [`SyncRule::local_batch`], where it is not the batcher's.
    fn local_batch(&self, _state: &State, _agent: AgentId) -> Option<u32> {
        None
    }
}

#[derive(Debug)]
pub(super) struct Rounds<P> {
    plan: P,
    round: Option<Round>,
    /// Agents whose updates are missing: of the open round, and late ones of earlier rounds.
    outstanding: AgentMap<AssignmentId>,
    /// Updates that are in the sum.
    updates: AgentMap<Contribution>,
    /// Agents that rounds went on without. They are served last, with samples that nobody had before: what was given back may
    /// be theirs, and others are more likely to bring it home.
    left_out: AgentMap<()>,
}

#[derive(Debug)]
struct Round {
    /// Updates that close it: K − b, but no fewer than the quorum.
    needed: usize,
    /// Samples that may be missing then: as many as b agents have on average. With equal batches that says nothing new; with
    /// unequal ones a step is never made of the small ones alone.
    spare_samples: u32,
    progress: Now,
}

/// An update whose gradient is in the sum.
#[derive(Debug)]
struct Contribution {
    /// With those samples only that were done.
    record: StepRecord,
    buffers: Vec<f32>,
    bytes: u64,
}

impl<P: RoundPlan> Rounds<P> {
    pub(super) fn new(plan: P) -> Rounds<P> {
        Rounds {
            plan,
            round: None,
            outstanding: AgentMap::default(),
            updates: AgentMap::default(),
            left_out: AgentMap::default(),
        }
    }

    fn open(&mut self, state: &mut State, now: Now) -> bool {
        if !state.may_start(now) {
            return false;
        }
        state.update_batches(now);
        let mut batches = state.batcher.batches();
        batches.retain(|(agent, _)| !self.updates.contains(*agent));
        batches.sort_by_key(|(agent, _)| self.left_out.contains(*agent));
        let orders: Vec<(AgentId, Order)> =
            batches.into_iter().map(|(agent, batch)| (agent, self.plan.order(state, agent, batch))).collect();
        let late =
            self.outstanding.keys().filter_map(|agent| state.ledger.get(agent)).map(|assignment| assignment.samples);
        let carried = late.chain(self.updates.values().map(|update| update.record.samples)).sum::<u32>();
        let ordered = orders.iter().map(|(_, order)| order.samples).fold(carried, u32::saturating_add);
        let room = state.make_room_in_sum(self.plan.samples_max(state.config.global_batch, ordered));
        let mut samples = carried;
        for (agent, order) in orders {
            if samples.saturating_add(order.samples) > room {
                continue; // it waits until what is late is in
            }
            let which = if self.left_out.contains(agent) { Which::Fresh } else { order.which };
            let Some(id) = state.issue(agent, Order { which, ..order }, now) else { continue };
            samples += order.samples;
            self.outstanding.insert(agent, id);
        }
        let agents = self.outstanding.len() + self.updates.len();
        let backups = (self.plan.backups() as usize).min(agents);
        let needed = (agents - backups).max(state.config.agents_min as usize);
        let spare_samples = (backups as u32).saturating_mul(samples.div_ceil(agents.max(1) as u32));
        self.round = (agents > 0).then_some(Round { needed, spare_samples, progress: now });
        self.round.is_some()
    }

    /// Whether nothing more is waited for.
    fn is_enough(&self, round: &Round, state: &State) -> bool {
        // Asked after each message, so what is missing is added up only where few are: else a round costs the square of its agents.
        self.outstanding.is_empty()
            || (self.updates.len() >= round.needed && self.missing_samples(state) <= round.spare_samples)
    }

    fn is_missing(&self, assignment: &Assignment) -> bool {
        self.outstanding.get(assignment.agent) == Some(&assignment.id)
    }

    fn missing_samples(&self, state: &State) -> u32 {
        let missing = self.outstanding.keys().filter_map(|agent| state.ledger.get(agent));
        missing.map(|assignment| assignment.samples).sum()
    }

    /// One optimizer step over what is in.
    fn close(&mut self, state: &mut State, now: Now) {
        self.round = None;
        let updates = &self.updates;
        let samples = updates.values().map(|update| update.record.samples).sum::<u32>();
        let loss = updates.values().map(|update| f64::from(update.record.loss) * f64::from(update.record.samples));
        let loss = loss.sum::<f64>() / f64::from(samples);
        let gradient_norm = state.apply_sum(samples);
        let merged = updates.values().map(|update| (update.record.samples, update.buffers.as_slice()));
        if let Some(buffers) = buffers::merge(merged) {
            state.model.buffers = buffers;
        }
        let count = updates.len() as u32;
        state.out.reserve(2 * updates.len()); // a record each, and then an assignment each
        for (agent, Contribution { mut record, bytes, .. }) in self.updates.drain() {
            self.left_out.remove(agent);
            state.cursor.commit(&record.spans);
            record.version = state.model.version;
            state.count_accepted(record, bytes);
        }
        self.leave_out_missing(state);
        state.finish_step(now, Step { loss, samples, updates: count, gradient_norm });
    }

    /// Takes back what is missing after a round and will be too old for the next, unless its time is asked for: who is never waited
    /// for would else never be heard of, and its batch never be suited to it.
    fn leave_out_missing(&mut self, state: &mut State) {
        for agent in self.outstanding.keys().collect::<Vec<_>>() {
            let Some(assignment) = state.ledger.get(agent) else { continue };
            let staleness = assignment.version.staleness_at(state.model.version);
            let Some(why) = self.too_late(staleness) else { continue };
            self.left_out.insert(agent, ());
            if !state.batcher.lacks_steps(agent) {
                self.outstanding.remove(agent);
                state.give_up(agent, why);
                state.counters.left_out += 1;
            }
        }
    }

    /// Why an update that old does not count.
    fn too_late(&self, staleness: u64) -> Option<PushError> {
        match self.plan.staleness_max() {
            Some(staleness_max) => {
                (staleness > staleness_max).then_some(PushError::TooStale { staleness, staleness_max })
            }
            None => (staleness > 0).then_some(PushError::RoundClosed),
        }
    }

    /// Starts the round over: nothing that is in the sum counts.
    fn reopen(&mut self, state: &mut State) {
        state.counters.rounds_reopened += 1;
        state.out.notice(Level::Warn, "round starts over", vec![("version", state.model.version.to_string())]);
        self.abandon(state, &PushError::RoundReopened);
    }

    /// Agents that could work, without those that are missing.
    fn others(&self, state: &State, now: Now) -> usize {
        state.members.available(now).into_iter().filter(|&agent| !self.outstanding.contains(agent)).count()
    }

    /// Gives up those that are missing.
    fn give_up_missing(&mut self, state: &mut State, now: Now) {
        let mut added = false;
        for (agent, _) in self.outstanding.drain() {
            added |= give_up_straggler(state, now, agent, PushError::RoundClosed, "round goes on without an agent");
        }
        if added {
            self.reopen(state);
        }
    }

    /// Gives up what is late and makes no progress, while no round is open: an evaluation waits for its agent.
    fn give_up_overdue(&mut self, state: &mut State, now: Now) {
        for agent in overdue(state, now) {
            self.outstanding.remove(agent);
            let message = "an agent made no progress, its samples are issued again";
            give_up_straggler(state, now, agent, PushError::Overdue, message);
        }
    }
}

impl<P: RoundPlan> SyncRule for Rounds<P> {
    fn adds_pieces(&self) -> bool {
        self.plan.adds_pieces()
    }

    fn advance(&mut self, state: &mut State, now: Now) {
        let quorum = state.config.agents_min as usize;
        loop {
            match &self.round {
                Some(round) if self.is_enough(round, state) => {
                    if self.updates.len() >= quorum {
                        self.close(state, now);
                    } else {
                        self.reopen(state);
                    }
                }
                Some(round) if now >= round.progress + state.config.round_deadline => {
                    if self.updates.len() < quorum && self.others(state, now) < quorum {
                        return; // late, but there is no step to be made without them
                    }
                    self.give_up_missing(state, now);
                }
                Some(_) => return,
                None => {
                    if state.is_ending() {
                        self.abandon(state, &PushError::JobOver); // what is late
                    }
                    self.give_up_overdue(state, now);
                    if state.is_over() || state.evaluate_behind_barrier(now) || !self.open(state, now) {
                        return;
                    }
                }
            }
        }
    }

    fn update(&mut self, state: &mut State, now: Now, update: &mut Update) -> Result<(), PushError> {
        if !self.is_missing(&update.assignment) {
            return Err(PushError::RoundClosed);
        }
        let version = state.model.version;
        let staleness = update.assignment.version.staleness_at(version);
        if let Some(why) = self.too_late(staleness) {
            state.observe_refused(&update.assignment, update.report.timings);
            self.outstanding.remove(update.assignment.agent);
            state.counters.left_out += 1;
            return Err(why);
        }
        if let Some(gradient) = &update.gradient {
            state.add_to_sum(gradient, update.report.samples)?;
        }
        self.outstanding.remove(update.assignment.agent);
        if let Some(round) = &mut self.round {
            round.progress = now;
        }
        state.accept(&update.assignment, version, staleness);
        let (done, rest) = cut(std::mem::take(&mut update.assignment.spans), update.report.samples);
        state.cursor.give_back(&rest);
        let record = step_record(update, done, staleness, now);
        self.plan.accepted(record.agent, record.samples);
        let (buffers, bytes) = (std::mem::take(&mut update.buffers), update.bytes);
        self.updates.insert(record.agent, Contribution { record, buffers, bytes });
        Ok(())
    }

    fn lost(&mut self, state: &mut State, now: Now, Lost { assignment, added, again }: Lost) {
        let Assignment { agent, computation, .. } = assignment;
        let (local_batch, is_missing) = (assignment.local_batch(), self.is_missing(&assignment));
        state.give_back(assignment.spans);
        if !is_missing {
            return;
        }
        self.outstanding.remove(agent);
        if self.round.is_none() {
            return;
        }
        if added {
            self.reopen(state);
        } else if again && state.members.is_available(agent, now) {
            let fits = state.batcher.batch_max(agent).unwrap_or(u32::MAX).min(local_batch);
            let samples = (assignment.samples / local_batch.max(1)).max(1).saturating_mul(fits);
            let order = Order { samples: samples.min(assignment.samples), which: Which::ReturnedFirst, computation };
            if let Some(id) = state.issue(agent, order, now) {
                self.outstanding.insert(agent, id);
            }
        }
    }

    fn progress(&mut self, now: Now, agent: AgentId) {
        if let Some(round) = self.round.as_mut().filter(|_| self.outstanding.contains(agent)) {
            round.progress = now;
        }
    }

    fn deadline(&self, state: &State) -> Option<Now> {
        match &self.round {
            Some(round) => Some(round.progress + state.config.round_deadline),
            None => first_overdue(state),
        }
    }

    fn waiting(&self, state: &State) -> Option<Waiting> {
        let round = self.round.as_ref()?;
        let open = state.ledger.all_open().filter(|assignment| self.is_missing(assignment));
        Some(Waiting::Updates {
            agents: open.map(|assignment| state.members.name(assignment.agent)).collect(),
            accepted: self.updates.len() as u32,
            quorum: state.config.agents_min,
            until: round.progress + state.config.round_deadline,
        })
    }

    fn local_batch(&self, state: &State, agent: AgentId) -> u32 {
        self.plan.local_batch(state, agent).unwrap_or_else(|| state.batcher.batch(agent))
    }

    fn abandon(&mut self, state: &mut State, why: &PushError) {
        self.round = None;
        for (agent, _) in self.outstanding.drain() {
            state.give_up(agent, why.clone());
        }
        for (agent, Contribution { record, .. }) in self.updates.drain() {
            state.ledger.record(record.assignment, agent, Closed::Void(why.clone()));
            state.give_back(record.spans);
        }
        state.clear_sum();
    }
}
