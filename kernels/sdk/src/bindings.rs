//! Generated from `wit/kernel.wit`.

wit_bindgen::generate!({
    path: "../../wit",
    world: "kernel",
    pub_export_macro: true,
    export_macro_name: "export_component",
    default_bindings_module: "::omnilearn_kernel_sdk::bindings",
    runtime_path: "::omnilearn_kernel_sdk::bindings::rt",
});

pub use wit_bindgen::rt;
