//! Asynchronous: each gradient is applied on arrival, and its agent gets fresh parameters and new work at once.
//!
//! θ ← step(θ, c·g_k), c = (b_k·K/B)·d: the mean gradient of b_k samples counts for as much as its samples in a mean over K
//! agents. d = 1/(staleness + 1) with damping (DynSGD, simplified), else 1. A gradient past the largest staleness is
//! refused, and its samples are issued again.

use std::collections::BTreeSet;

use omnilearn_wire::{AgentId, AssignmentId};

use super::{Lost, SyncRule};
use crate::Now;
use crate::action::{Action, Level};
use crate::aggregate::Scaled;
use crate::buffers;
use crate::cursor::Which;
use crate::push::{PushError, Update};
use crate::record::{Record, StepRecord};
use crate::state::{State, Step};
use crate::status::Waiting;

#[derive(Debug)]
pub(super) struct Asp {
    staleness_max: Option<u64>,
    damping: bool,
    /// Agents whose last gradient was too old. They do not get samples that were given back, which may be their own:
    /// others are more likely to bring those home.
    stale: BTreeSet<AgentId>,
}

impl Asp {
    pub(super) fn new(staleness_max: Option<u64>, damping: bool) -> Asp {
        Asp { staleness_max, damping, stale: BTreeSet::new() }
    }

    /// Gives up assignments without progress for the deadline.
    fn give_up_overdue(state: &mut State, now: Now) {
        let deadline = state.config.round_deadline;
        let overdue = state.ledger.all_open().filter(|assignment| now >= assignment.progress + deadline);
        for id in overdue.map(|assignment| assignment.id).collect::<Vec<_>>() {
            let Some((agent, _)) = state.give_up(id, PushError::Overdue) else { continue };
            state.counters.stragglers += 1;
            state.members.missed(agent, now, deadline);
            let (agent, name) = state.members.name(agent);
            let fields = vec![("agent", agent.to_string()), ("name", name), ("assignment", id.to_string())];
            state.out.notice(Level::Warn, "an agent made no progress, its samples are issued again", fields);
        }
    }
}

impl SyncRule for Asp {
    fn adds_pieces(&self) -> bool {
        false
    }

    fn advance(&mut self, state: &mut State, now: Now) {
        Asp::give_up_overdue(state, now);
        if state.is_ending() {
            self.abandon(state, &PushError::JobOver);
        }
        if state.is_over() || state.evaluate_in_passing(now) || !state.may_start(now) {
            return;
        }
        state.update_batches(now);
        for agent in state.members.idle(now) {
            let batch = state.batcher.batch(agent);
            if batch > 0 {
                let which = if self.stale.contains(&agent) { Which::Fresh } else { Which::ReturnedFirst };
                state.issue(agent, batch, which, now);
            }
        }
    }

    fn update(&mut self, state: &mut State, now: Now, update: &mut Update) -> Result<(), PushError> {
        let (from, version) = (update.assignment.version, state.model.version);
        let staleness = from.staleness_at(version);
        if let Some(staleness_max) = self.staleness_max.filter(|&staleness_max| staleness > staleness_max) {
            // Its time is as good as any: without it, a controller would never hear of an agent that is always too slow.
            state.observe(update.assignment.agent, update.assignment.samples, &update.report.timings);
            self.stale.insert(update.assignment.agent);
            return Err(PushError::TooStale { staleness, staleness_max });
        }
        let gradient = update.gradient.as_ref().ok_or(PushError::RoundClosed)?;
        let samples = update.assignment.samples;
        let global_batch = state.batcher.effective_global_batch();
        let agents = state.batcher.batches().len().max(1) as f64;
        let share = f64::from(samples) * agents / f64::from(global_batch);
        let damping = if self.damping { 1.0 / (staleness + 1) as f64 } else { 1.0 };
        let parameter_bytes = state.stream.parameter_bytes as usize;
        let factor = (share * damping) as f32;
        let scaled = Scaled::new(state.config.codec, &gradient[..parameter_bytes], factor)
            .map_err(|error| PushError::from_add(error, &state.layout))?;
        let gradient_norm = state.apply(&scaled);
        if !update.buffers.is_empty() {
            buffers::blend(&mut state.model.buffers, &update.buffers, samples, global_batch);
        }
        let version = state.model.version;
        state.accept(&update.assignment, version, staleness);
        state.cursor.commit(&update.assignment.spans);
        self.stale.remove(&update.assignment.agent);
        let record = StepRecord {
            round: from.0,
            version,
            agent: update.assignment.agent,
            assignment: update.assignment.id,
            samples,
            spans: update.assignment.spans.clone(),
            loss: update.report.loss,
            metric_sums: std::mem::take(&mut update.report.metric_sums),
            staleness,
            timings: update.report.timings,
            wall_s: now.as_secs_f64(),
        };
        let loss = f64::from(record.loss);
        state.count_accepted(update.assignment.agent, &record, update.bytes);
        state.out.push(Action::Record(Record::Step(record)));
        state.finish_step(now, Step { loss, samples, updates: 1, gradient_norm });
        Ok(())
    }

    fn lost(&mut self, state: &mut State, _now: Now, lost: Lost) {
        state.give_back(lost.assignment.spans);
    }

    fn progress(&mut self, _now: Now, _assignment: AssignmentId) {}

    fn deadline(&self, state: &State) -> Option<Now> {
        let progress = state.ledger.all_open().map(|assignment| assignment.progress).min()?;
        Some(progress + state.config.round_deadline)
    }

    fn waiting(&self, _state: &State) -> Option<Waiting> {
        None
    }

    fn abandon(&mut self, state: &mut State, why: &PushError) {
        for id in state.ledger.all_open().map(|assignment| assignment.id).collect::<Vec<_>>() {
            state.give_up(id, why.clone());
        }
    }
}
