//! Data sets on this machine: those of the catalogue where they lie, and those that come from the hub, in a cache.

pub mod cache;
pub mod fetch;

pub use omnilearn_datasets::{Augmenter, Batch, Dataset, DatasetError, Part, Samples, Values};
use omnilearn_datasets::{Need, Needs};
use omnilearn_kernel_host::backend::DType;
use omnilearn_kernel_host::{Description, TensorSpec};

/// What a kernel wants of each sample.
pub fn needs(description: &Description) -> Needs {
    let need = |TensorSpec { name, dtype, shape }: &TensorSpec| Need {
        name: name.clone(),
        integers: *dtype == DType::I32,
        shape: shape.clone(),
    };
    Needs { inputs: description.inputs.iter().map(need).collect(), target: need(&description.target) }
}
