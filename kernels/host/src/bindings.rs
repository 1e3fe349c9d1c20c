//! Generated from `wit/kernel.wit`. Nothing outside this crate sees these types.
#![expect(unreachable_pub, reason = "generated, and private to this crate")]

/// What a handle's number refers to: a tensor in [`crate::handles::Handles`].
pub enum Handle {}

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "kernel",
    with: { "omnilearn:kernel/tensor.tensor": Handle },
    imports: { default: trappable },
});
