//! One forward pass.

use crate::{Buffer, Mode, Parameter, Tensor};

/// The tensors of one forward pass and what it is for.
pub struct Pass {
    mode: Mode,
    parameters: Vec<Tensor>,
    buffers: Vec<Tensor>,
    seed: u64,
}

impl Pass {
    pub(crate) fn new(mode: Mode, parameters: Vec<Tensor>, buffers: Vec<Tensor>, seed: u64) -> Pass {
        Pass { mode, parameters, buffers, seed }
    }

    /// What the pass is for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether gradients will be taken: batch statistics, dropout on.
    pub fn training(&self) -> bool {
        self.mode == Mode::Train
    }

    /// A parameter's values.
    pub fn parameter(&self, parameter: Parameter) -> &Tensor {
        &self.parameters[parameter.0]
    }

    /// A buffer's newest values.
    pub fn buffer(&self, buffer: Buffer) -> &Tensor {
        &self.buffers[buffer.0]
    }

    /// Replaces a buffer's values. They are kept in training only.
    pub fn set_buffer(&mut self, buffer: Buffer, values: Tensor) {
        self.buffers[buffer.0] = values;
    }

    /// A seed that no other call of this pass gets.
    pub fn next_seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.seed
    }

    /// The buffers to report: the newest in training, none otherwise.
    pub(crate) fn into_buffers(self) -> Vec<Tensor> {
        if self.training() { self.buffers } else { Vec::new() }
    }
}

/// Zeroes elements at random in training; passes them through otherwise.
pub struct Dropout {
    probability: f32,
}

impl Dropout {
    /// A layer that zeroes each element with this probability.
    pub fn new(probability: f32) -> Dropout {
        Dropout { probability }
    }

    /// Applies the layer.
    pub fn forward(&self, x: Tensor, pass: &mut Pass) -> Tensor {
        if pass.training() && self.probability > 0.0 { x.dropout(self.probability, pass.next_seed()) } else { x }
    }
}
