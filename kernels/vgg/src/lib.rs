//! VGG (Simonyan and Zisserman 2014) without batch normalisation, with torchvision's names. For ImageNet, colour images of
//! 224 by 224 and 1000 classes, it has torchvision's 132,863,336 parameters at depth 11, 138,357,544 at 16 and 143,667,240
//! at 19. As it stands, with one linear layer after the convolutions for images of 32 by 32 and 10 classes, VGG-11 has
//! 9,225,610.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Number of layers: 11, 16 or 19.
    depth: u32[..] = 11,
    /// Layers after the convolutions: "small" is one, "imagenet" is three after pooling to 7 by 7.
    head: String[..] = "small".to_owned(),
    /// Channels of an image: 1 for grey, 3 for colour.
    channels: u32[1..=64] = 3,
    /// Height of an image in pixels; a multiple of 224 for the head "imagenet".
    image_height: u32[32..=1024] = 32,
    /// Width of an image in pixels; a multiple of 224 for the head "imagenet".
    image_width: u32[32..=1024] = 32,
    /// Number of classes.
    classes: u32[2..=100_000] = 10,
    /// Feature channels of the first stage; later stages have 2, 4, 8 and 8 times as many.
    width: u32[1..=1024] = 64,
    /// Units of each hidden layer of the head "imagenet".
    hidden: u32[1..=65_536] = 4096,
    /// Probability of dropping a hidden unit of the head "imagenet" in training.
    dropout: f32[0.0..1.0] = 0.5,
}

/// How often the stages halve an image.
const HALVINGS: u32 = 5;
/// Side of what the head "imagenet" takes.
const POOLED: u32 = 7;

struct Vgg {
    /// Convolutions by stages, after each of which pooling halves the image.
    stages: Vec<Vec<Conv2d>>,
    head: Head,
}

enum Head {
    Small(Linear),
    ImageNet { layers: [Linear; 3], dropout: Dropout },
}

impl Classifier for Vgg {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { depth, channels, image_height, image_width, width, .. } = settings;
        let counts = choose("depth", depth, [(11, [1, 1, 2, 2, 2]), (16, [2, 2, 3, 3, 3]), (19, [2, 2, 4, 4, 4])])?;
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        let mut stages = Vec::new();
        let mut inputs = channels;
        let mut position = 0; // among torchvision's `features`, which count activations and poolings, too
        for (count, widening) in counts.into_iter().zip([1, 2, 4, 8, 8]) {
            let mut convolutions = Vec::new();
            for _ in 0..count {
                let convolution = Conv2d::new(inputs, widening * width, 3).padding(1).initial(Initial::FanOut);
                convolutions.push(convolution.build(build, &format!("features.{position}")));
                inputs = widening * width;
                position += 2;
            }
            stages.push(convolutions);
            position += 1;
        }
        Ok(Vgg { stages, head: Head::new(build, inputs, &settings)? })
    }

    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let mut x = images;
        for stage in &self.stages {
            for convolution in stage {
                x = convolution.forward(&x, pass).relu();
            }
            x = max_pool2d(&x, 2, 2);
        }
        self.head.forward(x, pass)
    }
}

impl Head {
    fn new(build: &mut Builder, channels: u32, settings: &Settings) -> Result<Head, String> {
        let Settings { head, image_height, image_width, classes, hidden, dropout, .. } = settings;
        let linear = |inputs, outputs| Linear::new(inputs, outputs).initial(Initial::Normal(0.01));
        let imagenet = choose("head", head.as_str(), [("small", false), ("imagenet", true)])?;
        if !imagenet {
            let pixels = (image_height >> HALVINGS) * (image_width >> HALVINGS);
            return Ok(Head::Small(linear(channels * pixels, *classes).build(build, "classifier")));
        }
        let multiple = POOLED << HALVINGS;
        if image_height % multiple != 0 || image_width % multiple != 0 {
            return Err(format!(
                "head \"imagenet\" takes images whose sides are multiples of {multiple}, but they are {image_height} by \
                 {image_width}; head \"small\" takes them"
            ));
        }
        let layers = [
            linear(channels * POOLED * POOLED, *hidden).build(build, "classifier.0"),
            linear(*hidden, *hidden).build(build, "classifier.3"),
            linear(*hidden, *classes).build(build, "classifier.6"),
        ];
        Ok(Head::ImageNet { layers, dropout: Dropout::new(*dropout) })
    }

    fn forward(&self, x: Tensor, pass: &mut Pass) -> Tensor {
        match self {
            Head::Small(layer) => layer.forward(&flatten(&x), pass),
            Head::ImageNet { layers: [first, second, last], dropout } => {
                let x = avg_pool2d_to(x, POOLED);
                let x = first.forward(&flatten(&x), pass).relu();
                let x = dropout.forward(x, pass);
                let x = second.forward(&x, pass).relu();
                let x = dropout.forward(x, pass);
                last.forward(&x, pass)
            }
        }
    }
}

export_kernel!(Vgg);
