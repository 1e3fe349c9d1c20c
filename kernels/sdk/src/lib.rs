//! Writes kernels: the models that OmniLearn's agents train.
//!
//! A kernel names its parameters once, in [`Classifier::build`], and says how a batch becomes logits, in
//! [`Classifier::logits`]. The agent computes, differentiates and updates; the kernel holds handles.
//!
//! ```ignore
//! use omnilearn_kernel_sdk::prelude::*;
//!
//! settings! {
//!     /// Number of classes.
//!     classes: u32[2..=1000] = 10,
//! }
//!
//! struct Softmax {
//!     layer: Linear,
//! }
//!
//! impl Classifier for Softmax {
//!     type Settings = Settings;
//!
//!     fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
//!         build.input("image", DType::F32, &[784]);
//!         Ok(Softmax { layer: Linear::new(784, settings.classes).build(build, "layer") })
//!     }
//!
//!     fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
//!         self.layer.forward(&images, pass)
//!     }
//! }
//!
//! export_kernel!(Softmax);
//! ```
//!
//! A model that is no classifier implements [`Kernel`], most simply with one of the functions in [`loss`].
//!
//! Shapes derived from settings cannot be wrong at run time in a way that the kernel must handle: a misused operation
//! traps in the agent, with the operation's name and the shapes.

// The generated code names this crate from kernels and from here alike.
extern crate self as omnilearn_kernel_sdk;

#[doc(hidden)]
pub mod bindings;
mod builder;
mod classifier;
mod conv;
mod conv_norm;
mod export;
mod initial;
mod linear;
pub mod loss;
mod lstm;
mod norm;
mod pass;
mod pool;
mod sequence;
mod settings;

pub use bindings::exports::omnilearn::kernel::model::{Initializer, Merge, Mode, SettingInfo, SettingValue};
pub use bindings::omnilearn::kernel::tensor::{Conv2dOptions, Dtype as DType, Pool2dOptions, Tensor};
pub use builder::{Buffer, Builder, Parameter};
pub use classifier::Classifier;
pub use conv::{Conv2d, Conv2dConfig};
pub use conv_norm::ConvNorm2d;
#[doc(hidden)]
pub use export::Slot;
pub use export::{Kernel, Output, only_input};
pub use initial::Initial;
pub use linear::{Linear, LinearConfig};
pub use lstm::{Lstm, LstmConfig};
pub use norm::BatchNorm2d;
pub use pass::{Dropout, Pass};
pub use pool::{avg_pool2d, avg_pool2d_to, flatten, max_pool2d};
pub use sequence::{Embedding, EmbeddingConfig, LayerNorm};
#[doc(hidden)]
pub use settings::help;
pub use settings::{SettingKind, Settings, choose};

/// What most kernels use.
pub mod prelude {
    pub use crate::{
        BatchNorm2d, Builder, Classifier, Conv2d, ConvNorm2d, DType, Dropout, Embedding, Initial, Kernel, LayerNorm,
        Linear, Lstm, Output, Pass, Tensor, avg_pool2d, avg_pool2d_to, choose, export_kernel, flatten, loss,
        max_pool2d, only_input, settings,
    };
}
