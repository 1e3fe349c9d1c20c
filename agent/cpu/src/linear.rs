//! Linear layers: `x weight + bias` of `x` `[batch, inputs]` and `weight` `[inputs, outputs]`.

use super::Activation;
use super::buffer::Buffer;
use super::elementwise::{channel_sums, relu_in_place, repeat_row};
use super::simd::{Matrix, MatrixMut, Panels, Product};

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

/// `x weight + bias`, activated: `[batch, outputs]`.
pub fn forward(shape: LinearShape, x: &[f32], weight: &[f32], bias: Option<&[f32]>, activation: Activation) -> Buffer {
    let LinearShape { batch, inputs, outputs } = shape;
    let mut out = Buffer::new(batch * outputs);
    if let Some(bias) = bias {
        repeat_row(&mut out, bias);
    }
    let product = Product { a: Matrix::rows(x, inputs), k: inputs, accumulate: bias.is_some() };
    product.shared_with_rows(weight, outputs, MatrixMut::new(&mut out, batch, outputs, outputs));
    if activation == Activation::Relu {
        relu_in_place(&mut out);
    }
    out
}

/// The input's gradient, `gradient weight^T`.
pub fn input_gradient(shape: LinearShape, weight: &[f32], gradient: &[f32]) -> Buffer {
    let LinearShape { batch, inputs, outputs } = shape;
    // Rows of the right operand must be contiguous. Of the two ways to come by that, transpose the smaller matrix.
    if batch < inputs {
        let mut transposed = Buffer::new(inputs * batch);
        let right = transpose(gradient, batch, outputs);
        let product = Product { a: Matrix::rows(weight, outputs), k: outputs, accumulate: false };
        product.shared_with_rows(&right, batch, MatrixMut::new(&mut transposed, inputs, batch, batch));
        return transpose(&transposed, inputs, batch);
    }
    let mut out = Buffer::new(batch * inputs);
    let packed = Panels { k: outputs, n: inputs }.pack(Matrix::transposed(weight, outputs));
    let product = Product { a: Matrix::rows(gradient, outputs), k: outputs, accumulate: false };
    product.with_panels(&packed, &mut MatrixMut::new(&mut out, batch, inputs, inputs));
    out
}

/// The weight's gradient, `x^T gradient`.
pub fn weight_gradient(shape: LinearShape, x: &[f32], gradient: &[f32]) -> Buffer {
    let LinearShape { batch, inputs, outputs } = shape;
    let mut out = Buffer::new(inputs * outputs);
    let product = Product { a: Matrix::transposed(x, inputs), k: batch, accumulate: false };
    product.shared_with_rows(gradient, outputs, MatrixMut::new(&mut out, inputs, outputs, outputs));
    out
}

/// The bias's gradient: the sum over samples.
pub fn bias_gradient(shape: LinearShape, gradient: &[f32]) -> Buffer {
    channel_sums(gradient, shape.outputs, 1)
}

/// `[columns, rows]` from `[rows, columns]`.
fn transpose(source: &[f32], rows: usize, columns: usize) -> Buffer {
    let mut out = Buffer::new(rows * columns);
    crate::scratch::transpose(source, columns, &mut out, rows);
    out
}
