//! What a source looks like, and which samples are for testing.

use std::fs;
use std::path::{Path, PathBuf};

use omnilearn_wire::sampling::{SplitMix64, derive_seed};

use super::ImportError;
use crate::pack::Which;

/// Kinds of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IDX files, as those of MNIST.
    Idx,
    /// CIFAR-10's binary version.
    Cifar10,
    /// A folder of images for each class.
    Images,
    /// NumPy's or safetensors' arrays.
    Arrays,
    /// Text, byte for byte.
    Text,
    /// Tables and series.
    Csv,
}

impl Kind {
    /// Every kind, by its name on the command line.
    pub const ALL: [(&'static str, Kind); 6] = [
        ("images", Kind::Images),
        ("csv", Kind::Csv),
        ("text", Kind::Text),
        ("arrays", Kind::Arrays),
        ("cifar10", Kind::Cifar10),
        ("idx", Kind::Idx),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| *name)
    }
}

/// The kind that sources look like.
pub(super) fn kind(sources: &[PathBuf]) -> Result<Kind, ImportError> {
    let [source] = sources else {
        return if sources.iter().all(|source| has_ending(source, &["txt", "text", "md"])) {
            Ok(Kind::Text)
        } else {
            Err(ImportError::Options("several sources are taken as text only; say so with --kind text".to_owned()))
        };
    };
    let data = fs::metadata(source).map_err(ImportError::io("read", source))?;
    let found = if data.is_dir() { folder_kind(source)? } else { file_kind(source) };
    found.ok_or_else(|| {
        let kinds: Vec<&str> = Kind::ALL.iter().map(|(name, _)| *name).collect();
        let problem = format!("{} could be anything; say what with --kind {}", source.display(), kinds.join("|"));
        ImportError::Options(problem)
    })
}

pub(super) fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    endings.iter().any(|ending| name.strip_suffix(ending).is_some_and(|rest| rest.ends_with('.')))
}

fn file_kind(source: &Path) -> Option<Kind> {
    [
        (Kind::Csv, &["csv", "csv.gz", "tsv", "tsv.gz"][..]),
        (Kind::Arrays, &["npy", "npz", "safetensors"]),
        (Kind::Text, &["txt", "text", "md"]),
    ]
    .into_iter()
    .find_map(|(kind, endings)| has_ending(source, endings).then_some(kind))
}

fn folder_kind(source: &Path) -> Result<Option<Kind>, ImportError> {
    let entries = fs::read_dir(source).map_err(ImportError::io("read", source))?;
    let entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let named = |part: &str| {
        entries.iter().any(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part)))
    };
    Ok(if named("data_batch_1.bin") {
        Some(Kind::Cifar10)
    } else if named("-idx3-ubyte") {
        Some(Kind::Idx)
    } else if entries.iter().any(|path| has_ending(path, &["npy"])) {
        Some(Kind::Arrays)
    } else if entries.iter().any(|path| path.is_dir()) {
        Some(Kind::Images)
    } else {
        None
    })
}

/// Draws for each sample of a sequence whether it is for testing: as many as the part says, to the nearest, whichever they are.
#[derive(Debug)]
pub(super) struct Draw {
    generator: SplitMix64,
    left: u64,
    test_left: u64,
}

impl Draw {
    /// For this many samples. `stream` tells sequences of one import apart.
    pub(super) fn new(seed: u64, stream: u64, samples: u64, test_part: f64) -> Draw {
        let mut test_left = (samples as f64 * test_part).round() as u64;
        if samples > 0 {
            test_left = test_left.min(samples - 1); // something is to be learned from
        }
        Draw { generator: SplitMix64::new(derive_seed(seed, &[stream])), left: samples, test_left }
    }

    /// Where the next sample goes: selection sampling, in which each set of the right size is as likely as any other.
    pub(super) fn next(&mut self) -> Which {
        let drawn = self.generator.below(self.left.max(1)) < self.test_left;
        self.left = self.left.saturating_sub(1);
        if drawn {
            self.test_left -= 1;
            Which::Test
        } else {
            Which::Train
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_drawn_as_the_part_says() {
        for (samples, part, expected) in [(100, 0.1, 10), (7, 0.5, 4), (1, 0.9, 0), (10, 0.0, 0), (0, 0.5, 0)] {
            let mut draw = Draw::new(1, 2, samples, part);
            let drawn = (0..samples).filter(|_| draw.next() == Which::Test).count();
            assert_eq!(drawn, expected, "{samples} {part}");
        }
        let drawn = |seed| {
            let mut draw = Draw::new(seed, 0, 50, 0.2);
            (0..50).map(|_| draw.next() == Which::Test).collect::<Vec<bool>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn sources_are_told_by_what_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, expected) in
            [("a.CSV", Kind::Csv), ("a.tsv.gz", Kind::Csv), ("a.npz", Kind::Arrays), ("a.txt", Kind::Text)]
        {
            fs::write(path(name), "").unwrap();
            assert_eq!(kind(&[path(name)]).unwrap(), expected, "{name}");
        }
        fs::write(path("a.bin"), "").unwrap();
        assert!(kind(&[path("a.bin")]).unwrap_err().to_string().contains("--kind"));
        assert!(kind(&[path("missing.csv")]).is_err());
        assert_eq!(kind(&[path("a.txt"), path("b.md")]).unwrap(), Kind::Text);
        for (inside, expected) in [
            ("data_batch_1.bin", Kind::Cifar10),
            ("train-images-idx3-ubyte.gz", Kind::Idx),
            ("x.npy", Kind::Arrays),
            ("cat/1.png", Kind::Images),
        ] {
            let file = path(&format!("folder-{}", expected.name())).join(inside);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            assert_eq!(kind(&[path(&format!("folder-{}", expected.name()))]).unwrap(), expected, "{inside}");
        }
    }
}
