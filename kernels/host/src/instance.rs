//! A running kernel.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use omnilearn_wire::limits::cut_reason;
use omnilearn_wire::message::Setting;
use wasmtime::component::Resource;
use wasmtime::{Store, UpdateDeadline};

use crate::backend::{DType, TensorBackend};
use crate::bindings::exports::omnilearn::kernel::model as wit;
use crate::bindings::{self, Handle};
use crate::component::Kernel;
use crate::description::Description;
use crate::engine::{TICK, engine};
use crate::error::{KernelError, panic_text};
use crate::handles::{Handles, Held};
use crate::limits::Limits;
use crate::settings::{self, SettingInfo};
use crate::state::State;

/// What a forward pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Loss with gradients, and new buffers.
    Train,
    /// Loss and metrics.
    Evaluate,
    /// Outputs only.
    Predict,
}

/// Tensors of one forward pass, in the order of the [`Description`].
#[derive(Clone, Debug)]
pub struct Batch<T> {
    /// What the pass is for.
    pub mode: Mode,
    /// Parameters.
    pub parameters: Vec<T>,
    /// Buffers, shared and local ones.
    pub buffers: Vec<T>,
    /// Inputs, samples first.
    pub inputs: Vec<T>,
    /// Targets, samples first; none in [`Mode::Predict`].
    pub targets: Option<T>,
    /// Of dropout.
    pub seed: u64,
}

/// Result of one forward pass. Checked against the description.
#[derive(Clone, Debug)]
pub struct Output<T> {
    /// Mean over the batch, `[1]`; none in [`Mode::Predict`].
    pub loss: Option<T>,
    /// Logits or predictions, samples first.
    pub outputs: Vec<T>,
    /// New buffers, all of them, in [`Mode::Train`]; otherwise empty.
    pub buffers: Vec<T>,
    /// Sums over the batch, each `[1]`; empty in [`Mode::Predict`].
    pub metrics: Vec<T>,
}

/// The most memory that an instance has used so far, counted as [`Limits`] count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// See [`Limits::linear_memory_bytes`].
    pub linear_memory_bytes: u64,
    /// See [`Limits::tensor_bytes`].
    pub tensor_bytes: u64,
}

/// An instance of a kernel on a backend.
pub struct Instance<B: TensorBackend> {
    kernel: Kernel,
    limits: Limits,
    store: Store<State<B>>,
    exports: bindings::Kernel,
    settings: Vec<Setting>,
    description: Option<Arc<Description>>,
    spent: bool,
}

impl<B: TensorBackend> Instance<B> {
    pub(crate) fn new(kernel: Kernel, backend: B, limits: Limits) -> Result<Self, KernelError> {
        let engine = engine().map_err(|message| KernelError::Engine { message: message.to_owned() })?;
        let mut store = Store::new(engine, State::new(backend, limits));
        store.limiter(|state| &mut state.memory);
        // What one call carries out of the kernel is at most what could lie in its memory: a list of long strings that all
        // point at the same bytes is not.
        store.set_hostcall_fuel(usize::try_from(limits.linear_memory_bytes).unwrap_or(usize::MAX));
        store.epoch_deadline_callback(|context| {
            // The deadline is one of elapsed time, in which operations ran too: what they took is given back.
            let left = context.data().clock.kernel_time_left()?;
            Ok(UpdateDeadline::Continue(ticks(left)))
        });
        store.set_epoch_deadline(ticks(limits.kernel_time));
        let linked = kernel.link().map_err(KernelError::from_call)?;
        let exports = linked.instantiate(&mut store).map_err(KernelError::from_call)?;
        Ok(Instance { kernel, limits, store, exports, settings: Vec::new(), description: None, spent: false })
    }

    /// A fresh instance with the same backend and settings, in place of one that is spent.
    ///
    /// # Errors
    /// As [`Kernel::instantiate`] and [`Instance::describe`].
    pub fn restart(self) -> Result<Self, KernelError> {
        let Instance { kernel, limits, store, settings, description, .. } = self;
        let mut instance = Instance::new(kernel, store.into_data().backend, limits)?;
        if description.is_some() {
            instance.describe(&settings)?;
        }
        Ok(instance)
    }

    /// The kernel that this is an instance of.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// What computes.
    pub fn backend(&self) -> &B {
        &self.store.data().backend
    }

    /// What computes.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.store.data_mut().backend
    }

    /// What [`Instance::describe`] returned.
    pub fn description(&self) -> Option<&Arc<Description>> {
        self.description.as_ref()
    }

    /// What the instance has used so far.
    pub fn usage(&self) -> Usage {
        let state = self.store.data();
        Usage { linear_memory_bytes: state.memory.used(), tensor_bytes: state.handles.bytes_peak() }
    }

    /// Whether an earlier call trapped or reached a limit, so that only [`Instance::restart`] is left.
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// The settings that the kernel understands.
    ///
    /// # Errors
    /// [`KernelError`] if the kernel fails to tell.
    pub fn settings(&mut self) -> Result<Vec<SettingInfo>, KernelError> {
        let infos = self.call(false, |exports, store| exports.omnilearn_kernel_model().call_settings(store))?;
        self.store.data_mut().handles.end();
        Ok(infos.into_iter().map(SettingInfo::from).collect())
    }

    /// Fixes the configuration. Settings that are left out have their defaults.
    ///
    /// # Errors
    /// [`KernelError::Setting`] for what the kernel does not take, [`KernelError::Kernel`] for values that it refuses,
    /// [`KernelError::Description`] for a model that cannot be trained, and what any call may meet.
    pub fn describe(&mut self, settings: &[Setting]) -> Result<Description, KernelError> {
        if self.description.is_some() {
            return Err(KernelError::NotDescribed);
        }
        let infos = self.settings()?;
        let checked = settings::check(settings, &infos).map_err(KernelError::Setting)?;
        let described =
            self.call(false, |exports, store| exports.omnilearn_kernel_model().call_describe(store, &checked))?;
        self.store.data_mut().handles.end();
        let described = described.map_err(|message| KernelError::Kernel { message: cut_reason(message) })?;
        let description = Description::try_from(described).map_err(KernelError::Description)?;
        self.settings = settings.to_vec();
        self.description = Some(Arc::new(description.clone()));
        Ok(description)
    }

    /// Computes one batch.
    ///
    /// # Errors
    /// [`KernelError`]; after [`KernelError::Trap`] and [`KernelError::Limit`] the instance is spent.
    pub fn forward(&mut self, batch: Batch<B::Tensor>) -> Result<Output<B::Tensor>, KernelError> {
        let description = self.description.clone().ok_or(KernelError::NotDescribed)?;
        check_batch(&batch, &description)?;
        if self.spent {
            return Err(KernelError::Spent);
        }
        let mode = batch.mode;
        let result = self.forward_handles(batch).and_then(|output| {
            let output = collect(&mut self.store.data_mut().handles, output)?;
            check_output(mode, output, &description)
        });
        self.store.data_mut().handles.end();
        self.spent |= result.as_ref().is_err_and(KernelError::spends);
        result
    }

    fn forward_handles(&mut self, batch: Batch<B::Tensor>) -> Result<wit::Output, KernelError> {
        let state = self.store.data_mut();
        let mut hold = |tensors: Vec<B::Tensor>| {
            tensors.into_iter().map(|tensor| state.hold("forward", tensor)).collect::<wasmtime::Result<Vec<_>>>()
        };
        let Batch { mode, parameters, buffers, inputs, targets, seed } = batch;
        let held = (hold(parameters), hold(buffers), hold(inputs), hold(targets.into_iter().collect()));
        let (Ok(parameters), Ok(buffers), Ok(inputs), Ok(mut targets)) = held else {
            let error = held.0.err().or(held.1.err()).or(held.2.err()).or(held.3.err());
            return Err(error.map_or(KernelError::Spent, KernelError::from_call));
        };
        let mode = match mode {
            Mode::Train => wit::Mode::Train,
            Mode::Evaluate => wit::Mode::Evaluate,
            Mode::Predict => wit::Mode::Predict,
        };
        let batch = wit::Batch { mode, parameters, buffers, inputs, targets: targets.pop(), seed };
        let output = self.call(mode == wit::Mode::Train, |exports, store| {
            exports.omnilearn_kernel_model().call_forward(store, &batch)
        })?;
        output.map_err(|message| KernelError::Kernel { message: cut_reason(message) })
    }

    /// Calls into the kernel, timed and bounded.
    fn call<T>(
        &mut self,
        training: bool,
        call: impl FnOnce(&bindings::Kernel, &mut Store<State<B>>) -> wasmtime::Result<T>,
    ) -> Result<T, KernelError> {
        if self.spent {
            return Err(KernelError::Spent);
        }
        self.store.data_mut().begin(training);
        self.store.set_epoch_deadline(ticks(self.limits.kernel_time));
        // A backend that panics must not take the process along; the instance is thrown away after it.
        let result = match catch_unwind(AssertUnwindSafe(|| call(&self.exports, &mut self.store))) {
            Ok(result) => result.map_err(KernelError::from_call),
            Err(panic) => Err(KernelError::Device { message: panicked(self.store.data().operation, &*panic) }),
        };
        self.spent = result.as_ref().is_err_and(KernelError::spends);
        result
    }
}

/// Engine epochs until a time has passed, at least one.
fn ticks(time: Duration) -> u64 {
    (time.as_nanos() / TICK.as_nanos()).try_into().unwrap_or(u64::MAX / 2).clamp(1, u64::MAX / 2)
}

fn panicked(operation: &str, panic: &(dyn std::any::Any + Send)) -> String {
    cut_reason(format!("`{operation}` panicked in the backend: {}", panic_text(panic)))
}

fn check_batch<T>(batch: &Batch<T>, description: &Description) -> Result<(), KernelError> {
    let check = |part, expected, found| {
        if expected == found { Ok(()) } else { Err(KernelError::Batch { part, expected, found }) }
    };
    check("parameters", description.parameters.len(), batch.parameters.len())?;
    check("buffers", description.buffers.len(), batch.buffers.len())?;
    check("inputs", description.inputs.len(), batch.inputs.len())?;
    check("targets", usize::from(batch.mode != Mode::Predict), usize::from(batch.targets.is_some()))
}

/// Takes the tensors of an output out of the table.
fn collect<T>(handles: &mut Handles<T>, output: wit::Output) -> Result<Output<Held<T>>, KernelError> {
    let mut take = |handle: Resource<Handle>| {
        handles
            .remove(&handle)
            .ok_or_else(|| KernelError::Trap { message: "kernel returned a tensor of an earlier call".to_owned() })
    };
    let wit::Output { loss, outputs, buffers, metrics } = output;
    Ok(Output {
        loss: loss.map(&mut take).transpose()?,
        outputs: outputs.into_iter().map(&mut take).collect::<Result<_, _>>()?,
        buffers: buffers.into_iter().map(&mut take).collect::<Result<_, _>>()?,
        metrics: metrics.into_iter().map(&mut take).collect::<Result<_, _>>()?,
    })
}

fn check_output<T>(mode: Mode, output: Output<Held<T>>, description: &Description) -> Result<Output<T>, KernelError> {
    let mismatch = |part: String, expected: String, found: String| KernelError::Output { part, expected, found };
    let count = |part: &str, expected: usize, found: usize| {
        if expected == found { Ok(()) } else { Err(mismatch(part.to_owned(), expected.to_string(), found.to_string())) }
    };
    let check = |part: &dyn Fn() -> String, shape: &[u32], held: &Held<T>| {
        let equal = held.shape.len() == shape.len() && held.shape.iter().zip(shape).all(|(&a, &b)| a == b as usize);
        if equal && held.dtype == DType::F32 {
            Ok(())
        } else {
            Err(mismatch(part(), format!("f32 {shape:?}"), held.name()))
        }
    };
    let learns = mode != Mode::Predict;
    count("number of losses", usize::from(learns), usize::from(output.loss.is_some()))?;
    count("number of metrics", if learns { description.metrics.len() } else { 0 }, output.metrics.len())?;
    count("number of buffers", if mode == Mode::Train { description.buffers.len() } else { 0 }, output.buffers.len())?;
    if let Some(loss) = &output.loss {
        check(&|| "loss".to_owned(), &[1], loss)?;
    }
    for (name, metric) in description.metrics.iter().zip(&output.metrics) {
        check(&|| format!("metric `{name}`"), &[1], metric)?;
    }
    for (buffer, held) in description.buffers.iter().zip(&output.buffers) {
        check(&|| format!("buffer `{}`", buffer.name), &buffer.shape, held)?;
    }
    let tensors = |held: Vec<Held<T>>| held.into_iter().map(|held| held.tensor).collect();
    Ok(Output {
        loss: output.loss.map(|held| held.tensor),
        outputs: tensors(output.outputs),
        buffers: tensors(output.buffers),
        metrics: tensors(output.metrics),
    })
}
