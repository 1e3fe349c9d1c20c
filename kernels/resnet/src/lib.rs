//! ResNet-18 (He et al. 2015) in its variant for small images: a stem of 3 by 3 without pooling. 11,172,810 parameters
//! for grey images, 10 classes and a width of 64.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Channels of an image: 1 for grey, 3 for colour.
    channels: u32[1..=64] = 1,
    /// Height of an image in pixels.
    image_height: u32[1..=1024] = 28,
    /// Width of an image in pixels.
    image_width: u32[1..=1024] = 28,
    /// Number of classes.
    classes: u32[2..=100_000] = 10,
    /// Feature channels of the first stage; each later stage has twice as many as the one before.
    width: u32[1..=1024] = 64,
}

struct ResNet {
    stem: Conv2d,
    norm: BatchNorm2d,
    blocks: Vec<Block>,
    head: Linear,
}

impl Classifier for ResNet {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { channels, image_height, image_width, classes, width } = settings;
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        let stem = Conv2d::new(channels, width, 3).padding(1).no_bias().build(build, "stem.conv");
        let norm = BatchNorm2d::new(build, "stem.norm", width);
        let mut blocks = Vec::new();
        let mut inputs = width;
        for (stage, stride) in [1, 2, 2, 2].into_iter().enumerate() {
            let outputs = width << stage;
            for (index, stride) in [stride, 1].into_iter().enumerate() {
                let name = format!("stage{}.block{}", stage + 1, index + 1);
                blocks.push(build.scope(&name, |build| Block::new(build, inputs, outputs, stride)));
                inputs = outputs;
            }
        }
        let head = Linear::new(build, "head", inputs, classes);
        Ok(ResNet { stem, norm, blocks, head })
    }

    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let x = self.stem.forward(&images, pass);
        let mut x = self.norm.forward(&x, pass).relu();
        for block in &self.blocks {
            x = block.forward(x, pass);
        }
        self.head.forward(&x.global_avg_pool2d(), pass)
    }
}

/// Two convolutions around which the input is carried, projected where the shape changes.
struct Block {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
    projection: Option<(Conv2d, BatchNorm2d)>,
}

impl Block {
    fn new(build: &mut Builder, inputs: u32, outputs: u32, stride: u32) -> Block {
        Block {
            conv1: Conv2d::new(inputs, outputs, 3).stride(stride).padding(1).no_bias().build(build, "conv1"),
            norm1: BatchNorm2d::new(build, "norm1", outputs),
            conv2: Conv2d::new(outputs, outputs, 3).padding(1).no_bias().build(build, "conv2"),
            norm2: BatchNorm2d::new(build, "norm2", outputs),
            projection: (stride != 1 || inputs != outputs).then(|| {
                let conv = Conv2d::new(inputs, outputs, 1).stride(stride).no_bias().build(build, "projection.conv");
                (conv, BatchNorm2d::new(build, "projection.norm", outputs))
            }),
        }
    }

    fn forward(&self, x: Tensor, pass: &mut Pass) -> Tensor {
        let y = self.conv1.forward(&x, pass);
        let y = self.norm1.forward(&y, pass).relu();
        let y = self.conv2.forward(&y, pass);
        let y = self.norm2.forward(&y, pass);
        let carried = match &self.projection {
            None => x,
            Some((conv, norm)) => norm.forward(&conv.forward(&x, pass), pass),
        };
        y.add(&carried).relu()
    }
}

export_kernel!(ResNet);
