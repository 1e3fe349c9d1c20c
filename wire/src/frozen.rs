//! Parameters that a job does not train: they travel once, as a file, and are part of no stream.

use serde::{Deserialize, Serialize};

use crate::bounded::List;
use crate::layout::elements;
use crate::limits::FROZEN_MAX;
use crate::{Codec, Layout};

/// What names the values of frozen parameters, and says which these are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// SHA-256 of the values: one parameter after the other, row-major `f32`, little-endian, in the kernel's order.
    pub digest: [u8; 32],
    /// Their length, in bytes.
    pub bytes: u64,
    /// Which of the kernel's parameters they are, in ascending order.
    #[serde(with = "List::<FROZEN_MAX>")]
    pub parameters: Vec<u32>,
}

/// Why parameters cannot be frozen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A number that is no parameter's, or that does not ascend.
    #[error("{parameter} is not the number of another one of the {parameters} parameters")]
    Parameter {
        /// The number.
        parameter: u32,
        /// How many there are.
        parameters: usize,
    },
    /// More than an offer can name.
    #[error("{frozen} parameters are frozen, at most {FROZEN_MAX} can be")]
    TooMany {
        /// How many.
        frozen: usize,
    },
    /// All of them.
    #[error("all {parameters} parameters are frozen, nothing is left to train")]
    All {
        /// How many there are.
        parameters: usize,
    },
}

/// A model's tensors, parted into what is trained and what is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    whole: Layout,
    trained: Layout,
    frozen: Layout,
    is_frozen: Vec<bool>,
}

impl Split {
    /// Parts a layout. The shared buffers are with the trained parameters: they follow the data, whatever is frozen.
    ///
    /// # Errors
    /// [`SplitError`]: `frozen` must ascend, name parameters of the layout, and leave one.
    pub fn new(whole: Layout, frozen: &[u32]) -> Result<Split, SplitError> {
        let parameters = whole.parameters().len();
        if frozen.len() > FROZEN_MAX {
            return Err(SplitError::TooMany { frozen: frozen.len() });
        }
        let mut is_frozen = vec![false; parameters];
        let mut next = 0;
        for &parameter in frozen {
            let index = parameter as usize;
            if index < next || index >= parameters {
                return Err(SplitError::Parameter { parameter, parameters });
            }
            is_frozen[index] = true;
            next = index + 1;
        }
        if frozen.len() == parameters && parameters > 0 {
            return Err(SplitError::All { parameters });
        }
        let chosen = |wanted: bool| {
            let tensors = whole.parameters().iter().zip(&is_frozen).filter(|(_, is_frozen)| **is_frozen == wanted);
            tensors.map(|(tensor, _)| tensor.clone()).collect()
        };
        let part = "a part of a layout is one";
        let trained = Layout::new(chosen(false), whole.buffers().to_vec()).expect(part);
        let frozen = Layout::new(chosen(true), Vec::new()).expect(part);
        Ok(Split { trained, frozen, is_frozen, whole })
    }

    /// All parameters and shared buffers.
    pub fn whole(&self) -> &Layout {
        &self.whole
    }

    /// What streams consist of: the parameters that are trained, and all shared buffers.
    pub fn trained(&self) -> &Layout {
        &self.trained
    }

    /// The frozen parameters.
    pub fn frozen(&self) -> &Layout {
        &self.frozen
    }

    /// For each parameter, whether it is frozen.
    pub fn is_frozen(&self) -> &[bool] {
        &self.is_frozen
    }

    /// Length of the frozen parameters' values, in bytes.
    pub fn frozen_bytes(&self) -> u64 {
        self.frozen.parameter_bytes(Codec::F32)
    }

    /// What an offer says of the frozen parameters, whose values have this digest; none where all are trained.
    pub fn offered(&self, digest: [u8; 32]) -> Option<Frozen> {
        let parameters: Vec<u32> = (0u32..).zip(&self.is_frozen).filter(|pair| *pair.1).map(|pair| pair.0).collect();
        (!parameters.is_empty()).then(|| Frozen { digest, bytes: self.frozen_bytes(), parameters })
    }

    /// Parts the values of all parameters into those of trained and those of frozen ones, each concatenated in order.
    ///
    /// # Panics
    /// If `values` are not as many as the parameters have elements.
    pub fn part(&self, values: Vec<f32>) -> (Vec<f32>, Vec<f32>) {
        assert_eq!(values.len(), self.whole.parameter_elements(), "values are those of all parameters");
        if self.frozen.parameters().is_empty() {
            return (values, Vec::new());
        }
        let mut trained = Vec::with_capacity(self.trained.parameter_elements());
        let mut frozen = Vec::with_capacity(self.frozen.parameter_elements());
        let mut rest = &values[..];
        for (tensor, &is_frozen) in self.whole.parameters().iter().zip(&self.is_frozen) {
            let count = elements(&tensor.shape).expect("a layout was counted") as usize;
            let (own, after) = rest.split_at(count);
            if is_frozen {
                frozen.extend_from_slice(own)
            } else {
                trained.extend_from_slice(own)
            }
            rest = after;
        }
        (trained, frozen)
    }

    /// One thing for each parameter, in the kernel's order, from one for each trained and one for each frozen one.
    pub fn merge<T>(
        &self,
        trained: impl IntoIterator<Item = T>,
        frozen: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = T> {
        let (mut trained, mut frozen) = (trained.into_iter(), frozen.into_iter());
        self.is_frozen.iter().map_while(move |&is_frozen| if is_frozen { frozen.next() } else { trained.next() })
    }

    /// Those of one thing for each parameter that are for trained ones.
    pub fn trained_of<T>(&self, all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        all.into_iter().zip(&self.is_frozen).filter(|(_, is_frozen)| !**is_frozen).map(|(one, _)| one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TensorShape;

    fn layout() -> Layout {
        let tensor = |name: &str, shape: &[u32]| TensorShape { name: name.into(), shape: shape.to_vec() };
        let parameters = vec![tensor("a", &[2]), tensor("b", &[1, 3]), tensor("c", &[]), tensor("d", &[2, 2])];
        Layout::new(parameters, vec![tensor("mean", &[5])]).unwrap()
    }

    fn names(layout: &Layout) -> Vec<&str> {
        layout.parameters().iter().map(|tensor| tensor.name.as_str()).collect()
    }

    #[test]
    fn a_layout_is_parted_and_its_values_and_tensors_come_together_again() {
        let split = Split::new(layout(), &[1, 2]).unwrap();
        assert_eq!((names(split.trained()), names(split.frozen())), (vec!["a", "d"], vec!["b", "c"]));
        assert_eq!((split.trained().buffer_elements(), split.frozen().buffer_elements()), (5, 0));
        assert_eq!((split.trained().stream_bytes(Codec::Bf16), split.frozen_bytes()), (6 * 2 + 5 * 4, 4 * 4));
        let values: Vec<f32> = (0..10).map(|value| value as f32).collect();
        let (trained, frozen) = split.part(values);
        assert_eq!((trained, frozen), (vec![0.0, 1.0, 6.0, 7.0, 8.0, 9.0], vec![2.0, 3.0, 4.0, 5.0]));
        assert_eq!(split.merge(["a", "d"], ["b", "c"]).collect::<String>(), "abcd");
        assert_eq!(split.trained_of(["a", "b", "c", "d"]).collect::<String>(), "ad");
        let offered = split.offered([7; 32]);
        assert_eq!(offered, Some(Frozen { digest: [7; 32], bytes: 16, parameters: vec![1, 2] }));
        assert_eq!(Split::new(layout(), &offered.unwrap().parameters), Ok(split));
    }

    #[test]
    fn nothing_frozen_changes_nothing() {
        let split = Split::new(layout(), &[]).unwrap();
        assert_eq!((split.trained(), split.frozen_bytes(), split.offered([7; 32])), (&layout(), 0, None));
        assert_eq!(split.part(vec![1.0; 10]), (vec![1.0; 10], vec![]));
    }

    #[test]
    fn numbers_from_outside_are_checked() {
        let parameters = 4;
        for (frozen, parameter) in [(&[4][..], 4), (&[1, 1], 1), (&[2, 0], 0), (&[u32::MAX], u32::MAX)] {
            assert_eq!(Split::new(layout(), frozen), Err(SplitError::Parameter { parameter, parameters }));
        }
        assert_eq!(Split::new(layout(), &[0, 1, 2, 3]), Err(SplitError::All { parameters }));
        let frozen: Vec<u32> = (0..=FROZEN_MAX as u32).collect();
        assert_eq!(Split::new(layout(), &frozen), Err(SplitError::TooMany { frozen: frozen.len() }));
    }
}
