//! Kernels written as WebAssembly text, to do what no honest kernel does.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// A component whose exported functions have these bodies. `settings` and `describe` return the address of their result;
/// memory starts zeroed, so that address 1024 holds an empty list and a description of nothing. `head` comes first in the module.
pub(crate) struct Textual {
    pub(crate) head: &'static str,
    pub(crate) settings: &'static str,
    pub(crate) describe: &'static str,
}

impl Default for Textual {
    fn default() -> Self {
        Textual { head: "", settings: "i32.const 1024", describe: "i32.const 1024" }
    }
}

/// Imports `full`, which takes a value and the address and length of a shape, and `drop`.
pub(crate) const FULL: &str = r#"
    (import "omnilearn:kernel/tensor@0.1.0" "[static]tensor.full" (func $full (param f32 i32 i32) (result i32)))
    (import "omnilearn:kernel/tensor@0.1.0" "[resource-drop]tensor" (func $drop (param i32)))
    (data (i32.const 2048) "\ff\ff\ff\7f\ff\ff\ff\7f\ff\ff\ff\7f\ff\ff\ff\7f")
    (data (i32.const 2080) "\01\00\00\00\02\00\00\00")
"#;

impl Textual {
    pub(crate) fn component(&self) -> Vec<u8> {
        let Textual { head, settings, describe } = self;
        let text = format!(
            r#"(module
                {head}
                (memory (export "memory") 1)
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096)
                (func (export "omnilearn:kernel/model@0.1.0#settings") (result i32) {settings})
                (func $describe (export "omnilearn:kernel/model@0.1.0#describe") (param i32 i32) (result i32) {describe})
                (func (export "omnilearn:kernel/model@0.1.0#forward")
                    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32) unreachable)
            )"#
        );
        let mut module = wat::parse_str(text).unwrap();
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit")).unwrap();
        let world = resolve.select_world(&[package], Some("kernel")).unwrap();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap()
    }
}
