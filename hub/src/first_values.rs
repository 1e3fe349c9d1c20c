//! A job's first values from given weights: which tensors they are, and whether they fit the kernel.

use std::path::PathBuf;

use omnilearn_wire::layout::{Layout, TensorShape, elements};

use crate::given_weights::{GivenWeights, GivenWeightsError, element_bytes};

/// Names in a notice of tensors that are not used.
const NAMES_SHOWN: usize = 3;

/// What PyTorch counts beside every batch normalisation; nothing is lost without it.
const BATCHES_TRACKED: &str = "num_batches_tracked";

/// Given weights that fit a kernel.
#[derive(Clone, Debug)]
pub(crate) struct FirstValues {
    path: PathBuf,
    pub(crate) digest: [u8; 32],
    except: Vec<String>,
    /// Tensors of the file that the kernel does not have.
    unused: Vec<String>,
}

/// Whether a name is as the pattern says, in which each `*` stands for any number of characters.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut name) = name.strip_prefix(start).and_then(|name| name.strip_suffix(end)) else { return false };
    // The first place for each part leaves the most for the next.
    for part in middle.split('*') {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    true
}

fn is_excepted(except: &[String], name: &str) -> bool {
    except.iter().any(|pattern| matches(pattern, name))
}

/// The pattern for a tensor and those beside it: `fc.*` for `fc.weight`.
fn pattern_for(name: &str) -> String {
    name.rsplit_once('.').map_or_else(|| name.to_owned(), |(layer, _)| format!("{layer}.*"))
}

fn tensors(layout: &Layout) -> impl Iterator<Item = &TensorShape> {
    layout.parameters().iter().chain(layout.buffers())
}

impl FirstValues {
    /// Checks that the file has every parameter and shared buffer that no pattern excepts, in its shape, and that all of
    /// their elements are finite. May block.
    ///
    /// # Errors
    /// [`GivenWeightsError`] at the first tensor that does not fit.
    pub(crate) fn check(
        weights: &GivenWeights,
        except: &[String],
        layout: &Layout,
    ) -> Result<FirstValues, GivenWeightsError> {
        let taken = || tensors(layout).filter(|tensor| !is_excepted(except, &tensor.name));
        for tensor in taken() {
            let (name, expected, pattern) = (tensor.name.clone(), tensor.shape.clone(), pattern_for(&tensor.name));
            let Some(info) = weights.info(&name) else {
                return Err(GivenWeightsError::Missing { name, expected, pattern });
            };
            if !info.shape.iter().map(|&dimension| dimension as u64).eq(expected.iter().copied().map(u64::from)) {
                return Err(GivenWeightsError::Shape { name, found: info.shape.clone(), expected, pattern });
            }
            element_bytes(&name, info.dtype)?;
        }
        for tensor in taken() {
            weights.read(&tensor.name, |_| {})?;
        }
        let known: std::collections::HashSet<&str> = tensors(layout).map(|tensor| tensor.name.as_str()).collect();
        let counts_batches = |name: &str| name.rsplit('.').next() == Some(BATCHES_TRACKED);
        let unused = weights
            .names()
            .into_iter()
            .filter(|name| !known.contains(name.as_str()) && !counts_batches(name))
            .collect();
        Ok(FirstValues { path: weights.path.clone(), digest: weights.digest, except: except.to_vec(), unused })
    }

    /// What the user is told of the file; empty if all of it is used.
    pub(crate) fn notice(&self) -> String {
        let names: Vec<String> = self.unused.iter().take(NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        match self.unused.len() {
            0 => String::new(),
            1 => format!("a tensor of the weights file is not in the kernel and not used: {names}"),
            count if count <= NAMES_SHOWN => {
                format!("{count} tensors of the weights file are not in the kernel and not used: {names}")
            }
            count => format!("{count} tensors of the weights file are not in the kernel and not used: {names}, ..."),
        }
    }

    /// Replaces drawn values by those of the file, which is read once more, tensor by tensor. May block.
    ///
    /// - Shapes: parameters and shared buffers, each concatenated in the order of the layout.
    ///
    /// # Errors
    /// [`GivenWeightsError`] if the file is no longer what was checked.
    pub(crate) fn load(
        &self,
        layout: &Layout,
        parameters: &mut [f32],
        buffers: &mut [f32],
    ) -> Result<(), GivenWeightsError> {
        let mut weights = GivenWeights::open(self.path.clone(), self.digest)?;
        weights.verify()?;
        for (tensors, mut rest) in [(layout.parameters(), parameters), (layout.buffers(), buffers)] {
            for tensor in tensors {
                let count = elements(&tensor.shape).unwrap_or(0) as usize; // a layout has no tensor without a size
                let (mut values, after) = rest.split_at_mut(count);
                rest = after;
                if is_excepted(&self.except, &tensor.name) {
                    continue;
                }
                weights.read(&tensor.name, |piece| {
                    let (now, later) = std::mem::take(&mut values).split_at_mut(piece.len());
                    now.copy_from_slice(piece);
                    values = later;
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::Dtype;

    use super::*;
    use crate::given_weights::tests::{bytes_of, file, open};

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name) in [
            ("fc.weight", "fc.weight"),
            ("fc.*", "fc.weight"),
            ("*", "fc.weight"),
            ("*.bias", "layer1.0.conv.bias"),
            ("layer*.conv*.weight", "layer1.0.conv2.weight"),
            ("a*a", "aa"),
            ("*a*b*", "cacbc"),
            ("**", ""),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("fc", "fc.weight"),
            ("fc.*", "afc.weight"),
            ("*.bias", "fc.bias.x"),
            ("a*a", "a"),
            ("ab*bc", "abc"),
            ("*a*b*", "bac"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    fn layout() -> Layout {
        let tensor = |name: &str, shape: &[u32]| TensorShape { name: name.into(), shape: shape.to_vec() };
        let parameters = vec![tensor("conv.weight", &[2, 1]), tensor("fc.weight", &[2, 2]), tensor("fc.bias", &[2])];
        Layout::new(parameters, vec![tensor("bn.running_mean", &[3])]).unwrap()
    }

    fn tensor(
        name: &'static str,
        shape: &'static [usize],
        first: f32,
    ) -> (&'static str, Dtype, &'static [usize], Vec<u8>) {
        let values: Vec<f32> = (0..shape.iter().product()).map(|index| first + index as f32).collect();
        (name, Dtype::F32, shape, bytes_of(&values))
    }

    fn except(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|&pattern| pattern.to_owned()).collect()
    }

    #[test]
    fn tensors_of_the_file_replace_drawn_values_and_excepted_ones_do_not() {
        let bytes = file(&[
            tensor("fc.weight", &[2, 2], 10.0),
            tensor("fc.bias", &[9], 90.0),
            tensor("bn.running_mean", &[3], 20.0),
            tensor("conv.weight", &[2, 1], 30.0),
        ]);
        let (weights, _folder) = open(&bytes).unwrap();
        let first = FirstValues::check(&weights, &except(&["*.bias"]), &layout()).unwrap();
        assert_eq!(first.notice(), "");
        let (mut parameters, mut buffers) = ([-1.0; 8], [-1.0; 3]);
        first.load(&layout(), &mut parameters, &mut buffers).unwrap();
        assert_eq!(parameters, [30.0, 31.0, 10.0, 11.0, 12.0, 13.0, -1.0, -1.0]);
        assert_eq!(buffers, [20.0, 21.0, 22.0]);

        let mut changed = bytes;
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(&weights.path, changed).unwrap();
        let error = first.load(&layout(), &mut parameters, &mut buffers).unwrap_err();
        assert!(matches!(error, GivenWeightsError::Damaged), "{error}");
    }

    #[test]
    fn a_tensor_that_does_not_fit_is_named_with_both_shapes_and_what_to_write() {
        let conv = || tensor("conv.weight", &[2, 1], 0.0);
        let mean = || tensor("bn.running_mean", &[3], 0.0);
        let (weight, bias) = (|| tensor("fc.weight", &[2, 2], 0.0), || tensor("fc.bias", &[2], 0.0));
        let advice = "for a tensor that is to begin with drawn values, add \"fc.*\" to `weights_except` in [kernel]";
        for (tensors, expected) in [
            (vec![conv(), weight(), mean()], format!("the file has no tensor `fc.bias` [2]; {advice}")),
            (
                vec![conv(), mean(), tensor("fc.weight", &[5, 2], 0.0), bias()],
                format!("tensor `fc.weight` has shape [5, 2] in the file and [2, 2] in the kernel; {advice}"),
            ),
            (vec![conv(), weight(), bias()], "the file has no tensor `bn.running_mean` [3]; for".to_owned()),
            (
                vec![conv(), mean(), weight(), ("fc.bias", Dtype::I64, &[2], vec![0; 16])],
                "tensor `fc.bias` has elements of type I64; F32, F16 and BF16 are taken".to_owned(),
            ),
            (
                vec![conv(), mean(), weight(), ("fc.bias", Dtype::F32, &[2], bytes_of(&[1.0, f32::INFINITY]))],
                "tensor `fc.bias` is not finite at index 1".to_owned(),
            ),
        ] {
            let (weights, _folder) = open(&file(&tensors)).unwrap();
            let error = FirstValues::check(&weights, &[], &layout()).unwrap_err().to_string();
            assert!(error.starts_with(&expected), "{error}");
            if expected.contains("fc.") {
                FirstValues::check(&weights, &except(&["fc.*"]), &layout()).unwrap();
            }
        }
    }

    #[test]
    fn tensors_that_the_kernel_does_not_have_are_counted_and_named_but_for_counts_of_batches() {
        let mut tensors = vec![
            tensor("conv.weight", &[2, 1], 0.0),
            tensor("fc.weight", &[2, 2], 0.0),
            tensor("fc.bias", &[2], 0.0),
            tensor("bn.running_mean", &[3], 0.0),
            ("bn.num_batches_tracked", Dtype::I64, &[], vec![0; 8]),
        ];
        for expected in [
            "",
            "a tensor of the weights file is not in the kernel and not used: `x1`",
            "2 tensors of the weights file are not in the kernel and not used: `x1`, `x2`",
            "3 tensors of the weights file are not in the kernel and not used: `x1`, `x2`, `x3`",
            "4 tensors of the weights file are not in the kernel and not used: `x1`, `x2`, `x3`, ...",
        ] {
            let (weights, _folder) = open(&file(&tensors)).unwrap();
            assert_eq!(FirstValues::check(&weights, &[], &layout()).unwrap().notice(), expected);
            tensors.push(tensor(["x1", "x2", "x3", "x4", "x5"][tensors.len() - 5], &[1], f32::NAN));
        }
    }
}
