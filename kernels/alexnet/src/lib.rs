//! AlexNet in the form of "One weird trick for parallelizing convolutional neural networks" (Krizhevsky 2014), with
//! torchvision's names. For ImageNet, colour images of 224 by 224 and 1000 classes, it has torchvision's 61,100,840
//! parameters. As it stands, with filters of 3 by 3 for images of 32 by 32 and 10 classes, it has 23,272,266.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// What it is made for: "small" has filters of 3 by 3 and no dropout, "imagenet" is the original for 224 by 224 pixels.
    variant: String[..] = "small".to_owned(),
    /// Channels of an image: 1 for grey, 3 for colour.
    channels: u32[1..=64] = 3,
    /// Height of an image in pixels.
    image_height: u32[15..=1024] = 32,
    /// Width of an image in pixels.
    image_width: u32[15..=1024] = 32,
    /// Number of classes.
    classes: u32[2..=100_000] = 10,
    /// Feature channels of the first convolution; later ones have 3, 6, 4 and 4 times as many.
    width: u32[1..=1024] = 64,
    /// Units of each hidden layer after the convolutions.
    hidden: u32[1..=65_536] = 4096,
    /// Probability of dropping a unit in training, in the variant "imagenet".
    dropout: f32[0.0..1.0] = 0.5,
}

/// Side of what the linear layers of "imagenet" take.
const POOLED: u32 = 6;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Small,
    ImageNet,
}

impl Variant {
    /// Filter, stride and padding of each convolution, in pixels.
    fn filters(self) -> [(u32, u32, u32); 5] {
        match self {
            Variant::Small => [(3, 2, 1), (3, 1, 1), (3, 1, 1), (3, 1, 1), (3, 1, 1)],
            Variant::ImageNet => [(11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1)],
        }
    }

    /// Window and stride of the poolings, in pixels.
    fn pooling(self) -> (u32, u32) {
        match self {
            Variant::Small => (2, 2),
            Variant::ImageNet => (3, 2),
        }
    }

    /// Side of an image after the convolutions and poolings; `None` if nothing is left of it.
    fn side_after(self, side: u32) -> Option<u32> {
        let (window, step) = self.pooling();
        let mut side = side;
        for ((filter, stride, padding), pools) in self.filters().into_iter().zip(POOLS) {
            side = (side + 2 * padding).checked_sub(filter)? / stride + 1;
            if pools {
                side = side.checked_sub(window)? / step + 1;
            }
        }
        Some(side)
    }
}

/// Places of the convolutions among torchvision's `features`, which count activations and poolings, too.
const POSITIONS: [u32; 5] = [0, 3, 6, 8, 10];
/// After which convolutions an image is pooled.
const POOLS: [bool; 5] = [true, true, false, false, true];

struct AlexNet {
    variant: Variant,
    convolutions: Vec<Conv2d>,
    layers: [Linear; 3],
    dropout: Dropout,
}

impl Classifier for AlexNet {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { variant, channels, image_height, image_width, classes, width, hidden, dropout } = settings;
        let variant =
            choose("variant", variant.as_str(), [("small", Variant::Small), ("imagenet", Variant::ImageNet)])?;
        let area = match (variant, variant.side_after(image_height), variant.side_after(image_width)) {
            (Variant::Small, Some(rows), Some(columns)) => rows * columns,
            (Variant::ImageNet, Some(rows), Some(columns)) if rows % POOLED == 0 && columns % POOLED == 0 => {
                POOLED * POOLED
            }
            _ => {
                return Err(format!(
                    "variant \"imagenet\" takes images of 224 by 224 pixels, or others of which its convolutions leave a \
                     multiple of {POOLED} by {POOLED}, but they are {image_height} by {image_width}; variant \"small\" takes them"
                ));
            }
        };
        build.input("image", DType::F32, &[channels, image_height, image_width]);
        let mut convolutions = Vec::new();
        let mut inputs = channels;
        for (index, (filter, stride, padding)) in variant.filters().into_iter().enumerate() {
            let outputs = [1, 3, 6, 4, 4][index] * width;
            let convolution = Conv2d::new(inputs, outputs, filter).stride(stride).padding(padding);
            convolutions.push(convolution.build(build, &format!("features.{}", POSITIONS[index])));
            inputs = outputs;
        }
        let layers = [
            Linear::new(inputs * area, hidden).build(build, "classifier.1"),
            Linear::new(hidden, hidden).build(build, "classifier.4"),
            Linear::new(hidden, classes).build(build, "classifier.6"),
        ];
        let dropout = match variant {
            Variant::Small => 0.0,
            Variant::ImageNet => dropout,
        };
        Ok(AlexNet { variant, convolutions, layers, dropout: Dropout::new(dropout) })
    }

    fn logits(&self, images: Tensor, pass: &mut Pass) -> Tensor {
        let (window, step) = self.variant.pooling();
        let mut x = images;
        for (convolution, pools) in self.convolutions.iter().zip(POOLS) {
            x = convolution.forward(&x, pass).relu();
            if pools {
                x = max_pool2d(&x, window, step);
            }
        }
        if self.variant == Variant::ImageNet {
            x = avg_pool2d_to(x, POOLED);
        }
        let [first, second, last] = &self.layers;
        let x = self.dropout.forward(flatten(&x), pass);
        let x = first.forward(&x, pass).relu();
        let x = self.dropout.forward(x, pass);
        let x = second.forward(&x, pass).relu();
        last.forward(&x, pass)
    }
}

export_kernel!(AlexNet);
