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
