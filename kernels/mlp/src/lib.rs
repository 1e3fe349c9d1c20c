//! A perceptron with one hidden layer: 203,530 parameters for 784 inputs, 256 hidden units and 10 classes.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Channels of an image: 1 for grey, 3 for colour.
    channels: u32[1..=64] = 1,
    /// Height of an image in pixels.
    image_height: u32[1..=4096] = 28,
    /// Width of an image in pixels.
    image_width: u32[1..=4096] = 28,
    /// Number of hidden units.
    hidden: u32[1..=1_000_000] = 256,
    /// Number of classes.
    classes: u32[2..=100_000] = 10,
    /// Probability of dropping a hidden unit in training.
    dropout: f32[0.0..1.0] = 0.0,
}

struct Mlp {
    fc1: Linear,
    dropout: Dropout,
    fc2: Linear,
}

impl Classifier for Mlp {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { channels, image_height, image_width, hidden, classes, dropout } = settings;
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        Ok(Mlp {
            fc1: Linear::new(channels * image_height * image_width, hidden).build(build, "fc1"),
            dropout: Dropout::new(dropout),
            fc2: Linear::new(hidden, classes).build(build, "fc2"),
        })
    }

    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let x = self.fc1.forward(&flatten(&images), pass).relu();
        let x = self.dropout.forward(x, pass);
        self.fc2.forward(&x, pass)
    }
}

export_kernel!(Mlp);
