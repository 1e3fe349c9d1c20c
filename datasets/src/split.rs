//! One part of a data set, read where its samples lie.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::DatasetError;
use crate::fit::{Fit, TargetUse};
use crate::form::{Element, Form, Input, Target};

/// Neighbours in a file are read at once, up to this many bytes: a test set in order is a few reads instead of one a sample.
const READ_BYTES: usize = 64 << 10;

/// Channels up to which the normalised value of each byte is kept in a table.
const TABLES_MAX: usize = 256;

/// Elements of one tensor of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Real numbers.
    F32(Vec<f32>),
    /// Whole numbers.
    I32(Vec<i32>),
}

/// Samples as a kernel takes them, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// `[samples, ..]` in the shape of [`Fit::input_shape`].
    pub inputs: Values,
    /// `[samples, ..]` in the shape of [`Fit::target_shape`].
    pub targets: Values,
}

/// Changes the raw bytes of the sample at an index of a batch: source, and where the result goes.
pub(crate) type Change<'a> = &'a mut dyn FnMut(usize, &[u8], &mut Vec<u8>);

/// One part of a data set. Clones share its file.
#[derive(Clone, Debug)]
pub struct Split(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    path: PathBuf,
    form: Form,
    /// Records; in a stream, tokens.
    length: u64,
    /// Where the first record begins.
    begin: u64,
    record_bytes: usize,
    /// Targets that do not lie in the records, as IDX has them.
    labels: Option<Vec<u8>>,
    scale: Scale,
}

/// How elements become numbers.
#[derive(Debug)]
enum Scale {
    /// As they are.
    Plain,
    /// Each byte's number, for each channel or for all.
    Tables(Vec<[f32; 256]>),
    /// Mean and deviation, for each channel or for all.
    Affine(Vec<(f32, f32)>),
}

impl Scale {
    fn new(form: &Form) -> Scale {
        let Input::Array { element, normalise, .. } = &form.input else { return Scale::Plain };
        let channels: Vec<(f32, f32)> = match normalise {
            Some(normalise) => normalise.mean.iter().copied().zip(normalise.deviation.iter().copied()).collect(),
            None => vec![(0.0, 1.0)],
        };
        match element {
            Element::U8 if channels.len() <= TABLES_MAX => {
                let table = |&(mean, deviation): &(f32, f32)| {
                    std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / deviation)
                };
                Scale::Tables(channels.iter().map(table).collect())
            }
            _ if normalise.is_none() && *element != Element::U8 => Scale::Plain,
            _ => Scale::Affine(channels),
        }
    }

    /// Appends the numbers of one sample.
    fn convert(&self, element: Element, bytes: &[u8], out: &mut Vec<f32>) {
        let raw = |bytes: &[u8], index: usize| match element {
            Element::U8 => f32::from(bytes[index]) / 255.0,
            Element::F32 => f32::from_le_bytes(four(bytes, index)),
            Element::I32 => i32::from_le_bytes(four(bytes, index)) as f32,
        };
        let elements = bytes.len() / element.bytes();
        match self {
            Scale::Plain => out.extend((0..elements).map(|index| raw(bytes, index))),
            Scale::Tables(tables) => {
                for (table, channel) in tables.iter().zip(bytes.chunks(bytes.len() / tables.len())) {
                    out.extend(channel.iter().map(|&byte| table[usize::from(byte)]));
                }
            }
            Scale::Affine(channels) => {
                let length = elements / channels.len();
                for (channel, &(mean, deviation)) in channels.iter().enumerate() {
                    let range = channel * length..(channel + 1) * length;
                    out.extend(range.map(|index| (raw(bytes, index) - mean) / deviation));
                }
            }
        }
    }
}

fn four(bytes: &[u8], index: usize) -> [u8; 4] {
    bytes.as_chunks::<4>().0[index]
}

impl Split {
    /// A file of records or tokens whose form and length have been checked by a manifest.
    ///
    /// # Errors
    /// [`DatasetError::Length`] for a file of another length.
    pub(crate) fn packed(file: File, path: PathBuf, form: Form, length: u64) -> Result<Split, DatasetError> {
        let record_bytes = form.record_bytes().unwrap_or(0);
        let found =
            file.metadata().map_err(|cause| DatasetError::Io { action: "read", path: path.clone(), cause })?.len();
        let expected = length.saturating_mul(record_bytes);
        if found != expected {
            return Err(DatasetError::Length { path, found, samples: length, expected });
        }
        let scale = Scale::new(&form);
        let record_bytes = record_bytes as usize;
        Ok(Split(Arc::new(Inner { file, path, form, length, begin: 0, record_bytes, labels: None, scale })))
    }

    /// Images that begin at a byte of a file, and their labels.
    pub(crate) fn images(file: File, path: PathBuf, form: Form, begin: u64, labels: Vec<u8>) -> Split {
        let (scale, record_bytes, length) = (Scale::new(&form), form.input_bytes(), labels.len() as u64);
        Split(Arc::new(Inner { file, path, form, length, begin, record_bytes, labels: Some(labels), scale }))
    }

    /// Records; in a stream, tokens.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    fn fail(&self, cause: io::Error) -> DatasetError {
        DatasetError::Io { action: "read", path: self.0.path.clone(), cause }
    }

    /// Reads samples in the order given.
    pub(crate) fn read(
        &self,
        samples: &[u32],
        fit: &Fit,
        mut change: Option<Change<'_>>,
    ) -> Result<Batch, DatasetError> {
        if let TargetUse::Next(window) = fit.target {
            return self.read_windows(samples, window);
        }
        let Input::Array { element, .. } = self.0.form.input else {
            return Err(self.fail(io::Error::other("a stream of tokens has no records")));
        };
        let input_bytes = self.0.form.input_bytes();
        let mut inputs = Building::new(fit.integers, samples.len() * input_bytes / element.bytes());
        let target_elements = fit.target_shape.iter().product::<usize>();
        let mut targets = Building::new(fit.target == TargetUse::Class, samples.len() * target_elements);
        let (mut index, mut changed) = (0, Vec::new());
        self.each_record(samples, |sample, record| {
            let (input, rest) = record.split_at(input_bytes);
            let input = match &mut change {
                Some(change) => {
                    changed.clear();
                    change(index, input, &mut changed);
                    &changed[..]
                }
                None => input,
            };
            match &mut inputs {
                Building::F32(out) => self.0.scale.convert(element, input, out),
                Building::I32(out) => {
                    out.extend(input.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)));
                }
            }
            match (fit.target, &mut targets) {
                (TargetUse::Class, Building::I32(out)) => out.push(self.class(sample, rest)?),
                (TargetUse::Values, Building::F32(out)) => {
                    let values = rest.as_chunks::<4>().0.iter().take(target_elements);
                    out.extend(values.map(|bytes| f32::from_le_bytes(*bytes)));
                }
                _ => {}
            }
            index += 1;
            Ok(())
        })?;
        let inputs = inputs.values();
        let targets = if fit.target == TargetUse::Input { inputs.clone() } else { targets.values() };
        Ok(Batch { inputs, targets })
    }

    /// The class of a sample, whose record goes on with `rest` after its input.
    fn class(&self, sample: u32, rest: &[u8]) -> Result<i32, DatasetError> {
        let label = match &self.0.labels {
            Some(labels) => labels.get(sample as usize).map(|&label| u32::from(label)),
            None => rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)),
        };
        let classes = match self.0.form.target {
            Target::Classes { count } => count,
            _ => 0,
        };
        match label {
            Some(label) if label < classes => Ok(label as i32), // far below 2^31
            label => {
                let (path, label) = (self.0.path.clone(), label.unwrap_or(u32::MAX));
                Err(DatasetError::Label { path, label, sample: sample as usize, classes })
            }
        }
    }

    /// Calls `act` with each sample's record, in the order given.
    fn each_record(
        &self,
        samples: &[u32],
        mut act: impl FnMut(u32, &[u8]) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let Inner { length, record_bytes, begin, .. } = *self.0;
        let run_max = (READ_BYTES / record_bytes.max(1)).max(1);
        let (mut buffer, mut rest) = (Vec::new(), samples);
        while let Some(&first) = rest.first() {
            let is_next = |(offset, sample): &(usize, &u32)| u64::from(**sample) == u64::from(first) + *offset as u64;
            let run = rest.iter().take(run_max).enumerate().take_while(is_next).count();
            let end = u64::from(first) + run as u64;
            if end > length {
                let sample = u64::from(first).max(length);
                return Err(DatasetError::Sample { path: self.0.path.clone(), sample, samples: length });
            }
            buffer.resize(run * record_bytes, 0);
            let offset = begin + u64::from(first) * record_bytes as u64;
            self.0.file.read_exact_at(&mut buffer, offset).map_err(|cause| self.fail(cause))?;
            for (sample, record) in (first..).zip(buffer.chunks_exact(record_bytes)) {
                act(sample, record)?;
            }
            rest = &rest[run..];
        }
        Ok(())
    }

    /// Sample i is the tokens from `i * window` on; what is to be predicted is one token further on.
    fn read_windows(&self, samples: &[u32], window: u32) -> Result<Batch, DatasetError> {
        let Input::Tokens { element, vocabulary } = self.0.form.input else {
            return Err(self.fail(io::Error::other("records are no stream of tokens")));
        };
        let (window, width) = (window as usize, element.bytes());
        let mut buffer = vec![0; (window + 1) * width];
        let (mut inputs, mut targets) = (Vec::with_capacity(samples.len() * window), Vec::new());
        for &sample in samples {
            let start = u64::from(sample) * window as u64;
            if start + window as u64 >= self.0.length {
                let samples = self.0.length.saturating_sub(1) / window as u64;
                return Err(DatasetError::Sample { path: self.0.path.clone(), sample: sample.into(), samples });
            }
            self.0.file.read_exact_at(&mut buffer, start * width as u64).map_err(|cause| self.fail(cause))?;
            let token = |index: usize| match element {
                Element::U8 => i32::from(buffer[index]),
                _ => i32::from_le_bytes(four(&buffer, index)),
            };
            if let Some(label) = (0..=window).map(token).find(|&token| token as u32 >= vocabulary) {
                let (path, sample) = (self.0.path.clone(), sample as usize);
                return Err(DatasetError::Label { path, label: label as u32, sample, classes: vocabulary });
            }
            inputs.extend((0..window).map(token));
            targets.extend((1..=window).map(token));
        }
        Ok(Batch { inputs: Values::I32(inputs), targets: Values::I32(targets) })
    }

    /// The class and the group of every sample, 0 where there are none. Reads the file once.
    ///
    /// # Errors
    /// [`DatasetError`] if it cannot be read or holds a class that there is not.
    pub fn strata(&self) -> Result<Vec<(u32, u32)>, DatasetError> {
        let form = &self.0.form;
        if matches!(form.input, Input::Tokens { .. }) {
            return Ok(Vec::new());
        }
        let has_classes = matches!(form.target, Target::Classes { .. });
        let (target_bytes, input_bytes) = (form.target_bytes(), form.input_bytes());
        let mut strata = Vec::with_capacity(self.0.length as usize);
        let mut tail = vec![0; self.0.record_bytes - input_bytes];
        for sample in 0..self.0.length {
            if self.0.labels.is_none() && !tail.is_empty() {
                let offset = sample * self.0.record_bytes as u64 + input_bytes as u64;
                self.0.file.read_exact_at(&mut tail, offset).map_err(|cause| self.fail(cause))?;
            }
            let class = if has_classes { self.class(sample as u32, &tail)? as u32 } else { 0 };
            let group = if form.grouped { u32::from_le_bytes(four(&tail[target_bytes..], 0)) } else { 0 };
            strata.push((class, group));
        }
        Ok(strata)
    }
}

/// Values of a batch that grows.
enum Building {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Building {
    fn new(integers: bool, capacity: usize) -> Building {
        if integers { Building::I32(Vec::with_capacity(capacity)) } else { Building::F32(Vec::with_capacity(capacity)) }
    }

    fn values(self) -> Values {
        match self {
            Building::F32(values) => Values::F32(values),
            Building::I32(values) => Values::I32(values),
        }
    }
}
