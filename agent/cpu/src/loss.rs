//! Cross entropy of logits `[batch, classes]`.
#![expect(
    clippy::extra_unused_type_parameters,
    reason = "the parameter stands for the instruction set that is compiled for"
)]

use macerator::{Simd, with_simd};

use super::buffer::Buffer;

/// The mean loss and the probabilities.
pub fn cross_entropy(logits: &[f32], targets: &[i32], classes: usize) -> (f32, Buffer) {
    let mut probabilities = Buffer::copied(logits);
    let mut sum = 0.0f64;
    for ((row, logits), &target) in
        probabilities.chunks_exact_mut(classes).zip(logits.chunks_exact(classes)).zip(targets)
    {
        let (largest, total) = exponentials(row);
        sum += f64::from(largest) + f64::from(total).ln() - f64::from(logits[target as usize]);
    }
    ((sum / targets.len() as f64) as f32, probabilities)
}

/// Replaces a row by its softmax. Returns its largest element and the sum of `exp(x - largest)`.
#[with_simd]
fn exponentials<S: Simd>(row: &mut [f32]) -> (f32, f32) {
    let largest = row
        .iter()
        .fold(f32::NEG_INFINITY, |largest, &value| if value > largest || value.is_nan() { value } else { largest });
    let mut total = 0.0;
    for value in row.iter_mut() {
        *value = (*value - largest).exp();
        total += *value;
    }
    let inverse = 1.0 / total;
    row.iter_mut().for_each(|value| *value *= inverse);
    (largest, total)
}

/// `(softmax - one-hot) gradient / batch`.
pub fn cross_entropy_backward(mut probabilities: Buffer, targets: &[i32], classes: usize, gradient: f32) -> Buffer {
    let factor = gradient / targets.len() as f32;
    for (row, &target) in probabilities.chunks_exact_mut(classes).zip(targets) {
        row[target as usize] -= 1.0;
        row.iter_mut().for_each(|value| *value *= factor);
    }
    probabilities
}
