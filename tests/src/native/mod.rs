//! Models written directly over the agent's tensor operations, without WebAssembly: what kernels are measured against, and
//! what the CPU operators are measured on. Parameters come in the order of the kernels of the same names.

mod alexnet;
mod convolution;
mod cursor;
mod layout;
mod lenet;
mod mlp;
mod resnet;
mod vgg;

use omnilearn_kernel_host::backend::{OpResult, Reduction, TensorBackend};

pub use self::convolution::{Convolution, options};
use self::cursor::Cursor;
pub use self::layout::{Initial, Layout, Variable};

/// Classes that every model tells apart.
pub const CLASSES: usize = 10;

/// A model. Where it takes its widths from its parameters, which all do, it runs with those of narrower kernels, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// One hidden layer of 256 units.
    Mlp,
    /// Two convolutions of 5x5 and three linear layers.
    LeNet,
    /// Five convolutions and three linear layers, for small images.
    AlexNet,
    /// Eight convolutions of 3x3 with biases, without batch normalisation.
    Vgg11,
    /// Eight residual blocks after a stem of 3x3.
    ResNet18,
}

/// What the forward pass of a model returns.
pub struct Forward<T> {
    /// `[batch, classes]`
    pub logits: T,
    /// New buffers in the model's order.
    pub buffers: Vec<T>,
}

impl Model {
    /// All of them, the smallest first.
    pub const ALL: [Model; 5] = [Model::Mlp, Model::LeNet, Model::AlexNet, Model::Vgg11, Model::ResNet18];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::LeNet => "lenet",
            Model::AlexNet => "alexnet",
            Model::Vgg11 => "vgg11",
            Model::ResNet18 => "resnet18",
        }
    }

    /// Channels, height and width of an image.
    pub fn image_shape(self) -> [usize; 3] {
        match self {
            Model::Mlp | Model::LeNet => [1, 28, 28],
            Model::AlexNet | Model::Vgg11 | Model::ResNet18 => [3, 32, 32],
        }
    }

    /// Its parameters and buffers.
    pub fn layout(self) -> Layout {
        match self {
            Model::Mlp => mlp::layout(),
            Model::LeNet => lenet::layout(),
            Model::AlexNet => alexnet::layout(),
            Model::Vgg11 => vgg::layout(),
            Model::ResNet18 => resnet::layout(3, 64),
        }
    }

    /// Its convolutions in order, each kind once. Empty where nobody has asked for them.
    pub fn convolutions(self) -> Vec<Convolution> {
        let mut distinct = Vec::new();
        let all = match self {
            Model::Mlp | Model::LeNet | Model::AlexNet => Vec::new(),
            Model::Vgg11 => vgg::convolutions(),
            Model::ResNet18 => resnet::convolutions(3, 64, 32),
        };
        for convolution in all {
            if !distinct.contains(&convolution) {
                distinct.push(convolution);
            }
        }
        distinct
    }

    /// Its forward pass in training: images `[batch, channels, height, width]`.
    ///
    /// # Errors
    /// Whatever the backend finds wrong with a shape.
    pub fn forward<B: TensorBackend>(
        self,
        backend: &mut B,
        parameters: &[B::Tensor],
        buffers: &[B::Tensor],
        images: &B::Tensor,
    ) -> OpResult<Forward<B::Tensor>> {
        let mut cursor = Cursor::new(backend, parameters, buffers);
        let logits = match self {
            Model::Mlp => mlp::forward(&mut cursor, images)?,
            Model::LeNet => lenet::forward(&mut cursor, images)?,
            Model::AlexNet => alexnet::forward(&mut cursor, images)?,
            Model::Vgg11 => vgg::forward(&mut cursor, images)?,
            Model::ResNet18 => resnet::forward(&mut cursor, images)?,
        };
        Ok(Forward { logits, buffers: cursor.into_new_buffers() })
    }
}

/// Mean cross entropy of logits `[batch, classes]`, and how many samples have their largest logit at the target, as a kernel
/// returns them; each `[1]`.
///
/// # Errors
/// Whatever the backend finds wrong with a shape.
pub fn classify<B: TensorBackend>(
    backend: &mut B,
    logits: &B::Tensor,
    targets: &B::Tensor,
) -> OpResult<(B::Tensor, B::Tensor)> {
    let loss = backend.cross_entropy(logits, targets)?;
    let classes = backend.argmax(logits, 1)?; // [batch, 1]
    let batch = backend.shape(targets)[0];
    let classes = backend.reshape(&classes, &[batch])?;
    let equal = backend.equal(&classes, targets)?;
    let correct = backend.reduce(Reduction::Sum, &equal, &[])?;
    Ok((loss, correct))
}
