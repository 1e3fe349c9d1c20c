//! Numbers of elements that operations will make, so that a limit is checked before memory is taken and not after.
//!
//! All arithmetic saturates. Where operands do not fit each other the answer is 0: the backend will refuse them.

use crate::backend::{Conv2dOptions, Pool2dOptions};

pub(crate) fn product(dimensions: impl IntoIterator<Item = usize>) -> u64 {
    dimensions.into_iter().fold(1, |product: u64, dimension| product.saturating_mul(dimension as u64))
}

pub(crate) fn elements(shape: &[usize]) -> u64 {
    product(shape.iter().copied())
}

/// Elements of the shape to which both broadcast.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> u64 {
    let aligned =
        |shape: &[usize], from_last: usize| shape.len().checked_sub(from_last + 1).map_or(1, |index| shape[index]);
    product((0..a.len().max(b.len())).map(|from_last| aligned(a, from_last).max(aligned(b, from_last))))
}

pub(crate) fn matmul(a: &[usize], b: &[usize]) -> u64 {
    let ([leading_a @ .., m, _], [leading_b @ .., _, n]) = (a, b) else { return 0 };
    broadcast(leading_a, leading_b).saturating_mul(product([*m, *n]))
}

pub(crate) fn linear(x: &[usize], weight: &[usize]) -> u64 {
    match (x, weight) {
        ([leading @ .., _], [outputs, _]) => elements(leading).saturating_mul(*outputs as u64),
        _ => 0,
    }
}

pub(crate) fn embedding(table: &[usize], indices: &[usize]) -> u64 {
    match table {
        [_, features] => elements(indices).saturating_mul(*features as u64),
        _ => 0,
    }
}

pub(crate) fn conv2d(x: &[usize], weight: &[usize], options: &Conv2dOptions) -> u64 {
    let (&[batch, _, height, width], &[outputs, _, kernel_height, kernel_width]) = (x, weight) else { return 0 };
    let side = |axis: usize, size: usize, kernel: usize| {
        let reach = kernel.saturating_sub(1).saturating_mul(options.dilation[axis]).saturating_add(1);
        windows(size, reach, options.padding[axis], options.stride[axis])
    };
    product([batch, outputs, side(0, height, kernel_height), side(1, width, kernel_width)])
}

pub(crate) fn pool2d(x: &[usize], options: &Pool2dOptions) -> u64 {
    let &[batch, channels, height, width] = x else { return 0 };
    let side =
        |axis: usize, size: usize| windows(size, options.kernel[axis], options.padding[axis], options.stride[axis]);
    product([batch, channels, side(0, height), side(1, width)])
}

/// Positions of a window along one axis.
fn windows(size: usize, window: usize, padding: usize, stride: usize) -> usize {
    let padded = size.saturating_add(padding.saturating_mul(2));
    match (padded.checked_sub(window), stride) {
        (None, _) | (_, 0) => 0,
        (Some(room), stride) => (room / stride).saturating_add(1),
    }
}
