//! Embedding: rows of a table by their indices.

use super::buffer::Buffer;
use super::threads::{for_each, parts, split};

/// Row `indices[i]` of the table, rows of `features` elements, for each `i`. Indices are inside the table.
pub fn forward(table: &[f32], features: usize, indices: &[i32]) -> Buffer {
    let mut out = Buffer::new(indices.len() * features);
    for_each(split(&mut out, features, &parts(indices.len(), indices.len() * features)), |(first, out)| {
        for (out, &index) in out.chunks_exact_mut(features).zip(&indices[first..]) {
            out.copy_from_slice(&table[index as usize * features..][..features]);
        }
    });
    out
}

/// The table's gradient: each row's is the sum over where it was used.
pub fn backward(rows: usize, features: usize, indices: &[i32], gradient: &[f32]) -> Buffer {
    let mut out = Buffer::zeroed(rows * features);
    for (gradient, &index) in gradient.chunks_exact(features).zip(indices) {
        let row = &mut out[index as usize * features..][..features];
        row.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
    }
    out
}
