//! NumPy's format for one array: a magic number, a version, and a header in Python's notation, after which the elements come.

use std::io::Read;
use std::path::Path;

use super::super::ImportError;
use super::{Array, Source};

/// Longest header that is read.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// Most dimensions of an array.
const RANK_MAX: usize = 8;

/// Reads the header; the elements follow in the array's reader.
pub(super) fn read(path: &Path, name: &str, mut reader: Box<dyn Read>) -> Result<Array, ImportError> {
    let wrong = |problem: String| ImportError::damaged(path, format!("array `{name}`: {problem}"));
    let short = |_| wrong("ends within its header".to_owned());
    let mut begin = [0; 8];
    reader.read_exact(&mut begin).map_err(short)?;
    let [magic @ .., major, _minor] = begin;
    if magic != *b"\x93NUMPY" {
        return Err(wrong("not a .npy file".to_owned()));
    }
    let mut length = [0; 4];
    let width = match major {
        1 => 2,
        2 | 3 => 4,
        other => return Err(wrong(format!("format {other}, formats 1 to 3 are read"))),
    };
    reader.read_exact(&mut length[..width]).map_err(short)?;
    let length = u32::from_le_bytes(length);
    if length > HEADER_BYTES_MAX {
        return Err(wrong(format!("a header of {length} bytes, at most {HEADER_BYTES_MAX} are read")));
    }
    let mut header = vec![0; length as usize];
    reader.read_exact(&mut header).map_err(short)?;
    let header = String::from_utf8(header).map_err(|_| wrong("the header is no text".to_owned()))?;
    let (element, shape) = parse(&header).map_err(wrong)?;
    Ok(Array { path: path.to_owned(), name: name.to_owned(), element, shape, reader })
}

/// Element type and shape from a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (10, 28, 28), }`.
fn parse(header: &str) -> Result<(Source, Vec<u64>), String> {
    let value = |key: &str| {
        let after = header.split_once(&format!("'{key}'")).map(|(_, after)| after.trim_start());
        after
            .and_then(|after| after.strip_prefix(':'))
            .map(str::trim_start)
            .ok_or_else(|| format!("no `{key}` in the header"))
    };
    let descr = value("descr")?;
    let descr = descr.strip_prefix('\'').and_then(|descr| descr.split_once('\'')).map(|(descr, _)| descr);
    let element = match descr {
        Some("|b1") => Source::Bool,
        Some("|u1") => Source::U8,
        Some("|i1") => Source::I8,
        Some("<u2") => Source::U16,
        Some("<i2") => Source::I16,
        Some("<u4") => Source::U32,
        Some("<i4") => Source::I32,
        Some("<u8") => Source::U64,
        Some("<i8") => Source::I64,
        Some("<f2") => Source::F16,
        Some("<f4") => Source::F32,
        Some("<f8") => Source::F64,
        found => {
            let found = found.unwrap_or("several fields");
            return Err(format!(
                "elements of type {found}; little-endian numbers are read, such as `x.astype('<f4')` gives"
            ));
        }
    };
    let shape = value("shape")?;
    let shape = shape.strip_prefix('(').and_then(|shape| shape.split_once(')')).ok_or("no shape in the header")?.0;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape: Vec<u64> = sizes
        .map(|size| size.parse().map_err(|_| format!("`{size}` is no dimension")))
        .collect::<Result<_, String>>()?;
    if shape.len() > RANK_MAX {
        return Err(format!("{} dimensions, at most {RANK_MAX} are read", shape.len()));
    }
    if value("fortran_order")?.starts_with("True") && shape.len() > 1 {
        return Err("stored column by column; save `numpy.ascontiguousarray(x)` in its place".to_owned());
    }
    Ok((element, shape))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file as NumPy writes it.
    pub(in super::super) fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        while (10 + header.len() + 1) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    }

    fn open(bytes: Vec<u8>) -> Result<Array, String> {
        let read = read(Path::new("x.npy"), "x", Box::new(std::io::Cursor::new(bytes)));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn headers_give_type_and_shape() {
        let array = open(npy("<f4", "(2, 3)", &[0; 24])).unwrap();
        assert_eq!((array.element, array.shape), (Source::F32, vec![2, 3]));
        assert_eq!(open(npy("|u1", "(7,)", &[0; 7])).unwrap().shape, [7]);
        assert_eq!(open(npy("<i8", "()", &[0; 8])).unwrap().shape, [0; 0]);
    }

    #[test]
    fn hostile_headers_are_refused() {
        let fortran = String::from_utf8_lossy(&npy("<f4", "(2, 3)", &[])[10..]).replace("False", "True");
        let mut fortran_file = npy("<f4", "(2, 3)", &[])[..8].to_vec();
        fortran_file.extend((fortran.len() as u16).to_le_bytes());
        fortran_file.extend(fortran.as_bytes());
        for (bytes, expected) in [
            (b"\x93NUMP".to_vec(), "ends within"),
            (b"PK\x03\x04\x00\x00\x00\x00".to_vec(), "not a .npy"),
            (b"\x93NUMPY\x09\x00".to_vec(), "format 9"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "at most"),
            (b"\x93NUMPY\x01\x00\xff\x00{}".to_vec(), "ends within"),
            (npy(">f4", "(2,)", &[]), "little-endian"),
            (npy("|O", "(2,)", &[]), "|O"),
            (npy("<f4", "(99999999999999999999,)", &[]), "no dimension"),
            (npy("<f4", "(1,1,1,1,1,1,1,1,1)", &[]), "9 dimensions"),
            (npy("<f4", "2", &[]), "no shape"),
            (fortran_file, "ascontiguousarray"),
        ] {
            let error = open(bytes).err().unwrap();
            assert!(error.contains(expected), "{error} has no {expected}");
        }
    }
}
