//! As much of the ZIP format as NumPy writes in a `.npz` file: entries that are stored or deflated, found by the directory at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;

use super::super::ImportError;

/// Longest directory that is read; an entry takes some 60 bytes of it.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;
/// The end of the directory and the longest comment that may follow it.
const END_BYTES_MAX: u64 = 22 + 65_535;

/// An open file and what is in it.
pub(super) struct Zip {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    deflated: bool,
    packed_bytes: u64,
    offset: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

impl Zip {
    /// Reads the directory.
    pub(super) fn open(path: &Path) -> Result<Zip, ImportError> {
        let file = File::open(path).map_err(ImportError::io("open", path))?;
        let length = file.metadata().map_err(ImportError::io("read", path))?.len();
        let read = |offset: u64, bytes: u64| {
            let mut buffer = vec![0; bytes as usize];
            file.read_exact_at(&mut buffer, offset).map(|()| buffer).map_err(ImportError::io("read", path))
        };
        let broken = || ImportError::damaged(path, "not a .npz file, or one that was not written to its end");
        let tail_bytes = length.min(END_BYTES_MAX);
        let tail_begin = length - tail_bytes;
        let tail = read(tail_begin, tail_bytes)?;
        // The end has 22 bytes and then a comment.
        let end = tail.windows(22).rposition(|bytes| bytes.starts_with(b"PK\x05\x06")).ok_or_else(broken)?;
        let mut bytes = u64::from(u32_at(&tail, end + 12).ok_or_else(broken)?);
        let mut offset = u64::from(u32_at(&tail, end + 16).ok_or_else(broken)?);
        // Long files have a second end with 64 bits, which a locator just before the first one points to.
        if let Some(locator) = end.checked_sub(20).filter(|&at| tail[at..].starts_with(b"PK\x06\x07")) {
            let at = u64_at(&tail, locator + 8).filter(|&at| at <= length.saturating_sub(56)).ok_or_else(broken)?;
            let long = read(at, 56)?;
            if !long.starts_with(b"PK\x06\x06") {
                return Err(broken());
            }
            bytes = u64_at(&long, 40).ok_or_else(broken)?;
            offset = u64_at(&long, 48).ok_or_else(broken)?;
        }
        if bytes > DIRECTORY_BYTES_MAX || offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(broken());
        }
        let directory = read(offset, bytes)?;
        let entries = entries(&directory).ok_or_else(broken)?;
        Ok(Zip { path: path.to_owned(), entries })
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the arrays: entries without their ending `.npy`.
    pub(super) fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    /// The content of an array's entry; none if there is no such entry.
    pub(super) fn entry(&self, name: &str) -> Result<Option<Box<dyn Read>>, ImportError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let io = || ImportError::io("read", &self.path);
        let mut file = File::open(&self.path).map_err(io())?;
        let mut header = [0; 30];
        file.read_exact_at(&mut header, entry.offset).map_err(io())?;
        let (Some(name_bytes), Some(extra_bytes)) = (u16_at(&header, 26), u16_at(&header, 28)) else { return Ok(None) };
        if !header.starts_with(b"PK\x03\x04") {
            return Err(ImportError::damaged(&self.path, format!("the entry of `{name}` is not where it should be")));
        }
        let begin = entry.offset + 30 + u64::from(name_bytes) + u64::from(extra_bytes);
        file.seek(SeekFrom::Start(begin)).map_err(io())?;
        let stored = BufReader::with_capacity(1 << 18, file.take(entry.packed_bytes));
        let reader: Box<dyn Read> = match entry.deflated {
            true => Box::new(BufReader::with_capacity(1 << 18, DeflateDecoder::new(stored))),
            false => Box::new(stored),
        };
        Ok(Some(reader))
    }
}

/// The entries of a directory; none if it is malformed or an entry is packed in another way.
fn entries(mut directory: &[u8]) -> Option<BTreeMap<String, Entry>> {
    let mut entries = BTreeMap::new();
    while directory.starts_with(b"PK\x01\x02") {
        let method = u16_at(directory, 10)?;
        let mut packed_bytes = u64::from(u32_at(directory, 20)?);
        let unpacked = u32_at(directory, 24)?;
        let name_bytes = usize::from(u16_at(directory, 28)?);
        let extra_bytes = usize::from(u16_at(directory, 30)?);
        let comment_bytes = usize::from(u16_at(directory, 32)?);
        let mut offset = u64::from(u32_at(directory, 42)?);
        let name = std::str::from_utf8(directory.get(46..46 + name_bytes)?).ok()?;
        let extra = directory.get(46 + name_bytes..46 + name_bytes + extra_bytes)?;
        let missing = [unpacked == u32::MAX, packed_bytes == u64::from(u32::MAX), offset == u64::from(u32::MAX)];
        if missing.contains(&true) {
            let [_, long_packed, long_offset] = long_fields(extra, missing)?;
            packed_bytes = long_packed.unwrap_or(packed_bytes);
            offset = long_offset.unwrap_or(offset);
        }
        let deflated = match method {
            0 => false,
            8 => true,
            _ => return None,
        };
        if let Some(name) = name.strip_suffix(".npy") {
            entries.insert(name.to_owned(), Entry { deflated, packed_bytes, offset });
        }
        directory = directory.get(46 + name_bytes + extra_bytes + comment_bytes..)?;
    }
    Some(entries)
}

/// Fields that need 64 bits, of those that do not fit in their usual place: unpacked length, packed length, offset.
fn long_fields(mut extra: &[u8], missing: [bool; 3]) -> Option<[Option<u64>; 3]> {
    const LONG: u16 = 1;
    loop {
        let (kind, bytes) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        if kind == LONG {
            break;
        }
        extra = extra.get(4 + bytes..)?;
    }
    let (mut fields, mut at) = ([None; 3], 4);
    for (field, missing) in fields.iter_mut().zip(missing) {
        if missing {
            *field = Some(u64_at(extra, at)?);
            at += 8;
        }
    }
    Some(fields)
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;

    /// A file with these entries, deflated where it says so.
    pub(in super::super) fn zip(files: &[(&str, Vec<u8>, bool)]) -> Vec<u8> {
        let (mut bytes, mut directory) = (Vec::new(), Vec::new());
        for (name, content, deflated) in files {
            let packed = match deflated {
                true => {
                    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                    encoder.write_all(content).unwrap();
                    encoder.finish().unwrap()
                }
                false => content.clone(),
            };
            let offset = bytes.len() as u32;
            let mut common = Vec::new();
            common.extend([20, 0, 0, 0, if *deflated { 8 } else { 0 }, 0]);
            common.extend([0; 8]); // time, date and CRC
            common.extend((packed.len() as u32).to_le_bytes());
            common.extend((content.len() as u32).to_le_bytes());
            common.extend((name.len() as u16).to_le_bytes());
            common.extend([0; 2]);
            bytes.extend(b"PK\x03\x04");
            bytes.extend(&common);
            bytes.extend(name.as_bytes());
            bytes.extend(packed);
            directory.extend(b"PK\x01\x02\x14\x00");
            directory.extend(common);
            directory.extend([0; 10]);
            directory.extend(offset.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let offset = bytes.len() as u32;
        bytes.extend(&directory);
        bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
        bytes.extend([files.len() as u8, 0, files.len() as u8, 0]);
        bytes.extend((directory.len() as u32).to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    }

    fn content(zip: &Zip, name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        zip.entry(name).unwrap().unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn stored_and_deflated_entries_are_read_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let long = b"again and ".repeat(1000);
        std::fs::write(&path, zip(&[("x.npy", long.clone(), true), ("y.npy", b"plain".to_vec(), false)])).unwrap();
        let zip = Zip::open(&path).unwrap();
        assert_eq!(zip.names(), ["x", "y"]);
        assert_eq!((content(&zip, "x"), content(&zip, "y")), (long, b"plain".to_vec()));
        assert!(zip.entry("z").unwrap().is_none());
    }

    #[test]
    fn files_that_are_cut_or_changed_are_refused_and_never_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let whole = zip(&[("x.npy", vec![1; 100], false)]);
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(Zip::open(&path).is_err(), "{cut}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            std::fs::write(&path, &changed).unwrap();
            if let Ok(zip) = Zip::open(&path) {
                for name in zip.names() {
                    if let Ok(Some(mut reader)) = zip.entry(&name) {
                        std::io::copy(&mut reader.as_mut().take(1000), &mut std::io::sink()).ok();
                    }
                }
            }
        }
    }
}
