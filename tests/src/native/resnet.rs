//! ResNet-18 (He et al. 2015) in its variant for small images, a stem of 3x3 without pooling: 11,173,962 parameters for
//! colour images and a width of 64.

use omnilearn_kernel_host::backend::{Binary, OpResult, TensorBackend, Unary};

use super::cursor::Cursor;
use super::{CLASSES, Convolution, Layout};

/// How a block changes the shape of what it gets.
#[derive(Clone, Copy)]
struct Block {
    /// Channels out over channels in.
    widening: usize,
    stride: usize,
}

const KEEPING: Block = Block { widening: 1, stride: 1 };
const HALVING: Block = Block { widening: 2, stride: 2 };

const BLOCKS: [Block; 8] = [KEEPING, KEEPING, HALVING, KEEPING, HALVING, KEEPING, HALVING, KEEPING];

impl Block {
    /// Whether the shortcut needs a projection.
    fn changes_shape(self) -> bool {
        self.widening != 1 || self.stride != 1
    }
}

/// In the order of the parameters; each is followed by a batch normalisation.
pub(super) fn convolutions(channels: usize, width: usize, size: usize) -> Vec<Convolution> {
    let mut convolutions =
        vec![Convolution { inputs: channels, outputs: width, size, kernel: 3, stride: 1, padding: 1 }];
    let (mut inputs, mut size) = (width, size);
    for block in BLOCKS {
        let (outputs, stride) = (block.widening * inputs, block.stride);
        let first = Convolution { inputs, outputs, size, kernel: 3, stride, padding: 1 };
        convolutions.push(first);
        let second = Convolution { inputs: outputs, outputs, size: first.out_size(), kernel: 3, stride: 1, padding: 1 };
        convolutions.push(second);
        if block.changes_shape() {
            convolutions.push(Convolution { inputs, outputs, size, kernel: 1, stride, padding: 0 });
        }
        (inputs, size) = (outputs, second.out_size());
    }
    convolutions
}

pub(super) fn layout(channels: usize, width: usize) -> Layout {
    let mut layout = Layout::default();
    // Shapes of parameters do not depend on the size of an image.
    for Convolution { inputs, outputs, kernel, .. } in convolutions(channels, width, 32) {
        layout.convolution(inputs, outputs, kernel);
        layout.batch_norm(outputs);
    }
    layout.linear(8 * width, CLASSES);
    layout
}

pub(super) fn forward<B: TensorBackend>(cursor: &mut Cursor<'_, B>, images: &B::Tensor) -> OpResult<B::Tensor> {
    let mut x = cursor.convolution_norm_relu(images, 1, 1)?;
    for block in BLOCKS {
        x = residual(cursor, x, block)?;
    }
    let x = cursor.backend.global_avg_pool2d(&x)?; // [batch, 8 width]
    cursor.linear(&x)
}

/// Two 3x3 convolutions and a shortcut, which is a 1x1 projection where the shape changes.
fn residual<B: TensorBackend>(cursor: &mut Cursor<'_, B>, x: B::Tensor, block: Block) -> OpResult<B::Tensor> {
    let y = cursor.convolution_norm_relu(&x, block.stride, 1)?;
    let y = cursor.convolution_norm(&y, 1, 1)?;
    let shortcut = if block.changes_shape() { cursor.convolution_norm(&x, block.stride, 0)? } else { x };
    let sum = cursor.backend.binary(Binary::Add, &y, &shortcut)?;
    cursor.backend.unary(Unary::Relu, &sum)
}
