//! Which samples an assignment names.

use std::collections::VecDeque;

use omnilearn_wire::limits::SPANS_MAX;
use omnilearn_wire::message::Span;
use omnilearn_wire::{partition, sampling};

/// Epochs whose permutation is kept: an assignment at the border of two needs both.
const EPOCHS_KEPT: usize = 2;

/// Spans that do not name samples.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SpanError {
    /// Too many or none.
    #[error("{spans} spans with {samples} samples: there must be 1 to {SPANS_MAX} spans and a sample in them")]
    Count {
        /// Number of spans.
        spans: usize,
        /// Number of samples.
        samples: u64,
    },
    /// Past the end of the training set.
    #[error("positions {start}..{end} are not in the training set of {samples} samples")]
    Range {
        /// First position.
        start: u32,
        /// One past the last.
        end: u32,
        /// Size of the training set.
        samples: u32,
    },
}

/// The orders in which epochs visit the training set.
pub(super) struct Epochs {
    seed: u64,
    samples: u32,
    /// Samples of each part, where the training set is divided.
    members: Option<Vec<Vec<u32>>>,
    kept: VecDeque<(u32, Vec<u32>)>,
}

/// A sample of the training set, and the epoch that it is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) sample: u32,
    pub(super) epoch: u32,
}

impl Epochs {
    pub(super) fn new(seed: u64, samples: u32, members: Option<Vec<Vec<u32>>>) -> Epochs {
        Epochs { seed, samples, members, kept: VecDeque::with_capacity(EPOCHS_KEPT) }
    }

    /// The samples at the positions that the spans name, in order, with their epochs.
    pub(super) fn drawn(&mut self, spans: &[Span]) -> Result<Vec<Drawn>, SpanError> {
        let samples = self.samples(spans)?;
        let epochs = spans.iter().flat_map(|span| std::iter::repeat_n(span.epoch, span.len() as usize));
        Ok(samples.into_iter().zip(epochs).map(|(sample, epoch)| Drawn { sample, epoch }).collect())
    }

    /// The samples at the positions that the spans name, in order.
    pub(super) fn samples(&mut self, spans: &[Span]) -> Result<Vec<u32>, SpanError> {
        let total: u64 = spans.iter().map(|span| u64::from(span.len())).sum();
        if total == 0 || spans.len() > SPANS_MAX {
            return Err(SpanError::Count { spans: spans.len(), samples: total });
        }
        if let Some(&Span { start, end, .. }) =
            spans.iter().find(|span| span.end > self.samples || span.start > span.end)
        {
            return Err(SpanError::Range { start, end, samples: self.samples });
        }
        let mut samples = Vec::new();
        for span in spans {
            let order = self.order(span.epoch);
            samples.extend_from_slice(&order[span.start as usize..span.end as usize]);
        }
        Ok(samples)
    }

    fn order(&mut self, epoch: u32) -> &[u32] {
        let index = self.kept.iter().position(|(kept, _)| *kept == epoch).unwrap_or_else(|| {
            if self.kept.len() == EPOCHS_KEPT {
                self.kept.pop_front();
            }
            let order = match &self.members {
                Some(members) => partition::order(self.seed, epoch, members),
                None => sampling::permutation(self.seed, epoch, self.samples),
            };
            self.kept.push_back((epoch, order));
            self.kept.len() - 1
        });
        &self.kept[index].1
    }
}
