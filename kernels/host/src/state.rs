//! What an instance's store holds: the backend, the handles and the meters.

use std::time::Instant;

use wasmtime::component::Resource;

use crate::backend::{OpError, TensorBackend};
use crate::bindings::Handle;
use crate::handles::{Handles, Held, Shape};
use crate::limits::{CallClock, Limits, MemoryLimiter};

/// Data of an instance's store.
pub(crate) struct State<B: TensorBackend> {
    pub(crate) backend: B,
    pub(crate) handles: Handles<B::Tensor>,
    pub(crate) memory: MemoryLimiter,
    pub(crate) clock: CallClock,
    /// The operation that runs now, or ran last.
    pub(crate) operation: &'static str,
    pub(crate) limits: Limits,
}

impl<B: TensorBackend> State<B> {
    pub(crate) fn new(backend: B, limits: Limits) -> State<B> {
        State {
            backend,
            handles: Handles::new(&limits),
            memory: MemoryLimiter::new(limits.linear_memory_bytes),
            clock: CallClock::start(&limits),
            operation: "none",
            limits,
        }
    }

    /// Begins a call. In training, tensors count until its end.
    pub(crate) fn begin(&mut self, training: bool) {
        self.clock = CallClock::start(&self.limits);
        self.handles.begin(training);
        self.operation = "none";
    }

    /// Takes a tensor in and gives out its handle.
    pub(crate) fn hold(&mut self, operation: &'static str, tensor: B::Tensor) -> wasmtime::Result<Resource<Handle>> {
        let dimensions = self.backend.shape(&tensor);
        let Some(shape) = Shape::new(&dimensions) else {
            return Err(OpError {
                operation,
                operands: format!("{dimensions:?}"),
                reason: "rank is more than 6".to_owned(),
            }
            .into());
        };
        let dtype = self.backend.dtype(&tensor);
        Ok(self.handles.insert(operation, Held { tensor, shape, dtype })?)
    }

    /// Runs an operation that will make so many elements.
    pub(crate) fn operate(
        &mut self,
        operation: &'static str,
        elements: u64,
        compute: impl FnOnce(&mut B, &Handles<B::Tensor>) -> wasmtime::Result<B::Tensor>,
    ) -> wasmtime::Result<Resource<Handle>> {
        self.handles.check_room(operation, elements)?;
        self.operation = operation;
        let began = Instant::now();
        let tensor = compute(&mut self.backend, &self.handles)?;
        self.clock.operation_ended(operation, began)?;
        self.hold(operation, tensor)
    }
}
