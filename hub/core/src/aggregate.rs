//! Sums of gradients in fixed point: exact, so that the order of arrival cannot show in the parameters.
//!
//! g = Σ (b_k / Σb)·g_k over accepted updates, Σb known only when a round closes. So Σ b_k·g_k is summed and divided at the
//! end. Each b_k·g_k is rounded once, to a multiple of a power of two; from there on sums are integers.
//!
//! - [`Accumulator`] in `i64`, for models of up to [`EXACT_BYTES_MAX`]: exact to 2⁻⁴³, for gradients of up to 2¹⁸.
//! - In `i32` for larger ones, so that parameters, momentum and sums fit three model sizes: each tensor has its own scale,
//!   with headroom over the largest gradient of the round before. A gradient beyond it does not fit; the scale is raised
//!   and the round starts over.
//!
//! No sum can overflow: each element is checked against its share b_k / B of the range before it is added.

use omnilearn_wire::Codec;

use crate::optimizer::GradientSource;
use magnitude::largest;
pub(crate) use scaled::Scaled;

mod magnitude;
mod scaled;

/// Largest model, in bytes of `f32` parameters, whose sums are in `i64`.
pub const EXACT_BYTES_MAX: usize = 8 << 20;

const EXACT_BITS: i32 = 44; // resolution of Σ b·g / B' is 2^-44, B' the next power of two over B
const EXACT_BOUND: f32 = 262_144.0; // 2^18 · 2^44 is 2^62, which leaves i64 a bit for rounding
const COMPACT_BITS: i32 = 30; // likewise 2^30 in an i32
const COMPACT_BOUND_FIRST: f32 = 8.0;
const COMPACT_HEADROOM: f32 = 8.0;

/// Adding this to |x| < 2^51 leaves x, rounded to the nearest integer, in the low bits; it vectorises where a
/// conversion does not.
const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 · 2^52
/// Below this magnitude of a gradient, [`MAGIC`] works for `i64` sums and their terms.
const MAGIC_BOUND: f32 = 64.0;

/// Why values were not added. Nothing of them is in the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// An infinity or not a number.
    #[error("element {index} is not finite")]
    NotFinite {
        /// Which element of the parameters.
        index: usize,
    },
    /// Larger than any gradient may be.
    #[error("element {index} is larger than {EXACT_BOUND}")]
    TooLarge {
        /// Which element of the parameters.
        index: usize,
    },
    /// Larger than the present scale allows. The next [`Accumulator::clear`] raises the scale.
    #[error("element {index} does not fit the scale of its tensor")]
    Scale {
        /// Which element of the parameters.
        index: usize,
    },
}

/// Σ b_k·g_k of one round.
#[derive(Debug)]
pub struct Accumulator {
    sums: Sums,
    /// B', the next power of two over the largest Σb.
    weight_bound: f64,
    /// Where each tensor ends.
    ends: Vec<usize>,
    /// Largest |g_k| per tensor since the sums were cleared; over all tensors, one, with exact sums.
    largest: Vec<f32>,
    dirty: bool,
}

#[derive(Debug)]
enum Sums {
    Exact(Vec<i64>),
    Compact { sums: Vec<i32>, bounds: Vec<f32> },
}

impl Accumulator {
    /// Zero, for tensors of these lengths and for weights that sum to at most `weight_max`.
    pub fn new(tensors: &[usize], weight_max: u32) -> Accumulator {
        Accumulator::with_limit(tensors, weight_max, EXACT_BYTES_MAX)
    }

    pub(crate) fn with_limit(tensors: &[usize], weight_max: u32, exact_bytes_max: usize) -> Accumulator {
        let mut ends: Vec<usize> = tensors
            .iter()
            .scan(0, |end, elements| {
                *end += elements;
                Some(*end)
            })
            .collect();
        let elements = ends.last().copied().unwrap_or(0);
        let sums = if elements * 4 <= exact_bytes_max {
            ends = vec![elements];
            Sums::Exact(vec![0; elements])
        } else {
            Sums::Compact { sums: vec![0; elements], bounds: vec![COMPACT_BOUND_FIRST; ends.len()] }
        };
        let largest = vec![0.0; ends.len()];
        Accumulator { sums, weight_bound: f64::from(weight_max).log2().ceil().exp2(), ends, largest, dirty: false }
    }

    /// Whether anything was added since the sums were cleared.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Adds `weight` times the encoded values to the elements from `start` on.
    ///
    /// # Errors
    /// [`AddError`] at the first value that cannot be added; then none was.
    pub fn add_encoded(&mut self, start: usize, codec: Codec, bytes: &[u8], weight: u32) -> Result<(), AddError> {
        match codec {
            Codec::F32 => self.add(start, bytes.as_chunks::<4>().0, f32_of, weight),
            Codec::Bf16 => self.add(start, bytes.as_chunks::<2>().0, bf16_of, weight),
        }
    }

    /// Adds `weight` times the values to the elements from `start` on.
    ///
    /// # Errors
    /// [`AddError`] at the first value that cannot be added; then none was.
    pub fn add_values(&mut self, start: usize, values: &[f32], weight: u32) -> Result<(), AddError> {
        self.add(start, values, |&value| value, weight)
    }

    /// Generic over the decoder, so that it is inlined and the loops vectorise.
    fn add<E, D>(&mut self, start: usize, encoded: &[E], decode: D, weight: u32) -> Result<(), AddError>
    where
        D: Fn(&E) -> f32 + Copy,
    {
        let first = self.ends.partition_point(|&end| end <= start);
        let pieces = |ends: &[usize]| {
            let mut low = start;
            let pieces = ends[first..].iter().enumerate().map_while(move |(index, &end)| {
                let piece = low..end.min(start + encoded.len());
                low = end;
                (!piece.is_empty()).then_some((first + index, piece))
            });
            pieces.collect::<Vec<_>>()
        };
        let pieces = pieces(&self.ends);
        let values_of = |piece: &std::ops::Range<usize>| &encoded[piece.start - start..piece.end - start];
        let mut fits = Ok(());
        for (tensor, piece) in &pieces {
            let values = values_of(piece);
            let found = largest(values.iter().map(decode));
            let index = |bad: &dyn Fn(f32) -> bool| {
                piece.start + values.iter().position(|value| bad(decode(value))).unwrap_or_default()
            };
            if !found.is_finite() {
                return Err(AddError::NotFinite { index: index(&|value| !value.is_finite()) });
            }
            if found > EXACT_BOUND {
                return Err(AddError::TooLarge { index: index(&|value| value.abs() > EXACT_BOUND) });
            }
            if let Sums::Compact { bounds, .. } = &self.sums
                && found > bounds[*tensor]
                && fits.is_ok()
            {
                fits = Err(AddError::Scale { index: index(&|value| value.abs() > bounds[*tensor]) });
            }
            self.largest[*tensor] = self.largest[*tensor].max(found);
        }
        fits?;
        self.dirty = true;
        for (tensor, piece) in pieces {
            let values = values_of(&piece).iter().map(|value| f64::from(decode(value)));
            match &mut self.sums {
                Sums::Exact(sums) => {
                    let factor = f64::from(weight) * exact_scale(self.weight_bound);
                    add_exact(&mut sums[piece], values, factor, self.largest[tensor] < MAGIC_BOUND);
                }
                Sums::Compact { sums, bounds } => {
                    let factor = f64::from(weight) * compact_scale(self.weight_bound, bounds[tensor]);
                    for (sum, value) in sums[piece].iter_mut().zip(values) {
                        *sum = sum.wrapping_add((value * factor + MAGIC).to_bits() as i32);
                    }
                }
            }
        }
        Ok(())
    }

    /// The mean gradient, where the weights of what was added sum to `weight_sum`.
    pub fn mean(&self, weight_sum: u32) -> Mean<'_> {
        Mean { accumulator: self, weight_sum: f64::from(weight_sum) }
    }

    /// Back to zero. Scales follow the largest gradient since the last time.
    pub fn clear(&mut self) {
        self.dirty = false;
        match &mut self.sums {
            Sums::Exact(sums) => sums.fill(0),
            Sums::Compact { sums, bounds } => {
                sums.fill(0);
                for (bound, &largest) in bounds.iter_mut().zip(&self.largest) {
                    if largest > 0.0 {
                        *bound = (largest * COMPACT_HEADROOM).log2().ceil().exp2().max(f32::MIN_POSITIVE);
                    }
                }
            }
        }
        self.largest.fill(0.0);
    }
}

fn f32_of(bytes: &[u8; 4]) -> f32 {
    f32::from_le_bytes(*bytes)
}

fn bf16_of(bytes: &[u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)
}

fn exact_scale(weight_bound: f64) -> f64 {
    f64::from(EXACT_BITS).exp2() / weight_bound
}

fn compact_scale(weight_bound: f64, bound: f32) -> f64 {
    f64::from(COMPACT_BITS).exp2() / (weight_bound * f64::from(bound))
}

/// Both ways round to nearest, ties to even, so that they give the same sums.
fn add_exact(sums: &mut [i64], values: impl Iterator<Item = f64>, factor: f64, small: bool) {
    if small {
        for (sum, value) in sums.iter_mut().zip(values) {
            let rounded = (value * factor + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits());
            *sum = sum.wrapping_add(rounded as i64);
        }
    } else {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = sum.wrapping_add((value * factor).round_ties_even() as i64);
        }
    }
}

/// A round's mean gradient.
#[derive(Clone, Copy, Debug)]
pub struct Mean<'a> {
    accumulator: &'a Accumulator,
    weight_sum: f64,
}

impl Mean<'_> {
    /// One element in full precision.
    pub fn element(&self, index: usize) -> f64 {
        let bound = self.accumulator.weight_bound;
        match &self.accumulator.sums {
            Sums::Exact(sums) => sums[index] as f64 / (exact_scale(bound) * self.weight_sum),
            Sums::Compact { sums, bounds } => {
                let tensor = self.accumulator.ends.partition_point(|&end| end <= index);
                f64::from(sums[index]) / (compact_scale(bound, bounds[tensor]) * self.weight_sum)
            }
        }
    }
}

impl GradientSource for Mean<'_> {
    fn read(&self, start: usize, out: &mut [f32]) {
        let Accumulator { sums, weight_bound, ends, largest, .. } = self.accumulator;
        match sums {
            Sums::Exact(sums) => {
                let factor = 1.0 / (exact_scale(*weight_bound) * self.weight_sum);
                let sums = &sums[start..start + out.len()];
                if largest.iter().all(|&largest| largest < MAGIC_BOUND) {
                    for (out, &sum) in out.iter_mut().zip(sums) {
                        let value = f64::from_bits(MAGIC.to_bits().wrapping_add(sum as u64)) - MAGIC;
                        *out = (value * factor) as f32;
                    }
                } else {
                    for (out, &sum) in out.iter_mut().zip(sums) {
                        *out = (sum as f64 * factor) as f32;
                    }
                }
            }
            Sums::Compact { sums, bounds } => {
                let end = start + out.len();
                let mut low = start;
                let first = ends.partition_point(|&tensor_end| tensor_end <= start);
                for (tensor_end, bound) in ends[first..].iter().zip(&bounds[first..]) {
                    let high = end.min(*tensor_end);
                    let factor = 1.0 / (compact_scale(*weight_bound, *bound) * self.weight_sum);
                    for (out, &sum) in out[low - start..high - start].iter_mut().zip(&sums[low..high]) {
                        *out = (f64::from(sum) * factor) as f32;
                    }
                    low = high;
                    if low == end {
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
