//! Any bytes as a kernel: refused, or a component that describes itself or fails within its limits. Seed it with real ones:
//! `cargo +nightly fuzz run component corpus ../../kernels/target/components`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use omnilearn_kernel_host::Kernel;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(kernel) = Kernel::open(bytes) {
        let _ = kernel.settings();
        let _ = kernel.describe(&[]);
    }
});
