//! A tensor of any rank, on any of Burn's devices, tracked for gradients or not.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{
    AutodiffBackend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    TensorMetadata,
};
use omnilearn_cpu::Activation;
use omnilearn_cpu::layout::Layout;
use omnilearn_kernel_host::backend::DType;

use super::cpu::CpuOperators;

/// A tensor. Cloning shares storage. Burn's own tensors have their rank in their type; below them lie primitives that have
/// not, and one of those is held here.
///
/// Two things are hidden from whoever computes with it. Images may lie with their channels last, which is then undone where
/// an operator needs the order of the dimensions. And a result that may go through an activation waits for it: an operator
/// computes both at once, which saves a pass over memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    value: Value,
    shape: Vec<usize>,
    dtype: DType,
    layout: Layout,
}

#[derive(Clone)]
enum Value {
    Ready(DispatchTensor),
    Pending(Arc<Mutex<Pending>>),
}

/// An operator that may yet be told an activation.
type Deferred = Box<dyn Fn(Activation) -> DispatchTensor + Send>;

enum Pending {
    Deferred(Deferred),
    Done(DispatchTensor),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Value::Ready(_) => "ready",
            Value::Pending(_) => "pending",
        })
    }
}

impl Tensor {
    pub(super) fn float(primitive: DispatchTensor) -> Tensor {
        Tensor {
            shape: primitive.shape().to_vec(),
            value: Value::Ready(primitive),
            dtype: DType::F32,
            layout: Layout::Planes,
        }
    }

    pub(super) fn int(primitive: DispatchTensor) -> Tensor {
        Tensor { dtype: DType::I32, ..Tensor::float(primitive) }
    }

    /// The result of an operator on images or rows, of which an activation may become part.
    pub(super) fn deferred(
        shape: Vec<usize>,
        layout: Layout,
        operator: impl Fn(Activation) -> DispatchTensor + Send + 'static,
    ) -> Tensor {
        let pending = Pending::Deferred(Box::new(operator));
        Tensor { value: Value::Pending(Arc::new(Mutex::new(pending))), shape, dtype: DType::F32, layout }
    }

    /// Another tensor of the same shape, type and layout.
    pub(super) fn with_value(&self, primitive: DispatchTensor) -> Tensor {
        Tensor { value: Value::Ready(primitive), ..self.clone() }
    }

    /// With these dimensions and layout.
    pub(super) fn image(primitive: DispatchTensor, shape: Vec<usize>, layout: Layout) -> Tensor {
        Tensor { value: Value::Ready(primitive), shape, dtype: DType::F32, layout }
    }

    /// `max(self, 0)` computed by the operator whose result this is, if nobody has asked for that result yet.
    pub(super) fn fused_relu(&self) -> Option<Tensor> {
        let Value::Pending(pending) = &self.value else { return None };
        match &*pending.lock().unwrap_or_else(PoisonError::into_inner) {
            Pending::Deferred(operator) => Some(self.with_value(operator(Activation::Relu))),
            Pending::Done(_) => None,
        }
    }

    /// How images lie in [`Tensor::primitive`].
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// The primitive as it lies: with channels last, its dimensions are in another order than [`Tensor::shape`].
    pub(super) fn primitive(&self) -> DispatchTensor {
        match &self.value {
            Value::Ready(primitive) => primitive.clone(),
            Value::Pending(pending) => {
                let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
                let done = match &*pending {
                    Pending::Done(primitive) => return primitive.clone(),
                    Pending::Deferred(operator) => operator(Activation::None),
                };
                *pending = Pending::Done(done.clone());
                done
            }
        }
    }

    /// The primitive with the dimensions of [`Tensor::shape`].
    pub(super) fn row_major(&self) -> DispatchTensor {
        self.in_layout(Layout::Planes)
    }

    /// The primitive in a layout; of images, if that is not row-major.
    pub(super) fn in_layout(&self, layout: Layout) -> DispatchTensor {
        if self.layout == layout {
            return self.primitive();
        }
        Dispatch::omnilearn_exchange_layout(self.primitive(), self.layout)
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

    /// Whether a gradient may come to it.
    pub(super) fn is_tracked(&self) -> bool {
        matches!(self.primitive().autodiff, DispatchAutodiffContext::Enabled(_))
    }

    /// A primitive cut off from differentiation.
    fn cut_off(&self, primitive: DispatchTensor) -> DispatchTensor {
        match (self.dtype, primitive.autodiff) {
            (DType::F32, DispatchAutodiffContext::Enabled(_)) => <Dispatch as AutodiffBackend>::inner(primitive),
            _ => primitive,
        }
    }

    /// [`Tensor::row_major`], cut off from differentiation.
    pub(super) fn constant(&self) -> DispatchTensor {
        let constant = self.detached();
        constant.row_major()
    }

    /// The same values, cut off from differentiation.
    pub fn detached(&self) -> Tensor {
        self.with_value(self.cut_off(self.primitive()))
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
        let primitive = self.primitive();
        if let DispatchTensorKind::Flex(BackendTensor::Int(tensor)) = &primitive.kind
            && tensor.dtype() == burn::tensor::DType::I32
        {
            return match tensor.as_slice() {
                Some(values) => read(values),
                None => read(tensor.to_contiguous().storage()),
            };
        }
        let data = burn::tensor::Tensor::<1, burn::tensor::Int>::from_dispatch(primitive).into_data();
        read(&data.iter::<i32>().collect::<Vec<i32>>())
    }

    /// A copy of the elements of an `f32` tensor.
    pub fn to_vec(&self) -> Vec<f32> {
        self.with_floats(<[f32]>::to_vec)
    }
}
