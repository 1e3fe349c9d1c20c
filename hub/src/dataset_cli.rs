//! `omnilearn-hub dataset`: what the hub has to learn from. Works on the state folder, whether a hub runs on it or not.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use omnilearn_datasets::import::{ArrayOptions, CsvOptions, ImageOptions, Kind, Options};

/// `dataset ..`
#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Import a data set: image folders, CSV, text, NumPy or safetensors arrays, CIFAR-10, IDX.
    ///
    ///   omnilearn-hub dataset add flowers ~/pictures/flowers --size 64
    ///   omnilearn-hub dataset add cifar10 ~/cifar-10-batches-bin
    ///   omnilearn-hub dataset add shakespeare shakespeare.txt
    ///   omnilearn-hub dataset add sensors log.csv --length 140 --stride 10 --columns vibration,current
    ///   omnilearn-hub dataset add houses houses.csv --target price
    ///   omnilearn-hub dataset add iris iris.csv --label species
    ///   omnilearn-hub dataset add digits mnist.npz
    ///
    /// What the source is follows from what it looks like, or from --kind. It is read once, packed into
    /// files under their digests in the hub's state folder, and may be thrown away. A hub that runs on this
    /// folder knows the data set at once; a job names it with `dataset = "NAME"`, and agents fetch it when
    /// they need it.
    #[command(verbatim_doc_comment)]
    Add(Box<Add>),

    /// Show the data sets that were added.
    ///
    ///   omnilearn-hub dataset list
    ///   omnilearn-hub dataset list --json | jq '.[].name'
    #[command(verbatim_doc_comment)]
    List(List),

    /// Read every byte of a data set, or of all, and compare with the digests.
    ///
    ///   omnilearn-hub dataset verify
    ///   omnilearn-hub dataset verify flowers
    #[command(verbatim_doc_comment)]
    Verify(Verify),

    /// Forget a data set. Agents that have it in their cache keep it; jobs that name it end for want of it.
    ///
    ///   omnilearn-hub dataset remove flowers
    #[command(verbatim_doc_comment)]
    Remove(Remove),
}

/// Where the library is.
#[derive(Debug, Args)]
pub(crate) struct StateFolder {
    /// The hub's state folder. Default: $XDG_STATE_HOME/omnilearn-hub or ~/.local/state/omnilearn-hub.
    #[arg(long, value_name = "FOLDER", env = "OMNILEARN_STATE")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) state: StateFolder,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Name of a data set; without it, all.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) state: StateFolder,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Name of the data set.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) state: StateFolder,
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Name in job files: letters, digits, `-`, `_` and `.`.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// File or folder; several files only of text, which are one after the other.
    #[arg(value_name = "SOURCE", required = true)]
    pub(crate) sources: Vec<PathBuf>,

    /// What the source is: images, csv, text, arrays, cifar10 or idx. Default: what it looks like.
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    kind: Option<Kind>,

    /// Share of the samples that is set apart for testing, where the source does not say which: drawn, or the last of series and text.
    #[arg(long, value_name = "SHARE", default_value = "0.1")]
    test_part: f64,

    /// Which samples are drawn for testing.
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,

    /// Keep numbers and pixels as they are, rather than normalise them by the training samples' mean and deviation.
    #[arg(long)]
    no_normalise: bool,

    /// Leave out files and rows that cannot be read, and count them, rather than end with the first.
    #[arg(long)]
    skip_damaged: bool,

    /// Images: size in pixels to which all are resized, N or WIDTHxHEIGHT.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = parse_size, help_heading = "Image folders")]
    size: (u32, u32),

    /// Images: one channel instead of three.
    #[arg(long, help_heading = "Image folders")]
    grey: bool,

    /// CSV: columns that are inputs. Default: all that hold numbers and are nothing else.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "CSV")]
    columns: Vec<String>,

    /// CSV: columns with numbers to predict; with --length, those of the row after the window.
    #[arg(long = "target", value_name = "NAMES", value_delimiter = ',', help_heading = "CSV")]
    csv_targets: Vec<String>,

    /// CSV: column with the class; with --length, that of the window's last row.
    #[arg(long, value_name = "NAME", help_heading = "CSV")]
    label: Option<String>,

    /// CSV: column with a key, such as a person or a machine. Windows never span two, and `partition = "key"` goes by it.
    #[arg(long, value_name = "NAME", help_heading = "CSV")]
    key: Option<String>,

    /// CSV: rows of a window. Without it each row is a sample; with it and no target, a sample is its own target.
    #[arg(long, value_name = "ROWS", help_heading = "CSV")]
    length: Option<u32>,

    /// CSV: rows from the start of one window to that of the next.
    #[arg(long, value_name = "ROWS", default_value = "1", help_heading = "CSV")]
    stride: u32,

    /// CSV: what stands between values; a tab in files named .tsv.
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = parse_delimiter, help_heading = "CSV")]
    delimiter: u8,

    /// Arrays: name of the inputs. Default: x_train, x, inputs, data and the like.
    #[arg(long, value_name = "NAME", help_heading = "Arrays")]
    inputs: Option<String>,

    /// Arrays: name of the targets. Default: y_train, y, targets, labels and the like, if there are any.
    #[arg(long, value_name = "NAME", help_heading = "Arrays")]
    targets: Option<String>,

    /// Arrays: name of the test inputs. Default: x_test and the like, if there are any.
    #[arg(long, value_name = "NAME", help_heading = "Arrays")]
    test_inputs: Option<String>,

    /// Arrays: name of the test targets.
    #[arg(long, value_name = "NAME", help_heading = "Arrays")]
    test_targets: Option<String>,

    /// Arrays: name of the training samples' keys, for `partition = "key"`.
    #[arg(long, value_name = "NAME", help_heading = "Arrays")]
    keys: Option<String>,

    /// Arrays: images are [samples, height, width, channels].
    #[arg(long, help_heading = "Arrays")]
    channels_last: bool,

    /// Arrays: whole-numbered targets are numbers to predict and not classes.
    #[arg(long, help_heading = "Arrays")]
    regression: bool,

    #[command(flatten)]
    pub(crate) state: StateFolder,
}

impl Add {
    /// What the importers are told.
    pub(crate) fn options(&self) -> Options {
        Options {
            kind: self.kind,
            test_part: self.test_part,
            seed: self.seed,
            normalise: !self.no_normalise,
            skip_damaged: self.skip_damaged,
            images: ImageOptions { size: self.size, grey: self.grey },
            csv: CsvOptions {
                columns: self.columns.clone(),
                targets: self.csv_targets.clone(),
                label: self.label.clone(),
                key: self.key.clone(),
                length: self.length,
                stride: self.stride,
                delimiter: self.delimiter,
            },
            arrays: ArrayOptions {
                inputs: self.inputs.clone(),
                targets: self.targets.clone(),
                test_inputs: self.test_inputs.clone(),
                test_targets: self.test_targets.clone(),
                keys: self.keys.clone(),
                channels_last: self.channels_last,
                regression: self.regression,
            },
        }
    }
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    let known = || Kind::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = Kind::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, kind)| *kind).ok_or_else(|| format!("there are {}", known()))
}

fn parse_size(text: &str) -> Result<(u32, u32), String> {
    let (width, height) = text.split_once('x').unwrap_or((text, text));
    let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=4096).contains(side));
    side(width).zip(side(height)).ok_or_else(|| "write N or WIDTHxHEIGHT, each from 1 to 4096".to_owned())
}

fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        &[byte] if byte.is_ascii() && byte != b'\n' && byte != b'"' => Ok(byte),
        b"\\t" => Ok(b'\t'),
        _ => Err("one character, or \\t".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_delimiters_are_read_and_others_are_told_how_to_write_them() {
        assert_eq!((parse_size("32"), parse_size("64x48")), (Ok((32, 32)), Ok((64, 48))));
        for text in ["", "0", "1x", "x1", "5000", "3x3x3"] {
            assert!(parse_size(text).unwrap_err().contains("WIDTHxHEIGHT"), "{text}");
        }
        assert_eq!((parse_delimiter(";"), parse_delimiter("\\t")), (Ok(b';'), Ok(b'\t')));
        assert!(parse_delimiter("ab").is_err() && parse_delimiter("ä").is_err());
        assert!(parse_kind("picture").unwrap_err().contains("images"));
    }
}
