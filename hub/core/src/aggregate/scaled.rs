//! A single gradient, as ASP applies it.

use omnilearn_wire::Codec;

use super::magnitude::largest;
use super::{AddError, EXACT_BOUND, bf16_of, f32_of};
use crate::optimizer::GradientSource;

/// One encoded gradient, scaled: what ASP applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scaled<'a> {
    codec: Codec,
    bytes: &'a [u8],
    factor: f32,
}

impl<'a> Scaled<'a> {
    /// `factor` times the gradient.
    ///
    /// # Errors
    /// [`AddError`] at the first value that is not finite or too large.
    pub(crate) fn new(codec: Codec, bytes: &'a [u8], factor: f32) -> Result<Scaled<'a>, AddError> {
        fn check<E>(encoded: &[E], decode: impl Fn(&E) -> f32 + Copy) -> Result<(), AddError> {
            let found = largest(encoded.iter().map(decode));
            if found <= EXACT_BOUND {
                return Ok(());
            }
            let bad = |value: &E| decode(value).abs().partial_cmp(&EXACT_BOUND).is_none_or(std::cmp::Ordering::is_gt);
            let index = encoded.iter().position(bad).unwrap_or_default();
            let finite = encoded.iter().all(|value| decode(value).is_finite());
            Err(if finite { AddError::TooLarge { index } } else { AddError::NotFinite { index } })
        }
        match codec {
            Codec::F32 => check(bytes.as_chunks::<4>().0, f32_of)?,
            Codec::Bf16 => check(bytes.as_chunks::<2>().0, bf16_of)?,
        }
        Ok(Scaled { codec, bytes, factor })
    }
}

impl GradientSource for Scaled<'_> {
    fn read(&self, start: usize, out: &mut [f32]) {
        let size = self.codec.element_bytes();
        let bytes = &self.bytes[start * size..(start + out.len()) * size];
        self.codec.decode_into(bytes, out).expect("the length of the stream was checked on arrival");
        out.iter_mut().for_each(|value| *value *= self.factor);
    }
}
