//! Opens kernels: WebAssembly components that define a model over the tensor operations of `wit/kernel.wit`.
//!
//! [`Kernel::open`] checks a component without running it: its size, that it imports nothing but the tensor interface, and
//! that it exports a model. [`Kernel::instantiate`] gives it a [`backend::TensorBackend`] to compute on and [`Limits`] that
//! it cannot exceed. [`Instance::describe`] fixes its configuration, [`Instance::forward`] computes a batch.
//!
//! Nothing in a component can make this crate panic, and nothing that it does lasts longer or takes more memory than its
//! limits say: a trap, an exhausted limit and an error that the kernel returns are three variants of [`KernelError`].

mod bindings;

pub mod backend;
mod cache;
mod component;
mod description;
mod engine;
mod error;
mod handles;
mod initialize;
mod instance;
mod limits;
mod no_tensors;
mod operations;
pub mod reference;
mod settings;
mod signature;
mod sizes;
mod state;

#[cfg(test)]
mod tests;

pub use component::{Kernel, OpenError};
pub use description::{Buffer, Description, DescriptionError, Initializer, Merge, Parameter, TensorSpec};
pub use error::{KernelError, panic_text};
pub use initialize::initialize;
pub use instance::{Batch, Instance, Mode, Output, Usage};
pub use limits::{Limit, Limits};
pub use no_tensors::NoTensors;
pub use settings::{SettingError, SettingInfo};
pub use signature::{KeyPair, NoRandomNumbers, PublicKey, Signature, TextError, WrongSignature, from_hex, to_hex};
