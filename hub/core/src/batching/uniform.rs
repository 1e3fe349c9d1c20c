//! The same batch for all.

use omnilearn_wire::AgentId;

use super::{Policy, Rating, Speed};

#[derive(Debug)]
pub(super) struct Uniform;

impl Policy for Uniform {
    fn join(&mut self, _agent: AgentId, _rating: Rating) {}

    fn leave(&mut self, _agent: AgentId) {}

    fn speeds(&self, agents: &[AgentId]) -> Vec<Speed> {
        vec![Speed::EQUAL; agents.len()]
    }
}
