//! What will happen, in the order of its time; what falls on one moment, in the order in which it was planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use omnilearn_hub_core::Now;

#[derive(Debug)]
struct Entry<E> {
    time: Now,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    fn place(&self) -> (Now, u64) {
        (self.time, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.place() == other.place()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Entry<E>) -> Ordering {
        self.place().cmp(&other.place())
    }
}

/// Planned events.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    entries: BinaryHeap<Reverse<Entry<E>>>,
    planned: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue { entries: BinaryHeap::new(), planned: 0 }
    }
}

impl<E> Queue<E> {
    pub(crate) fn plan(&mut self, time: Now, event: E) {
        self.planned += 1;
        self.entries.push(Reverse(Entry { time, sequence: self.planned, event }));
    }

    pub(crate) fn next_time(&self) -> Option<Now> {
        self.entries.peek().map(|Reverse(entry)| entry.time)
    }

    pub(crate) fn pop(&mut self) -> Option<(Now, E)> {
        self.entries.pop().map(|Reverse(entry)| (entry.time, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_those_of_one_moment_as_they_were_planned() {
        let mut queue = Queue::default();
        for (seconds, name) in [(2, "late"), (1, "first"), (1, "second"), (0, "early"), (1, "third")] {
            queue.plan(Now::from_secs(seconds), name);
        }
        assert_eq!(queue.next_time(), Some(Now::ZERO));
        let names: Vec<&str> = std::iter::from_fn(|| queue.pop()).map(|(_, name)| name).collect();
        assert_eq!(names, ["early", "first", "second", "third", "late"]);
    }
}
