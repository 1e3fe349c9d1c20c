//! What the samples of a packed data set look like.
//!
//! A file of [`Input::Array`] holds records of equal length without anything between them: the input's elements, row-major and
//! little-endian; then the target, a class number as `u32` or `f32` values; then, where samples are grouped, the group's number as `u32`.
//! A file of [`Input::Tokens`] holds nothing but tokens.

use omnilearn_wire::dataset::DatasetSpec;
use serde::{Deserialize, Serialize};

/// Most dimensions of a sample: a kernel's tensors have one more for the batch.
pub const RANK_MAX: usize = 5;
/// Longest record, in bytes.
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Most classes, groups or different tokens.
pub const CLASSES_MAX: u32 = 1 << 20;
/// Most samples of a split: positions on the wire have 32 bits.
pub const SAMPLES_MAX: u64 = u32::MAX as u64 - 1;

/// Type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// Unsigned bytes, such as pixels; 255 is read as 1.0.
    U8,
    /// Real numbers.
    F32,
    /// Whole numbers, such as tokens.
    I32,
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::F32 | Element::I32 => 4,
        }
    }
}

/// What a kernel is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Input {
    /// Each sample has an array of its own.
    Array {
        /// Type of its elements.
        element: Element,
        /// Its shape: `[channels, height, width]` for images, `[channels, length]` for series, `[features]` for tables.
        shape: Vec<u32>,
        /// How elements become inputs, if they are not taken as they are.
        normalise: Option<Normalise>,
    },
    /// Samples are cut out of one stream, as long as the kernel wants them; what is to be predicted is the next token.
    Tokens {
        /// `U8` for bytes, or `I32`.
        element: Element,
        /// Number of different tokens; all are below it.
        vocabulary: u32,
    },
}

/// `(value - mean) / deviation`, where bytes have been divided by 255 before. One number for each index of the shape's first
/// dimension (a channel, a column), or one for all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalise {
    /// Means over the training samples.
    pub mean: Vec<f32>,
    /// Standard deviations over the training samples; over zero.
    pub deviation: Vec<f32>,
}

/// What a kernel's output is compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Target {
    /// Nothing but what the inputs themselves give.
    None {},
    /// A class.
    Classes {
        /// How many there are.
        count: u32,
    },
    /// Numbers to predict, not normalised.
    Values {
        /// Their shape.
        shape: Vec<u32>,
    },
}

/// Inputs, targets and groups of a data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// What a kernel is given.
    pub input: Input,
    /// What it is compared with.
    pub target: Target,
    /// Whether each record ends with the number of its group.
    pub grouped: bool,
}

/// Why a form makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// A shape with too many dimensions, or with an empty one.
    #[error("shape {shape:?} has no elements or more than {RANK_MAX} dimensions")]
    Shape {
        /// The shape.
        shape: Vec<u32>,
    },
    /// A record that is too long.
    #[error("a record of more than {RECORD_BYTES_MAX} bytes")]
    Record,
    /// Numbers of channels that disagree, or numbers that nothing can be divided by.
    #[error("means and deviations do not fit shape {shape:?}, or are not finite and over zero")]
    Normalise {
        /// Shape of a sample.
        shape: Vec<u32>,
    },
    /// Too few or too many classes or tokens.
    #[error("{count} {what}, 1 to {CLASSES_MAX} are possible")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u32,
    },
    /// A stream of tokens with targets or groups of its own, or of elements that are no tokens.
    #[error("a stream of tokens has no other targets and no groups, and its tokens are u8 or i32")]
    Tokens,
}

/// Number of elements, or none if the shape cannot be that of a sample.
fn elements(shape: &[u32]) -> Option<u64> {
    if shape.len() > RANK_MAX {
        return None;
    }
    let product = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(u64::from(size)))?;
    (product > 0 && product <= RECORD_BYTES_MAX).then_some(product)
}

impl Form {
    /// The form of a data set in the catalogue. Its files lie in IDX and not in records.
    pub fn of_catalogue(spec: &DatasetSpec) -> Form {
        let normalise = Some(Normalise { mean: vec![spec.mean], deviation: vec![spec.deviation] });
        Form {
            input: Input::Array { element: Element::U8, shape: spec.shape.to_vec(), normalise },
            target: Target::Classes { count: spec.classes },
            grouped: false,
        }
    }

    /// Checks everything that comes from a file.
    ///
    /// # Errors
    /// [`FormError`] at the first thing that makes no sense.
    pub fn check(&self) -> Result<(), FormError> {
        let sized = |shape: &[u32]| elements(shape).ok_or_else(|| FormError::Shape { shape: shape.to_vec() });
        let counted = |what, count| match (1..=CLASSES_MAX).contains(&count) {
            true => Ok(()),
            false => Err(FormError::Count { what, count }),
        };
        match &self.target {
            Target::None {} => {}
            Target::Classes { count } => counted("classes", *count)?,
            Target::Values { shape } => drop(sized(shape)?),
        }
        match &self.input {
            Input::Array { element, shape, normalise } => {
                sized(shape)?;
                if let Some(Normalise { mean, deviation }) = normalise {
                    let channels = shape.first().map_or(1, |&size| size as usize);
                    let fits = mean.len() == deviation.len() && (mean.len() == 1 || mean.len() == channels);
                    let sound = mean.iter().all(|mean| mean.is_finite())
                        && deviation.iter().all(|deviation| deviation.is_finite() && *deviation > 0.0);
                    if !fits || !sound || *element == Element::I32 {
                        return Err(FormError::Normalise { shape: shape.clone() });
                    }
                }
                match self.record_bytes() {
                    Some(1..=RECORD_BYTES_MAX) => Ok(()),
                    _ => Err(FormError::Record),
                }
            }
            Input::Tokens { element, vocabulary } => {
                counted("tokens", *vocabulary)?;
                let fits = match element {
                    Element::U8 => *vocabulary <= 256,
                    Element::I32 => true,
                    Element::F32 => false,
                };
                if fits && self.target == (Target::None {}) && !self.grouped { Ok(()) } else { Err(FormError::Tokens) }
            }
        }
    }

    /// Bytes of a sample's input; of one token in a stream. Small after [`Form::check`].
    pub fn input_bytes(&self) -> usize {
        match &self.input {
            Input::Array { element, shape, .. } => elements(shape).unwrap_or(0) as usize * element.bytes(),
            Input::Tokens { element, .. } => element.bytes(),
        }
    }

    /// Bytes of a sample's target.
    pub fn target_bytes(&self) -> usize {
        match &self.target {
            Target::None {} => 0,
            Target::Classes { .. } => 4,
            Target::Values { shape } => elements(shape).unwrap_or(0) as usize * 4,
        }
    }

    /// Bytes of a record, or of one token.
    pub fn record_bytes(&self) -> Option<u64> {
        let group = if self.grouped { 4 } else { 0 };
        let target = u64::try_from(self.target_bytes()).ok()?;
        u64::try_from(self.input_bytes()).ok()?.checked_add(target)?.checked_add(group)
    }

    /// Channels, height and width, if samples are images.
    pub fn image(&self) -> Option<[u32; 3]> {
        match &self.input {
            Input::Array { shape, .. } => shape.as_slice().try_into().ok(),
            Input::Tokens { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(element: Element, shape: &[u32], normalise: Option<Normalise>, target: Target) -> Form {
        Form { input: Input::Array { element, shape: shape.to_vec(), normalise }, target, grouped: false }
    }

    #[test]
    fn records_are_input_target_and_group() {
        let form = Form { grouped: true, ..array(Element::U8, &[3, 32, 32], None, Target::Classes { count: 10 }) };
        assert_eq!((form.input_bytes(), form.record_bytes()), (3072, Some(3080)));
        let form = array(Element::F32, &[8], None, Target::Values { shape: vec![2] });
        assert_eq!(form.record_bytes(), Some(40));
        assert_eq!(form.image(), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let classes = |count| Target::Classes { count };
        let normalise =
            |mean: &[f32], deviation: &[f32]| Some(Normalise { mean: mean.into(), deviation: deviation.into() });
        let tokens =
            |element, vocabulary, target| Form { input: Input::Tokens { element, vocabulary }, target, grouped: false };
        assert_eq!(array(Element::U8, &[3, 2], normalise(&[0.5], &[1.0]), classes(2)).check(), Ok(()));
        for form in [
            array(Element::U8, &[3, 0], None, classes(2)),
            array(Element::U8, &[u32::MAX, u32::MAX, u32::MAX], None, classes(2)),
            array(Element::F32, &[1 << 13, 1 << 13], None, classes(2)),
            array(Element::U8, &[1; 6], None, classes(2)),
            array(Element::U8, &[3, 2], normalise(&[0.5, 0.5], &[1.0, 1.0]), classes(2)),
            array(Element::U8, &[3, 2], normalise(&[0.5], &[0.0]), classes(2)),
            array(Element::U8, &[3, 2], normalise(&[f32::NAN], &[1.0]), classes(2)),
            array(Element::I32, &[3, 2], normalise(&[0.5], &[1.0]), classes(2)),
            array(Element::U8, &[3], None, classes(0)),
            array(Element::U8, &[3], None, Target::Values { shape: vec![0] }),
            tokens(Element::U8, 257, Target::None {}),
            tokens(Element::F32, 10, Target::None {}),
            tokens(Element::U8, 10, classes(2)),
        ] {
            assert!(form.check().is_err(), "{form:?}");
        }
        assert_eq!(tokens(Element::U8, 256, Target::None {}).check(), Ok(()));
    }
}
