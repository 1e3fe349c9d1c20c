//! First values of layers.

use crate::Initializer;

/// How a layer's weight and bias start. Of a layer's output, `fan_in` inputs take part in one element; an input takes part
/// in `fan_out` of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Weight and bias uniform within `1 / sqrt(fan_in)`: PyTorch's default.
    FanIn,
    /// Weight normal with deviation `sqrt(2 / fan_out)` (He et al. 2015), bias zero: what networks of ReLU and many
    /// layers start from in torchvision. Groups are not counted, there as here.
    FanOut,
    /// Weight normal with this deviation, bias zero.
    Normal(f32),
}

/// Connections of one output and of one input.
#[derive(Clone, Copy)]
pub(crate) struct Fan {
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
}

impl Initial {
    pub(crate) fn weight(self, fan: Fan) -> Initializer {
        match self {
            Initial::FanIn => uniform(fan),
            Initial::FanOut => Initializer::Normal((2.0 / fan.outputs as f32).sqrt()),
            Initial::Normal(deviation) => Initializer::Normal(deviation),
        }
    }

    pub(crate) fn bias(self, fan: Fan) -> Initializer {
        match self {
            Initial::FanIn => uniform(fan),
            Initial::FanOut | Initial::Normal(_) => Initializer::Constant(0.0),
        }
    }
}

fn uniform(fan: Fan) -> Initializer {
    Initializer::Uniform(1.0 / (fan.inputs as f32).sqrt())
}
