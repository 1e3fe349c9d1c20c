//! Whether a kernel can be trained on a data set, and in which shape it is given the samples. Hub and agents decide it alike.

use omnilearn_wire::dataset::DatasetSpec;

use crate::form::{Element, Form, Input, SAMPLES_MAX, Target};

/// One tensor of a sample as a kernel wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The kernel's name for it.
    pub name: String,
    /// Whether its elements are `i32`; otherwise `f32`.
    pub integers: bool,
    /// Dimensions of one sample.
    pub shape: Vec<u32>,
}

/// What a kernel wants of each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// What it computes from.
    pub inputs: Vec<Need>,
    /// What it compares with.
    pub target: Need,
}

/// What is known of a data set before any of its files is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// Its name.
    pub name: String,
    /// What its samples are.
    pub form: Form,
    /// Records of the training split; in a stream, tokens.
    pub train: u64,
    /// The same of the test split.
    pub test: u64,
}

/// How a kernel is given the samples of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Samples to learn from.
    pub train_samples: u32,
    /// Samples to test with.
    pub test_samples: u32,
    /// Shape of a sample's input.
    pub input_shape: Vec<usize>,
    /// Shape of a sample's target; empty for a class.
    pub target_shape: Vec<usize>,
    /// Whether inputs are `i32`.
    pub(crate) integers: bool,
    pub(crate) target: TargetUse,
}

/// Where targets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetUse {
    /// The record's class.
    Class,
    /// The record's values.
    Values,
    /// The input once more.
    Input,
    /// Tokens, one further on than the input, which has this many.
    Next(u32),
}

/// Why a kernel cannot be trained on a data set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Several inputs.
    #[error("{dataset} has one input, the kernel takes {inputs}")]
    Inputs {
        /// The data set.
        dataset: String,
        /// How many the kernel takes.
        inputs: usize,
    },
    /// Another shape.
    #[error(
        "samples of {dataset} have shape {found:?}, the kernel's `{name}` has {wanted:?}; set the kernel's sizes under [kernel.settings]"
    )]
    Shape {
        /// The data set.
        dataset: String,
        /// Shape of a sample.
        found: Vec<u32>,
        /// The kernel's name for it.
        name: String,
        /// Shape that the kernel takes.
        wanted: Vec<u32>,
    },
    /// Another kind of input.
    #[error("samples of {dataset} are {found}, the kernel's `{name}` is {wanted}")]
    Kind {
        /// The data set.
        dataset: String,
        /// What they are.
        found: &'static str,
        /// The kernel's name for it.
        name: String,
        /// What the kernel takes.
        wanted: &'static str,
    },
    /// Another kind of target.
    #[error("targets of {dataset} are {found}, the kernel's `{name}` is {wanted}")]
    Target {
        /// The data set.
        dataset: String,
        /// What they are.
        found: String,
        /// The kernel's name for it.
        name: String,
        /// What the kernel compares with.
        wanted: String,
    },
    /// A stream in which there is no sample of the kernel's length, or too many.
    #[error(
        "{dataset} has {tokens} tokens to learn from, which make no sample of {window} tokens and the next, or too many"
    )]
    Window {
        /// The data set.
        dataset: String,
        /// Tokens in the training split.
        tokens: u64,
        /// Tokens of a sample.
        window: u32,
    },
}

/// Whether two shapes hold the same in the same order: they differ in dimensions of 1 only, or the kernel takes a vector.
fn same(found: &[u32], wanted: &[u32]) -> bool {
    let product = |shape: &[u32]| shape.iter().map(|&size| u64::from(size)).product::<u64>();
    let proper = |shape: &[u32]| shape.iter().copied().filter(|&size| size != 1).collect::<Vec<u32>>();
    proper(found) == proper(wanted) || (wanted.len() == 1 && product(found) == product(wanted))
}

fn sized(shape: &[u32]) -> Vec<usize> {
    shape.iter().map(|&size| size as usize).collect()
}

/// Samples of a window of tokens and the next that do not overlap in what is predicted.
fn windows(tokens: u64, window: u32) -> u64 {
    tokens.saturating_sub(1) / u64::from(window.max(1))
}

impl Outline {
    /// A data set of the catalogue.
    pub fn of_catalogue(spec: &DatasetSpec) -> Outline {
        Outline {
            name: spec.name.to_owned(),
            form: Form::of_catalogue(spec),
            train: spec.train_samples.into(),
            test: spec.test_samples.into(),
        }
    }

    /// Whether a kernel with these needs can be trained, and how.
    ///
    /// # Errors
    /// [`FitError`] that says what does not go together.
    pub fn fit(&self, needs: &Needs) -> Result<Fit, FitError> {
        let dataset = || self.name.clone();
        let [input] = &needs.inputs[..] else {
            return Err(FitError::Inputs { dataset: dataset(), inputs: needs.inputs.len() });
        };
        match &self.form.input {
            Input::Array { element, shape, .. } => self.fit_array(*element, shape, input, &needs.target),
            Input::Tokens { .. } => self.fit_tokens(input, &needs.target),
        }
    }

    fn fit_array(&self, element: Element, shape: &[u32], input: &Need, target: &Need) -> Result<Fit, FitError> {
        let dataset = || self.name.clone();
        if input.integers && element != Element::I32 {
            let (found, wanted) = ("numbers or pixels", "i32, such as tokens");
            return Err(FitError::Kind { dataset: dataset(), found, name: input.name.clone(), wanted });
        }
        if !same(shape, &input.shape) {
            let (found, wanted) = (shape.to_vec(), input.shape.clone());
            return Err(FitError::Shape { dataset: dataset(), found, name: input.name.clone(), wanted });
        }
        let used = match &self.form.target {
            Target::Classes { .. } if target.integers && target.shape.is_empty() => TargetUse::Class,
            Target::Values { shape } if !target.integers && same(shape, &target.shape) => TargetUse::Values,
            // Whatever else a record holds: an autoencoder learns to give back its input.
            _ if !target.integers && !input.integers && same(shape, &target.shape) => TargetUse::Input,
            other => {
                let found = match other {
                    Target::None {} => "the samples themselves".to_owned(),
                    Target::Classes { .. } => "class numbers".to_owned(),
                    Target::Values { shape } => format!("f32 {shape:?}"),
                };
                let wanted = format!("{} {:?}", if target.integers { "i32" } else { "f32" }, target.shape);
                return Err(FitError::Target { dataset: dataset(), found, name: target.name.clone(), wanted });
            }
        };
        let samples = |length: u64| u32::try_from(length).unwrap_or(u32::MAX);
        Ok(Fit {
            train_samples: samples(self.train),
            test_samples: samples(self.test),
            input_shape: sized(&input.shape),
            target_shape: sized(&target.shape),
            integers: input.integers,
            target: used,
        })
    }

    fn fit_tokens(&self, input: &Need, target: &Need) -> Result<Fit, FitError> {
        let dataset = || self.name.clone();
        let (true, &[window]) = (input.integers, &input.shape[..]) else {
            let (found, wanted) = ("tokens", "no i32 vector of them");
            return Err(FitError::Kind { dataset: dataset(), found, name: input.name.clone(), wanted });
        };
        if !target.integers || target.shape != input.shape {
            let wanted = format!("{} {:?}", if target.integers { "i32" } else { "f32" }, target.shape);
            let found = format!("the next tokens, i32 {:?}", input.shape);
            return Err(FitError::Target { dataset: dataset(), found, name: target.name.clone(), wanted });
        }
        let (train, test) = (windows(self.train, window), windows(self.test, window));
        if train == 0 || train.max(test) > SAMPLES_MAX {
            return Err(FitError::Window { dataset: dataset(), tokens: self.train, window });
        }
        Ok(Fit {
            train_samples: train as u32,
            test_samples: test as u32,
            input_shape: sized(&input.shape),
            target_shape: sized(&target.shape),
            integers: true,
            target: TargetUse::Next(window),
        })
    }
}

#[cfg(test)]
mod tests {
    use omnilearn_wire::dataset::CATALOGUE;

    use super::*;

    fn need(name: &str, integers: bool, shape: &[u32]) -> Need {
        Need { name: name.to_owned(), integers, shape: shape.to_vec() }
    }

    fn needs(input: Need, target: Need) -> Needs {
        Needs { inputs: vec![input], target }
    }

    fn classifier(shape: &[u32]) -> Needs {
        needs(need("image", false, shape), need("class", true, &[]))
    }

    fn outline(input: Input, target: Target) -> Outline {
        Outline { name: "mine".to_owned(), form: Form { input, target, grouped: false }, train: 1000, test: 101 }
    }

    fn tokens() -> Outline {
        outline(Input::Tokens { element: Element::U8, vocabulary: 256 }, Target::None {})
    }

    #[test]
    fn images_fit_a_classifier_of_their_size_and_one_that_takes_vectors() {
        let images = Outline::of_catalogue(&CATALOGUE[0]);
        for shape in [&[1, 28, 28][..], &[784], &[28, 28]] {
            let fit = images.fit(&classifier(shape)).unwrap();
            assert_eq!((fit.train_samples, fit.target), (60_000, TargetUse::Class));
            assert_eq!(fit.input_shape.iter().product::<usize>(), 784);
        }
        let error = images.fit(&classifier(&[3, 32, 32])).unwrap_err().to_string();
        assert!(
            error.contains("[1, 28, 28]") && error.contains("[3, 32, 32]") && error.contains("[kernel.settings]"),
            "{error}"
        );
        assert!(images.fit(&classifier(&[28, 1, 27])).is_err());
        let twice = Needs { inputs: vec![need("a", false, &[1]); 2], ..classifier(&[1]) };
        assert!(matches!(images.fit(&twice), Err(FitError::Inputs { inputs: 2, .. })));
    }

    #[test]
    fn an_autoencoder_compares_with_its_input_and_a_regression_with_values() {
        let series = Input::Array { element: Element::F32, shape: vec![2, 70], normalise: None };
        let wanted = needs(need("series", false, &[2, 70]), need("target", false, &[2, 70]));
        for target in [Target::None {}, Target::Classes { count: 3 }] {
            assert_eq!(outline(series.clone(), target).fit(&wanted).unwrap().target, TargetUse::Input);
        }
        let table = Input::Array { element: Element::F32, shape: vec![8], normalise: None };
        let values = outline(table, Target::Values { shape: vec![1] });
        let regression = needs(need("features", false, &[8]), need("values", false, &[1]));
        assert_eq!(values.fit(&regression).unwrap().target, TargetUse::Values);
        let error =
            values.fit(&needs(need("features", false, &[8]), need("class", true, &[]))).unwrap_err().to_string();
        assert_eq!(error, "targets of mine are f32 [1], the kernel's `class` is i32 []");
    }

    #[test]
    fn a_stream_is_cut_as_long_as_the_kernel_wants() {
        let gpt = |length: u32| needs(need("tokens", true, &[length]), need("next", true, &[length]));
        let fit = tokens().fit(&gpt(100)).unwrap();
        assert_eq!((fit.train_samples, fit.test_samples, fit.target), (9, 1, TargetUse::Next(100)));
        assert_eq!(tokens().fit(&gpt(999)).unwrap().train_samples, 1);
        assert!(matches!(tokens().fit(&gpt(1000)), Err(FitError::Window { .. })));
        assert!(matches!(tokens().fit(&classifier(&[100])), Err(FitError::Kind { .. })));
        let next_only = needs(need("tokens", true, &[100]), need("next", true, &[]));
        assert!(matches!(tokens().fit(&next_only), Err(FitError::Target { .. })));
    }
}
