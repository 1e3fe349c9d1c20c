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
        product = product.checked_mul(u64::from(dimension)).filter(|&product| product <= ELEMENTS_MAX).ok_or(product)?;
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
