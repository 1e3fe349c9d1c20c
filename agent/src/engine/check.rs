//! Checks that turn a misuse into an [`OpError`].

use std::fmt::Write;

use omnilearn_kernel_host::backend::{DType, OpError, OpResult};

use super::Tensor;

/// Most dimensions.
const RANK_MAX: usize = 6;

/// An operation and its operands, for messages.
pub(super) struct Call<'a> {
    operation: &'static str,
    operands: &'a [&'a Tensor],
}

impl<'a> Call<'a> {
    pub(super) fn new(operation: &'static str, operands: &'a [&'a Tensor]) -> Call<'a> {
        Call { operation, operands }
    }

    /// The error that says why.
    pub(super) fn error(&self, reason: impl Into<String>) -> OpError {
        let mut operands = String::new();
        for (index, tensor) in self.operands.iter().enumerate() {
            let separator = match index {
                0 => "",
                _ if index + 1 == self.operands.len() => " and ",
                _ => ", ",
            };
            let dtype = match tensor.dtype() {
                DType::F32 => "f32",
                DType::I32 => "i32",
            };
            write!(operands, "{separator}{dtype} {:?}", tensor.shape()).expect("writing to a string does not fail");
        }
        if operands.is_empty() {
            operands.push_str("these values");
        }
        OpError { operation: self.operation, operands, reason: reason.into() }
    }

    /// Fails with the reason unless the condition holds.
    pub(super) fn require(&self, condition: bool, reason: impl FnOnce() -> String) -> OpResult<()> {
        if condition { Ok(()) } else { Err(self.error(reason())) }
    }

    /// All operands are `f32`.
    pub(super) fn floats(&self) -> OpResult<()> {
        self.require(self.operands.iter().all(|tensor| tensor.dtype() == DType::F32), || "operands must be f32".into())
    }

    /// Every element of an `i32` tensor of what `name` says is in `0..size`.
    pub(super) fn in_range(&self, name: &str, indices: &Tensor, size: usize) -> OpResult<()> {
        let outside = |indices: &[i32]| indices.iter().copied().find(|&index| index < 0 || index as usize >= size);
        match indices.with_ints(outside) {
            Some(index) => Err(self.error(format!("{name} {index} is not in 0..{size}"))),
            None => Ok(()),
        }
    }

    /// A shape of allowed rank without a zero, whose product is at most `elements_max`: the product.
    pub(super) fn shape(&self, shape: &[usize], elements_max: usize) -> OpResult<usize> {
        self.require((1..=RANK_MAX).contains(&shape.len()), || {
            format!("shape {shape:?} does not have rank 1 to {RANK_MAX}")
        })?;
        self.require(!shape.contains(&0), || format!("shape {shape:?} has no elements"))?;
        let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        elements
            .filter(|&elements| elements <= elements_max.min(isize::MAX as usize / 8))
            .ok_or_else(|| self.error(format!("a tensor of shape {shape:?} is larger than allowed")))
    }

    /// The shape that both broadcast to.
    pub(super) fn broadcast(&self, a: &[usize], b: &[usize]) -> OpResult<Vec<usize>> {
        let rank = a.len().max(b.len());
        let size =
            |shape: &[usize], dim: usize| if dim < rank - shape.len() { 1 } else { shape[dim + shape.len() - rank] };
        (0..rank)
            .map(|dim| match (size(a, dim), size(b, dim)) {
                (a, b) if a == b => Ok(a),
                (1, size) | (size, 1) => Ok(size),
                (a, b) => Err(self.error(format!("sizes {a} and {b} do not broadcast"))),
            })
            .collect()
    }
}
