//! How tensors are written into a stream. Elements are little-endian and in row-major order.

use half::bf16;
use half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};

/// Encoding of `f32` tensors on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// 4 bytes an element, exact.
    #[default]
    F32,
    /// 2 bytes an element: the upper half of an `f32`, rounded to nearest even; 8 bits of precision, the same range.
    Bf16,
}

/// A piece of a stream that does not hold whole elements.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes do not hold whole elements of {element_bytes} bytes")]
pub struct PartialElement {
    /// Length of the piece.
    pub bytes: usize,
    /// Size of an element.
    pub element_bytes: usize,
}

impl Codec {
    /// Size of one element, in bytes.
    pub fn element_bytes(self) -> usize {
        match self {
            Codec::F32 => 4,
            Codec::Bf16 => 2,
        }
    }

    /// Appends the encoding of `values` to `out`.
    pub fn encode_into(self, values: &[f32], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + values.len() * self.element_bytes(), 0);
        let encoded = &mut out[start..];
        match self {
            Codec::F32 => {
                for (bytes, value) in encoded.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *bytes = value.to_le_bytes();
                }
            }
            Codec::Bf16 => {
                const BLOCK: usize = 256; // converts by blocks, so that the wide instructions are used without a copy of the tensor
                let mut block = [bf16::ZERO; BLOCK];
                for (bytes, values) in encoded.chunks_mut(BLOCK * 2).zip(values.chunks(BLOCK)) {
                    let block = &mut block[..values.len()];
                    block.convert_from_f32_slice(values);
                    for (bytes, bits) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(block.reinterpret_cast()) {
                        *bytes = bits.to_le_bytes();
                    }
                }
            }
        }
    }

    /// Decodes all of `bytes` into `values`, whose length must fit.
    ///
    /// # Errors
    /// [`PartialElement`] if `bytes` is not exactly `values.len()` elements.
    pub fn decode_into(self, bytes: &[u8], values: &mut [f32]) -> Result<(), PartialElement> {
        let element_bytes = self.element_bytes();
        if bytes.len() != values.len() * element_bytes {
            return Err(PartialElement { bytes: bytes.len(), element_bytes });
        }
        match self {
            Codec::F32 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Codec::Bf16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn through(codec: Codec, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![7]; // what is there already stays
        codec.encode_into(values, &mut bytes);
        assert_eq!((bytes[0], bytes.len()), (7, 1 + values.len() * codec.element_bytes()));
        let mut decoded = vec![0.0; values.len()];
        codec.decode_into(&bytes[1..], &mut decoded).unwrap();
        decoded
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Nearest of the `f32` whose lower half is zero; of two equally near, the one with an even last bit.
    fn round_to_bf16(value: f32) -> u32 {
        let bits = value.to_bits();
        if value.is_nan() {
            return (bits | 0x0040_0000) & 0xffff_0000;
        }
        let (below, rest) = (bits & 0xffff_0000, bits & 0xffff);
        let up = rest > 0x8000 || (rest == 0x8000 && below & 0x1_0000 != 0);
        if up { below + 0x1_0000 } else { below }
    }

    proptest! {
        #[test]
        fn f32_is_exact_for_every_bit_pattern(patterns in prop::collection::vec(any::<u32>(), 0..600)) {
            let values: Vec<f32> = patterns.iter().map(|&pattern| f32::from_bits(pattern)).collect();
            prop_assert_eq!(bits(&through(Codec::F32, &values)), patterns);
        }

        #[test]
        fn bf16_rounds_every_bit_pattern_to_nearest_even(patterns in prop::collection::vec(any::<u32>(), 0..600)) {
            let values: Vec<f32> = patterns.iter().map(|&pattern| f32::from_bits(pattern)).collect();
            for (decoded, &value) in through(Codec::Bf16, &values).iter().zip(&values) {
                if value.is_nan() {
                    prop_assert!(decoded.is_nan());
                } else {
                    prop_assert_eq!(decoded.to_bits(), round_to_bf16(value), "{}", value);
                }
            }
        }
    }

    #[test]
    fn bf16_keeps_what_it_can_hold_and_rounds_the_rest() {
        let cases = [
            (0.0, 0.0),
            (1.0, 1.0),
            (f32::from_bits(0x3f80_8000), 1.0), // half-way, even below
            (f32::from_bits(0x3f81_8000), f32::from_bits(0x3f82_0000)), // half-way, even above
            (f32::from_bits(0x3f80_8001), f32::from_bits(0x3f81_0000)), // just above half-way
            (f32::INFINITY, f32::INFINITY),
            (f32::MAX, f32::INFINITY), // rounds up out of the range, as IEEE 754 has it
            (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
            (f32::from_bits(1), 0.0),                                   // smallest subnormal
            (f32::from_bits(0x0001_0000), f32::from_bits(0x0001_0000)), // smallest subnormal that fits
            (f32::from_bits(0x0000_8001), f32::from_bits(0x0001_0000)),
        ];
        for (value, expected) in cases {
            assert_eq!(bits(&through(Codec::Bf16, &[value, -value])), bits(&[expected, -expected]), "{value:e}");
        }
        assert!(through(Codec::Bf16, &[f32::NAN, f32::from_bits(0x7f80_0001)]).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn partial_elements_and_wrong_lengths_are_refused() {
        for codec in [Codec::F32, Codec::Bf16] {
            let element_bytes = codec.element_bytes();
            for bytes in [0, 1, element_bytes - 1, element_bytes + 1, 3 * element_bytes, 2 * element_bytes - 1] {
                let refused = codec.decode_into(&vec![0; bytes], &mut [0.0; 2]);
                assert_eq!(refused, Err(PartialElement { bytes, element_bytes }));
            }
            assert_eq!(crate::limits::CHUNK_BYTES % element_bytes, 0);
        }
    }
}
