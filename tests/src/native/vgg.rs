//! VGG-11 (Simonyan and Zisserman 2014) for small images, with one linear layer: 9,225,610 parameters.

use omnilearn_kernel_host::backend::{OpResult, TensorBackend};

use super::cursor::Cursor;
use super::{CLASSES, Convolution, Layout};

/// Channels out of the convolutions between poolings.
const STAGES: [&[usize]; 5] = [&[64], &[128], &[256, 256], &[512, 512], &[512, 512]];

pub(super) fn convolutions() -> Vec<Convolution> {
    let mut convolutions = Vec::new();
    let mut inputs = 3;
    for (stage, outputs) in STAGES.into_iter().enumerate() {
        for &outputs in outputs {
            convolutions.push(Convolution { inputs, outputs, size: 32 >> stage, kernel: 3, stride: 1, padding: 1 });
            inputs = outputs;
        }
    }
    convolutions
}

pub(super) fn layout() -> Layout {
    let mut layout = Layout::default();
    for Convolution { inputs, outputs, kernel, .. } in convolutions() {
        layout.biased_convolution(inputs, outputs, kernel);
    }
    layout.linear(512, CLASSES);
    layout
}

pub(super) fn forward<B: TensorBackend>(cursor: &mut Cursor<'_, B>, images: &B::Tensor) -> OpResult<B::Tensor> {
    let mut x = images.clone();
    for stage in STAGES {
        for _ in stage {
            x = cursor.convolution_relu(&x, 1, 1)?;
        }
        x = cursor.max_pool(&x)?;
    }
    let x = cursor.flatten(&x)?; // [batch, 512]
    cursor.linear(&x)
}
