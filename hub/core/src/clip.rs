//! Clipping of a gradient's global norm.

use crate::optimizer::GradientSource;

/// Shortens a gradient g to at most `norm_max`: g ← g·min(1, norm_max / ‖g‖₂), the norm over all parameters together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clip {
    norm_max: Option<f32>,
}

/// Σ g², summed in `f64` by lanes so that it vectorises; the order is fixed, so equal inputs give equal bits.
pub(crate) fn square_sum(values: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(value) * f64::from(value);
    }
    sums.iter().sum()
}

impl Clip {
    pub(crate) fn new(norm_max: Option<f32>) -> Clip {
        Clip { norm_max }
    }

    /// What to multiply the gradient by. Reads it once where there is a limit, by pieces of `scratch`'s length.
    pub(crate) fn scale(self, elements: usize, gradient: &dyn GradientSource, scratch: &mut [f32]) -> f32 {
        let Some(norm_max) = self.norm_max else { return 1.0 };
        let mut sum = 0.0;
        let mut start = 0;
        while start < elements {
            let piece = &mut scratch[..(elements - start).min(crate::model::BLOCK_ELEMENTS)];
            gradient.read(start, piece);
            sum += square_sum(piece);
            start += piece.len();
        }
        let norm = sum.sqrt();
        if norm > f64::from(norm_max) { (f64::from(norm_max) / norm) as f32 } else { 1.0 }
    }
}
