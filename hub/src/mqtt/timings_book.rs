//! Which steps' timings have come: each once, however often the broker delivers them. Pure.

use std::collections::{BTreeMap, VecDeque};

use omnilearn_mqtt::timings::{TimedStep, TimingsBatch, TimingsReceipt};

/// Processes of one name that are remembered, the newest last. What an older one still had under way is taken for new.
const PROCESSES_MAX: usize = 4;

/// How many steps' timings have come from an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimingsCounts {
    /// Taken.
    pub(crate) received: u64,
    /// Delivered again.
    pub(crate) duplicates: u64,
    /// Numbers that never came: the agent had to drop them, or the broker did.
    pub(crate) lost: u64,
}

#[derive(Debug, Default)]
struct Agent {
    /// Processes and the numbers that they are at.
    processes: VecDeque<(u64, u64)>,
    counts: TimingsCounts,
}

/// Timings of every agent.
#[derive(Debug, Default)]
pub(crate) struct TimingsBook(BTreeMap<String, Agent>);

impl TimingsBook {
    /// Takes a batch; its steps that are new.
    pub(crate) fn take(&mut self, batch: TimingsBatch) -> Vec<TimedStep> {
        let Agent { processes, counts } = self.0.entry(batch.agent).or_default();
        let process = batch.session.process;
        let next = match processes.iter_mut().find(|(known, _)| *known == process) {
            Some((_, next)) => next,
            None => {
                // What it dropped before is lost; what it sent before went to an earlier hub.
                counts.lost = counts.lost.saturating_add(batch.lost);
                if processes.len() == PROCESSES_MAX {
                    processes.pop_front();
                }
                let last = batch.steps.last().map_or(0, |step| step.seq.saturating_add(1));
                processes.push_back((process, last));
                counts.received += batch.steps.len() as u64;
                return batch.steps;
            }
        };
        let mut steps = batch.steps;
        let sent = steps.len();
        steps.retain(|step| step.seq >= *next);
        counts.duplicates += (sent - steps.len()) as u64;
        for step in &steps {
            counts.lost = counts.lost.saturating_add(step.seq - *next);
            *next = step.seq.saturating_add(1);
        }
        counts.received += steps.len() as u64;
        steps
    }

    /// What to tell an agent of a process's timings; none if nothing is known of the process.
    pub(crate) fn receipt(&self, name: &str, process: u64) -> Option<TimingsReceipt> {
        let (_, next) = self.0.get(name)?.processes.iter().find(|(known, _)| *known == process)?;
        Some(TimingsReceipt { process, next: *next })
    }

    /// What has come from an agent.
    pub(crate) fn counts(&self, name: &str) -> Option<TimingsCounts> {
        self.0.get(name).map(|agent| agent.counts)
    }

    /// What has come from all.
    pub(crate) fn total(&self) -> TimingsCounts {
        self.0.values().fold(TimingsCounts::default(), |total, agent| TimingsCounts {
            received: total.received + agent.counts.received,
            duplicates: total.duplicates + agent.counts.duplicates,
            lost: total.lost.saturating_add(agent.counts.lost),
        })
    }
}

#[cfg(test)]
mod tests {
    use omnilearn_mqtt::session::SessionMark;

    use super::*;

    fn batch(process: u64, lost: u64, numbers: &[u64]) -> TimingsBatch {
        let step = |&seq: &u64| TimedStep { seq, ..TimedStep::default() };
        TimingsBatch {
            agent: "pi".into(),
            session: SessionMark { process, epoch: 1 },
            first: numbers[0],
            lost,
            steps: numbers.iter().map(step).collect(),
        }
    }

    fn taken(book: &mut TimingsBook, batch: TimingsBatch) -> Vec<u64> {
        book.take(batch).into_iter().map(|step| step.seq).collect()
    }

    #[test]
    fn what_is_delivered_again_is_taken_once() {
        let mut book = TimingsBook::default();
        assert_eq!(taken(&mut book, batch(1, 0, &[0, 1, 2])), [0, 1, 2]);
        assert!(taken(&mut book, batch(1, 0, &[0, 1, 2])).is_empty());
        assert_eq!(taken(&mut book, batch(1, 0, &[2, 3])), [3]);
        let counts = book.counts("pi").unwrap();
        assert_eq!(counts, TimingsCounts { received: 4, duplicates: 4, lost: 0 });
        assert_eq!((book.total(), book.counts("nano")), (counts, None));
    }

    #[test]
    fn numbers_that_never_come_are_counted() {
        let mut book = TimingsBook::default();
        book.take(batch(1, 2, &[5, 6]));
        assert_eq!(taken(&mut book, batch(1, 5, &[9, 11])), [9, 11]);
        assert_eq!(book.counts("pi").unwrap(), TimingsCounts { received: 4, duplicates: 0, lost: 2 + 3 });
    }

    #[test]
    fn a_new_process_counts_from_its_own_beginning() {
        let mut book = TimingsBook::default();
        for process in 0..10 {
            assert_eq!(taken(&mut book, batch(process, 0, &[0])), [0]);
        }
        assert!(taken(&mut book, batch(9, 0, &[0])).is_empty());
        assert_eq!(book.0["pi"].processes.len(), PROCESSES_MAX);
        book.take(batch(9, 0, &[u64::MAX])); // a number that nobody counts up to ends nothing
        book.take(batch(10, u64::MAX, &[0]));
        assert_eq!(book.total().lost, u64::MAX);
    }
}
