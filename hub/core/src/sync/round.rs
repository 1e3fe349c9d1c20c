//! Rules that make one step of many updates. A round opens when enough agents are ready, and closes when as many updates are in
//! as the rule waits for; or when nothing has arrived for the deadline and a quorum is in: then those missing are given up. The
//! step is the mean over what is there. Samples of missing updates are issued again in a later round.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use omnilearn_wire::{AgentId, AssignmentId};

use super::{Lost, SyncRule, first_overdue, give_up_straggler, overdue, step_record};
use crate::Now;
use crate::action::Level;
use crate::buffers;
use crate::cursor::{Which, cut, samples_in};
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
    /// Assignments whose updates are missing: of the open round, and late ones of earlier rounds.
    outstanding: BTreeSet<AssignmentId>,
    /// Updates that are in the sum.
    updates: BTreeMap<AgentId, Contribution>,
    /// Agents that rounds went on without. They are served last, with samples that nobody had before: what was given back may
    /// be theirs, and others are more likely to bring it home.
    left_out: BTreeSet<AgentId>,
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
    assignment: Assignment,
    buffers: Vec<f32>,
    record: StepRecord,
    bytes: u64,
}

impl<P: RoundPlan> Rounds<P> {
    pub(super) fn new(plan: P) -> Rounds<P> {
        Rounds { plan, round: None, outstanding: BTreeSet::new(), updates: BTreeMap::new(), left_out: BTreeSet::new() }
    }

    fn open(&mut self, state: &mut State, now: Now) -> bool {
        if !state.may_start(now) {
            return false;
        }
        state.update_batches(now);
        let mut batches = state.batcher.batches();
        batches.retain(|(agent, _)| !self.updates.contains_key(agent));
        batches.sort_by_key(|(agent, _)| self.left_out.contains(agent));
        let orders: Vec<(AgentId, Order)> =
            batches.into_iter().map(|(agent, batch)| (agent, self.plan.order(state, agent, batch))).collect();
        let late = self.outstanding.iter().filter_map(|&id| state.ledger.get(id)).map(|assignment| assignment.samples);
        let carried = late.chain(self.updates.values().map(|update| update.assignment.samples)).sum::<u32>();
        let ordered = orders.iter().map(|(_, order)| order.samples).fold(carried, u32::saturating_add);
        let room = state.make_room_in_sum(self.plan.samples_max(state.config.global_batch, ordered));
        let mut samples = carried;
        for (agent, order) in orders {
            if samples.saturating_add(order.samples) > room {
                continue; // it waits until what is late is in
            }
            let which = if self.left_out.contains(&agent) { Which::Fresh } else { order.which };
            let Some(id) = state.issue(agent, Order { which, ..order }, now) else { continue };
            samples += order.samples;
            self.outstanding.insert(id);
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

    fn missing_samples(&self, state: &State) -> u32 {
        let missing = self.outstanding.iter().filter_map(|&id| state.ledger.get(id));
        missing.map(|assignment| assignment.samples).sum()
    }

    /// One optimizer step over what is in.
    fn close(&mut self, state: &mut State, now: Now) {
        self.round = None;
        let updates = std::mem::take(&mut self.updates);
        let samples = updates.values().map(|update| update.assignment.samples).sum::<u32>();
        let loss = updates.values().map(|update| f64::from(update.record.loss) * f64::from(update.assignment.samples));
        let loss = loss.sum::<f64>() / f64::from(samples);
        let gradient_norm = state.apply_sum(samples);
        let merged = updates.values().map(|update| (update.assignment.samples, update.buffers.as_slice()));
        if let Some(buffers) = buffers::merge(merged) {
            state.model.buffers = buffers;
        }
        let count = updates.len() as u32;
        for (agent, Contribution { assignment, mut record, bytes, .. }) in updates {
            self.left_out.remove(&agent);
            state.cursor.commit(&assignment.spans);
            record.version = state.model.version;
            state.count_accepted(record, bytes);
        }
        self.leave_out_missing(state);
        state.finish_step(now, Step { loss, samples, updates: count, gradient_norm });
    }

    /// Takes back what is missing after a round and will be too old for the next.
    fn leave_out_missing(&mut self, state: &mut State) {
        for id in std::mem::take(&mut self.outstanding) {
            let Some(assignment) = state.ledger.get(id) else { continue };
            let staleness = assignment.version.staleness_at(state.model.version);
            let why = match self.plan.staleness_max() {
                Some(staleness_max) if staleness <= staleness_max => {
                    self.outstanding.insert(id);
                    continue;
                }
                Some(staleness_max) => PushError::TooStale { staleness, staleness_max },
                None => PushError::RoundClosed,
            };
            self.left_out.insert(assignment.agent);
            state.give_up(id, why);
            state.counters.left_out += 1;
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
        let missing = self.outstanding.iter().filter_map(|&id| state.ledger.get(id));
        let missing: BTreeSet<AgentId> = missing.map(|assignment| assignment.agent).collect();
        state.members.available(now).difference(&missing).count()
    }

    /// Gives up those that are missing.
    fn give_up_missing(&mut self, state: &mut State, now: Now) {
        let mut added = false;
        for id in std::mem::take(&mut self.outstanding) {
            added |= give_up_straggler(state, now, id, PushError::RoundClosed, "round goes on without an agent");
        }
        if added {
            self.reopen(state);
        }
    }

    /// Gives up what is late and makes no progress, while no round is open: an evaluation waits for its agent.
    fn give_up_overdue(&mut self, state: &mut State, now: Now) {
        for id in overdue(state, now) {
            self.outstanding.remove(&id);
            let message = "an agent made no progress, its samples are issued again";
            give_up_straggler(state, now, id, PushError::Overdue, message);
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
        if !self.outstanding.contains(&update.assignment.id) {
            return Err(PushError::RoundClosed);
        }
        if let Some(gradient) = &update.gradient {
            state.add_to_sum(gradient, update.report.samples)?;
        }
        self.outstanding.remove(&update.assignment.id);
        if let Some(round) = &mut self.round {
            round.progress = now;
        }
        let version = state.model.version;
        let staleness = update.assignment.version.staleness_at(version);
        state.accept(&update.assignment, version, staleness);
        let mut assignment = update.assignment.clone();
        let (done, rest) = cut(std::mem::take(&mut assignment.spans), update.report.samples);
        state.cursor.give_back(&rest);
        (assignment.samples, assignment.spans) = (samples_in(&done), done);
        self.plan.accepted(assignment.agent, assignment.samples);
        let record = step_record(&assignment, update, staleness, now);
        let (buffers, bytes) = (std::mem::take(&mut update.buffers), update.bytes);
        self.updates.insert(assignment.agent, Contribution { assignment, buffers, record, bytes });
        Ok(())
    }

    fn lost(&mut self, state: &mut State, now: Now, Lost { assignment, added, again }: Lost) {
        let Assignment { agent, id, computation, .. } = assignment;
        let local_batch = assignment.local_batch();
        state.give_back(assignment.spans);
        if !self.outstanding.remove(&id) || self.round.is_none() {
            return;
        }
        if added {
            self.reopen(state);
        } else if again && state.members.is_available(agent, now) {
            let fits = state.batcher.batch_max(agent).unwrap_or(u32::MAX).min(local_batch);
            let samples = (assignment.samples / local_batch.max(1)).max(1).saturating_mul(fits);
            let order = Order { samples: samples.min(assignment.samples), which: Which::ReturnedFirst, computation };
            self.outstanding.extend(state.issue(agent, order, now));
        }
    }

    fn progress(&mut self, now: Now, assignment: AssignmentId) {
        if let Some(round) = self.round.as_mut().filter(|_| self.outstanding.contains(&assignment)) {
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
        let open = state.ledger.all_open().filter(|assignment| self.outstanding.contains(&assignment.id));
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
        for id in std::mem::take(&mut self.outstanding) {
            state.give_up(id, why.clone());
        }
        for (agent, Contribution { assignment, .. }) in std::mem::take(&mut self.updates) {
            state.ledger.record(assignment.id, agent, Closed::Void(why.clone()));
            state.give_back(assignment.spans);
        }
        state.clear_sum();
    }
}
