//! A model's first values.

use std::f64::consts::TAU;

use omnilearn_wire::sampling::{SplitMix64, derive_seed};

use crate::description::{Description, Initializer};

/// Keeps these draws apart from those of samples and dropout: "init" in ASCII.
const PURPOSE: u64 = 0x696e_6974;

/// Draws parameters and shared buffers, each concatenated in index order.
///
/// Parameter `i` has a generator of its own, `SplitMix64(derive_seed(seed, [0x696e6974, i]))`, so that its values depend on
/// nothing but the seed, its index, its number of elements and its initializer. Elements are drawn in row-major order:
///
/// - `constant(c)`: `c`; nothing is drawn.
/// - `uniform(bound)`: `bound (2 u - 1)`, where `u` is the upper 24 bits of a draw divided by `2^24`; in `f32`.
/// - `normal(deviation)`: two elements from two draws (Box and Muller 1958), in `f64` until the end:
///   `r = sqrt(-2 ln u1)`, `u1 = (upper 53 bits of the first + 1) / 2^53`, `u2 = upper 53 bits of the second / 2^53`;
///   the elements are `deviation r cos(2 pi u2)` and `deviation r sin(2 pi u2)`, of which an odd last one is left out.
pub fn initialize(description: &Description, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let count = |shape: &[u32]| shape.iter().map(|&dimension| dimension as usize).product::<usize>();
    let total = description.parameters.iter().map(|parameter| count(&parameter.shape)).sum();
    let mut parameters = Vec::with_capacity(total);
    for (index, parameter) in description.parameters.iter().enumerate() {
        let mut generator = SplitMix64::new(derive_seed(seed, &[PURPOSE, index as u64]));
        draw(&mut parameters, count(&parameter.shape), parameter.initializer, &mut generator);
    }
    let buffers = description
        .shared_buffers()
        .flat_map(|buffer| std::iter::repeat_n(buffer.initial, count(&buffer.shape)))
        .collect();
    (parameters, buffers)
}

fn draw(values: &mut Vec<f32>, count: usize, initializer: Initializer, generator: &mut SplitMix64) {
    match initializer {
        Initializer::Constant(value) => values.extend(std::iter::repeat_n(value, count)),
        Initializer::Uniform(bound) => values.extend((0..count).map(|_| {
            let unit = (generator.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
            bound * (2.0 * unit - 1.0)
        })),
        Initializer::Normal(deviation) => {
            let end = values.len() + count;
            let unit = |bits: u64| bits as f64 / (1u64 << 53) as f64;
            while values.len() < end {
                let radius = (-2.0 * unit((generator.next_u64() >> 11) + 1).ln()).sqrt();
                let angle = TAU * unit(generator.next_u64() >> 11);
                values.push((f64::from(deviation) * radius * angle.cos()) as f32);
                values.push((f64::from(deviation) * radius * angle.sin()) as f32);
            }
            values.truncate(end);
        }
    }
}
