//! How a call into a kernel fails.

use std::any::Any;

use omnilearn_wire::limits::cut_reason;
use wasmtime::Trap;

use crate::backend::OpError;
use crate::description::DescriptionError;
use crate::limits::Limit;
use crate::settings::SettingError;

/// Why a kernel gave no result.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// The kernel misused an operation (the message names it, and the shapes), panicked, or did what WebAssembly forbids.
    /// The instance is spent: see [`Instance::restart`](crate::Instance::restart).
    #[error("kernel trapped: {message}")]
    Trap {
        /// What happened.
        message: String,
    },
    /// What computes for the kernel failed, such as a GPU that is lost. The instance is spent.
    #[error("compute device failed: {message}")]
    Device {
        /// The operation, and what the backend says.
        message: String,
    },
    /// The kernel used up what it was given. The instance is spent.
    #[error(transparent)]
    Limit(Limit),
    /// The kernel itself returned an error.
    #[error("kernel refused: {message}")]
    Kernel {
        /// The kernel's words.
        message: String,
    },
    /// The job's settings are not what the kernel takes.
    #[error(transparent)]
    Setting(SettingError),
    /// The kernel describes a model that cannot be trained.
    #[error("kernel's description is wrong: {0}")]
    Description(#[source] DescriptionError),
    /// The caller's batch does not have what the description says.
    #[error("batch has {found} {part}, but the kernel takes {expected}")]
    Batch {
        /// Which tensors.
        part: &'static str,
        /// Their number in the description.
        expected: usize,
        /// Their number in the batch.
        found: usize,
    },
    /// The kernel returned something other than its description says.
    #[error("kernel returned {found} as {part}, expected {expected}")]
    Output {
        /// Which part of the output.
        part: String,
        /// What the description asks for.
        expected: String,
        /// What came.
        found: String,
    },
    /// [`Instance::describe`](crate::Instance::describe) must come first, and only once.
    #[error("a kernel is described once, before its first batch")]
    NotDescribed,
    /// An earlier call trapped or reached a limit.
    #[error("instance is spent since an earlier call failed")]
    Spent,
    /// This machine cannot run WebAssembly.
    #[error("webassembly engine: {message}")]
    Engine {
        /// The engine's words.
        message: String,
    },
}

/// What a panic that was caught said.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

impl KernelError {
    /// Sorts what the engine reports, without its stack trace.
    pub(crate) fn from_call(error: wasmtime::Error) -> KernelError {
        if let Some(limit) = error.downcast_ref::<Limit>() {
            return KernelError::Limit(*limit);
        }
        if let Some(error) = error.downcast_ref::<OpError>() {
            return KernelError::Trap { message: cut_reason(error.to_string()) };
        }
        match error.downcast_ref::<Trap>() {
            Some(Trap::StackOverflow) => KernelError::Limit(Limit::Stack),
            Some(Trap::UnreachableCodeReached) => {
                KernelError::Trap { message: "kernel panicked (`unreachable`)".to_owned() }
            }
            Some(trap) => KernelError::Trap { message: trap.to_string() },
            None => KernelError::Trap { message: cut_reason(error.root_cause().to_string()) },
        }
    }

    /// Whether the instance can no longer be called.
    pub(crate) fn spends(&self) -> bool {
        matches!(self, KernelError::Trap { .. } | KernelError::Device { .. } | KernelError::Limit(_))
    }
}
