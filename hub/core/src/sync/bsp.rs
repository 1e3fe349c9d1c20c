//! Bulk synchronous: one global batch, one barrier, one step.
//!
//! A round opens when enough agents are ready and closes when every expected update is in; or when nothing has arrived for
//! the deadline and a quorum is in: then those missing are given up, and the step is the mean over what is there.
//! Samples of missing updates are issued again in a later round.

use std::collections::{BTreeMap, BTreeSet};

use omnilearn_wire::{AgentId, AssignmentId};

use super::{Lost, SyncRule};
use crate::Now;
use crate::action::Level;
use crate::buffers;
use crate::cursor::Which;
use crate::ledger::{Assignment, Closed};
use crate::push::{PushError, Update};
use crate::record::{Record, StepRecord};
use crate::state::{State, Step};
use crate::status::Waiting;

#[derive(Debug, Default)]
pub(super) struct Bsp {
    round: Option<Round>,
}

#[derive(Debug)]
struct Round {
    outstanding: BTreeSet<AssignmentId>,
    updates: BTreeMap<AgentId, Contribution>,
    progress: Now,
}

/// An update whose gradient is in the sum.
#[derive(Debug)]
struct Contribution {
    assignment: Assignment,
    buffers: Vec<f32>,
    record: StepRecord,
    bytes: u64,
}

impl Bsp {
    fn open(&mut self, state: &mut State, now: Now) -> bool {
        if !state.may_start(now) {
            return false;
        }
        state.update_batches(now);
        let mut outstanding = BTreeSet::new();
        for (agent, batch) in state.batcher.batches() {
            outstanding.extend(state.issue(agent, batch, Which::ReturnedFirst, now));
        }
        let opened = !outstanding.is_empty();
        self.round = opened.then_some(Round { outstanding, updates: BTreeMap::new(), progress: now });
        opened
    }

    /// One optimizer step over what is in.
    fn close(&mut self, state: &mut State, now: Now) {
        let Some(Round { updates, .. }) = self.round.take() else { return };
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
            state.cursor.commit(&assignment.spans);
            record.version = state.model.version;
            state.count_accepted(agent, &record, bytes);
            state.out.push(crate::action::Action::Record(Record::Step(record)));
        }
        state.finish_step(now, Step { loss, samples, updates: count, gradient_norm });
    }

    /// Starts the round over: nothing that is in the sum counts.
    fn reopen(&mut self, state: &mut State) {
        let Some(Round { outstanding, updates, .. }) = self.round.take() else { return };
        state.counters.rounds_reopened += 1;
        state.out.notice(Level::Warn, "round starts over", vec![("version", state.model.version.to_string())]);
        for id in outstanding {
            state.give_up(id, PushError::RoundReopened);
        }
        for (agent, Contribution { assignment, .. }) in updates {
            state.ledger.record(assignment.id, agent, Closed::Void(PushError::RoundReopened));
            state.give_back(assignment.spans);
        }
        state.clear_sum();
    }

    /// Gives up those that are missing.
    fn give_up_missing(&mut self, state: &mut State, now: Now) {
        let Some(round) = &mut self.round else { return };
        let missing = std::mem::take(&mut round.outstanding);
        let mut added = false;
        for id in missing {
            let Some((agent, was_added)) = state.give_up(id, PushError::RoundClosed) else { continue };
            added |= was_added;
            state.counters.stragglers += 1;
            state.members.missed(agent, now, state.config.round_deadline);
            let (agent, name) = state.members.name(agent);
            let fields = vec![("agent", agent.to_string()), ("name", name), ("assignment", id.to_string())];
            state.out.notice(Level::Warn, "round goes on without an agent", fields);
        }
        if added {
            self.reopen(state);
        }
    }
}

impl SyncRule for Bsp {
    fn adds_pieces(&self) -> bool {
        true
    }

    fn advance(&mut self, state: &mut State, now: Now) {
        loop {
            match &mut self.round {
                Some(round) if round.outstanding.is_empty() => {
                    if round.updates.len() >= state.config.agents_min as usize {
                        self.close(state, now);
                    } else {
                        self.reopen(state);
                    }
                }
                Some(round) if now >= round.progress + state.config.round_deadline => {
                    if round.updates.len() < state.config.agents_min as usize {
                        return; // late, but there is no step to be made without them
                    }
                    self.give_up_missing(state, now);
                }
                Some(_) => return,
                None => {
                    if state.is_over() || state.evaluate_behind_barrier(now) || !self.open(state, now) {
                        return;
                    }
                }
            }
        }
    }

    fn update(&mut self, state: &mut State, now: Now, update: &mut Update) -> Result<(), PushError> {
        let round = self.round.as_mut().filter(|round| round.outstanding.contains(&update.assignment.id));
        let round = round.ok_or(PushError::RoundClosed)?;
        let samples = update.assignment.samples;
        if let Some(gradient) = &update.gradient {
            state.add_to_sum(gradient, samples)?;
        }
        round.outstanding.remove(&update.assignment.id);
        round.progress = now;
        let version = state.model.version;
        state.accept(&update.assignment, version, 0);
        let assignment = update.assignment.clone();
        let record = StepRecord {
            round: version.0,
            version, // until the round is closed
            agent: assignment.agent,
            assignment: assignment.id,
            samples,
            spans: assignment.spans.clone(),
            loss: update.report.loss,
            metric_sums: std::mem::take(&mut update.report.metric_sums),
            staleness: 0,
            timings: update.report.timings,
            wall_s: now.as_secs_f64(),
        };
        let (buffers, bytes) = (std::mem::take(&mut update.buffers), update.bytes);
        round.updates.insert(assignment.agent, Contribution { assignment, buffers, record, bytes });
        Ok(())
    }

    fn lost(&mut self, state: &mut State, now: Now, Lost { assignment, added, again }: Lost) {
        state.give_back(assignment.spans);
        let Some(round) = &mut self.round else { return };
        if !round.outstanding.remove(&assignment.id) {
            return;
        }
        if added {
            self.reopen(state);
        } else if again && state.members.is_available(assignment.agent, now) {
            let batch_max = state.batcher.batch_max(assignment.agent).unwrap_or(u32::MAX);
            let samples = assignment.samples.min(batch_max);
            round.outstanding.extend(state.issue(assignment.agent, samples, Which::ReturnedFirst, now));
        }
    }

    fn progress(&mut self, now: Now, assignment: AssignmentId) {
        if let Some(round) = self.round.as_mut().filter(|round| round.outstanding.contains(&assignment)) {
            round.progress = now;
        }
    }

    fn deadline(&self, state: &State) -> Option<Now> {
        let round = self.round.as_ref()?;
        Some(round.progress + state.config.round_deadline)
    }

    fn waiting(&self, state: &State) -> Option<Waiting> {
        let round = self.round.as_ref()?;
        let open = state.ledger.all_open().filter(|assignment| round.outstanding.contains(&assignment.id));
        Some(Waiting::Updates {
            agents: open.map(|assignment| state.members.name(assignment.agent)).collect(),
            accepted: round.updates.len() as u32,
            quorum: state.config.agents_min,
            until: round.progress + state.config.round_deadline,
        })
    }

    fn abandon(&mut self, state: &mut State, why: &PushError) {
        let Some(Round { outstanding, updates, .. }) = self.round.take() else { return };
        for id in outstanding {
            state.give_up(id, why.clone());
        }
        for (agent, Contribution { assignment, .. }) in updates {
            state.ledger.record(assignment.id, agent, Closed::Void(why.clone()));
            state.give_back(assignment.spans);
        }
        state.clear_sum();
    }
}
