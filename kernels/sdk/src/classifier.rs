//! Kernels that sort samples into classes.

use crate::{Builder, Kernel, Mode, Output, Pass, Settings, Tensor};

/// A kernel that gives logits for one input. The loss is the mean cross-entropy against the class index, and the metric
/// `correct` counts the samples whose largest logit is the target's.
pub trait Classifier: Sized + Send + Sync + 'static {
    /// See [`settings!`](crate::settings!).
    type Settings: Settings;

    /// Names the input and the parameters. The error is a sentence for the job's author.
    ///
    /// # Errors
    /// Settings that do not go together.
    fn build(settings: Self::Settings, build: &mut Builder) -> Result<Self, String>;

    /// `[batch, ..] -> [batch, classes]`, before any softmax.
    fn logits(&self, input: Tensor, pass: &mut Pass) -> Tensor;
}

impl<C: Classifier> Kernel for C {
    type Settings = C::Settings;

    fn build(settings: Self::Settings, build: &mut Builder) -> Result<Self, String> {
        build.metric("correct");
        C::build(settings, build)
    }

    fn forward(&self, inputs: Vec<Tensor>, targets: Option<Tensor>, pass: &mut Pass) -> Result<Output, String> {
        let [input] = <[Tensor; 1]>::try_from(inputs)
            .map_err(|inputs| format!("a classifier takes one input and got {}", inputs.len()))?;
        let logits = self.logits(input, pass);
        if pass.mode() == Mode::Predict {
            return Ok(Output { loss: None, outputs: vec![logits], metrics: Vec::new() });
        }
        let targets = targets.ok_or("a batch to learn from has no targets")?;
        let loss = logits.cross_entropy(&targets);
        let classes = logits.argmax(-1).reshape(&targets.shape()); // [batch, 1] -> [batch]
        let correct = classes.equal(&targets).sum(&[]);
        Ok(Output { loss: Some(loss), outputs: vec![logits], metrics: vec![correct] })
    }
}
