//! When gradients are asked for and when they are applied: one rule per file, over one shared state.

use std::fmt::Debug;

use omnilearn_wire::AssignmentId;

use crate::Now;
use crate::config::Mode;
use crate::ledger::Assignment;
use crate::push::{PushError, Update};
use crate::state::State;
use crate::status::Waiting;

mod asp;
mod bsp;

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

    /// A push made progress.
    fn progress(&mut self, now: Now, assignment: AssignmentId);

    /// When [`SyncRule::advance`] must be called at the latest.
    fn deadline(&self, state: &State) -> Option<Now>;

    /// What it waits for.
    fn waiting(&self, state: &State) -> Option<Waiting>;

    /// Gives up everything under way.
    fn abandon(&mut self, state: &mut State, why: &PushError);
}

/// The rule of a mode.
pub(crate) fn rule(mode: Mode) -> Box<dyn SyncRule> {
    match mode {
        Mode::Bsp => Box::new(bsp::Bsp::default()),
        Mode::Asp { staleness_max, damping } => Box::new(asp::Asp::new(staleness_max, damping)),
    }
}
