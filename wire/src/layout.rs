//! The order and shapes of a model's tensors, on which both ends must agree before one byte of a tensor travels.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Codec;
use crate::limits::{ELEMENTS_MAX, NAME_BYTES_MAX};

/// A named tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorShape {
    /// Name, such as `conv1.weight`.
    pub name: String,
    /// Dimensions, outermost first. Empty for a scalar.
    pub shape: Vec<u32>,
}

/// A model's parameters and shared buffers, in stream order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    parameters: Vec<TensorShape>,
    buffers: Vec<TensorShape>,
    parameter_elements: u64,
    buffer_elements: u64,
}

/// Why tensors do not make a layout.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Too many elements, or their product overflows.
    #[error("tensor `{name}` of shape {shape:?} brings the model over {ELEMENTS_MAX} elements")]
    TooLarge {
        /// Which tensor.
        name: String,
        /// Its shape.
        shape: Vec<u32>,
    },
    /// A dimension of zero.
    #[error("tensor `{name}` of shape {shape:?} has no elements")]
    Empty {
        /// Which tensor.
        name: String,
        /// Its shape.
        shape: Vec<u32>,
    },
    /// A name used twice, empty or too long.
    #[error("tensor name `{name}` is empty, longer than {NAME_BYTES_MAX} bytes or used twice")]
    Name {
        /// The name.
        name: String,
    },
}

/// Number of elements of a shape.
///
/// # Errors
/// The product as far as it got, if it exceeds [`ELEMENTS_MAX`].
pub fn elements(shape: &[u32]) -> Result<u64, u64> {
    let mut product = 1u64;
    for &dimension in shape {
        product =
            product.checked_mul(u64::from(dimension)).filter(|&product| product <= ELEMENTS_MAX).ok_or(product)?;
    }
    Ok(product)
}

fn total(tensors: &[TensorShape]) -> Result<u64, LayoutError> {
    let mut names = std::collections::HashSet::new();
    let mut total = 0u64;
    for TensorShape { name, shape } in tensors {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !names.insert(name) {
            return Err(LayoutError::Name { name: name.chars().take(64).collect() });
        }
        let too_large = || LayoutError::TooLarge { name: name.clone(), shape: shape.clone() };
        let count = elements(shape).map_err(|_| too_large())?;
        if count == 0 {
            return Err(LayoutError::Empty { name: name.clone(), shape: shape.clone() });
        }
        total = total.checked_add(count).filter(|&total| total <= ELEMENTS_MAX).ok_or_else(too_large)?;
    }
    Ok(total)
}

impl Layout {
    /// Checks and takes a model's parameters and those buffers that agents share.
    ///
    /// # Errors
    /// [`LayoutError`] at the first tensor that does not fit.
    pub fn new(parameters: Vec<TensorShape>, buffers: Vec<TensorShape>) -> Result<Layout, LayoutError> {
        let parameter_elements = total(&parameters)?;
        let buffer_elements = total(&buffers)?;
        Ok(Layout { parameters, buffers, parameter_elements, buffer_elements })
    }

    /// Parameters in stream order; the index is a parameter's identity.
    pub fn parameters(&self) -> &[TensorShape] {
        &self.parameters
    }

    /// Shared buffers in stream order.
    pub fn buffers(&self) -> &[TensorShape] {
        &self.buffers
    }

    /// Elements of all parameters.
    pub fn parameter_elements(&self) -> usize {
        self.parameter_elements as usize
    }

    /// Elements of all shared buffers.
    pub fn buffer_elements(&self) -> usize {
        self.buffer_elements as usize
    }

    /// Length of the parameters in a stream, in bytes; the shared buffers follow.
    pub fn parameter_bytes(&self, codec: Codec) -> u64 {
        self.parameter_elements * codec.element_bytes() as u64
    }

    /// Length of a stream: parameters (or gradients) in `codec`, then shared buffers in `f32`.
    pub fn stream_bytes(&self, codec: Codec) -> u64 {
        self.parameter_bytes(codec) + self.buffer_elements * 4
    }

    /// SHA-256 over names and shapes in order.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (kind, tensors) in [(b'p', &self.parameters), (b'b', &self.buffers)] {
            for TensorShape { name, shape } in tensors {
                hash.update([kind]);
                hash.update((name.len() as u32).to_le_bytes());
                hash.update(name.as_bytes());
                hash.update((shape.len() as u32).to_le_bytes());
                for dimension in shape {
                    hash.update(dimension.to_le_bytes());
                }
            }
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[u32]) -> TensorShape {
        TensorShape { name: name.to_owned(), shape: shape.to_vec() }
    }

    #[test]
    fn lengths_follow_from_shapes_and_codec() {
        let parameters = vec![tensor("w", &[2, 3]), tensor("b", &[3]), tensor("scale", &[])];
        let layout = Layout::new(parameters, vec![tensor("mean", &[5])]).unwrap();
        assert_eq!((layout.parameter_elements(), layout.buffer_elements()), (10, 5));
        assert_eq!((layout.stream_bytes(Codec::F32), layout.stream_bytes(Codec::Bf16)), (60, 40));
        assert_eq!((layout.parameter_bytes(Codec::F32), layout.parameter_bytes(Codec::Bf16)), (40, 20));
    }

    #[test]
    fn shapes_whose_product_overflows_are_refused_by_name() {
        let huge = [
            vec![u32::MAX; 2],
            vec![u32::MAX; 6],
            vec![1 << 16; 4],            // 2^64 wraps to zero
            vec![u32::MAX, u32::MAX, 0], // would be empty if it were multiplied to the end
        ];
        for shape in huge {
            let expected = LayoutError::TooLarge { name: "w".to_owned(), shape: shape.clone() };
            assert_eq!(Layout::new(vec![tensor("w", &shape)], Vec::new()), Err(expected));
        }
    }

    #[test]
    fn sum_of_tensors_is_bounded_too() {
        let half = [1 << 16, (ELEMENTS_MAX >> 17) as u32];
        let fits = Layout::new(vec![tensor("a", &half), tensor("b", &half)], Vec::new()).unwrap();
        assert_eq!(fits.parameter_elements() as u64, ELEMENTS_MAX);
        let three = vec![tensor("a", &half), tensor("b", &half), tensor("c", &[1])];
        assert!(matches!(Layout::new(three, Vec::new()), Err(LayoutError::TooLarge { name, .. }) if name == "c"));
    }

    #[test]
    fn empty_tensors_and_bad_names_are_refused() {
        assert!(matches!(Layout::new(vec![tensor("w", &[3, 0])], vec![]), Err(LayoutError::Empty { .. })));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for parameters in
            [vec![tensor("", &[1])], vec![tensor(&long, &[1])], vec![tensor("w", &[1]), tensor("w", &[2])]]
        {
            assert!(matches!(Layout::new(parameters, vec![]), Err(LayoutError::Name { .. })));
        }
    }

    #[test]
    fn digest_tells_names_shapes_order_and_kind_apart() {
        let (w, b) = (tensor("w", &[2, 3]), tensor("b", &[3]));
        let variants = [
            (vec![w.clone(), b.clone()], vec![]),
            (vec![b.clone(), w.clone()], vec![]),
            (vec![w.clone()], vec![b.clone()]),
            (vec![tensor("w", &[3, 2]), b.clone()], vec![]),
            (vec![tensor("v", &[2, 3]), b.clone()], vec![]),
            (vec![tensor("w", &[2, 3, 1]), b], vec![]),
            (vec![w], vec![]),
        ];
        let digests: std::collections::HashSet<[u8; 32]> = variants
            .into_iter()
            .map(|(parameters, buffers)| Layout::new(parameters, buffers).unwrap().digest())
            .collect();
        assert_eq!(digests.len(), 7);
    }
}
