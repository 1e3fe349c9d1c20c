//! What experiments share, in `experiments/catalogue.toml`: models with their speeds, ways to set batches, rules.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::definition::DefinitionError;

/// Name of the file.
pub(crate) const FILE: &str = "catalogue.toml";

/// What experiments share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Catalogue {
    /// Where and how the speeds were measured.
    pub(crate) speeds_from: String,
    /// Models by name.
    pub(crate) models: BTreeMap<String, ModelSpec>,
    /// Ways to set batches by name.
    pub(crate) policies: BTreeMap<String, Variant>,
    /// Rules of synchronisation by name.
    pub(crate) modes: BTreeMap<String, Variant>,
}

/// A model, the data it is trained on, and how fast one core of the machine is with it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelSpec {
    /// In words, with its size.
    pub(crate) title: String,
    /// What is smaller than in the papers, and why; empty if nothing is.
    #[serde(default)]
    pub(crate) reduced: String,
    /// The kernel's component.
    pub(crate) kernel: String,
    /// Name of the data set.
    pub(crate) dataset: String,
    /// How fast; without it, it must be measured before it can run.
    pub(crate) speed: Option<Speed>,
    /// Accuracy whose time is reported.
    pub(crate) target_accuracy: Option<f64>,
    /// Keys of the job file.
    #[serde(default)]
    pub(crate) job: Table,
}

/// What a step of b samples costs one core: `overhead_s + b / samples_per_s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Speed {
    /// Throughput without the overhead.
    pub(crate) samples_per_s: f64,
    /// What does not grow with the batch, in seconds.
    pub(crate) overhead_s: f64,
}

/// A way to set batches, or a rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    /// In words.
    pub(crate) title: String,
    /// Whether an update is one agent's and not all agents', so that there are as many more as there are agents: numbers of
    /// steps are multiplied by that.
    #[serde(default)]
    pub(crate) update_per_agent: bool,
    /// Whether such an update counts as much as one of all agents, so that the learning rate is divided by their number.
    #[serde(default)]
    pub(crate) whole_update: bool,
    /// Keys of the job file.
    #[serde(default)]
    pub(crate) job: Table,
}

impl Catalogue {
    /// Reads it from the folder of experiments.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub(crate) fn read(folder: &Path) -> Result<Self, DefinitionError> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path)
            .map_err(|cause| DefinitionError::Read { path: path.display().to_string(), cause })?;
        let catalogue: Self = toml::from_str(&text)
            .map_err(|cause| DefinitionError::Form { file: FILE.to_owned(), cause: Box::new(cause) })?;
        for (name, model) in &catalogue.models {
            let Some(Speed { samples_per_s, overhead_s }) = model.speed else { continue };
            if !(samples_per_s.is_finite() && samples_per_s > 0.0 && overhead_s.is_finite() && overhead_s >= 0.0) {
                return Err(DefinitionError::Value {
                    place: format!("{FILE}, models.{name}.speed"),
                    problem: "samples_per_s must be over zero, overhead_s not below it".to_owned(),
                });
            }
        }
        Ok(catalogue)
    }
}

/// Lays a table's keys over another's; tables within are laid over each other, too.
pub(crate) fn lay_over(base: &mut Table, over: &Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => lay_over(base, over),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_laid_over_each_other_at_every_depth() {
        let mut base: Table = "a = 1\n[b]\nc = 2\nd = 3".parse().unwrap();
        lay_over(&mut base, &"e = 5\n[b]\nc = 4".parse().unwrap());
        assert_eq!(base, "a = 1\ne = 5\n[b]\nc = 4\nd = 3".parse().unwrap());
    }
}
