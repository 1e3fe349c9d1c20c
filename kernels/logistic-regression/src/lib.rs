//! Logistic regression with softmax: `features * classes + classes` parameters, 62 for 30 features and two classes.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Numbers that describe a sample.
    features: u32[1..=1_000_000] = 30,
    /// Number of classes.
    classes: u32[2..=100_000] = 2,
}

struct LogisticRegression {
    linear: Linear,
}

impl Classifier for LogisticRegression {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { features, classes } = settings;
        build.input("features", DType::F32, &[features]);
        Ok(LogisticRegression { linear: Linear::new(features, classes).build(build, "linear") })
    }

    fn logits(&self, features: Tensor, pass: &mut Pass) -> Tensor {
        self.linear.forward(&features, pass)
    }
}

export_kernel!(LogisticRegression);
