//! The tensor engine: what kernels compute with. Tensors of any rank on Burn, differentiated by Burn, with our own operators
//! for the CPU where they are faster.

mod check;
mod cpu;
mod ops;
mod tensor;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{
    AutodiffBackend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchDevice, DispatchTensor,
    DispatchTensorKind,
};
use burn::tensor::{Device, TensorData};

pub use self::tensor::Tensor;
pub use omnilearn_cpu::{Buffer, enter_pool};

/// Who computes the operators that we have written ourselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operators {
    /// Our own for the CPU.
    #[default]
    Own,
    /// Burn's, for comparison.
    Burn,
}

/// A compute device with its operators. Cloning is cheap.
#[derive(Clone)]
pub struct Engine {
    device: DispatchDevice,
    operators: Operators,
    /// Stands for an operand that is not there.
    nothing: DispatchTensor,
    /// Most elements of one tensor.
    elements_max: usize,
    /// What computes, for people.
    description: Arc<str>,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine::cpu(Operators::Own)
    }
}

impl Engine {
    /// Computes on the CPU.
    pub fn cpu(operators: Operators) -> Engine {
        Engine::on(&Device::flex(), operators, "cpu (flex)")
    }

    /// Computes on a GPU, with Burn's operators.
    #[cfg(feature = "gpu")]
    pub(crate) fn gpu(device: &Device, name: &str) -> Engine {
        Engine::on(device, Operators::Burn, name)
    }

    fn on(device: &Device, operators: Operators, description: &str) -> Engine {
        let device = device.as_dispatch().clone();
        let nothing = match operators {
            Operators::Own => Dispatch::float_from_data(TensorData::new(Vec::<f32>::new(), [0]), &device),
            // Never used, and a GPU has no tensors without elements.
            Operators::Burn => Dispatch::float_from_data(TensorData::new(vec![0.0f32], [1]), &device),
        };
        Engine { device, operators, nothing, elements_max: usize::MAX, description: description.into() }
    }

    /// Whether tensors lie in the memory of this process.
    pub(crate) fn is_cpu(&self) -> bool {
        matches!(self.nothing.kind, DispatchTensorKind::Flex(_))
    }

    /// Refuses to make a tensor of more elements than this.
    #[must_use]
    pub fn with_elements_max(self, elements_max: usize) -> Engine {
        Engine { elements_max, ..self }
    }

    /// What computes, for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// A constant `f32` tensor. The product of `shape` is the number of values.
    pub fn floats(&self, values: Vec<f32>, shape: &[usize]) -> Tensor {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "as many values as the shape says");
        Tensor::float(Dispatch::float_from_data(TensorData::new(values, shape.to_vec()), &self.device))
    }

    /// Like [`Engine::floats`], without a copy from storage as operators want it: at a cache line, large tensors on huge pages. What
    /// is read in every step, such as a parameter, is worth it.
    pub fn stored(&self, values: Buffer, shape: &[usize]) -> Tensor {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "as many values as the shape says");
        if !self.is_cpu() {
            return self.floats(values.to_vec(), shape);
        }
        let kind = DispatchTensorKind::Flex(BackendTensor::Float(cpu::tensor(values, shape)));
        Tensor::float(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled })
    }

    /// A constant `i32` tensor. The product of `shape` is the number of values.
    pub fn ints(&self, values: Vec<i32>, shape: &[usize]) -> Tensor {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "as many values as the shape says");
        Tensor::int(Dispatch::int_from_data(TensorData::new(values, shape.to_vec()), &self.device))
    }

    /// The same values as a new leaf, whose gradient [`Engine::backward`] computes.
    pub fn leaf(&self, values: &Tensor) -> Tensor {
        let leaf = <Dispatch as AutodiffBackend>::from_inner(values.constant());
        Tensor::float(Dispatch::float_set_require_grad(leaf, true))
    }

    /// Gradients of a loss of one element with respect to every leaf that it depends on.
    pub fn backward(&self, loss: &Tensor) -> Gradients {
        // A loss that no leaf went into has no graph.
        Gradients(loss.is_tracked().then(|| <Dispatch as AutodiffBackend>::backward(loss.row_major())))
    }
}

/// What [`Engine::backward`] computed.
pub struct Gradients(Option<<Dispatch as AutodiffBackend>::Gradients>);

impl Gradients {
    /// Takes the gradient of a leaf. `None` if the loss does not depend on it: the gradient is zero.
    pub fn take(&mut self, leaf: &Tensor) -> Option<Tensor> {
        let gradients = self.0.as_mut()?;
        <Dispatch as AutodiffBackend>::grad_remove(&leaf.primitive(), gradients).map(Tensor::float)
    }
}
