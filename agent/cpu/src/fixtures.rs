//! The operators against what PyTorch computes, layer by layer. `fixtures/make.py` made the files and describes their format.

use std::collections::HashMap;

use super::conv::{self, Wanted, channels_last, planes};
use super::layout::{Layout, exchanged};
use super::linear::{self, LinearShape};
use super::norm::{self, NormShape, Operands};
use super::pool;
use super::shape::{ConvOptions, ConvShape, PoolOptions, PoolShape};
use super::{Activation, embedding, layer_norm, loss};

/// Largest error relative to the largest element of a tensor: both sides sum some hundred products in `f32`, in orders of their own.
const TOLERANCE: f32 = 2e-5;

/// What batch and layer normalisation add to the variance.
const EPSILON: f32 = 1e-5;

const LAYOUTS: [Layout; 2] = [Layout::Planes, Layout::ChannelsLast];

struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// The tensors of a layer by their names.
struct Fixture {
    name: &'static str,
    tensors: HashMap<String, Tensor>,
}

macro_rules! fixture {
    ($name:literal) => {
        Fixture::read($name, include_bytes!(concat!("../fixtures/", $name, ".bin")))
    };
}

impl Fixture {
    fn read(name: &'static str, mut bytes: &[u8]) -> Fixture {
        let mut tensors = HashMap::new();
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let mut words = std::str::from_utf8(&bytes[..end]).unwrap().split(' ');
            let key = words.next().unwrap().to_owned();
            let shape: Vec<usize> = words.map(|size| size.parse().unwrap()).collect();
            let (elements, rest) = bytes[end + 1..].split_at(4 * shape.iter().product::<usize>());
            let values = elements.as_chunks().0.iter().map(|&element| f32::from_le_bytes(element)).collect();
            tensors.insert(key, Tensor { shape, values });
            bytes = rest;
        }
        Fixture { name, tensors }
    }

    fn shape(&self, key: &str) -> &[usize] {
        &self.tensors[key].shape
    }

    fn values(&self, key: &str) -> &[f32] {
        &self.tensors[key].values
    }

    fn integers(&self, key: &str) -> Vec<i32> {
        self.values(key).iter().map(|&value| value as i32).collect()
    }

    /// What the layer was made with.
    fn options<const N: usize>(&self) -> [usize; N] {
        self.values("options").iter().map(|&value| value as usize).collect::<Vec<_>>().try_into().unwrap()
    }

    /// A tensor of images, in this layout.
    fn images(&self, key: &str, layout: Layout) -> Vec<f32> {
        let &[_, channels, height, width] = self.shape(key) else { panic!("{key} has no images") };
        match layout {
            Layout::Planes => self.values(key).to_vec(),
            Layout::ChannelsLast => exchanged(Layout::Planes, channels, height * width, self.values(key)).to_vec(),
        }
    }

    fn check(&self, key: &str, found: &[f32]) {
        self.check_equal(key, found, self.values(key));
    }

    fn check_images(&self, key: &str, layout: Layout, found: &[f32]) {
        self.check_equal(&format!("{key}, {layout:?}"), found, &self.images(key, layout));
    }

    fn check_equal(&self, what: &str, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len(), "{}: {what}", self.name);
        let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - expected).abs() <= TOLERANCE * largest,
                "{}: {what}[{index}] is {found}, PyTorch has {expected}",
                self.name
            );
        }
    }
}

#[test]
fn convolutions_equal_pytorchs() {
    let fixtures = [
        fixture!("conv_3x3"),
        fixture!("conv_3x3_stride_2"),
        fixture!("conv_1x1_stride_2"),
        fixture!("conv_5x5"),
        fixture!("conv_grouped"),
        fixture!("conv_depthwise"),
        fixture!("conv_dilated"),
    ];
    for fixture in fixtures {
        let [stride, padding, dilation, groups] = fixture.options();
        let options = ConvOptions { stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2], groups };
        let shape = ConvShape::new(fixture.shape("x"), fixture.shape("weight"), options).unwrap();
        let (weight, bias) = (fixture.values("weight"), Some(fixture.values("bias")));
        let wanted = Wanted { x: true, weight: true, bias: true };
        for layout in LAYOUTS {
            let (x, gradient) = (fixture.images("x", layout), fixture.images("gradient", layout));
            let (out, conv::Gradients { x, weight, bias }) = match layout {
                Layout::Planes => (
                    planes::forward(&shape, &x, weight, bias, Activation::None),
                    planes::backward(&shape, &x, weight, &gradient, wanted),
                ),
                // Groups of several channels exist as planes only.
                Layout::ChannelsLast if shape.groups > 1 && !shape.is_depthwise() => continue,
                Layout::ChannelsLast => (
                    channels_last::forward(&shape, &x, weight, bias, Activation::None),
                    channels_last::backward(&shape, &x, weight, &gradient, wanted),
                ),
            };
            fixture.check_images("out", layout, &out);
            fixture.check_images("x_gradient", layout, &x.unwrap());
            fixture.check("weight_gradient", &weight.unwrap());
            fixture.check("bias_gradient", &bias.unwrap());
        }
    }
}

#[test]
fn batch_norm_equals_pytorchs() {
    for (fixture, own_statistics) in [(fixture!("batch_norm_training"), true), (fixture!("batch_norm_given"), false)] {
        let &[batch, channels, height, width] = fixture.shape("x") else { panic!("rank") };
        for layout in LAYOUTS {
            let shape = NormShape { batch, channels, pixels: height * width, layout };
            let x = fixture.images("x", layout);
            if own_statistics {
                let (mean, variance) = norm::statistics(shape, &x);
                fixture.check("mean", &mean);
                fixture.check("variance", &variance);
            }
            let operands = Operands {
                x: &x,
                gamma: fixture.values("gamma"),
                beta: fixture.values("beta"),
                mean: fixture.values("mean"),
                variance: fixture.values("variance"),
                epsilon: EPSILON,
                activation: Activation::None,
            };
            fixture.check_images("out", layout, &norm::forward(shape, operands));
            let mut gradient = fixture.images("gradient", layout);
            let (gamma_gradient, beta_gradient) = norm::backward(shape, operands, own_statistics, &mut gradient);
            fixture.check_images("x_gradient", layout, &gradient);
            fixture.check("gamma_gradient", &gamma_gradient);
            fixture.check("beta_gradient", &beta_gradient);
        }
    }
}

fn pool_shape(fixture: &Fixture) -> PoolShape {
    let [kernel, stride, padding] = fixture.options();
    let options = PoolOptions { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2] };
    PoolShape::new(fixture.shape("x"), options).unwrap()
}

#[test]
fn max_pooling_equals_pytorchs() {
    for fixture in [fixture!("max_pool_2x2"), fixture!("max_pool_3x3")] {
        let shape = pool_shape(&fixture);
        for layout in LAYOUTS {
            let x = fixture.images("x", layout);
            let (out, saved) = pool::max_forward(&shape, layout, &x);
            fixture.check_images("out", layout, &out);
            let gradient = fixture.images("gradient", layout);
            fixture.check_images("x_gradient", layout, &pool::max_backward(&shape, &x, &out, &saved, &gradient));
        }
    }
}

#[test]
fn mean_pooling_equals_pytorchs() {
    let fixture = fixture!("mean_pool");
    let shape = pool_shape(&fixture);
    for layout in LAYOUTS {
        fixture.check_images("out", layout, &pool::mean_forward(&shape, layout, &fixture.images("x", layout)));
        let gradient = fixture.images("gradient", layout);
        fixture.check_images("x_gradient", layout, &pool::mean_backward(&shape, layout, &gradient));
    }
}

#[test]
fn linear_layers_equal_pytorchs() {
    let fixture = fixture!("linear");
    let (&[batch, inputs], &[outputs, _]) = (fixture.shape("x"), fixture.shape("weight")) else { panic!("rank") };
    let shape = LinearShape { batch, inputs, outputs };
    let [x, weight, bias, gradient] = ["x", "weight", "bias", "gradient"].map(|key| fixture.values(key));
    fixture.check("out", &linear::forward(shape, x, weight, Some(bias), Activation::None));
    fixture.check("x_gradient", &linear::input_gradient(shape, weight, gradient));
    fixture.check("weight_gradient", &linear::weight_gradient(shape, x, gradient));
    fixture.check("bias_gradient", &linear::bias_gradient(shape, gradient));
}

#[test]
fn layer_norm_equals_pytorchs() {
    let fixture = fixture!("layer_norm");
    let [x, gamma, beta, gradient] = ["x", "gamma", "beta", "gradient"].map(|key| fixture.values(key));
    fixture.check("out", &layer_norm::forward(x, gamma, beta, EPSILON));
    let found = layer_norm::backward(x, gamma, EPSILON, gradient);
    fixture.check("x_gradient", &found.x);
    fixture.check("gamma_gradient", &found.gamma);
    fixture.check("beta_gradient", &found.beta);
}

#[test]
fn embedding_equals_pytorchs() {
    let fixture = fixture!("embedding");
    let &[rows, features] = fixture.shape("table") else { panic!("rank") };
    let indices = fixture.integers("indices");
    fixture.check("out", &embedding::forward(fixture.values("table"), features, &indices));
    let found = embedding::backward(rows, features, &indices, fixture.values("gradient"));
    fixture.check("table_gradient", &found);
}

#[test]
fn cross_entropy_equals_pytorchs() {
    let fixture = fixture!("cross_entropy");
    let classes = fixture.shape("x")[1];
    let targets = fixture.integers("targets");
    let (loss, probabilities) = loss::cross_entropy(fixture.values("x"), &targets, classes);
    fixture.check("out", &[loss]);
    let gradient = fixture.values("gradient")[0];
    fixture.check("x_gradient", &loss::cross_entropy_backward(probabilities, &targets, classes, gradient));
}
