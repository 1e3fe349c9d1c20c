//! Which positions are given to whom: one cursor for all agents, or one for each part of a divided training set.
//!
//! An epoch's order has the parts one after the other, so a position says which part it is in, and spans need not. A part belongs to one
//! agent as long as that is here. When it leaves, what it had not learned from stays with the part, for the agent that takes
//! it over.

use omnilearn_wire::AgentId;
use omnilearn_wire::message::Span;

use crate::cursor::{Cursor, Which};

/// Progress through the training set.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    samples: u32,
    parts: Vec<Part>,
    /// Whether parts have owners.
    divided: bool,
}

#[derive(Clone, Debug)]
struct Part {
    /// Its first position in an epoch.
    begin: u32,
    cursor: Cursor,
    owner: Option<AgentId>,
}

impl Positions {
    /// For a training set that is divided into parts of these sizes, or shared if there are none.
    pub(crate) fn new(samples: u32, sizes: &[u32]) -> Positions {
        let divided = !sizes.is_empty();
        let sizes = if divided { sizes } else { &[samples] };
        let mut begin = 0;
        let part = |&size: &u32| {
            let part = Part { begin, cursor: Cursor::new(size), owner: None };
            begin += size;
            part
        };
        let parts = sizes.iter().map(part).collect();
        Positions { samples, parts, divided }
    }

    /// Gives an agent the first part that has none. False if there is none left.
    pub(crate) fn join(&mut self, agent: AgentId) -> bool {
        if !self.divided || self.parts.iter().any(|part| part.owner == Some(agent)) {
            return true;
        }
        match self.parts.iter_mut().find(|part| part.owner.is_none()) {
            Some(part) => {
                part.owner = Some(agent);
                true
            }
            None => false,
        }
    }

    /// Frees the agent's part for another.
    pub(crate) fn leave(&mut self, agent: AgentId) {
        for part in self.parts.iter_mut().filter(|part| part.owner == Some(agent)) {
            part.owner = None;
        }
    }

    /// Whether a divided training set has a part without an agent.
    pub(crate) fn has_free_part(&self) -> bool {
        self.divided && self.parts.iter().any(|part| part.owner.is_none())
    }

    /// Takes positions for an agent, as [`Cursor::take`] does. None for one without a part.
    pub(crate) fn take(&mut self, agent: AgentId, count: u32, which: Which) -> Vec<Span> {
        let divided = self.divided;
        let Some(part) = self.parts.iter_mut().find(|part| !divided || part.owner == Some(agent)) else {
            return Vec::new();
        };
        let mut spans = part.cursor.take(count, which);
        for span in &mut spans {
            (span.start, span.end) = (span.start + part.begin, span.end + part.begin);
        }
        spans
    }

    /// Spans of each part, with positions counted from its beginning. A span is in one part: that is how it was taken.
    fn by_part(&mut self, spans: &[Span]) -> impl Iterator<Item = (&mut Part, Vec<Span>)> {
        self.parts.iter_mut().filter_map(|part| {
            let range = part.begin..part.begin + part.cursor.samples();
            let own = spans.iter().filter(|span| range.contains(&span.start));
            let own: Vec<Span> =
                own.map(|span| Span { start: span.start - part.begin, end: span.end - part.begin, ..*span }).collect();
            (!own.is_empty()).then_some((part, own))
        })
    }

    /// Returns positions that were taken, to be issued again.
    pub(crate) fn give_back(&mut self, spans: &[Span]) {
        self.by_part(spans).for_each(|(part, spans)| part.cursor.give_back(spans));
    }

    /// Counts positions that were taken as learned from.
    pub(crate) fn commit(&mut self, spans: &[Span]) {
        self.by_part(spans).for_each(|(part, spans)| part.cursor.commit(&spans));
    }

    /// Complete epochs. Parts go their own pace; together they count an epoch for as many samples as the training set has.
    pub(crate) fn epochs_complete(&self) -> u32 {
        match &self.parts[..] {
            [part] => part.cursor.epochs_complete(),
            _ => (self.samples_committed() / u64::from(self.samples)) as u32,
        }
    }

    /// Committed samples in epochs, such as 1.5.
    pub(crate) fn epoch_progress(&self) -> f64 {
        self.samples_committed() as f64 / f64::from(self.samples)
    }

    /// Samples committed since the job started.
    pub(crate) fn samples_committed(&self) -> u64 {
        self.parts.iter().map(|part| part.cursor.samples_committed()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::samples_in;

    const A: AgentId = AgentId(1);
    const B: AgentId = AgentId(2);
    const C: AgentId = AgentId(3);

    fn span(epoch: u32, start: u32, end: u32) -> Span {
        Span { epoch, start, end }
    }

    #[test]
    fn each_agent_takes_from_its_own_part_at_its_own_pace() {
        let mut positions = Positions::new(30, &[10, 20]);
        assert!(positions.join(A) && positions.join(B) && positions.join(A));
        assert!(!positions.join(C) && !positions.has_free_part());
        assert_eq!(positions.take(A, 8, Which::ReturnedFirst), [span(0, 0, 8)]);
        assert_eq!(positions.take(A, 8, Which::ReturnedFirst), [span(0, 8, 10), span(1, 0, 6)]);
        assert_eq!(positions.take(B, 8, Which::ReturnedFirst), [span(0, 10, 18)]);
        assert!(positions.take(C, 8, Which::ReturnedFirst).is_empty());
    }

    #[test]
    fn a_part_goes_on_with_the_next_agent_where_it_was_left() {
        let mut positions = Positions::new(30, &[10, 20]);
        positions.join(A);
        positions.join(B);
        let learned = positions.take(A, 4, Which::ReturnedFirst);
        let lost = positions.take(A, 4, Which::ReturnedFirst);
        positions.commit(&learned);
        positions.give_back(&lost);
        positions.leave(A);
        assert!(positions.take(A, 4, Which::ReturnedFirst).is_empty());
        assert!(positions.join(C));
        assert_eq!(positions.take(C, 6, Which::ReturnedFirst), [span(0, 4, 10)]);
        assert_eq!(positions.samples_committed(), 4);
    }

    #[test]
    fn epochs_count_the_samples_of_all_parts_together() {
        let mut positions = Positions::new(30, &[10, 20]);
        positions.join(A);
        let spans = positions.take(A, 30, Which::ReturnedFirst);
        assert_eq!(samples_in(&spans), 30);
        assert_eq!(positions.epochs_complete(), 0);
        positions.commit(&spans);
        assert_eq!((positions.epochs_complete(), positions.epoch_progress()), (1, 1.0));
    }

    #[test]
    fn a_shared_training_set_has_no_owners() {
        let mut positions = Positions::new(30, &[]);
        assert!(positions.join(A) && positions.join(B));
        assert_eq!(positions.take(A, 20, Which::ReturnedFirst), [span(0, 0, 20)]);
        assert_eq!(positions.take(C, 20, Which::ReturnedFirst), [span(0, 20, 30), span(1, 0, 10)]);
        assert!(!positions.has_free_part());
    }
}
