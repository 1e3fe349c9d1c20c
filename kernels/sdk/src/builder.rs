//! Collects what a kernel trains and what it needs.

use crate::DType;
use crate::bindings::exports::omnilearn::kernel::model;
use crate::{Initializer, Merge};

/// A trainable tensor of the kernel; [`Pass::parameter`](crate::Pass::parameter) gives its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter(pub(crate) usize);

/// State that a step updates without a gradient, such as running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer(pub(crate) usize);

/// Collects parameters, buffers, inputs, target and metrics in the order in which they are named.
#[derive(Default)]
pub struct Builder {
    scope: String,
    /// Whether weight decay leaves parameters of one dimension alone.
    spares_vectors: bool,
    parameters: Vec<model::Parameter>,
    buffers: Vec<model::Buffer>,
    inputs: Vec<model::TensorSpec>,
    target: Option<model::TensorSpec>,
    metrics: Vec<String>,
}

impl Builder {
    /// Adds a trainable tensor. Its full name has the open scopes in front: `layer1.0.conv1.weight`.
    pub fn parameter(&mut self, name: &str, shape: &[u32], initializer: Initializer) -> Parameter {
        let name = self.full_name(name);
        let decay = shape.len() > 1 || !self.spares_vectors;
        self.parameters.push(model::Parameter { name, shape: shape.to_vec(), initializer, decay });
        Parameter(self.parameters.len() - 1)
    }

    /// Adds a buffer whose elements all start at `initial`.
    pub fn buffer(&mut self, name: &str, shape: &[u32], initial: f32, merge: Merge) -> Buffer {
        let name = self.full_name(name);
        self.buffers.push(model::Buffer { name, shape: shape.to_vec(), initial, merge });
        Buffer(self.buffers.len() - 1)
    }

    /// From here on weight decay leaves parameters of one dimension alone: biases, and the scales of normalisations.
    pub fn decay_matrices_only(&mut self) {
        self.spares_vectors = true;
    }

    /// Puts `name` and a dot in front of everything that `build` adds.
    pub fn scope<T>(&mut self, name: &str, build: impl FnOnce(&mut Builder) -> T) -> T {
        let outer = self.scope.len();
        self.scope.push_str(name);
        self.scope.push('.');
        let built = build(self);
        self.scope.truncate(outer);
        built
    }

    /// Declares the next input; `shape` is one sample's.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[u32]) {
        self.inputs.push(model::TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() });
    }

    /// Declares the target; `shape` is one sample's. Without this it is a class index: `i32` of shape `[]`.
    pub fn target(&mut self, name: &str, dtype: DType, shape: &[u32]) {
        self.target = Some(model::TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() });
    }

    /// Declares the next metric, a sum over the samples of a batch.
    pub fn metric(&mut self, name: &str) {
        self.metrics.push(name.to_owned());
    }

    fn full_name(&self, name: &str) -> String {
        [&self.scope, name].concat()
    }

    pub(crate) fn finish(self) -> model::Description {
        let class_index = || model::TensorSpec { name: "label".to_owned(), dtype: DType::I32, shape: Vec::new() };
        model::Description {
            parameters: self.parameters,
            buffers: self.buffers,
            inputs: self.inputs,
            target: self.target.unwrap_or_else(class_index),
            metrics: self.metrics,
        }
    }
}
