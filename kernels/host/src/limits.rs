//! What a kernel may use, and what it ran out of.

use std::time::{Duration, Instant};

use wasmtime::ResourceLimiter;

/// Bounds on an instance. Each call (`settings`, `describe`, `forward`) is timed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all linear memories of an instance. 64 MiB unless changed.
    pub linear_memory_bytes: u64,
    /// Bytes of the tensors that a call holds, 4 for each element of each handle: those passed in, and those that
    /// operations made. A dropped handle gives its bytes back, except in training, where differentiation may keep the tensor
    /// until the call is over. Views count in full. 2 GiB unless changed.
    pub tensor_bytes: u64,
    /// Handles at a time. 65,536 unless changed.
    pub handles: u32,
    /// Time in the kernel's own code, without operations. 10 s unless changed.
    pub kernel_time: Duration,
    /// Time in the operations of one call. 10 minutes unless changed. An operation that is running is not interrupted.
    pub host_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            linear_memory_bytes: 64 << 20,
            tensor_bytes: 2 << 30,
            handles: 1 << 16,
            kernel_time: Duration::from_secs(10),
            host_time: Duration::from_secs(600),
        }
    }
}

/// A limit that a kernel reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    /// See [`Limits::linear_memory_bytes`].
    #[error("kernel wants {wanted} bytes of linear memory, at most {max} allowed")]
    LinearMemory {
        /// Bytes with the growth that was refused.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// See [`Limits::tensor_bytes`].
    #[error("tensors take {wanted} bytes after `{operation}`, at most {max} allowed")]
    TensorBytes {
        /// The operation that would have made one tensor too many.
        operation: &'static str,
        /// Bytes with that tensor.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// See [`Limits::handles`].
    #[error("kernel holds more than {max} tensor handles")]
    Handles {
        /// The limit.
        max: u32,
    },
    /// See [`Limits::kernel_time`].
    #[error("kernel's own code ran longer than {max:?}")]
    KernelTime {
        /// The limit.
        max: Duration,
    },
    /// See [`Limits::host_time`].
    #[error("tensor operations ran longer than {max:?}, the last being `{operation}`")]
    HostTime {
        /// The last operation.
        operation: &'static str,
        /// The limit.
        max: Duration,
    },
    /// The kernel's stack, 512 KiB.
    #[error("kernel's stack overflowed")]
    Stack,
}

/// Most elements of a WebAssembly table: function pointers, of which a kernel has hundreds.
const TABLE_ELEMENTS_MAX: usize = 1 << 16;

/// Counts linear memory over all memories of an instance.
pub(crate) struct MemoryLimiter {
    used: u64,
    max: u64,
}

impl MemoryLimiter {
    pub(crate) fn new(max: u64) -> MemoryLimiter {
        MemoryLimiter { used: 0, max }
    }

    /// Bytes of all memories; they never shrink.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }
}

impl ResourceLimiter for MemoryLimiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.used.saturating_add(desired.saturating_sub(current) as u64);
        if wanted > self.max {
            return Err(Limit::LinearMemory { wanted, max: self.max }.into());
        }
        self.used = wanted;
        Ok(true)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS_MAX)
    }

    fn instances(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        64
    }
}

/// Splits the time of one call into the kernel's own and the operations'.
pub(crate) struct CallClock {
    started: Instant,
    host: Duration,
    kernel_max: Duration,
    host_max: Duration,
}

impl CallClock {
    pub(crate) fn start(limits: &Limits) -> CallClock {
        CallClock {
            started: Instant::now(),
            host: Duration::ZERO,
            kernel_max: limits.kernel_time,
            host_max: limits.host_time,
        }
    }

    /// Accounts for an operation that began at `began` and ends now.
    pub(crate) fn operation_ended(&mut self, operation: &'static str, began: Instant) -> Result<(), Limit> {
        self.host += began.elapsed();
        if self.host > self.host_max {
            return Err(Limit::HostTime { operation, max: self.host_max });
        }
        Ok(())
    }

    /// How long the kernel's own code may still run.
    pub(crate) fn kernel_time_left(&self) -> Result<Duration, Limit> {
        let kernel = self.started.elapsed().saturating_sub(self.host);
        self.kernel_max
            .checked_sub(kernel)
            .filter(|left| !left.is_zero())
            .ok_or(Limit::KernelTime { max: self.kernel_max })
    }
}
