//! A perceptron with one hidden layer, to start from.
//!
//! The guide is `docs/kernels.md`, layers are in `kernels/sdk/src`, and every operation on a tensor is in `wit/kernel.wit`.

use omnilearn_kernel_sdk::prelude::*;

// What a job may choose. A doc comment is the setting's help; the brackets hold the values that it may have.
settings! {
    /// Channels of an image: 1 for grey, 3 for colour.
    channels: u32[1..=64] = 1,
    /// Height of an image in pixels.
    image_height: u32[1..=1024] = 28,
    /// Width of an image in pixels.
    image_width: u32[1..=1024] = 28,
    /// Number of hidden units.
    hidden: u32[1..=100_000] = 128,
    /// Number of classes.
    classes: u32[2..=100_000] = 10,
    /// Probability of dropping a hidden unit in training.
    dropout: f32[0.0..1.0] = 0.1,
}

struct Model {
    hidden: Linear,
    dropout: Dropout,
    head: Linear,
}

impl Classifier for Model {
    type Settings = Settings;

    // Runs once. The order in which layers are built is the order of the parameters, and their names are those of the weights
    // that the hub exports: `hidden.weight`, `hidden.bias`, `head.weight`, `head.bias`.
    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { channels, image_height, image_width, hidden, classes, dropout } = settings;
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        Ok(Model {
            hidden: Linear::new(channels * image_height * image_width, hidden).build(build, "hidden"),
            dropout: Dropout::new(dropout),
            head: Linear::new(hidden, classes).build(build, "head"),
        })
    }

    // Runs for every batch. The agent computes the loss (cross-entropy) and the gradients from what this returns.
    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let x = flatten(&images); // [batch, channels * height * width]
        let x = self.hidden.forward(&x, pass).relu(); // [batch, hidden]
        let x = self.dropout.forward(x, pass);
        self.head.forward(&x, pass) // [batch, classes]
    }
}

export_kernel!(Model);
