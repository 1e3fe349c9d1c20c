//! Arrays of a safetensors file.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};

use super::super::ImportError;
use super::{Array, Source};

/// Longest header that is read; a tensor takes some 100 bytes of it.
const HEADER_BYTES_MAX: u64 = 8 << 20;
/// Bytes before the header, which say how long it is.
const LENGTH_BYTES: u64 = 8;

/// An open file whose header was read and fits its length.
pub(super) struct Tensors {
    path: PathBuf,
    data_start: u64,
    header: Metadata,
}

impl Tensors {
    /// Reads the header.
    pub(super) fn open(path: &Path) -> Result<Tensors, ImportError> {
        let wrong = |problem: String| ImportError::damaged(path, format!("not a safetensors file: {problem}"));
        let mut file = File::open(path).map_err(ImportError::io("open", path))?;
        let bytes = file.metadata().map_err(ImportError::io("read", path))?.len();
        let mut length = [0; LENGTH_BYTES as usize];
        if bytes < LENGTH_BYTES {
            return Err(wrong(format!("{bytes} bytes are too short")));
        }
        file.read_exact(&mut length).map_err(ImportError::io("read", path))?;
        let length = u64::from_le_bytes(length);
        if length > bytes - LENGTH_BYTES || length > HEADER_BYTES_MAX {
            let problem =
                format!("a header of {length} bytes in a file of {bytes}, at most {HEADER_BYTES_MAX} are read");
            return Err(wrong(problem));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(ImportError::io("read", path))?;
        // Checks names, and that the tensors lie one after the other without gaps and are as long as their shapes say.
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| wrong(error.to_string()))?;
        let data_start = LENGTH_BYTES + length;
        if header.data_len() as u64 != bytes - data_start {
            let problem = format!("{} bytes of tensors, the header says {}", bytes - data_start, header.data_len());
            return Err(wrong(problem));
        }
        Ok(Tensors { path: path.to_owned(), data_start, header })
    }

    /// Names of all tensors.
    pub(super) fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// A tensor; none if there is no such one.
    pub(super) fn array(&self, name: &str) -> Result<Option<Array>, ImportError> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let element = match info.dtype {
            Dtype::BOOL => Source::Bool,
            Dtype::U8 => Source::U8,
            Dtype::I8 => Source::I8,
            Dtype::U16 => Source::U16,
            Dtype::I16 => Source::I16,
            Dtype::U32 => Source::U32,
            Dtype::I32 => Source::I32,
            Dtype::U64 => Source::U64,
            Dtype::I64 => Source::I64,
            Dtype::F16 => Source::F16,
            Dtype::BF16 => Source::Bf16,
            Dtype::F32 => Source::F32,
            Dtype::F64 => Source::F64,
            other => {
                let problem = format!("tensor `{name}` has elements of type {other}, which are not read");
                return Err(ImportError::damaged(&self.path, problem));
            }
        };
        let (begin, end) = info.data_offsets;
        let mut file = File::open(&self.path).map_err(ImportError::io("open", &self.path))?;
        file.seek(SeekFrom::Start(self.data_start + begin as u64)).map_err(ImportError::io("read", &self.path))?;
        let shape = info.shape.iter().map(|&size| size as u64).collect();
        let reader = Box::new(BufReader::with_capacity(1 << 18, file.take((end - begin) as u64)));
        Ok(Some(Array { path: self.path.clone(), name: name.to_owned(), element, shape, reader }))
    }
}
