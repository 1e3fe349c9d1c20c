//! When updates are asked for and when they are applied: one rule per file, over one shared state.
//!
//! Two families share what their rules have in common. [`round`] makes one step of many updates: a file of this family says
//! what agents are given and how many a round waits for. [`arrival`] makes a step of each update as it comes: a file says who
//! may begin and how much an update counts. A rule that is neither implements [`SyncRule`] itself. `docs/rules.md` compares them.

use std::fmt::Debug;

use omnilearn_wire::AgentId;
use omnilearn_wire::message::{Computation, LocalSteps, Span};

use crate::Now;
use crate::action::Level;
use crate::config::{Local, Mode};
use crate::cursor::samples_in;
use crate::ledger::Assignment;
use crate::push::{PushError, Update};
use crate::record::StepRecord;
use crate::state::State;
use crate::status::Waiting;

mod round;

mod anytime;
mod backup_workers;
mod bsp;
mod hop;
mod local_sgd;

mod arrival;
mod clocks;

mod asp;
mod con_sgd;
mod dyn_sgd;
mod elastic_averaging;
mod ssp;

/// An assignment that will not be done.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) assignment: Assignment,
    /// A part of its gradient has been added to the round's sum.
    pub(crate) added: bool,
    /// Its agent is to do it again, rather than have others do it.
    pub(crate) again: bool,
}

/// A rule of synchronisation. Everything but its own bookkeeping is in the [`State`].
pub(crate) trait SyncRule: Debug + Send {
    /// Whether a long gradient may be added to the state's sum before it is complete; a round that can start over may.
    fn adds_pieces(&self) -> bool;

    /// Gives out what can be given out, and closes what can be closed. Called after each event.
    fn advance(&mut self, state: &mut State, now: Now);

    /// Takes a complete update.
    ///
    /// # Errors
    /// Why it does not count; its agent is then told, and [`SyncRule::lost`] is called.
    fn update(&mut self, state: &mut State, now: Now, update: &mut Update) -> Result<(), PushError>;

    /// An assignment is lost; its samples are to be given back.
    fn lost(&mut self, state: &mut State, now: Now, lost: Lost);

    /// An agent's push made progress.
    fn progress(&mut self, now: Now, agent: AgentId);

    /// When [`SyncRule::advance`] must be called at the latest.
    fn deadline(&self, state: &State) -> Option<Now>;

    /// What it waits for.
    fn waiting(&self, state: &State) -> Option<Waiting>;

    /// Samples that an agent is given for one step of its own.
    fn local_batch(&self, state: &State, agent: AgentId) -> u32 {
        state.batcher.batch(agent)
    }

    /// Gives up everything under way.
    fn abandon(&mut self, state: &mut State, why: &PushError);
}

/// The rule of a mode.
pub(crate) fn rule(mode: Mode) -> Box<dyn SyncRule> {
    use arrival::Arrivals;
    use round::Rounds;
    match mode {
        Mode::Bsp => Box::new(Rounds::new(bsp::Bsp)),
        Mode::BackupWorkers { backups } => Box::new(Rounds::new(backup_workers::BackupWorkers { backups })),
        Mode::Hop { backups, staleness_max } => Box::new(Rounds::new(hop::Hop { backups, staleness_max })),
        Mode::Anytime { compute_s } => Box::new(Rounds::new(anytime::Anytime::new(compute_s))),
        Mode::LocalSgd { local, balance } => Box::new(Rounds::new(local_sgd::LocalSgd { local, balance })),
        Mode::Asp { staleness_max, damping } => Box::new(Arrivals::new(asp::Asp { staleness_max, damping })),
        Mode::Ssp { lead_max } => Box::new(Arrivals::new(ssp::Ssp { lead_max })),
        Mode::ConSgd { lead_max, rate } => Box::new(Arrivals::new(con_sgd::ConSgd { lead_max, rate })),
        Mode::DynSgd { lead_max } => Box::new(Arrivals::new(dyn_sgd::DynSgd { lead_max })),
        Mode::ElasticAveraging { local, alpha } => {
            Box::new(Arrivals::new(elastic_averaging::ElasticAveraging { local, alpha }))
        }
    }
}

/// What an agent is asked to do with its samples, where it makes local steps.
fn local_steps(state: &State, local: Local, steps: u32, elastic: Option<f32>) -> Computation {
    let learning_rate = state.local_learning_rate(local) as f32;
    Computation::Local(LocalSteps { steps, learning_rate, momentum: local.momentum, elastic })
}

/// Agents whose assignments have made no progress for the deadline.
fn overdue(state: &mut State, now: Now) -> Vec<AgentId> {
    let since = now.checked_sub(state.config.round_deadline);
    since.map(|since| state.ledger.without_progress(since)).unwrap_or_default()
}

/// When there may be one.
fn first_overdue(state: &State) -> Option<Now> {
    Some(state.ledger.first_progress()? + state.config.round_deadline)
}

/// Gives up an assignment whose agent missed a deadline, and the agent rests. Returns whether a part of it is in the sum.
fn give_up_straggler(state: &mut State, now: Now, agent: AgentId, why: PushError, message: &'static str) -> bool {
    let Some(id) = state.ledger.get(agent).map(|assignment| assignment.id) else { return false };
    let Some(added) = state.give_up(agent, why) else { return false };
    state.counters.stragglers += 1;
    state.members.missed(agent, now, state.config.round_deadline);
    let (agent, name) = state.members.name(agent);
    let fields = vec![("agent", agent.to_string()), ("name", name), ("assignment", id.to_string())];
    state.out.notice(Level::Warn, message, fields);
    added
}

/// The record of an update over these samples; its version is that of the parameters that it was computed from.
fn step_record(update: &mut Update, spans: Vec<Span>, staleness: u64, now: Now) -> StepRecord {
    let Update { assignment, report, .. } = update;
    StepRecord {
        round: assignment.version.0,
        version: assignment.version,
        agent: assignment.agent,
        assignment: assignment.id,
        samples: samples_in(&spans),
        spans,
        loss: report.loss,
        metric_sums: std::mem::take(&mut report.metric_sums),
        staleness,
        timings: report.timings,
        wall_s: now.as_secs_f64(),
    }
}
