//! Weights that a job begins with: a safetensors file in the state folder, read tensor by tensor.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use half::f16;
use omnilearn_wire::Codec;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// Elements that are read and converted at a time.
const PIECE_ELEMENTS: usize = 64 << 10;

/// Longest header that is read; a tensor takes some 100 bytes of it.
const HEADER_BYTES_MAX: u64 = 8 << 20;

/// Bytes before the header, which say how long it is.
const LENGTH_BYTES: u64 = 8;

/// Why a job cannot begin with a file of weights.
#[derive(Debug, thiserror::Error)]
pub enum GivenWeightsError {
    /// The operating system.
    #[error("the file cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Not in the format.
    #[error("not a safetensors file: {problem}")]
    Format {
        /// What is wrong.
        problem: String,
    },
    /// Other bytes than those that were sent.
    #[error("the file in the hub's state folder is damaged; submit the job file again")]
    Damaged,
    /// A tensor that the kernel needs is not there.
    #[error(
        "the file has no tensor `{name}` {expected:?}; for a tensor that is to begin with drawn values, \
         add \"{pattern}\" to `weights_except` in [kernel]"
    )]
    Missing {
        /// Name of the tensor.
        name: String,
        /// Its shape in the kernel.
        expected: Vec<u32>,
        /// What `weights_except` may hold.
        pattern: String,
    },
    /// A tensor of another shape.
    #[error(
        "tensor `{name}` has shape {found:?} in the file and {expected:?} in the kernel; for a tensor that is to begin with \
         drawn values, add \"{pattern}\" to `weights_except` in [kernel]"
    )]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// Its shape in the kernel.
        expected: Vec<u32>,
        /// What `weights_except` may hold.
        pattern: String,
    },
    /// A tensor whose elements are not floating-point numbers of up to 32 bits.
    #[error("tensor `{name}` has elements of type {found}; F32, F16 and BF16 are taken")]
    ElementType {
        /// Name of the tensor.
        name: String,
        /// Its element type in the file.
        found: Dtype,
    },
    /// A number that nothing can be computed with.
    #[error("tensor `{name}` is not finite at index {index}")]
    NotFinite {
        /// Name of the tensor.
        name: String,
        /// Which element, in row-major order.
        index: usize,
    },
}

/// A safetensors file whose header was read and fits its length.
#[derive(Debug)]
pub(crate) struct GivenWeights {
    pub(crate) path: PathBuf,
    pub(crate) digest: [u8; 32],
    file: File,
    data_start: u64,
    header: Metadata,
}

impl GivenWeights {
    /// Reads the header of the file that is kept under this digest. May block.
    ///
    /// # Errors
    /// [`GivenWeightsError::Io`] or [`GivenWeightsError::Format`].
    pub(crate) fn open(path: PathBuf, digest: [u8; 32]) -> Result<GivenWeights, GivenWeightsError> {
        let format = |problem: String| GivenWeightsError::Format { problem };
        let mut file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        let mut length = [0; LENGTH_BYTES as usize];
        if bytes < LENGTH_BYTES {
            return Err(format(format!("{bytes} bytes are too short")));
        }
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > bytes - LENGTH_BYTES || length > HEADER_BYTES_MAX {
            let problem =
                format!("a header of {length} bytes in a file of {bytes}, at most {HEADER_BYTES_MAX} are taken");
            return Err(format(problem));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header)?;
        // Checks names, and that the tensors lie one after the other without gaps and are as long as their shapes say.
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| format(error.to_string()))?;
        let data_start = LENGTH_BYTES + length;
        if header.data_len() as u64 != bytes - data_start {
            let problem = format!("{} bytes of tensors, the header says {}", bytes - data_start, header.data_len());
            return Err(format(problem));
        }
        Ok(GivenWeights { path, digest, file, data_start, header })
    }

    /// Reads the whole file once to see that it still is what was sent. May block.
    ///
    /// # Errors
    /// [`GivenWeightsError::Damaged`] if it is not.
    pub(crate) fn verify(&mut self) -> Result<(), GivenWeightsError> {
        self.file.rewind()?;
        match omnilearn_datasets::digest_of(&self.file)? == self.digest {
            true => Ok(()),
            false => Err(GivenWeightsError::Damaged),
        }
    }

    /// Names of all tensors, in the file's order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Shape and element type of a tensor.
    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// Gives a tensor's elements to `take`, in pieces and in row-major order, as `f32`. Nothing for a tensor that is not
    /// there. May block.
    ///
    /// # Errors
    /// [`GivenWeightsError::ElementType`], or [`GivenWeightsError::NotFinite`] at the first such element.
    pub(crate) fn read(&self, name: &str, mut take: impl FnMut(&[f32])) -> Result<(), GivenWeightsError> {
        let Some(info) = self.header.info(name) else { return Ok(()) };
        let element_bytes = element_bytes(name, info.dtype)?;
        let (start, end) = info.data_offsets;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data_start + start as u64))?;
        let elements = (end - start) / element_bytes;
        let mut bytes = vec![0; elements.min(PIECE_ELEMENTS) * element_bytes];
        let mut values = vec![0.0; elements.min(PIECE_ELEMENTS)];
        for index in (0..elements).step_by(PIECE_ELEMENTS) {
            let count = (elements - index).min(PIECE_ELEMENTS);
            let (bytes, values) = (&mut bytes[..count * element_bytes], &mut values[..count]);
            file.read_exact(bytes)?;
            decode(info.dtype, bytes, values);
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(GivenWeightsError::NotFinite { name: name.to_owned(), index: index + at });
            }
            take(values);
        }
        Ok(())
    }
}

/// Size of an element, if its type is taken.
pub(crate) fn element_bytes(name: &str, found: Dtype) -> Result<usize, GivenWeightsError> {
    match found {
        Dtype::F32 => Ok(4),
        Dtype::F16 | Dtype::BF16 => Ok(2),
        _ => Err(GivenWeightsError::ElementType { name: name.to_owned(), found }),
    }
}

/// Converts whole elements of a type that [`element_bytes`] takes.
fn decode(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    let codec = match dtype {
        Dtype::F16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*bytes).to_f32();
            }
            return;
        }
        Dtype::BF16 => Codec::Bf16,
        _ => Codec::F32,
    };
    codec.decode_into(bytes, values).expect("both are as long as the same number of elements");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::digest;

    /// A file made of tensors: name, element type, shape, bytes.
    pub(crate) fn file(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Vec<u8> {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            let view = safetensors::tensor::TensorView::new(*dtype, shape.to_vec(), bytes).unwrap();
            ((*name).to_owned(), view)
        });
        safetensors::serialize(views, None).unwrap()
    }

    /// The bytes of some `f32`.
    pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Opens some bytes as a file.
    pub(crate) fn open(bytes: &[u8]) -> Result<(GivenWeights, tempfile::TempDir), GivenWeightsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("given.safetensors");
        std::fs::write(&path, bytes).unwrap();
        GivenWeights::open(path, digest::sha256(bytes)).map(|weights| (weights, folder))
    }

    fn values(weights: &GivenWeights, name: &str) -> Result<Vec<f32>, GivenWeightsError> {
        let mut all = Vec::new();
        weights.read(name, |piece| all.extend_from_slice(piece)).map(|()| all)
    }

    #[test]
    fn three_element_types_come_as_f32_and_others_are_refused_by_name() {
        let half: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        let (weights, _folder) = open(&file(&[
            ("a", Dtype::F32, &[2], bytes_of(&[0.1, -3.0e-30])),
            ("b", Dtype::F16, &[2, 1], half),
            ("c", Dtype::BF16, &[1], vec![0x80, 0x3F]),
            ("d", Dtype::F64, &[1], vec![0; 8]),
        ]))
        .unwrap();
        assert_eq!(values(&weights, "a").unwrap(), [0.1, -3.0e-30]);
        assert_eq!(values(&weights, "b").unwrap(), [1.5, -2.0]);
        assert_eq!(values(&weights, "c").unwrap(), [1.0]);
        let error = values(&weights, "d").unwrap_err().to_string();
        assert_eq!(error, "tensor `d` has elements of type F64; F32, F16 and BF16 are taken");
    }

    #[test]
    fn a_tensor_of_several_pieces_comes_whole_and_a_number_that_is_none_is_found_in_any() {
        let mut long: Vec<f32> = (0..2 * PIECE_ELEMENTS + 5).map(|index| index as f32).collect();
        let of_long = |long: &[f32]| {
            file(&[("first", Dtype::F32, &[1], bytes_of(&[7.0])), ("long", Dtype::F32, &[long.len()], bytes_of(long))])
        };
        let (weights, _folder) = open(&of_long(&long)).unwrap();
        assert!(values(&weights, "long").unwrap() == long);
        long[PIECE_ELEMENTS + 3] = f32::NAN;
        let (weights, _folder) = open(&of_long(&long)).unwrap();
        let error = values(&weights, "long").unwrap_err().to_string();
        assert_eq!(error, format!("tensor `long` is not finite at index {}", PIECE_ELEMENTS + 3));
    }

    #[test]
    fn what_is_no_safetensors_file_is_refused_before_memory_is_taken_for_it() {
        let whole = file(&[("a", Dtype::F32, &[2], bytes_of(&[1.0, 2.0]))]);
        let huge = [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat();
        let longer = [&whole[..], &[0]].concat();
        for bytes in [&[][..], b"PK\x03\x04 a zip file of PyTorch", &whole[..whole.len() - 1], &longer, &huge] {
            let error = open(bytes).unwrap_err();
            assert!(matches!(error, GivenWeightsError::Format { .. }), "{error}");
        }
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let bytes = file(&[("a", Dtype::F32, &[2], bytes_of(&[1.0, 2.0]))]);
        let (mut weights, _folder) = open(&bytes).unwrap();
        weights.verify().unwrap();
        let mut changed = bytes;
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(&weights.path, &changed).unwrap();
        assert!(matches!(weights.verify().unwrap_err(), GivenWeightsError::Damaged));
    }
}
