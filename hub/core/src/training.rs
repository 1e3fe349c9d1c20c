//! One job's state machine: events in, actions out.

use std::collections::VecDeque;

use omnilearn_wire::limits::cut_reason;
use omnilearn_wire::message::{Failure, JobReady, Machine, PushOutcome};
use omnilearn_wire::{AgentId, AssignmentId, Layout};

use crate::Now;
use crate::action::{Action, Level, StopReason};
use crate::batching::Rating;
use crate::config::{ConfigError, JobConfig};
use crate::event::Event;
use crate::ledger::Closed;
use crate::membership::{self, Work};
use crate::model::Snapshot;
use crate::optimizer::Optimizer;
use crate::push::{Ended, Fault, PushError};
use crate::state::State;
use crate::status::Status;
use crate::sync::{self, Lost, SyncRule};

/// One job. Pure: it has no clock, no sockets and no threads, and the same events at the same times give the same actions.
#[derive(Debug)]
pub struct Training {
    state: State,
    rule: Box<dyn SyncRule>,
    /// Up to when deadlines have been looked at.
    looked: Option<Now>,
    /// Agents that are ready and have no part of a divided training set, in the order in which they came.
    without_part: VecDeque<ReadyAgent>,
}

/// An agent that says that it can work on the job.
#[derive(Clone, Debug)]
struct ReadyAgent {
    agent: AgentId,
    name: String,
    machine: Machine,
    ready: JobReady,
}

impl Training {
    /// A job before its first event. `decay_mask` says for each parameter tensor whether it takes weight decay.
    ///
    /// # Errors
    /// [`ConfigError`] for a configuration that makes no sense or does not fit the model.
    pub fn new(
        config: JobConfig,
        layout: Layout,
        parameters: Vec<f32>,
        buffers: Vec<f32>,
        decay_mask: Vec<bool>,
    ) -> Result<Training, ConfigError> {
        config.validate()?;
        config.validate_model(&layout, &parameters, &buffers, &decay_mask)?;
        let rule = sync::rule(config.mode);
        let state = State::new(config, layout, &parameters, &buffers, &decay_mask);
        Ok(Training { state, rule, looked: None, without_part: VecDeque::new() })
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Now, event: Event<'_>) -> Vec<Action> {
        if self.state.is_over() {
            return self.after_the_end(event);
        }
        match event {
            Event::Ready { agent, name, machine, ready } => {
                self.forget(now, agent);
                self.on_ready(ReadyAgent { agent, name, machine, ready });
            }
            Event::Gone { agent } => self.on_gone(now, agent),
            Event::PushBegin { agent, assignment, version, bytes } => {
                if self.state.uploads.has_added(agent)
                    && let Some(earlier) = self.state.uploads.assignment(agent)
                {
                    self.refuse(now, agent, earlier, PushError::RoundReopened, true);
                }
                let may_add = self.rule.adds_pieces();
                let State { uploads, ledger, stream, .. } = &mut self.state;
                match uploads.begin(ledger, *stream, (agent, assignment, version), bytes, may_add) {
                    Ok(()) => self.progress(now, agent, assignment),
                    Err(error) => self.refuse(now, agent, assignment, error, true),
                }
            }
            Event::PushChunk { agent, assignment, offset, bytes } => {
                match self.state.chunk((agent, assignment), (offset, bytes), now) {
                    Ok(true) => self.rule.progress(now, agent),
                    Ok(false) => return Vec::new(),
                    Err(error) => self.refuse(now, agent, assignment, error, true),
                }
            }
            Event::PushEnd { agent, assignment, report } => {
                let State { uploads, ledger, stream, .. } = &mut self.state;
                match uploads.end(ledger, *stream, (agent, assignment), report) {
                    Ok(Ended::Update(mut update)) => {
                        match update.report.timings {
                            Some(_) => self.state.late_timings.forget(assignment), // they may come both ways
                            None => self.state.late_timings.expect(agent, assignment),
                        }
                        let taken = self.rule.update(&mut self.state, now, &mut update);
                        if let Some(staged) = update.gradient {
                            self.state.recycle(staged);
                        }
                        if let Err(error) = taken {
                            self.state.late_timings.forget(assignment);
                            self.refuse(now, agent, assignment, error, false);
                        }
                    }
                    Ok(Ended::Duplicate { version, staleness }) => {
                        self.state.counters.duplicate += 1;
                        let outcome = PushOutcome::Accepted { version, staleness };
                        self.state.out.push(Action::Outcome { agent, assignment, outcome });
                    }
                    Ok(Ended::Told) => {}
                    Err(error) => self.refuse(now, agent, assignment, error, false),
                }
            }
            Event::Timings { agent, assignment, timings } => {
                self.state.timings_arrived(agent, assignment, timings);
            }
            Event::Evaluated { agent, assignment, samples, loss_sum, metric_sums } => {
                self.on_evaluated(now, (agent, assignment), samples, loss_sum, metric_sums);
            }
            Event::Failed { agent, assignment, failure, message } => {
                self.on_failed(now, agent, assignment, failure, &message);
            }
        }
        self.advance(now)
    }

    /// To be called when [`Training::next_deadline`] has passed; harmless at any other time.
    pub fn on_deadline(&mut self, now: Now) -> Vec<Action> {
        self.advance(now)
    }

    /// When [`Training::on_deadline`] must be called if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Now> {
        let state = &self.state;
        if state.is_over() {
            return None;
        }
        let deadlines = [
            self.rule.deadline(state),
            state.evaluation_deadline(),
            state.members.next_unbench(),
            state.start_deadline(),
            state.config.stop.wall_time,
        ];
        // One that has passed already could not be met; it is looked at again with the next event.
        deadlines.into_iter().flatten().filter(|&deadline| self.looked.is_none_or(|looked| looked < deadline)).min()
    }

    /// The job at a glance.
    pub fn status(&self, now: Now) -> Status {
        let mut status = self.state.status(now, self.rule.waiting(&self.state));
        for agent in &mut status.agents {
            agent.local_batch = self.rule.local_batch(&self.state, agent.agent);
        }
        status
    }

    /// The parameters as they are.
    pub fn snapshot(&self) -> Snapshot {
        self.state.model.clone()
    }

    /// The optimizer, for its state.
    pub fn optimizer(&self) -> &Optimizer {
        self.state.optimizer()
    }

    /// Why the job is over, if it is.
    pub fn finished(&self) -> Option<&StopReason> {
        self.state.finished.as_ref()
    }

    /// Ends the job at once, by an operator's wish.
    pub fn stop(&mut self, _now: Now, reason: String) -> Vec<Action> {
        if !self.state.is_over() {
            self.end(StopReason::Stopped { reason });
        }
        self.state.out.take()
    }

    fn end(&mut self, reason: StopReason) {
        self.rule.abandon(&mut self.state, &PushError::JobOver);
        self.state.finish(reason);
    }

    fn advance(&mut self, now: Now) -> Vec<Action> {
        if !self.state.is_over() {
            self.looked = self.looked.max(Some(now));
            self.state.members.unbench(now);
            match self.state.config.stop.wall_time {
                Some(wall_time) if now >= wall_time => {
                    self.end(StopReason::WallTime { seconds: wall_time.as_secs() });
                }
                _ => {
                    self.rule.advance(&mut self.state, now);
                    self.state.end_without_agents(now);
                }
            }
        }
        self.state.out.take()
    }

    fn on_ready(&mut self, joining: ReadyAgent) {
        let ReadyAgent { agent, name, machine, ready } = joining.clone();
        let state = &mut self.state;
        let config = &state.config;
        let mut unfit = membership::unfit(&ready, config.train_samples, config.test_samples, config.batch_bounds.0);
        let mut fields = vec![("agent", agent.to_string()), ("name", name.clone())];
        match &unfit {
            Some(reason) => {
                fields.push(("reason", reason.clone()));
                state.out.notice(Level::Error, "agent cannot work on the job", fields);
            }
            None if !state.cursor.join(agent) => {
                let reason =
                    "every part of the training set has an agent; this one takes over when one leaves".to_owned();
                fields.push(("reason", reason.clone()));
                state.out.notice(Level::Info, "agent waits for a part", fields);
                self.without_part.push_back(joining);
                unfit = Some(reason);
            }
            None => state.out.notice(Level::Info, "agent ready", fields),
        }
        let config = &state.config;
        let cores = machine.quota_cores.map_or(f64::from(machine.cores), f64::from);
        if unfit.is_none() {
            let share = config.shares.get(&name).copied();
            let rating = Rating { calibration: ready.calibration, cores, share };
            state.batcher.join(agent, rating, ready.batch_max, ready.batch_step);
        }
        state.members.join((agent, name), machine, unfit, state.ledger.last_id());
    }

    fn on_gone(&mut self, now: Now, agent: AgentId) {
        self.forget(now, agent);
        // A part that has become free goes on with the agent that has waited longest.
        while self.state.cursor.has_free_part()
            && let Some(next) = self.without_part.pop_front()
        {
            self.on_ready(next);
        }
    }

    fn forget(&mut self, now: Now, agent: AgentId) {
        self.without_part.retain(|waiting| waiting.agent != agent);
        self.state.cursor.leave(agent);
        let Some(work) = self.state.members.leave(agent) else { return };
        let (_, name) = self.state.members.name(agent);
        self.state.out.notice(Level::Info, "agent gone", vec![("agent", agent.to_string()), ("name", name)]);
        let added = self.state.uploads.remove(agent);
        self.state.batcher.leave(agent);
        self.state.evaluation_lost(agent);
        if work == Work::Train
            && let Some(assignment) = self.state.ledger.close(agent, Closed::Void(PushError::Reissued))
        {
            self.state.counters.abandoned += 1;
            self.rule.lost(&mut self.state, now, Lost { assignment, added, again: false });
        }
    }

    fn progress(&mut self, now: Now, agent: AgentId, id: AssignmentId) {
        if let Ok(assignment) = self.state.ledger.find(agent, id) {
            assignment.progress = now;
            self.rule.progress(now, agent);
        }
    }

    /// Leaves a push out of the model, and says why. `more`: pieces of it may still come, and are ignored.
    fn refuse(&mut self, now: Now, agent: AgentId, id: AssignmentId, error: PushError, more: bool) {
        let state = &mut self.state;
        let added = state.uploads.assignment(agent) == Some(id) && state.uploads.remove(agent);
        if more {
            state.uploads.refuse(agent, id);
        }
        let fault = error.fault();
        let counter = match fault {
            Fault::Late => &mut state.counters.refused_closed,
            Fault::Stale => &mut state.counters.refused_stale,
            Fault::Value => &mut state.counters.refused_value,
            Fault::Malformed => &mut state.counters.refused_malformed,
        };
        *counter += 1;
        state.members.count_refused(agent);
        let reason = error.to_string();
        let fields = vec![("agent", agent.to_string()), ("assignment", id.to_string()), ("reason", reason.clone())];
        state.out.notice(if fault == Fault::Late { Level::Info } else { Level::Warn }, "push refused", fields);
        state.out.push(Action::Outcome {
            agent,
            assignment: id,
            outcome: PushOutcome::Refused { reason: reason.clone() },
        });
        if state.ledger.find(agent, id).is_err() {
            if fault == Fault::Late {
                state.members.caught_up(agent);
            }
            return;
        }
        let added = added || error == PushError::RoundReopened;
        let Some(assignment) = state.ledger.close(agent, Closed::Refused(error)) else { return };
        state.members.set_work(agent, Work::Idle);
        if matches!(fault, Fault::Value | Fault::Malformed) {
            self.count_failure(now, agent, &reason);
        }
        self.rule.lost(&mut self.state, now, Lost { assignment, added, again: true });
    }

    /// Counts one of several failures in a row that end in a rest.
    fn count_failure(&mut self, now: Now, agent: AgentId, reason: &str) {
        let Some(until) = self.state.members.failed(agent, now, reason) else { return };
        let (_, name) = self.state.members.name(agent);
        let until = format!("{:.1}", until.as_secs_f64());
        let fields =
            vec![("agent", agent.to_string()), ("name", name), ("reason", reason.to_owned()), ("until_s", until)];
        self.state.out.notice(Level::Warn, "agent gets no work for a while", fields);
    }

    fn on_evaluated(
        &mut self,
        now: Now,
        (agent, id): (AgentId, AssignmentId),
        samples: u32,
        loss_sum: f64,
        metric_sums: Vec<f64>,
    ) {
        if !self.state.is_evaluating(agent, id) {
            self.state.members.caught_up(agent);
            return;
        }
        self.state.members.set_work(agent, Work::Idle);
        if !self.state.evaluated((agent, id), samples, (loss_sum, metric_sums), now) {
            self.state.evaluation_lost(agent);
            self.count_failure(now, agent, "evaluated other samples or metrics than asked for");
        }
    }

    fn on_failed(&mut self, now: Now, agent: AgentId, id: AssignmentId, failure: Failure, message: &str) {
        let evaluating = self.state.is_evaluating(agent, id);
        let open = self.state.ledger.find(agent, id).is_ok();
        if !evaluating && !open {
            self.state.members.caught_up(agent);
            return;
        }
        self.state.counters.failed += 1;
        self.state.members.count_failed(agent);
        let (_, name) = self.state.members.name(agent);
        let reason = cut_reason(format!("{failure:?}: {message}"));
        let fields = vec![("agent", agent.to_string()), ("name", name), ("reason", reason.clone())];
        self.state.out.notice(Level::Warn, "assignment failed", fields);
        self.state.members.set_work(agent, Work::Idle);
        if evaluating {
            self.state.evaluation_lost(agent);
            self.count_failure(now, agent, &reason);
            return;
        }
        let added = self.state.uploads.assignment(agent) == Some(id) && self.state.uploads.remove(agent);
        let Some(assignment) = self.state.ledger.close(agent, Closed::Void(PushError::Reissued)) else { return };
        let batch_min = self.state.config.batch_bounds.0;
        // A GPU that is out of memory may say so, or just be lost.
        let local_batch = assignment.local_batch();
        if matches!(failure, Failure::Memory | Failure::Device) && local_batch > batch_min {
            self.state.batcher.limit(agent, (local_batch / 2).max(batch_min));
        } else {
            self.count_failure(now, agent, &reason);
        }
        self.rule.lost(&mut self.state, now, Lost { assignment, added, again: true });
    }

    /// Late pushes are answered, everything else is ignored.
    fn after_the_end(&mut self, event: Event<'_>) -> Vec<Action> {
        match event {
            Event::PushEnd { agent, assignment, .. } => {
                let reason = PushError::JobOver.to_string();
                vec![Action::Outcome { agent, assignment, outcome: PushOutcome::Refused { reason } }]
            }
            _ => Vec::new(),
        }
    }
}
