//! LeNet and ResNet-18 written directly over the agent's tensor operations, without WebAssembly: what the kernels of the same
//! names are measured against. Parameters come in the kernels' order.

use omnilearn_kernel_host::backend::{
    BatchNorm, Binary, Conv2dOptions, OpResult, Pool2dOptions, Reduction, TensorBackend, Unary,
};

const POOL: Pool2dOptions = Pool2dOptions { kernel: [2, 2], stride: [2, 2], padding: [0, 0] };

fn convolution(stride: usize, padding: usize) -> Conv2dOptions {
    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1, 1], groups: 1 }
}

/// What a training pass returns, as a kernel does.
pub struct Pass<T> {
    /// Mean cross entropy, `[1]`.
    pub loss: T,
    /// Samples whose largest logit is the target's, `[1]`.
    pub correct: T,
    /// New buffers in the kernel's order; empty for LeNet.
    pub buffers: Vec<T>,
}

/// Loss and metric of logits `[batch, classes]`.
fn classify<B: TensorBackend>(
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

/// LeNet's loss: images `[batch, 1, 28, 28]`, targets `[batch]`.
///
/// # Errors
/// Whatever the backend finds wrong with a shape.
pub fn lenet<B: TensorBackend>(
    backend: &mut B,
    parameters: &[B::Tensor],
    images: &B::Tensor,
    targets: &B::Tensor,
) -> OpResult<Pass<B::Tensor>> {
    let [w1, b1, w2, b2, w3, b3, w4, b4, w5, b5] = parameters else { panic!("LeNet has ten parameters") };
    let x = backend.conv2d(images, w1, Some(b1), convolution(1, 2))?; // [batch, 6, 28, 28]
    let x = backend.unary(Unary::Relu, &x)?;
    let x = backend.max_pool2d(&x, POOL)?; // [batch, 6, 14, 14]
    let x = backend.conv2d(&x, w2, Some(b2), convolution(1, 0))?; // [batch, 16, 10, 10]
    let x = backend.unary(Unary::Relu, &x)?;
    let x = backend.max_pool2d(&x, POOL)?; // [batch, 16, 5, 5]
    let batch = backend.shape(&x)[0];
    let x = backend.reshape(&x, &[batch, 400])?;
    let x = backend.linear(&x, w3, Some(b3))?;
    let x = backend.unary(Unary::Relu, &x)?;
    let x = backend.linear(&x, w4, Some(b4))?;
    let x = backend.unary(Unary::Relu, &x)?;
    let logits = backend.linear(&x, w5, Some(b5))?; // [batch, classes]
    let (loss, correct) = classify(backend, &logits, targets)?;
    Ok(Pass { loss, correct, buffers: Vec::new() })
}

/// Takes a model's tensors one after the other.
struct Cursor<'a, B: TensorBackend> {
    backend: &'a mut B,
    parameters: std::slice::Iter<'a, B::Tensor>,
    buffers: std::slice::Iter<'a, B::Tensor>,
    new_buffers: Vec<B::Tensor>,
}

impl<B: TensorBackend> Cursor<'_, B> {
    fn convolution(&mut self, x: &B::Tensor, stride: usize, padding: usize) -> OpResult<B::Tensor> {
        let weight = self.parameters.next().expect("a convolution has a weight");
        self.backend.conv2d(x, weight, None, convolution(stride, padding))
    }

    fn batch_norm(&mut self, x: &B::Tensor) -> OpResult<B::Tensor> {
        let gamma = self.parameters.next().expect("a batch norm has a scale");
        let beta = self.parameters.next().expect("a batch norm has a shift");
        let running_mean = self.buffers.next().expect("a batch norm has a running mean");
        let running_var = self.buffers.next().expect("a batch norm has a running variance");
        let statistics = BatchNorm { gamma, beta, running_mean, running_var, epsilon: 1e-5 };
        let [y, mean, var] = self.backend.batch_norm_train(x, statistics, 0.1)?;
        self.new_buffers.extend([mean, var]);
        Ok(y)
    }

    fn relu(&mut self, x: &B::Tensor) -> OpResult<B::Tensor> {
        self.backend.unary(Unary::Relu, x)
    }

    /// Two 3x3 convolutions and a shortcut, which is a 1x1 projection where the shape changes.
    fn block(&mut self, x: &B::Tensor, stride: usize, projection: bool) -> OpResult<B::Tensor> {
        let y = self.convolution(x, stride, 1)?;
        let y = self.batch_norm(&y)?;
        let y = self.relu(&y)?;
        let y = self.convolution(&y, 1, 1)?;
        let y = self.batch_norm(&y)?;
        let shortcut = if projection {
            let shortcut = self.convolution(x, stride, 0)?;
            self.batch_norm(&shortcut)?
        } else {
            x.clone()
        };
        let sum = self.backend.binary(Binary::Add, &y, &shortcut)?;
        self.relu(&sum)
    }
}

/// ResNet-18's loss (3x3 stem): images `[batch, channels, height, width]`, targets `[batch]`.
///
/// # Errors
/// Whatever the backend finds wrong with a shape.
pub fn resnet18<B: TensorBackend>(
    backend: &mut B,
    parameters: &[B::Tensor],
    buffers: &[B::Tensor],
    images: &B::Tensor,
    targets: &B::Tensor,
) -> OpResult<Pass<B::Tensor>> {
    let mut cursor =
        Cursor { backend, parameters: parameters.iter(), buffers: buffers.iter(), new_buffers: Vec::new() };
    let x = cursor.convolution(images, 1, 1)?;
    let x = cursor.batch_norm(&x)?;
    let mut x = cursor.relu(&x)?;
    for stage in 0..4 {
        let stride = if stage == 0 { 1 } else { 2 };
        x = cursor.block(&x, stride, stage > 0)?;
        x = cursor.block(&x, 1, false)?;
    }
    let x = cursor.backend.global_avg_pool2d(&x)?; // [batch, 8 width]
    let weight = cursor.parameters.next().expect("the head has a weight");
    let bias = cursor.parameters.next().expect("the head has a bias");
    let logits = cursor.backend.linear(&x, weight, Some(bias))?;
    let (loss, correct) = classify(cursor.backend, &logits, targets)?;
    Ok(Pass { loss, correct, buffers: cursor.new_buffers })
}
