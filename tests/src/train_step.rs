//! A training step of a native model: the body of `cargo xtask bench cpu`.

use omnilearn_agent::engine::{Buffer, Engine, Tensor};
use omnilearn_kernel_host::backend::{OpResult, TensorBackend};
use omnilearn_wire::sampling::SplitMix64;

use crate::native::{CLASSES, Forward, Initial, Model, Variable};

/// A model with parameters, a batch, and room for its gradients.
pub struct TrainStep {
    engine: Engine,
    model: Model,
    parameters: Vec<Tensor>,
    buffers: Vec<Tensor>,
    /// `[batch, channels, height, width]`, of unit variance.
    images: Vec<f32>,
    targets: Vec<i32>,
    /// Gradients of all parameters, one after the other.
    gradients: Vec<f32>,
}

impl TrainStep {
    /// Everything random comes from one seed.
    pub fn new(engine: Engine, model: Model, batch: usize, seed: u64) -> TrainStep {
        let mut generator = SplitMix64::new(seed);
        let layout = model.layout();
        let mut tensors = |variables: &[Variable]| -> Vec<Tensor> {
            variables.iter().map(|variable| initialized(&engine, variable, &mut generator)).collect()
        };
        let (parameters, buffers) = (tensors(&layout.parameters), tensors(&layout.buffers));
        let pixels = batch * model.image_shape().iter().product::<usize>();
        let images = (0..pixels).map(|_| uniform(&mut generator, 3.0_f32.sqrt())).collect();
        let targets = (0..batch).map(|sample| (sample % CLASSES) as i32).collect();
        let gradients = Vec::with_capacity(layout.parameter_elements());
        TrainStep { engine, model, parameters, buffers, images, targets, gradients }
    }

    /// Copies the batch into tensors, passes forward and backward, and reads out every gradient. Returns the mean cross
    /// entropy. Parameters stay as they are.
    ///
    /// # Errors
    /// Whatever the engine finds wrong with a shape.
    pub fn run(&mut self) -> OpResult<f32> {
        let mut engine = self.engine.clone();
        let [channels, height, width] = self.model.image_shape();
        let batch = self.targets.len();
        let images = engine.floats(self.images.clone(), &[batch, channels, height, width]);
        let targets = engine.ints(self.targets.clone(), &[batch]);
        let leaves: Vec<Tensor> = self.parameters.iter().map(|parameter| engine.leaf(parameter)).collect();
        let Forward { logits, buffers } = self.model.forward(&mut engine, &leaves, &self.buffers, &images)?;
        let loss = engine.cross_entropy(&logits, &targets)?;
        let mut gradients = engine.backward(&loss);
        self.gradients.clear();
        for leaf in &leaves {
            let gradient = gradients.take(leaf).expect("every parameter has a gradient");
            gradient.with_floats(|values| self.gradients.extend_from_slice(values));
        }
        self.buffers = buffers;
        Ok(loss.to_vec()[0])
    }

    /// Gradients of the latest step, in the model's order.
    pub fn gradients(&self) -> &[f32] {
        &self.gradients
    }
}

fn initialized(engine: &Engine, variable: &Variable, generator: &mut SplitMix64) -> Tensor {
    let values = match variable.initial {
        Initial::Constant(value) => vec![value; variable.elements()],
        Initial::Uniform { fan_in } => {
            let bound = 1.0 / (fan_in as f32).sqrt();
            (0..variable.elements()).map(|_| uniform(generator, bound)).collect()
        }
    };
    engine.stored(Buffer::copied(&values), &variable.shape)
}

/// A number between `-bound` and `bound`.
fn uniform(generator: &mut SplitMix64, bound: f32) -> f32 {
    ((generator.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * bound
}
