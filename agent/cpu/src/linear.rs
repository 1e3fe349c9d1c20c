//! Linear layers: `x weight^T + bias` of `x` `[batch, inputs]` and `weight` `[outputs, inputs]`, as PyTorch keeps it.

use super::Activation;
use super::buffer::Buffer;
use super::elementwise::{add_bias, channel_sums};
use super::simd::{Matrix, MatrixMut, Panels, Product, inner_products, lanes};

/// Sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// Samples.
    pub batch: usize,
    /// Features of a sample.
    pub inputs: usize,
    /// Features of a result.
    pub outputs: usize,
}

/// `x weight^T + bias`, activated: `[batch, outputs]`.
pub fn forward(shape: LinearShape, x: &[f32], weight: &[f32], bias: Option<&[f32]>, activation: Activation) -> Buffer {
    let LinearShape { batch, inputs, outputs } = shape;
    let mut out = Buffer::new(batch * outputs);
    // A small batch is multiplied row by row. Otherwise one operand is packed, transposed: the smaller one.
    if batch < lanes() {
        inner_products(x, weight, inputs, MatrixMut::new(&mut out, batch, outputs, outputs));
    } else if batch < outputs {
        let mut transposed = Buffer::new(outputs * batch);
        let packed = Panels { k: inputs, n: batch }.pack(Matrix::transposed(x, inputs));
        let product = Product { a: Matrix::rows(weight, inputs), k: inputs, accumulate: false };
        product.shared_with_panels(&packed, MatrixMut::new(&mut transposed, outputs, batch, batch));
        crate::scratch::transpose(&transposed, batch, &mut out, outputs);
    } else {
        let packed = Panels { k: inputs, n: outputs }.pack(Matrix::transposed(weight, inputs));
        let product = Product { a: Matrix::rows(x, inputs), k: inputs, accumulate: false };
        product.shared_with_panels(&packed, MatrixMut::new(&mut out, batch, outputs, outputs));
    }
    add_bias(&mut out, outputs, bias, activation);
    out
}

/// The input's gradient, `gradient weight`.
pub fn input_gradient(shape: LinearShape, weight: &[f32], gradient: &[f32]) -> Buffer {
    let LinearShape { batch, inputs, outputs } = shape;
    let mut out = Buffer::new(batch * inputs);
    let product = Product { a: Matrix::rows(gradient, outputs), k: outputs, accumulate: false };
    product.shared_with_rows(weight, inputs, MatrixMut::new(&mut out, batch, inputs, inputs));
    out
}

/// The weight's gradient, `gradient^T x`.
pub fn weight_gradient(shape: LinearShape, x: &[f32], gradient: &[f32]) -> Buffer {
    let LinearShape { batch, inputs, outputs } = shape;
    let mut out = Buffer::new(outputs * inputs);
    let product = Product { a: Matrix::transposed(gradient, outputs), k: batch, accumulate: false };
    product.shared_with_rows(x, inputs, MatrixMut::new(&mut out, outputs, inputs, inputs));
    out
}

/// The bias's gradient: the sum over samples.
pub fn bias_gradient(shape: LinearShape, gradient: &[f32]) -> Buffer {
    channel_sums(gradient, shape.outputs, 1)
}
