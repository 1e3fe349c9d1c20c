//! The header of an IDX file: two zero bytes, the element type, the number of dimensions, each dimension in four bytes, most
//! significant first. Elements follow, row-major.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Code of unsigned bytes, the only element type used here.
const UNSIGNED_BYTE: u8 = 8;

/// Why a file is not the IDX file that was expected.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// It cannot be read, or is shorter than a header.
    #[error("cannot read the header: {0}")]
    Io(#[from] std::io::Error),
    /// Another format.
    #[error("not an IDX file of unsigned bytes: it begins with {found:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Another shape.
    #[error("holds {found:?} elements, expected {expected:?}")]
    Shape {
        /// In the header.
        found: Vec<u32>,
        /// In the catalogue.
        expected: Vec<u32>,
    },
    /// More or less follows than the header says.
    #[error("is {found} bytes long, expected {expected}")]
    Length {
        /// Length of the file.
        found: u64,
        /// By its header.
        expected: u64,
    },
}

/// A checked header.
#[derive(Debug)]
pub(crate) struct Header {
    /// Its length, after which the elements begin.
    pub(crate) bytes: u64,
}

impl Header {
    /// Reads and checks a header, and the length of the file.
    pub(crate) fn read(file: &File, shape: &[u32]) -> Result<Header, HeaderError> {
        let mut magic = [0; 4];
        file.read_exact_at(&mut magic, 0)?;
        let [0, 0, UNSIGNED_BYTE, rank] = magic else { return Err(HeaderError::Magic { found: magic }) };
        let mut dimensions = vec![0; 4 * usize::from(rank)];
        file.read_exact_at(&mut dimensions, 4)?;
        let found: Vec<u32> = dimensions.as_chunks::<4>().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect();
        if found != shape {
            return Err(HeaderError::Shape { found, expected: shape.to_vec() });
        }
        let bytes = 4 + dimensions.len() as u64;
        let expected = bytes + shape.iter().map(|&dimension| u64::from(dimension)).product::<u64>();
        let found = file.metadata()?.len();
        match found == expected {
            true => Ok(Header { bytes }),
            false => Err(HeaderError::Length { found, expected }),
        }
    }
}
