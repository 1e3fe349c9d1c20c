//! Timings that come apart from their pushes, over another way: before a push, while its update waits for the round's end, or
//! after it.

use std::collections::BTreeMap;

use omnilearn_wire::message::StepTimings;
use omnilearn_wire::{AgentId, AssignmentId};

/// Most updates whose timings are waited for, or timings that wait for their update. Beyond it the oldest is forgotten: its step
/// stays without timings.
const WAITING_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Slot {
    agent: AgentId,
    timings: Option<StepTimings>,
    /// Samples of the update, once it has been recorded.
    recorded: Option<u32>,
}

/// Timings and updates that wait for each other.
#[derive(Debug, Default)]
pub(crate) struct LateTimings(BTreeMap<AssignmentId, Slot>);

impl LateTimings {
    fn slot(&mut self, agent: AgentId, id: AssignmentId) -> &mut Slot {
        if self.0.len() >= WAITING_MAX && !self.0.contains_key(&id) {
            self.0.pop_first();
        }
        self.0.entry(id).or_insert(Slot { agent, timings: None, recorded: None })
    }

    /// An agent's update came without timings.
    pub(crate) fn expect(&mut self, agent: AgentId, id: AssignmentId) {
        self.slot(agent, id);
    }

    /// An update is recorded without timings: they, if they have come. Else they will be of so many samples.
    pub(crate) fn recorded(&mut self, agent: AgentId, id: AssignmentId, samples: u32) -> Option<StepTimings> {
        let slot = self.slot(agent, id);
        slot.recorded = Some(samples);
        let timings = slot.timings?;
        self.0.remove(&id);
        Some(timings)
    }

    /// An update needs no timings, or does not count, unless it was noted all the same.
    pub(crate) fn forget(&mut self, id: AssignmentId) {
        if self.0.get(&id).is_some_and(|slot| slot.recorded.is_none()) {
            self.0.remove(&id);
        }
    }

    /// Timings have come; the samples of their update, if it has been recorded. `open`: the agent works on the assignment.
    pub(crate) fn arrived(
        &mut self,
        agent: AgentId,
        id: AssignmentId,
        timings: StepTimings,
        open: bool,
    ) -> Option<u32> {
        let expected = self.0.get(&id).is_some_and(|slot| slot.agent == agent);
        if !expected && !open {
            return None;
        }
        let slot = self.slot(agent, id);
        slot.timings = Some(timings);
        let samples = slot.recorded?;
        self.0.remove(&id);
        Some(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(3);
    const TIMINGS: StepTimings = StepTimings {
        wait_s: 0.0,
        load_s: 0.0,
        compute_s: 2.0,
        encode_s: 0.0,
        send_s: 0.0,
        cpu_s: 0.0,
        throttled_s: 0.0,
        quota_cores: None,
        warm_up: false,
    };

    #[test]
    fn timings_and_update_meet_in_either_order() {
        let mut late = LateTimings::default();
        assert_eq!(late.arrived(AGENT, AssignmentId(1), TIMINGS, true), None);
        assert_eq!(late.recorded(AGENT, AssignmentId(1), 8), Some(TIMINGS));
        late.expect(AGENT, AssignmentId(2));
        assert_eq!(late.recorded(AGENT, AssignmentId(2), 8), None);
        assert_eq!(late.arrived(AGENT, AssignmentId(2), TIMINGS, false), Some(8));
        assert!(late.0.is_empty());
    }

    #[test]
    fn timings_that_nobody_waits_for_and_those_of_refused_updates_are_not_kept() {
        let mut late = LateTimings::default();
        assert_eq!(late.arrived(AGENT, AssignmentId(1), TIMINGS, false), None);
        late.expect(AGENT, AssignmentId(2));
        assert_eq!(late.arrived(AgentId(4), AssignmentId(2), TIMINGS, false), None);
        assert!(late.0[&AssignmentId(2)].timings.is_none());
        late.forget(AssignmentId(2));
        assert!(late.0.is_empty());
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut late = LateTimings::default();
        for id in 0..WAITING_MAX as u64 + 10 {
            late.expect(AGENT, AssignmentId(id));
        }
        assert_eq!(late.0.len(), WAITING_MAX);
        assert_eq!(late.arrived(AGENT, AssignmentId(9), TIMINGS, false), None);
    }
}
