//! Kernels that sort samples into classes.

use crate::loss::classification;
use crate::{Builder, Kernel, Output, Pass, Settings, Tensor, only_input};

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
        let logits = self.logits(only_input(inputs)?, pass);
        Output::judged(logits, targets, pass, classification)
    }
}
