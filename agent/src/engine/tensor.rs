//! A tensor of any rank, on any of Burn's devices, tracked for gradients or not.

use burn::backend::{
    AutodiffBackend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    TensorMetadata,
};
use omnilearn_kernel_host::backend::DType;

/// A tensor. Cloning shares storage. Burn's own tensors have their rank in their type; below them lie primitives that have
/// not, and one of those is held here.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(super) primitive: DispatchTensor,
    shape: Vec<usize>,
    dtype: DType,
}

impl Tensor {
    pub(super) fn float(primitive: DispatchTensor) -> Tensor {
        Tensor { shape: primitive.shape().to_vec(), primitive, dtype: DType::F32 }
    }

    pub(super) fn int(primitive: DispatchTensor) -> Tensor {
        Tensor { shape: primitive.shape().to_vec(), primitive, dtype: DType::I32 }
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The primitive cut off from differentiation.
    pub(super) fn constant(&self) -> DispatchTensor {
        match (self.dtype, self.primitive.autodiff) {
            (DType::F32, DispatchAutodiffContext::Enabled(_)) => {
                <Dispatch as AutodiffBackend>::inner(self.primitive.clone())
            }
            _ => self.primitive.clone(),
        }
    }

    /// The same values, cut off from differentiation.
    pub fn detached(&self) -> Tensor {
        Tensor { primitive: self.constant(), shape: self.shape.clone(), dtype: self.dtype }
    }

    /// Calls `read` with the elements of an `f32` tensor in row-major order, without a copy where storage allows.
    pub fn with_floats<R>(&self, read: impl FnOnce(&[f32]) -> R) -> R {
        debug_assert_eq!(self.dtype, DType::F32);
        let constant = self.constant();
        if let DispatchTensorKind::Flex(BackendTensor::Float(tensor)) = &constant.kind {
            return match tensor.as_slice() {
                Some(values) => read(values),
                None => read(tensor.to_contiguous().storage()),
            };
        }
        let data = burn::tensor::Tensor::<1>::from_dispatch(constant).into_data();
        read(&data.iter::<f32>().collect::<Vec<f32>>())
    }

    /// Calls `read` with the elements of an `i32` tensor in row-major order.
    pub fn with_ints<R>(&self, read: impl FnOnce(&[i32]) -> R) -> R {
        debug_assert_eq!(self.dtype, DType::I32);
        if let DispatchTensorKind::Flex(BackendTensor::Int(tensor)) = &self.primitive.kind
            && tensor.dtype() == burn::tensor::DType::I32
        {
            return match tensor.as_slice() {
                Some(values) => read(values),
                None => read(tensor.to_contiguous().storage()),
            };
        }
        let data = burn::tensor::Tensor::<1, burn::tensor::Int>::from_dispatch(self.primitive.clone()).into_data();
        read(&data.iter::<i32>().collect::<Vec<i32>>())
    }

    /// A copy of the elements of an `f32` tensor.
    pub fn to_vec(&self) -> Vec<f32> {
        self.with_floats(<[f32]>::to_vec)
    }
}
