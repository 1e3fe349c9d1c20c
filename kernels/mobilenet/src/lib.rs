//! MobileNetV2 (Sandler et al. 2018) with torchvision's names. For ImageNet, colour images and 1000 classes, it has
//! torchvision's 3,504,872 parameters; as it stands, for images of 32 by 32 and 10 classes, 2,236,682.

use omnilearn_kernel_sdk::Conv2dConfig;
use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// First layers: "small" divides the size of the image by 8 in all, "imagenet" by 32.
    stem: String[..] = "small".to_owned(),
    /// Channels of an image: 1 for grey, 3 for colour.
    channels: u32[1..=64] = 3,
    /// Height of an image in pixels.
    image_height: u32[1..=1024] = 32,
    /// Width of an image in pixels.
    image_width: u32[1..=1024] = 32,
    /// Number of classes.
    classes: u32[2..=100_000] = 10,
    /// Multiplies all numbers of feature channels, which are then rounded to multiples of 8.
    width: f32[0.1..=4.0] = 1.0,
    /// Probability of dropping a feature before the last layer in training.
    dropout: f32[0.0..1.0] = 0.2,
}

/// Blocks of one size.
struct Stage {
    /// Channels inside a block over channels in.
    expansion: u32,
    /// Channels out, before they are multiplied by the width.
    channels: u32,
    blocks: u32,
    /// Of the first block.
    stride: u32,
}

/// Table 2 of the paper.
const STAGES: [Stage; 7] = [
    Stage { expansion: 1, channels: 16, blocks: 1, stride: 1 },
    Stage { expansion: 6, channels: 24, blocks: 2, stride: 2 },
    Stage { expansion: 6, channels: 32, blocks: 3, stride: 2 },
    Stage { expansion: 6, channels: 64, blocks: 4, stride: 2 },
    Stage { expansion: 6, channels: 96, blocks: 3, stride: 1 },
    Stage { expansion: 6, channels: 160, blocks: 3, stride: 2 },
    Stage { expansion: 6, channels: 320, blocks: 1, stride: 1 },
];

struct MobileNet {
    first: ConvNorm2d,
    blocks: Vec<Block>,
    last: ConvNorm2d,
    dropout: Dropout,
    head: Linear,
}

impl Classifier for MobileNet {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { stem, channels, image_height, image_width, classes, width, dropout } = settings;
        // Strides of the first convolution and of the second stage.
        let (first_stride, second_stride) = choose("stem", stem.as_str(), [("small", (1, 1)), ("imagenet", (2, 2))])?;
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        let mut inputs = scaled(32, width);
        let first = convolution(channels, inputs, 3).stride(first_stride);
        let first = first.build_with_norm(build, "features.0.0", "features.0.1");
        let mut blocks = Vec::new();
        for (index, stage) in STAGES.into_iter().enumerate() {
            let outputs = scaled(stage.channels, width);
            for block in 0..stage.blocks {
                let stride = match (index, block) {
                    (1, 0) => second_stride,
                    (_, 0) => stage.stride,
                    _ => 1,
                };
                let shape = Shape { inputs, hidden: stage.expansion * inputs, outputs, stride };
                let name = format!("features.{}.conv", blocks.len() + 1);
                blocks.push(build.scope(&name, |build| Block::new(build, shape)));
                inputs = outputs;
            }
        }
        let features = scaled(1280, width.max(1.0));
        let (conv, norm) = (format!("features.{}.0", blocks.len() + 1), format!("features.{}.1", blocks.len() + 1));
        let last = convolution(inputs, features, 1).build_with_norm(build, &conv, &norm);
        let head = Linear::new(features, classes).initial(Initial::Normal(0.01)).build(build, "classifier.1");
        Ok(MobileNet { first, blocks, last, dropout: Dropout::new(dropout), head })
    }

    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let mut x = relu6(&self.first.forward(&images, pass));
        for block in &self.blocks {
            x = block.forward(x, pass);
        }
        let x = relu6(&self.last.forward(&x, pass));
        let x = self.dropout.forward(x.global_avg_pool2d(), pass);
        self.head.forward(&x, pass)
    }
}

/// The multiple of 8 nearest to `channels * width`, but never less than nine tenths of it.
fn scaled(channels: u32, width: f32) -> u32 {
    let exact = channels as f32 * width;
    let rounded = ((exact + 4.0) as u32 / 8 * 8).max(8);
    if (rounded as f32) < 0.9 * exact { rounded + 8 } else { rounded }
}

fn relu6(x: &Tensor) -> Tensor {
    x.clamp(0.0, 6.0)
}

/// A convolution that keeps the size of an image unless it has a stride.
fn convolution(inputs: u32, outputs: u32, kernel: u32) -> Conv2dConfig {
    Conv2d::new(inputs, outputs, kernel).padding(kernel / 2).initial(Initial::FanOut)
}

/// Channels in, inside and out, and the step between pixels.
struct Shape {
    inputs: u32,
    hidden: u32,
    outputs: u32,
    stride: u32,
}

/// An inverted residual: more channels inside than outside, where each is filtered by itself, and no activation at the end.
struct Block {
    /// Left out where it would not add channels.
    expansion: Option<ConvNorm2d>,
    depthwise: ConvNorm2d,
    projection: ConvNorm2d,
    /// Whether the input is added to the output.
    carries: bool,
}

impl Block {
    fn new(build: &mut Builder, shape: Shape) -> Block {
        let Shape { inputs, hidden, outputs, stride } = shape;
        let expansion = (hidden != inputs).then(|| convolution(inputs, hidden, 1).build_with_norm(build, "0.0", "0.1"));
        let depthwise = convolution(hidden, hidden, 3).stride(stride).groups(hidden);
        let projection = convolution(hidden, outputs, 1);
        let (depthwise, projection) = if expansion.is_some() {
            (depthwise.build_with_norm(build, "1.0", "1.1"), projection.build_with_norm(build, "2", "3"))
        } else {
            (depthwise.build_with_norm(build, "0.0", "0.1"), projection.build_with_norm(build, "1", "2"))
        };
        Block { expansion, depthwise, projection, carries: stride == 1 && inputs == outputs }
    }

    fn forward(&self, x: Tensor, pass: &mut Pass) -> Tensor {
        let expanded = self.expansion.as_ref().map(|expansion| relu6(&expansion.forward(&x, pass)));
        let y = relu6(&self.depthwise.forward(expanded.as_ref().unwrap_or(&x), pass));
        let y = self.projection.forward(&y, pass);
        if self.carries { x.add(&y) } else { y }
    }
}

export_kernel!(MobileNet);
