//! From arrays, read side by side, to records.

use std::io::Read;

use half::{bf16, f16};

use super::super::choose::Draw;
use super::super::{ImportError, Job, check_record};
use super::{Array, Source};
use crate::form::{CLASSES_MAX, Element, Form, Input, SAMPLES_MAX, Target};
use crate::pack::{Names, Packed, Packer, RecordTarget, Which};

/// Samples between two reports of progress.
const REPORT_EVERY: u64 = 1000;
/// Tokens that are converted at a time.
const TOKENS_PIECE: u64 = 1 << 16;

/// What there is.
pub(super) struct Arrays {
    pub(super) inputs: Array,
    pub(super) targets: Option<Array>,
    pub(super) test_inputs: Option<Array>,
    pub(super) test_targets: Option<Array>,
    pub(super) keys: Option<Array>,
}

/// Writes every sample.
pub(super) fn pack(job: &mut Job<'_>, arrays: Arrays) -> Result<Packed, ImportError> {
    let Arrays { mut inputs, targets, test_inputs, test_targets, keys } = arrays;
    if let ([length], None, false) = (&inputs.shape[..], &targets, inputs.element.is_real()) {
        let length = *length;
        return pack_tokens(job, &mut inputs, length);
    }
    let layout = Layout::new(job, &inputs, targets.as_ref())?;
    if test_inputs.is_some() && targets.is_some() != test_targets.is_some() {
        let problem = "test inputs and test targets come together, where the training samples have targets";
        return Err(ImportError::Options(problem.to_owned()));
    }
    let form = Form {
        input: Input::Array { element: layout.element, shape: layout.shape.clone(), normalise: None },
        target: layout.target.clone(),
        grouped: keys.is_some(),
    };
    let mut packer = job.library.packer(form, job.normalising())?;
    let has_test = test_inputs.is_some();
    let mut groups = Groups::default();
    let train = Side { inputs, targets, keys };
    write(job, &mut packer, &layout, train, if has_test { Some(Which::Train) } else { None }, &mut groups)?;
    if let Some(inputs) = test_inputs {
        // Partitions are of training samples; those for testing are all in group 0.
        let test = Side { inputs, targets: test_targets, keys: None };
        write(job, &mut packer, &layout, test, Some(Which::Test), &mut groups)?;
    }
    Ok(packer.finish(job.name, Names { classes: Vec::new(), groups: groups.names() })?)
}

/// Arrays that are read side by side.
struct Side {
    inputs: Array,
    targets: Option<Array>,
    keys: Option<Array>,
}

/// How one sample lies in the arrays and in its record.
struct Layout {
    /// Of a sample in the array.
    source_shape: Vec<u64>,
    shape: Vec<u32>,
    element: Element,
    target: Target,
    channels_last: bool,
}

impl Layout {
    fn new(job: &mut Job<'_>, inputs: &Array, targets: Option<&Array>) -> Result<Layout, ImportError> {
        let source_shape = inputs.shape.get(1..).unwrap_or_default().to_vec();
        if source_shape.is_empty() {
            return Err(inputs.wrong("a vector; the first dimension counts samples, and more must follow"));
        }
        let element = match inputs.element {
            Source::U8 | Source::Bool => Element::U8,
            element if element.is_real() => Element::F32,
            _ => Element::I32,
        };
        let mut shape = check_record(&source_shape, element.bytes() as u64).map_err(|problem| inputs.wrong(problem))?;
        let channels_last = job.options.arrays.channels_last;
        match (&shape[..], channels_last) {
            (&[height, width, channels], true) => shape = vec![channels, height, width],
            (_, true) => {
                let problem = format!("--channels-last is for images, samples have shape {shape:?}");
                return Err(inputs.wrong(problem));
            }
            (&[height, width, channels @ (1 | 3 | 4)], false) if height > 4 && width > 4 => job.notes.push(format!(
                "samples have shape [{height}, {width}, {channels}]; if these are images with their channels last, add --channels-last"
            )),
            // Images of one channel.
            (&[height, width], false) if element == Element::U8 => shape = vec![1, height, width],
            _ => {}
        }
        let target = match targets {
            None => Target::None {},
            Some(targets) => target(job, targets)?,
        };
        Ok(Layout { source_shape, shape, element, target, channels_last })
    }
}

fn target(job: &Job<'_>, targets: &Array) -> Result<Target, ImportError> {
    let shape = targets.shape.get(1..).unwrap_or_default();
    let is_one = shape.iter().all(|&size| size == 1);
    let regression = job.options.arrays.regression || targets.element.is_real();
    match (regression, is_one) {
        (true, true) => Ok(Target::Values { shape: vec![1] }),
        (true, false) => {
            let shape = check_record(shape, 4).map_err(|problem| targets.wrong(problem))?;
            Ok(Target::Values { shape })
        }
        (false, true) => Ok(Target::Classes { count: 1 }),
        (false, false) => Err(targets.wrong(format!(
            "whole numbers of shape {shape:?} for each sample are no classes; with --regression they are numbers to predict"
        ))),
    }
}

/// Writes all samples of a side; `which` is none where they are drawn.
fn write(
    job: &mut Job<'_>,
    packer: &mut Packer,
    layout: &Layout,
    mut side: Side,
    which: Option<Which>,
    groups: &mut Groups,
) -> Result<(), ImportError> {
    let samples = side.inputs.shape.first().copied().unwrap_or(0);
    if side.inputs.shape.get(1..) != Some(&layout.source_shape[..]) {
        let problem = format!(
            "samples of shape {:?}, those to learn from have {:?}",
            side.inputs.shape.get(1..),
            layout.source_shape
        );
        return Err(side.inputs.wrong(problem));
    }
    if samples == 0 || samples > SAMPLES_MAX {
        return Err(side.inputs.wrong(format!("{samples} samples, 1 to {SAMPLES_MAX} are possible")));
    }
    for other in side.targets.iter().chain(&side.keys) {
        if other.shape.first() != Some(&samples) {
            return Err(other.wrong(format!("shape {:?} for {samples} samples", other.shape)));
        }
    }
    if let Some(keys) = side.keys.as_ref().filter(|keys| keys.element.is_real() || keys.shape.len() != 1) {
        return Err(keys.wrong("keys are a vector of whole numbers"));
    }
    let elements = layout.source_shape.iter().product::<u64>() as usize;
    let target_elements = match &layout.target {
        Target::Values { shape } => shape.iter().product::<u32>() as usize,
        _ => 1,
    };
    let mut draw = Draw::new(job.options.seed, 0, samples, job.options.test_part);
    let (mut record, mut values) = (Vec::new(), Vec::new());
    for sample in 0..samples {
        let raw = row(&mut side.inputs, elements, sample)?;
        encode(&side.inputs, layout.element, &raw, sample, &mut record)?;
        if layout.channels_last {
            record = planes(&record, layout);
        }
        let target = match (&mut side.targets, &layout.target) {
            (Some(targets), Target::Classes { .. }) => {
                let class = whole(targets, sample)?;
                RecordTarget::Class(u32::try_from(class).ok().filter(|&class| class < CLASSES_MAX).ok_or_else(
                    || {
                        let problem = format!(
                            "sample {sample} has class {class}; 0 to {} are possible, or add --regression",
                            CLASSES_MAX - 1
                        );
                        targets.wrong(problem)
                    },
                )?)
            }
            (Some(targets), Target::Values { .. }) => {
                let raw = row(targets, target_elements, sample)?;
                values.clear();
                for index in 0..target_elements {
                    let value = real(targets.element, &raw, index) as f32;
                    if !value.is_finite() {
                        return Err(targets.wrong(format!("sample {sample} is not finite at index {index}")));
                    }
                    values.push(value);
                }
                RecordTarget::Values(&values)
            }
            _ => RecordTarget::None,
        };
        let group = match &mut side.keys {
            Some(keys) => {
                let key = whole(keys, sample)?;
                groups.number(key).ok_or_else(|| keys.wrong(format!("more than {CLASSES_MAX} different keys")))?
            }
            None => 0,
        };
        packer.add(which.unwrap_or_else(|| draw.next()), &record, target, group)?;
        if sample % REPORT_EVERY == REPORT_EVERY - 1 {
            job.progress(sample + 1, Some(samples), "samples");
        }
    }
    Ok(())
}

#[derive(Default)]
struct Groups(super::super::Numbering);

impl Groups {
    fn number(&mut self, key: i64) -> Option<u32> {
        self.0.number(&key.to_string())
    }

    fn names(self) -> Vec<String> {
        self.0.names
    }
}

/// The bytes of the next sample.
fn row(array: &mut Array, elements: usize, sample: u64) -> Result<Vec<u8>, ImportError> {
    let mut raw = vec![0; elements * array.element.bytes()];
    match array.reader.read_exact(&mut raw) {
        Ok(()) => Ok(raw),
        Err(cause) => Err(array.wrong(format!("sample {sample} of {:?} cannot be read: {cause}", array.shape.first()))),
    }
}

/// The next whole number.
fn whole(array: &mut Array, sample: u64) -> Result<i64, ImportError> {
    let raw = row(array, 1, sample)?;
    integer(array.element, &raw, 0)
        .ok_or_else(|| array.wrong(format!("sample {sample} has a number of more than 63 bits or with a fraction")))
}

/// A record's elements from an array's.
fn encode(array: &Array, element: Element, raw: &[u8], sample: u64, record: &mut Vec<u8>) -> Result<(), ImportError> {
    record.clear();
    let elements = raw.len() / array.element.bytes();
    match element {
        // Truth values are black and white.
        Element::U8 if array.element == Source::Bool => {
            record.extend(raw.iter().map(|&byte| if byte == 0 { 0 } else { 255 }))
        }
        Element::U8 => record.extend_from_slice(raw),
        Element::F32 => {
            for index in 0..elements {
                let value = real(array.element, raw, index) as f32;
                if !value.is_finite() {
                    return Err(array.wrong(format!("sample {sample} is not finite at index {index}")));
                }
                record.extend(value.to_le_bytes());
            }
        }
        Element::I32 => {
            for index in 0..elements {
                let value = integer(array.element, raw, index).and_then(|value| i32::try_from(value).ok());
                let value = value
                    .ok_or_else(|| array.wrong(format!("sample {sample} needs more than 32 bits at index {index}")))?;
                record.extend(value.to_le_bytes());
            }
        }
    }
    Ok(())
}

/// `[height, width, channels]` as `[channels, height, width]`.
fn planes(record: &[u8], layout: &Layout) -> Vec<u8> {
    let (channels, width) = (layout.shape[0] as usize, layout.element.bytes());
    let pixel = channels * width;
    (0..channels)
        .flat_map(|channel| record.chunks_exact(pixel).flat_map(move |pixel| &pixel[channel * width..][..width]))
        .copied()
        .collect()
}

fn bytes_at<const N: usize>(raw: &[u8], index: usize) -> [u8; N] {
    raw.as_chunks::<N>().0[index]
}

fn real(element: Source, raw: &[u8], index: usize) -> f64 {
    match element {
        Source::F16 => f16::from_le_bytes(bytes_at(raw, index)).to_f64(),
        Source::Bf16 => bf16::from_le_bytes(bytes_at(raw, index)).to_f64(),
        Source::F32 => f32::from_le_bytes(bytes_at(raw, index)).into(),
        Source::F64 => f64::from_le_bytes(bytes_at(raw, index)),
        _ => integer(element, raw, index).map_or(f64::NAN, |value| value as f64),
    }
}

/// None for what is no whole number of 63 bits and a sign.
fn integer(element: Source, raw: &[u8], index: usize) -> Option<i64> {
    Some(match element {
        Source::Bool | Source::U8 => raw[index].into(),
        Source::I8 => (raw[index] as i8).into(),
        Source::U16 => u16::from_le_bytes(bytes_at(raw, index)).into(),
        Source::I16 => i16::from_le_bytes(bytes_at(raw, index)).into(),
        Source::U32 => u32::from_le_bytes(bytes_at(raw, index)).into(),
        Source::I32 => i32::from_le_bytes(bytes_at(raw, index)).into(),
        Source::U64 => i64::try_from(u64::from_le_bytes(bytes_at(raw, index))).ok()?,
        Source::I64 => i64::from_le_bytes(bytes_at(raw, index)),
        Source::F16 | Source::Bf16 | Source::F32 | Source::F64 => return None,
    })
}

/// A vector of tokens; its last part is for testing.
fn pack_tokens(job: &mut Job<'_>, tokens: &mut Array, length: u64) -> Result<Packed, ImportError> {
    let form = Form {
        input: Input::Tokens { element: Element::I32, vocabulary: 1 },
        target: crate::form::Target::None {},
        grouped: false,
    };
    let test = (length as f64 * job.options.test_part).round() as u64;
    let mut packer = job.library.packer(form, crate::pack::Normalising::Off)?;
    let mut record = Vec::new();
    let mut done = 0;
    for (which, part) in [(Which::Train, length - test.min(length)), (Which::Test, test)] {
        let end = done + part;
        while done < end {
            let piece = (end - done).min(TOKENS_PIECE);
            let raw = row(tokens, piece as usize, done)?;
            encode(tokens, Element::I32, &raw, done, &mut record)?;
            let largest = record.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as u32).max();
            let largest = largest.unwrap_or(0);
            if largest >= CLASSES_MAX {
                let problem = format!(
                    "token {} among those from {done} on; 0 to {} are possible",
                    largest as i32,
                    CLASSES_MAX - 1
                );
                return Err(tokens.wrong(problem));
            }
            packer.add_tokens(which, &record)?;
            packer.see_token(largest);
            done += piece;
            job.progress(done, Some(length), "tokens");
        }
    }
    Ok(packer.finish(job.name, Names::default())?)
}

#[cfg(test)]
mod tests;
