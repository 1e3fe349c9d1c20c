//! Long short-term memory.

use crate::linear::linear;
use crate::{Builder, Initializer, Parameter, Pass, Tensor};

/// `[batch, tokens, inputs] -> [batch, tokens, hidden]`, layer upon layer, from a state of zeros (Hochreiter and Schmidhuber
/// 1997, with the forget gate of Gers et al. 2000). Parameters, their order and the order of the gates are PyTorch's.
///
/// ```text
/// i, f, g, o = W_ih x_t + b_ih + W_hh h_(t-1) + b_hh
/// c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)
/// h_t = sigmoid(o) tanh(c_t)
/// ```
pub struct Lstm {
    hidden: u32,
    layers: Vec<Layer>,
}

/// A memory that has no name yet.
pub struct LstmConfig {
    inputs: u32,
    hidden: u32,
    layers: u32,
}

struct Layer {
    weight_ih: Parameter,
    weight_hh: Parameter,
    bias_ih: Parameter,
    bias_hh: Parameter,
}

impl Lstm {
    /// One layer.
    #[expect(clippy::new_ret_no_self, reason = "a builder reads best when it starts at the layer's own name")]
    pub fn new(inputs: u32, hidden: u32) -> LstmConfig {
        LstmConfig { inputs, hidden, layers: 1 }
    }

    /// Applies all layers; the output is the last one's hidden state at every token.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        // With tokens in front, what a step needs lies in one piece.
        let mut x = x.permute(&[1, 0, 2]);
        for layer in &self.layers {
            x = self.layer(layer, &x, pass);
        }
        x.permute(&[1, 0, 2])
    }

    /// `[tokens, batch, inputs] -> [tokens, batch, hidden]`
    fn layer(&self, layer: &Layer, x: &Tensor, pass: &Pass) -> Tensor {
        let Layer { weight_ih, weight_hh, bias_ih, bias_hh } = *layer;
        // The inputs' part of the gates does not wait for the state: one product for all tokens.
        let from_inputs = linear(x, pass.parameter(weight_ih), Some(pass.parameter(bias_ih)));
        let batch = x.shape()[1];
        let mut hidden = Tensor::full(0.0, &[batch, self.hidden]);
        let mut cell = Tensor::full(0.0, &[batch, self.hidden]);
        let mut outputs = Vec::new();
        for from_input in steps(from_inputs) {
            let from_state = hidden.linear(pass.parameter(weight_hh), Some(pass.parameter(bias_hh)));
            let gates = from_input.reshape(&from_state.shape()).add(&from_state); // [batch, 4 hidden]
            let [input, forget, candidate, output] =
                [0, 1, 2, 3].map(|gate| gates.narrow(1, gate * self.hidden, self.hidden));
            cell = forget.sigmoid().mul(&cell).add(&input.sigmoid().mul(&candidate.tanh()));
            hidden = output.sigmoid().mul(&cell.tanh());
            outputs.push(hidden.reshape(&[1, batch, self.hidden]));
        }
        Tensor::concat(&outputs.iter().collect::<Vec<_>>(), 0)
    }
}

impl LstmConfig {
    /// So many layers, each of which reads the hidden state of the one before.
    pub fn layers(mut self, layers: u32) -> Self {
        self.layers = layers;
        self
    }

    /// Names the parameters of layer L, `NAME.weight_ih_lL`, `NAME.weight_hh_lL`, `NAME.bias_ih_lL` and `NAME.bias_hh_lL`, all
    /// drawn within `1 / sqrt(hidden)`.
    pub fn build(self, build: &mut Builder, name: &str) -> Lstm {
        let LstmConfig { inputs, hidden, layers } = self;
        let initializer = Initializer::Uniform(1.0 / (hidden as f32).sqrt());
        let gates = 4 * hidden;
        let layer = |build: &mut Builder, index: u32| {
            let inputs = if index == 0 { inputs } else { hidden };
            let mut parameter =
                |kind: &str, shape: &[u32]| build.parameter(&format!("{kind}_l{index}"), shape, initializer);
            Layer {
                weight_ih: parameter("weight_ih", &[gates, inputs]),
                weight_hh: parameter("weight_hh", &[gates, hidden]),
                bias_ih: parameter("bias_ih", &[gates]),
                bias_hh: parameter("bias_hh", &[gates]),
            }
        };
        let layers = build.scope(name, |build| (0..layers).map(|index| layer(build, index)).collect());
        Lstm { hidden, layers }
    }
}

/// The slices of a tensor along its first dimension, in order, each of size 1 there.
///
/// Halves it again and again: the gradient of a slice has the size of what the slice was cut from, so that slices cut from the
/// whole would cost `tokens` times the whole in the backward pass, where these cost its logarithm.
fn steps(x: Tensor) -> Vec<Tensor> {
    let tokens = x.shape()[0];
    if tokens == 1 {
        return vec![x];
    }
    let half = tokens / 2;
    let mut slices = steps(x.narrow(0, 0, half));
    slices.extend(steps(x.narrow(0, half, tokens - half)));
    slices
}
