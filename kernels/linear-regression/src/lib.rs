//! Linear regression by least squares: `features * outputs + outputs` parameters, 9 for 8 features and one output.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Numbers that describe a sample.
    features: u32[1..=1_000_000] = 8,
    /// Numbers to predict.
    outputs: u32[1..=100_000] = 1,
}

struct LinearRegression {
    linear: Linear,
}

impl Kernel for LinearRegression {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { features, outputs } = settings;
        build.input("features", DType::F32, &[features]);
        build.target("values", DType::F32, &[outputs]);
        build.metric("squared_error");
        Ok(LinearRegression { linear: Linear::new(features, outputs).build(build, "linear") })
    }

    fn forward(&self, inputs: Vec<Tensor>, targets: Option<Tensor>, pass: &mut Pass) -> Result<Output, String> {
        let predictions = self.linear.forward(&only_input(inputs)?, pass); // [batch, outputs]
        Output::judged(predictions, targets, pass, loss::squared_error)
    }
}

export_kernel!(LinearRegression);
