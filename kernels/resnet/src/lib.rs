//! ResNet (He et al. 2015), with torchvision's names. For ImageNet, colour images of 224 by 224 and 1000 classes, it has
//! torchvision's 11,689,512 parameters at depth 18, 21,797,672 at 34, 25,557,032 at 50 and 44,549,160 at 101. As it stands,
//! for grey images, 10 classes and with a stem for small images, ResNet-18 has 11,172,810.

use omnilearn_kernel_sdk::prelude::*;
use omnilearn_kernel_sdk::{Conv2dConfig, Pool2dOptions};

settings! {
    /// Number of layers: 18, 34, 50 or 101.
    depth: u32[..] = 18,
    /// First layers: "small" keeps the size of the image, "imagenet" divides it by 4.
    stem: String[..] = "small".to_owned(),
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

#[derive(Clone, Copy, PartialEq)]
enum Stem {
    /// 3 by 3.
    Small,
    /// 7 by 7 in steps of 2, then pooling.
    ImageNet,
}

/// What a block consists of.
#[derive(Clone, Copy)]
enum Kind {
    /// Two convolutions of 3 by 3.
    Basic,
    /// One of 3 by 3 on a quarter of the channels, between two of 1 by 1.
    Bottleneck,
}

struct ResNet {
    stem: Stem,
    first: ConvNorm2d,
    blocks: Vec<Block>,
    head: Linear,
}

impl Classifier for ResNet {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { depth, stem, channels, image_height, image_width, classes, width } = settings;
        let (kind, stages) = choose(
            "depth",
            depth,
            [
                (18, (Kind::Basic, [2, 2, 2, 2])),
                (34, (Kind::Basic, [3, 4, 6, 3])),
                (50, (Kind::Bottleneck, [3, 4, 6, 3])),
                (101, (Kind::Bottleneck, [3, 4, 23, 3])),
            ],
        )?;
        let stem = choose("stem", stem.as_str(), [("small", Stem::Small), ("imagenet", Stem::ImageNet)])?;
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        let first = match stem {
            Stem::Small => convolution(channels, width, 3),
            Stem::ImageNet => convolution(channels, width, 7).stride(2),
        };
        let first = first.build_with_norm(build, "conv1", "bn1");
        let mut blocks = Vec::new();
        let mut inputs = width;
        for (stage, count) in stages.into_iter().enumerate() {
            for index in 0..count {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let block = build.scope(&format!("layer{}.{index}", stage + 1), |build| match kind {
                    Kind::Basic => Block::basic(build, inputs, width << stage, stride),
                    Kind::Bottleneck => Block::bottleneck(build, inputs, width << stage, stride),
                });
                inputs = block.outputs;
                blocks.push(block);
            }
        }
        Ok(ResNet { stem, first, blocks, head: Linear::new(inputs, classes).build(build, "fc") })
    }

    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let mut x = self.first.forward(&images, pass).relu();
        if self.stem == Stem::ImageNet {
            x = x.max_pool2d(Pool2dOptions { kernel: (3, 3), stride: (2, 2), padding: (1, 1) });
        }
        for block in &self.blocks {
            x = block.forward(x, pass);
        }
        self.head.forward(&x.global_avg_pool2d(), pass)
    }
}

/// A convolution that keeps the size of an image unless it has a stride.
fn convolution(inputs: u32, outputs: u32, kernel: u32) -> Conv2dConfig {
    Conv2d::new(inputs, outputs, kernel).padding(kernel / 2).initial(Initial::FanOut)
}

/// Convolutions around which the input is carried, projected where the shape changes.
struct Block {
    convolutions: Vec<ConvNorm2d>,
    projection: Option<ConvNorm2d>,
    outputs: u32,
}

impl Block {
    fn basic(build: &mut Builder, inputs: u32, outputs: u32, stride: u32) -> Block {
        let convolutions = vec![
            convolution(inputs, outputs, 3).stride(stride).build_with_norm(build, "conv1", "bn1"),
            convolution(outputs, outputs, 3).build_with_norm(build, "conv2", "bn2"),
        ];
        Block { convolutions, projection: Block::projection(build, inputs, outputs, stride), outputs }
    }

    /// The stride is in the 3 by 3, as in torchvision, and not in the first 1 by 1, as in the paper.
    fn bottleneck(build: &mut Builder, inputs: u32, width: u32, stride: u32) -> Block {
        let outputs = 4 * width;
        let convolutions = vec![
            convolution(inputs, width, 1).build_with_norm(build, "conv1", "bn1"),
            convolution(width, width, 3).stride(stride).build_with_norm(build, "conv2", "bn2"),
            convolution(width, outputs, 1).build_with_norm(build, "conv3", "bn3"),
        ];
        Block { convolutions, projection: Block::projection(build, inputs, outputs, stride), outputs }
    }

    fn projection(build: &mut Builder, inputs: u32, outputs: u32, stride: u32) -> Option<ConvNorm2d> {
        let changes_shape = stride != 1 || inputs != outputs;
        changes_shape.then(|| {
            let convolution = convolution(inputs, outputs, 1).stride(stride);
            convolution.build_with_norm(build, "downsample.0", "downsample.1")
        })
    }

    fn forward(&self, x: Tensor, pass: &mut Pass) -> Tensor {
        let mut y = self.convolutions[0].forward(&x, pass);
        for convolution in &self.convolutions[1..] {
            y = convolution.forward(&y.relu(), pass);
        }
        let carried = match &self.projection {
            None => x,
            Some(projection) => projection.forward(&x, pass),
        };
        y.add(&carried).relu()
    }
}

export_kernel!(ResNet);
