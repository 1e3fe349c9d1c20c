//! Operators of a training step for the CPU, with their backward passes: plain functions on slices of `f32`.
//!
//! What an edge box spends its life on is in here, so it is written for speed: register tiles of our own
//! (`simd`), algorithms chosen by shape (`conv`), buffers that are used again in the next step (`buffer`), and as many
//! threads as the caller's CPU quota allows (`threads`). Operands have been checked by the caller: shapes fit, targets
//! are in range.
//!
//! Images come in two layouts. *Planes* are `[batch, channels, height, width]`, good where channels are few; *channels last*
//! is `[batch, height, width, channels]`, good where they are many: a pixel's channels fill vectors, and a convolution is a
//! matrix product without a transpose before or after it.

mod buffer;
pub mod conv;
pub mod elementwise;
pub mod embedding;
#[cfg(test)]
mod fixtures;
pub mod layer_norm;
pub mod layout;
pub mod linear;
pub mod loss;
pub mod norm;
pub mod pool;
mod scratch;
pub mod shape;
mod simd;
#[cfg(test)]
mod tests;
mod threads;

pub use self::buffer::{Buffer, release_unused};
pub use self::simd::instruction_set;
pub use self::threads::{enter_pool, set_threads, threads};

/// What is applied to the result of an operator before it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`
    Relu,
}
