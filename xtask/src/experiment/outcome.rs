//! What came out of a row: figures by name, and which rows a sentence speaks of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::definition::Dimension;

/// What tells a row from the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct RowKey {
    /// Case of the definition.
    pub(crate) case: String,
    /// Model.
    pub(crate) model: String,
    /// Heterogeneity level; the highest one of a schedule.
    pub(crate) hl: u32,
    /// Number of agents.
    pub(crate) agents: u32,
    /// Rule of synchronisation.
    pub(crate) mode: String,
    /// How batches are set.
    pub(crate) policy: String,
}

impl RowKey {
    /// A name for a folder.
    pub(crate) fn slug(&self) -> String {
        let Self { case, model, hl, agents, mode, policy } = self;
        let text = format!("{case}-{model}-hl{hl}-{agents}-{mode}-{policy}");
        text.chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' })
            .collect()
    }

    /// Its value of a dimension, for people.
    pub(crate) fn value(&self, dimension: Dimension) -> String {
        match dimension {
            Dimension::Case => self.case.clone(),
            Dimension::Model => self.model.clone(),
            Dimension::Hl => format!("HL{}", self.hl),
            Dimension::Mode => self.mode.clone(),
            Dimension::Policy => self.policy.clone(),
        }
    }
}

/// A finished row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Which.
    pub(crate) key: RowKey,
    /// Figures by name; one that does not exist is absent.
    pub(crate) figures: BTreeMap<String, f64>,
    /// Why it did not run, if it did not.
    #[serde(default)]
    pub(crate) skipped: Option<String>,
}

impl Outcome {
    /// A figure.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// The row as promised for programs.
    pub(crate) fn row(&self) -> Row<'_> {
        Row {
            case: &self.key.case,
            agents: self.key.agents,
            hl: self.key.hl,
            model: &self.key.model,
            mode: &self.key.mode,
            policy: &self.key.policy,
            epoch_s: self.figure("epoch_s"),
            time_to_target_s: self.figure("time_to_target_s"),
            accuracy: self.figure("accuracy"),
            idle_share: self.figure("idle_share"),
            mean_staleness: self.figure("mean_staleness"),
            ratio_to_uniform: self.figure("ratio_to_uniform"),
            ratio_to_limit: self.figure("ratio_to_limit"),
            skipped: self.skipped.as_deref(),
        }
    }
}

/// One row of `--json`. What was not measured or does not exist is null.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Row<'a> {
    case: &'a str,
    agents: u32,
    hl: u32,
    model: &'a str,
    mode: &'a str,
    policy: &'a str,
    /// Mean training time of an epoch, in seconds.
    epoch_s: Option<f64>,
    /// Training time to the model's target accuracy, in seconds.
    time_to_target_s: Option<f64>,
    /// On the test set at the end, 0 to 1.
    accuracy: Option<f64>,
    /// Share of the time in which an agent had nothing to do, averaged over agents.
    idle_share: Option<f64>,
    /// In steps.
    mean_staleness: Option<f64>,
    /// Time per epoch of `uniform` in the same place over this one's.
    ratio_to_uniform: Option<f64>,
    /// Shortest time that the true speeds allow over what was spent.
    ratio_to_limit: Option<f64>,
    /// Why the row did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'a str>,
}

/// Rows that a sentence or a picture speaks of; what is left out is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    case: Option<OneOrMany<String>>,
    model: Option<OneOrMany<String>>,
    hl: Option<OneOrMany<u32>>,
    agents: Option<OneOrMany<u32>>,
    mode: Option<OneOrMany<String>>,
    policy: Option<OneOrMany<String>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T: PartialEq> OneOrMany<T> {
    fn has(&self, value: &T) -> bool {
        match self {
            Self::One(one) => one == value,
            Self::Many(many) => many.contains(value),
        }
    }
}

impl Filter {
    /// Whether it lets a row through.
    pub(crate) fn matches(&self, key: &RowKey) -> bool {
        fn fits<T: PartialEq>(wanted: Option<&OneOrMany<T>>, value: &T) -> bool {
            wanted.is_none_or(|wanted| wanted.has(value))
        }
        fits(self.case.as_ref(), &key.case)
            && fits(self.model.as_ref(), &key.model)
            && fits(self.hl.as_ref(), &key.hl)
            && fits(self.agents.as_ref(), &key.agents)
            && fits(self.mode.as_ref(), &key.mode)
            && fits(self.policy.as_ref(), &key.policy)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn outcome(hl: u32, policy: &str, figures: &[(&str, f64)]) -> Outcome {
        Outcome {
            key: RowKey {
                case: "plain".to_owned(),
                model: "lenet".to_owned(),
                hl,
                agents: 4,
                mode: "bsp".to_owned(),
                policy: policy.to_owned(),
            },
            figures: figures.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            skipped: None,
        }
    }

    #[test]
    fn a_row_for_programs_has_the_promised_keys_and_null_for_what_is_not_known() {
        let row = serde_json::to_value(outcome(8, "deadline", &[("epoch_s", 2.5)]).row()).unwrap();
        let promised = [
            "hl",
            "model",
            "mode",
            "policy",
            "epoch_s",
            "time_to_target_s",
            "accuracy",
            "idle_share",
            "mean_staleness",
            "ratio_to_uniform",
            "ratio_to_limit",
        ];
        assert!(promised.iter().all(|key| row.get(key).is_some()), "{row}");
        assert_eq!(row["epoch_s"], 2.5);
        assert!(row["accuracy"].is_null() && row.get("skipped").is_none(), "{row}");
    }

    #[test]
    fn a_filter_asks_for_one_value_or_several_or_none() {
        let filter = |text: &str| toml::from_str::<Filter>(text).unwrap();
        let key = outcome(8, "deadline", &[]).key;
        assert!(filter("").matches(&key));
        assert!(filter("hl = 8\npolicy = [\"uniform\", \"deadline\"]").matches(&key));
        assert!(!filter("hl = [1, 2]").matches(&key) && !filter("mode = \"asp\"").matches(&key));
        assert!(toml::from_str::<Filter>("level = 8").is_err());
    }

    #[test]
    fn a_folder_is_named_after_its_row() {
        let mut key = outcome(8, "deadline", &[]).key;
        key.case = "HL 1→8".to_owned();
        assert_eq!(key.slug(), "hl-1-8-lenet-hl8-4-bsp-deadline");
    }
}
