//! How far each agent is: the clocks of stale-synchronous rules.

use std::collections::BTreeMap;

use omnilearn_wire::AgentId;

use crate::agents::AgentMap;

/// Updates of each agent that counted. An agent that comes, or comes back, begins where the slowest is, so that nobody waits
/// for it to catch up.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    clocks: AgentMap<u64>,
    /// How many agents have each clock.
    counts: BTreeMap<u64, usize>,
}

impl Clocks {
    /// Brings the clocks up to date for the agents that take part, in order.
    pub(super) fn follow(&mut self, agents: &[AgentId]) {
        self.clocks.retain(|agent, _| agents.binary_search(&agent).is_ok());
        let slowest = self.clocks.values().min().copied().unwrap_or(0);
        for &agent in agents {
            self.clocks.get_or_insert_with(agent, || slowest);
        }
        self.counts.clear();
        for &clock in self.clocks.values() {
            *self.counts.entry(clock).or_default() += 1;
        }
    }

    /// An update of the agent counted.
    pub(super) fn tick(&mut self, agent: AgentId) {
        let Some(clock) = self.clocks.get_mut(agent) else { return };
        if let Some(count) = self.counts.get_mut(clock) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(clock);
            }
        }
        *clock += 1;
        *self.counts.entry(*clock).or_default() += 1;
    }

    /// That of the agents furthest behind.
    pub(super) fn slowest(&self) -> u64 {
        self.counts.first_key_value().map_or(0, |(&clock, _)| clock)
    }

    /// Whether an agent is so little ahead of the slowest that it may begin.
    pub(super) fn may_begin(&self, agent: AgentId, lead_max: u64) -> bool {
        self.clocks.get(agent).is_some_and(|clock| clock - self.slowest() <= lead_max)
    }

    /// The agents that are furthest behind.
    pub(super) fn behind(&self) -> impl Iterator<Item = AgentId> {
        let slowest = self.slowest();
        self.clocks.iter().filter(move |(_, clock)| **clock == slowest).map(|(agent, _)| agent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_begins_more_than_the_lead_ahead_and_nobody_waits_for_newcomers() {
        let [a, b, c] = [1, 2, 3].map(AgentId);
        let mut clocks = Clocks::default();
        clocks.follow(&[a, b]);
        for _ in 0..3 {
            assert!(clocks.may_begin(a, 2));
            clocks.tick(a);
        }
        assert!(!clocks.may_begin(a, 2) && clocks.may_begin(b, 0) && !clocks.may_begin(c, 9));
        clocks.tick(b);
        clocks.follow(&[a, b, c]);
        assert!(clocks.may_begin(a, 2) && clocks.may_begin(c, 0), "c begins where b is");
        assert_eq!(clocks.behind().collect::<Vec<_>>(), [b, c]);
        clocks.follow(&[a]);
        assert!(clocks.may_begin(a, 0));
    }
}
