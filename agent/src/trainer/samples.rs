//! Which samples an assignment names, and their tensors.

use std::collections::VecDeque;

use omnilearn_kernel_host::backend::DType;
use omnilearn_kernel_host::{Description, TensorSpec};
use omnilearn_wire::dataset::DatasetSpec;
use omnilearn_wire::limits::SPANS_MAX;
use omnilearn_wire::message::Span;
use omnilearn_wire::sampling;

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
    kept: VecDeque<(u32, Vec<u32>)>,
}

impl Epochs {
    pub(super) fn new(seed: u64, samples: u32) -> Epochs {
        Epochs { seed, samples, kept: VecDeque::with_capacity(EPOCHS_KEPT) }
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
            self.kept.push_back((epoch, sampling::permutation(self.seed, epoch, self.samples)));
            self.kept.len() - 1
        });
        &self.kept[index].1
    }
}

/// The shape in which a kernel takes the images of a data set; the error says why it cannot.
pub(super) fn input_shape(description: &Description, dataset: &DatasetSpec) -> Result<Vec<usize>, String> {
    let [TensorSpec { name, dtype, shape }] = description.inputs.as_slice() else {
        return Err(format!(
            "the kernel takes {} inputs; data set `{}` has images only",
            description.inputs.len(),
            dataset.name
        ));
    };
    let elements = |shape: &[u32]| shape.iter().map(|&size| u64::from(size)).product::<u64>();
    // A model that takes an image as a vector is given it as one.
    let fits = shape.as_slice() == dataset.shape || (shape.len() == 1 && elements(shape) == elements(&dataset.shape));
    if *dtype != DType::F32 || !fits {
        return Err(format!(
            "the kernel's input `{name}` is {dtype:?} {shape:?}, but images of data set `{}` are F32 {:?}; is a setting of the kernel wrong?",
            dataset.name, dataset.shape
        ));
    }
    let target = &description.target;
    if target.dtype != DType::I32 || !target.shape.is_empty() {
        return Err(format!(
            "the kernel's target `{}` is {:?} {:?}, but labels are I32 []",
            target.name, target.dtype, target.shape
        ));
    }
    Ok(shape.iter().map(|&size| size as usize).collect())
}
