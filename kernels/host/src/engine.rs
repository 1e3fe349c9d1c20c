//! The process's one WebAssembly engine.

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use wasmtime::{Config, Engine};

/// Time between two engine epochs: how late a kernel that loops for ever is noticed.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Stack of a kernel. Models recurse little; a smaller stack than this would not fit Rust's formatting code.
const STACK_BYTES: usize = 512 << 10;

/// The engine, made at the first call. An engine that cannot be made stays unmade, with its reason.
pub(crate) fn engine() -> Result<&'static Engine, &'static str> {
    static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
    ENGINE.get_or_init(|| start().map_err(|error| format!("{error:#}"))).as_ref().map_err(String::as_str)
}

fn start() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config.wasm_component_model(true);
    config.epoch_interruption(true);
    config.max_wasm_stack(STACK_BYTES);
    // Kernels hardly compute, so checked accesses cost nothing that matters, and 4 GiB of address space for each memory
    // is more than a small ARM board or a container with a limit grants.
    config.memory_reservation(0);
    config.memory_reservation_for_growth(1 << 20);
    config.memory_guard_size(64 << 10);
    config.guard_before_linear_memory(false);
    let engine = Engine::new(&config)?;
    let ticker = engine.clone();
    // A thread of the operating system, since a busy async runtime would let the epoch stand still.
    thread::Builder::new().name("kernel-epochs".to_owned()).stack_size(64 << 10).spawn(move || {
        loop {
            thread::sleep(TICK);
            ticker.increment_epoch();
        }
    })?;
    Ok(engine)
}
