//! Text, byte for byte: the last part of each file is for testing.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use super::{ImportError, Job};
use crate::form::{Element, Form, Input, Target};
use crate::pack::{Names, Normalising, Packed, Which};

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes are tokens below this.
const VOCABULARY: u32 = 256;

pub(super) fn import(job: &mut Job<'_>, sources: &[PathBuf]) -> Result<Packed, ImportError> {
    let lengths: Vec<u64> = sources
        .iter()
        .map(|path| std::fs::metadata(path).map(|data| data.len()).map_err(ImportError::io("read", path)))
        .collect::<Result<_, _>>()?;
    let total = lengths.iter().sum();
    let form = Form {
        input: Input::Tokens { element: Element::U8, vocabulary: VOCABULARY },
        target: Target::None {},
        grouped: false,
    };
    let mut packer = job.library.packer(form, Normalising::Off)?;
    let (mut piece, mut done) = (vec![0; PIECE_BYTES], 0);
    for (path, &length) in sources.iter().zip(&lengths) {
        let test = (length as f64 * job.options.test_part).round() as u64;
        let mut file = File::open(path).map_err(ImportError::io("open", path))?;
        for (which, part) in [(Which::Train, length - test.min(length)), (Which::Test, test)] {
            let mut left = part;
            while left > 0 {
                let wanted = left.min(PIECE_BYTES as u64) as usize;
                file.read_exact(&mut piece[..wanted]).map_err(ImportError::io("read", path))?;
                packer.add_tokens(which, &piece[..wanted])?;
                left -= wanted as u64;
                done += wanted as u64;
                job.progress(done, Some(total), "bytes");
            }
        }
    }
    Ok(packer.finish(job.name, Names::default())?)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Place, all, integers, needs};
    use super::super::{Options, import};

    #[test]
    fn windows_predict_the_next_byte_and_the_end_is_for_testing() {
        let place = Place::new();
        let source = place.write("a.txt", "abcdefghijklmnopqrst");
        place.import(&source, &Options { test_part: 0.25, ..Options::default() }).unwrap();
        let [train, test] = all(&place.open(), &needs((true, &[4]), (true, &[4])));
        assert_eq!(integers(&train.inputs), b"abcdefghijkl".map(i32::from));
        assert_eq!(integers(&train.targets), b"bcdefghijklm".map(i32::from));
        assert_eq!(integers(&test.inputs), b"pqrs".map(i32::from));
        assert_eq!(integers(&test.targets), b"qrst".map(i32::from));
    }

    #[test]
    fn several_files_are_one_stream_and_an_empty_one_is_refused() {
        let place = Place::new();
        let sources = [place.write("a.txt", "abcd"), place.write("b.txt", "efgh")];
        let options = Options { test_part: 0.5, ..Options::default() };
        import(&place.library, "mine", &sources, &options, &mut |_| ()).unwrap();
        let [train, test] = all(&place.open(), &needs((true, &[3]), (true, &[3])));
        assert_eq!(
            (integers(&train.inputs), integers(&test.inputs)),
            (&b"abe".map(i32::from)[..], &b"cdg".map(i32::from)[..])
        );
        let place = Place::new();
        let empty = place.write("a.txt", "");
        assert!(place.refused(&empty, &Options::default()).contains("no training samples"));
    }
}
