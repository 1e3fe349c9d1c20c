//! LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: 61,706 parameters for grey images of 28 by 28 and 10 classes.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Channels of an image: 1 for grey, 3 for colour.
    channels: u32[1..=64] = 1,
    /// Height of an image in pixels.
    image_height: u32[12..=1024] = 28,
    /// Width of an image in pixels.
    image_width: u32[12..=1024] = 28,
    /// Number of classes.
    classes: u32[2..=100_000] = 10,
}

struct LeNet {
    conv1: Conv2d,
    conv2: Conv2d,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

impl Classifier for LeNet {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { channels, image_height, image_width, classes } = settings;
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        let pooled = |side: u32| (side / 2 - 4) / 2;
        Ok(LeNet {
            conv1: Conv2d::new(channels, 6, 5).padding(2).build(build, "conv1"),
            conv2: Conv2d::new(6, 16, 5).build(build, "conv2"),
            fc1: Linear::new(16 * pooled(image_height) * pooled(image_width), 120).build(build, "fc1"),
            fc2: Linear::new(120, 84).build(build, "fc2"),
            fc3: Linear::new(84, classes).build(build, "fc3"),
        })
    }

    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let x = max_pool2d(&self.conv1.forward(&images, pass).relu(), 2, 2); // [batch, 6, 14, 14]
        let x = max_pool2d(&self.conv2.forward(&x, pass).relu(), 2, 2); // [batch, 16, 5, 5]
        let x = self.fc1.forward(&flatten(&x), pass).relu();
        let x = self.fc2.forward(&x, pass).relu();
        self.fc3.forward(&x, pass)
    }
}

export_kernel!(LeNet);
