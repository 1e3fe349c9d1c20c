//! What a kernel trains and what it needs.

use std::collections::HashSet;

use omnilearn_wire::Layout;
use omnilearn_wire::layout::{LayoutError, TensorShape, elements};
use omnilearn_wire::limits::{METRICS_MAX, NAME_BYTES_MAX};

use crate::backend::DType;
use crate::bindings::exports::omnilearn::kernel::model as wit;
use crate::bindings::omnilearn::kernel::tensor::Dtype;
use crate::handles::RANK_MAX;

/// Most inputs of a kernel.
const INPUTS_MAX: usize = 16;

/// How a parameter's first values are drawn; see [`initialize`](crate::initialize).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// All the same.
    Constant(f32),
    /// Uniform in `[-bound, bound)`.
    Uniform(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
}

/// A trainable `f32` tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name, such as `conv1.weight`.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u32>,
    /// First values.
    pub initializer: Initializer,
    /// Whether weight decay applies.
    pub decay: bool,
}

/// How agents' buffers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Mean weighted by each agent's samples.
    MeanBySamples,
    /// Never leaves the agent.
    KeepLocal,
}

/// An `f32` tensor that a training step updates without a gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name, such as `norm1.running_mean`.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u32>,
    /// First value of every element.
    pub initial: f32,
    /// How it is combined.
    pub merge: Merge,
}

/// One tensor of a sample; in a batch a dimension comes in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, such as `image`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions of one sample; may be empty.
    pub shape: Vec<u32>,
}

/// A kernel's model under given settings. Checked: names are unique and not empty, no tensor is empty, sizes are in bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// In the order of `forward`; the index is a parameter's identity on the wire.
    pub parameters: Vec<Parameter>,
    /// In the order of `forward`.
    pub buffers: Vec<Buffer>,
    /// What one sample consists of.
    pub inputs: Vec<TensorSpec>,
    /// What one sample is compared with.
    pub target: TensorSpec,
    /// Names of the sums that a batch reports.
    pub metrics: Vec<String>,
}

/// Why a description cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// Parameters or buffers: names, empty tensors, too many elements.
    #[error("{0}")]
    Layout(String),
    /// There is nothing to train.
    #[error("there are no parameters")]
    NoParameters,
    /// A tensor with too many dimensions, or a parameter or buffer with none.
    #[error("`{name}` of shape {shape:?} has rank {}, not in {min}..={max}", shape.len())]
    Rank {
        /// Which tensor.
        name: String,
        /// Its shape.
        shape: Vec<u32>,
        /// Fewest dimensions.
        min: usize,
        /// Most dimensions.
        max: usize,
    },
    /// An input, target or metric whose name is empty, too long or used twice.
    #[error("name `{name}` is empty, longer than {NAME_BYTES_MAX} bytes or used twice")]
    Name {
        /// The name.
        name: String,
    },
    /// An input or target without elements, or with too many.
    #[error("`{name}` of shape {shape:?} has no elements or too many")]
    Size {
        /// Which tensor.
        name: String,
        /// Its shape.
        shape: Vec<u32>,
    },
    /// First values that are not finite, or a negative spread.
    #[error("initial values of `{name}` are not finite, or their spread is negative")]
    Initial {
        /// Which parameter or buffer.
        name: String,
    },
    /// No inputs or too many, or too many metrics.
    #[error("there are {count} {what}, not in {min}..={max}")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// Fewest.
        min: usize,
        /// Most.
        max: usize,
    },
}

impl Description {
    /// The tensors that travel: every parameter, and the buffers that agents share.
    ///
    /// # Errors
    /// None for a description that came from a kernel, since that is checked.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        let shared = self.shared_buffers().map(|buffer| tensor_shape(&buffer.name, &buffer.shape)).collect();
        Layout::new(
            self.parameters.iter().map(|parameter| tensor_shape(&parameter.name, &parameter.shape)).collect(),
            shared,
        )
    }

    /// Buffers that are averaged over agents, in order.
    pub fn shared_buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().filter(|buffer| buffer.merge == Merge::MeanBySamples)
    }

    /// For each parameter, whether weight decay applies.
    pub fn decay_mask(&self) -> Vec<bool> {
        self.parameters.iter().map(|parameter| parameter.decay).collect()
    }

    fn check(&self) -> Result<(), DescriptionError> {
        if self.parameters.is_empty() {
            return Err(DescriptionError::NoParameters);
        }
        let buffers = self.buffers.iter().map(|buffer| tensor_shape(&buffer.name, &buffer.shape)).collect();
        let parameters =
            self.parameters.iter().map(|parameter| tensor_shape(&parameter.name, &parameter.shape)).collect();
        Layout::new(parameters, buffers).map_err(|error| DescriptionError::Layout(error.to_string()))?;
        for Parameter { name, shape, initializer, .. } in &self.parameters {
            check_rank(name, shape, 1, RANK_MAX)?;
            let (value, spread) = match *initializer {
                Initializer::Constant(value) => (value, false),
                Initializer::Uniform(spread) | Initializer::Normal(spread) => (spread, true),
            };
            if !value.is_finite() || (spread && value < 0.0) {
                return Err(DescriptionError::Initial { name: name.clone() });
            }
        }
        for Buffer { name, shape, initial, .. } in &self.buffers {
            check_rank(name, shape, 1, RANK_MAX)?;
            if !initial.is_finite() {
                return Err(DescriptionError::Initial { name: name.clone() });
            }
        }
        check_count("inputs", self.inputs.len(), 1, INPUTS_MAX)?;
        check_count("metrics", self.metrics.len(), 0, METRICS_MAX)?;
        let specs = || self.inputs.iter().chain([&self.target]);
        for TensorSpec { name, shape, .. } in specs() {
            check_rank(name, shape, 0, RANK_MAX - 1)?;
            if !matches!(elements(shape), Ok(1..)) {
                return Err(DescriptionError::Size { name: name.clone(), shape: shape.clone() });
            }
        }
        check_names(specs().map(|spec| spec.name.as_str()))?;
        check_names(self.metrics.iter().map(String::as_str))
    }
}

fn tensor_shape(name: &str, shape: &[u32]) -> TensorShape {
    TensorShape { name: name.to_owned(), shape: shape.to_vec() }
}

fn check_rank(name: &str, shape: &[u32], min: usize, max: usize) -> Result<(), DescriptionError> {
    if (min..=max).contains(&shape.len()) {
        return Ok(());
    }
    Err(DescriptionError::Rank {
        name: name.to_owned(),
        shape: shape.iter().copied().take(max + 1).collect(),
        min,
        max,
    })
}

fn check_count(what: &'static str, count: usize, min: usize, max: usize) -> Result<(), DescriptionError> {
    if (min..=max).contains(&count) { Ok(()) } else { Err(DescriptionError::Count { what, count, min, max }) }
}

fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), DescriptionError> {
    let mut seen = HashSet::new();
    for name in names {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !seen.insert(name) {
            return Err(DescriptionError::Name { name: name.chars().take(64).collect() });
        }
    }
    Ok(())
}

impl From<wit::TensorSpec> for TensorSpec {
    fn from(spec: wit::TensorSpec) -> Self {
        let dtype = match spec.dtype {
            Dtype::F32 => DType::F32,
            Dtype::I32 => DType::I32,
        };
        TensorSpec { name: spec.name, dtype, shape: spec.shape }
    }
}

impl TryFrom<wit::Description> for Description {
    type Error = DescriptionError;

    fn try_from(description: wit::Description) -> Result<Self, DescriptionError> {
        let parameter = |parameter: wit::Parameter| Parameter {
            name: parameter.name,
            shape: parameter.shape,
            initializer: match parameter.initializer {
                wit::Initializer::Constant(value) => Initializer::Constant(value),
                wit::Initializer::Uniform(bound) => Initializer::Uniform(bound),
                wit::Initializer::Normal(deviation) => Initializer::Normal(deviation),
            },
            decay: parameter.decay,
        };
        let buffer = |buffer: wit::Buffer| Buffer {
            name: buffer.name,
            shape: buffer.shape,
            initial: buffer.initial,
            merge: match buffer.merge {
                wit::Merge::MeanBySamples => Merge::MeanBySamples,
                wit::Merge::KeepLocal => Merge::KeepLocal,
            },
        };
        let description = Description {
            parameters: description.parameters.into_iter().map(parameter).collect(),
            buffers: description.buffers.into_iter().map(buffer).collect(),
            inputs: description.inputs.into_iter().map(TensorSpec::from).collect(),
            target: description.target.into(),
            metrics: description.metrics,
        };
        description.check()?;
        Ok(description)
    }
}
