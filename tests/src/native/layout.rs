//! The tensors of a model: shapes in order, and what they start from.

/// What a tensor starts from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Uniform in `-1/sqrt(fan_in)..1/sqrt(fan_in)`.
    Uniform {
        /// Inputs behind one output.
        fan_in: usize,
    },
    /// The same number everywhere.
    Constant(f32),
}

/// A parameter or buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its values at the start.
    pub initial: Initial,
}

impl Variable {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of a model, in the order in which its layers take them.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// What has a gradient.
    pub parameters: Vec<Variable>,
    /// What has none: running statistics.
    pub buffers: Vec<Variable>,
}

impl Layout {
    /// Number of elements of all parameters.
    pub fn parameter_elements(&self) -> usize {
        self.parameters.iter().map(Variable::elements).sum()
    }

    fn parameter(&mut self, shape: &[usize], initial: Initial) {
        self.parameters.push(Variable { shape: shape.to_vec(), initial });
    }

    /// A square convolution without bias.
    pub(super) fn convolution(&mut self, inputs: usize, outputs: usize, kernel: usize) {
        let initial = Initial::Uniform { fan_in: inputs * kernel * kernel };
        self.parameter(&[outputs, inputs, kernel, kernel], initial);
    }

    /// A square convolution with a bias.
    pub(super) fn biased_convolution(&mut self, inputs: usize, outputs: usize, kernel: usize) {
        self.convolution(inputs, outputs, kernel);
        self.parameter(&[outputs], Initial::Uniform { fan_in: inputs * kernel * kernel });
    }

    /// A linear layer with a bias.
    pub(super) fn linear(&mut self, inputs: usize, outputs: usize) {
        let initial = Initial::Uniform { fan_in: inputs };
        self.parameter(&[outputs, inputs], initial);
        self.parameter(&[outputs], initial);
    }

    /// Scale, shift and running statistics of a batch normalisation.
    pub(super) fn batch_norm(&mut self, channels: usize) {
        self.parameter(&[channels], Initial::Constant(1.0));
        self.parameter(&[channels], Initial::Constant(0.0));
        for start in [0.0, 1.0] {
            self.buffers.push(Variable { shape: vec![channels], initial: Initial::Constant(start) });
        }
    }
}
