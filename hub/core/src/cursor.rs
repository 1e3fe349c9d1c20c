//! Which samples are still to be learned from. Positions of an epoch's permutation are taken, and then either committed by an
//! accepted update or given back, so that each is in exactly one accepted update.

use std::collections::BTreeMap;

use omnilearn_wire::limits::SPANS_MAX;
use omnilearn_wire::message::Span;

/// Progress through the epochs.
///
/// A batch near the end of an epoch runs on into the next, so that its size stays what was asked for. An epoch is complete
/// when all of its positions are committed, which may be after the next one has begun.
#[derive(Clone, Debug)]
pub struct Cursor {
    samples: u32,
    /// First position never taken.
    fresh: (u32, u32),
    /// Given back: disjoint, not adjacent, by epoch and start.
    returned: BTreeMap<(u32, u32), u32>,
    /// Committed positions of epochs that are not complete.
    committed: BTreeMap<u32, u32>,
    committed_total: u64,
    epochs_complete: u32,
}

/// Which positions to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those given back, oldest epoch first, then fresh ones.
    ReturnedFirst,
    /// Only fresh ones.
    Fresh,
}

/// Number of samples in spans.
pub fn samples_in(spans: &[Span]) -> u32 {
    spans.iter().map(Span::len).sum()
}

/// Cuts spans after so many samples: those before, and the rest.
pub fn cut(spans: Vec<Span>, samples: u32) -> (Vec<Span>, Vec<Span>) {
    if samples_in(&spans) <= samples {
        return (spans, Vec::new());
    }
    let (mut head, mut rest, mut missing) = (Vec::new(), Vec::new(), samples);
    for span in spans {
        let middle = span.start.saturating_add(missing).min(span.end);
        missing -= middle - span.start;
        let parts = [(&mut head, Span { end: middle, ..span }), (&mut rest, Span { start: middle, ..span })];
        for (list, part) in parts {
            if !part.is_empty() {
                list.push(part);
            }
        }
    }
    (head, rest)
}

impl Cursor {
    /// At the first position of epoch 0 of a training set.
    pub fn new(samples: u32) -> Cursor {
        assert!(samples > 0, "a training set has samples");
        Cursor {
            samples,
            fresh: (0, 0),
            returned: BTreeMap::new(),
            committed: BTreeMap::new(),
            committed_total: 0,
            epochs_complete: 0,
        }
    }

    /// Positions of an epoch.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Takes `count` positions. Takes fewer only where more would need over [`SPANS_MAX`] spans.
    pub fn take(&mut self, count: u32, which: Which) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let mut missing = count;
        while missing > 0 && spans.len() < SPANS_MAX {
            let returned = if which == Which::Fresh { None } else { self.returned.pop_first() };
            let span = match returned {
                Some(((epoch, start), end)) => {
                    let span = Span { epoch, start, end: end.min(start.saturating_add(missing)) };
                    if span.end < end {
                        self.returned.insert((epoch, span.end), end);
                    }
                    span
                }
                None => self.take_fresh(missing),
            };
            missing -= span.len();
            match spans.last_mut() {
                Some(last) if last.epoch == span.epoch && last.end == span.start => last.end = span.end,
                _ => spans.push(span),
            }
        }
        spans
    }

    fn take_fresh(&mut self, count: u32) -> Span {
        let (epoch, start) = self.fresh;
        let end = self.samples.min(start.saturating_add(count));
        self.fresh = if end == self.samples { (epoch + 1, 0) } else { (epoch, end) };
        Span { epoch, start, end }
    }

    /// Returns positions that were taken, to be issued again.
    pub fn give_back(&mut self, spans: Vec<Span>) {
        for Span { epoch, mut start, mut end } in spans {
            if let Some((&(before_epoch, before_start), &before_end)) =
                self.returned.range(..(epoch, start)).next_back()
                && before_epoch == epoch
                && before_end == start
            {
                self.returned.remove(&(epoch, before_start));
                start = before_start;
            }
            if let Some(after_end) = self.returned.remove(&(epoch, end)) {
                end = after_end;
            }
            // Those at the very end of what was taken are simply fresh again.
            if self.fresh == (epoch, end) || (end == self.samples && self.fresh == (epoch + 1, 0)) {
                self.fresh = (epoch, start);
            } else {
                self.returned.insert((epoch, start), end);
            }
        }
    }

    /// Counts positions that were taken as learned from.
    pub fn commit(&mut self, spans: &[Span]) {
        for span in spans {
            *self.committed.entry(span.epoch).or_default() += span.len();
            self.committed_total += u64::from(span.len());
        }
        while self.committed.get(&self.epochs_complete) == Some(&self.samples) {
            self.committed.remove(&self.epochs_complete);
            self.epochs_complete += 1;
        }
    }

    /// Epochs of which every position is committed, counted from the first without a gap.
    pub fn epochs_complete(&self) -> u32 {
        self.epochs_complete
    }

    /// Committed samples in epochs, such as 1.5.
    pub fn epoch_progress(&self) -> f64 {
        self.committed_total as f64 / f64::from(self.samples)
    }

    /// Samples committed since the job started.
    pub fn samples_committed(&self) -> u64 {
        self.committed_total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(epoch: u32, start: u32, end: u32) -> Span {
        Span { epoch, start, end }
    }

    #[test]
    fn spans_are_cut_after_a_number_of_samples() {
        let span = |epoch, start, end| Span { epoch, start, end };
        let spans = vec![span(0, 10, 14), span(0, 20, 22), span(1, 0, 5)];
        assert_eq!(
            cut(spans.clone(), 3),
            (vec![span(0, 10, 13)], vec![span(0, 13, 14), span(0, 20, 22), span(1, 0, 5)])
        );
        assert_eq!(cut(spans.clone(), 6), (vec![span(0, 10, 14), span(0, 20, 22)], vec![span(1, 0, 5)]));
        assert_eq!(cut(spans.clone(), 11), (spans, vec![]));
    }

    #[test]
    fn a_batch_runs_on_into_the_next_epoch() {
        let mut cursor = Cursor::new(10);
        assert_eq!(cursor.take(8, Which::ReturnedFirst), [span(0, 0, 8)]);
        assert_eq!(cursor.take(14, Which::ReturnedFirst), [span(0, 8, 10), span(1, 0, 10), span(2, 0, 2)]);
        cursor.commit(&[span(1, 0, 10)]);
        assert_eq!(cursor.epochs_complete(), 0, "epoch 0 is not complete");
        cursor.commit(&[span(0, 0, 8), span(0, 8, 10)]);
        assert_eq!(cursor.epochs_complete(), 2);
        assert_eq!(cursor.epoch_progress(), 2.0);
    }

    #[test]
    fn what_was_given_back_is_merged_and_issued_first() {
        let mut cursor = Cursor::new(100);
        let (a, b, c) = (
            cursor.take(10, Which::ReturnedFirst),
            cursor.take(10, Which::ReturnedFirst),
            cursor.take(10, Which::ReturnedFirst),
        );
        assert_eq!(cursor.take(5, Which::ReturnedFirst), [span(0, 30, 35)]);
        cursor.give_back(a);
        cursor.give_back(c);
        cursor.give_back(b);
        assert_eq!(cursor.take(25, Which::ReturnedFirst), [span(0, 0, 25)]);
        assert_eq!(cursor.take(10, Which::ReturnedFirst), [span(0, 25, 30), span(0, 35, 40)]);
    }

    #[test]
    fn giving_back_the_end_of_an_epoch_moves_the_fresh_position_back() {
        let mut cursor = Cursor::new(10);
        let spans = cursor.take(10, Which::ReturnedFirst);
        cursor.give_back(spans);
        assert_eq!(cursor.take(12, Which::ReturnedFirst), [span(0, 0, 10), span(1, 0, 2)]);
    }

    #[test]
    fn an_assignment_has_at_most_as_many_spans_as_fit_a_message() {
        let mut cursor = Cursor::new(10_000);
        let singles: Vec<_> = (0..10_000).map(|_| cursor.take(1, Which::ReturnedFirst)).collect();
        for (index, single) in singles.into_iter().enumerate() {
            if index % 2 == 0 {
                cursor.give_back(single);
            }
        }
        let spans = cursor.take(3_000, Which::ReturnedFirst);
        assert_eq!(spans.len(), SPANS_MAX);
        assert_eq!(samples_in(&spans), SPANS_MAX as u32);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u32, Which),
        Commit(usize),
        GiveBack(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u32..40, any::<bool>())
                .prop_map(|(count, fresh)| Step::Take(count, if fresh { Which::Fresh } else { Which::ReturnedFirst })),
            any::<usize>().prop_map(Step::Commit),
            any::<usize>().prop_map(Step::GiveBack),
        ]
    }

    proptest! {
        #[test]
        fn every_position_of_a_complete_epoch_is_committed_exactly_once(
            samples in 1u32..70,
            steps in prop::collection::vec(step(), 1..300),
        ) {
            let mut cursor = Cursor::new(samples);
            let mut outstanding: Vec<Vec<Span>> = Vec::new();
            let mut committed: BTreeMap<(u32, u32), u32> = BTreeMap::new();
            let mut held = std::collections::BTreeSet::new();
            let positions = |spans: &[Span]| -> Vec<(u32, u32)> {
                spans.iter().flat_map(|span| (span.start..span.end).map(|position| (span.epoch, position))).collect()
            };
            for step in steps {
                match step {
                    Step::Take(count, which) => {
                        let spans = cursor.take(count, which);
                        prop_assert_eq!(samples_in(&spans), count);
                        for position in positions(&spans) {
                            prop_assert!(held.insert(position), "{:?} is out twice", position);
                            prop_assert!(!committed.contains_key(&position), "{:?} was committed before", position);
                        }
                        outstanding.push(spans);
                    }
                    Step::Commit(index) if !outstanding.is_empty() => {
                        let spans = outstanding.swap_remove(index % outstanding.len());
                        for position in positions(&spans) {
                            held.remove(&position);
                            *committed.entry(position).or_default() += 1;
                        }
                        cursor.commit(&spans);
                    }
                    Step::GiveBack(index) if !outstanding.is_empty() => {
                        let spans = outstanding.swap_remove(index % outstanding.len());
                        for position in positions(&spans) {
                            held.remove(&position);
                        }
                        cursor.give_back(spans);
                    }
                    _ => {}
                }
            }
            prop_assert!(committed.values().all(|&times| times == 1));
            for epoch in 0..cursor.epochs_complete() {
                prop_assert!((0..samples).all(|position| committed.contains_key(&(epoch, position))));
            }
            let next = cursor.epochs_complete();
            prop_assert!((0..samples).any(|position| !committed.contains_key(&(next, position))));
            prop_assert_eq!(cursor.samples_committed(), committed.len() as u64);
        }
    }
}
