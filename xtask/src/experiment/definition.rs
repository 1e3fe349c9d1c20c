//! What an experiment is: a TOML file that says what varies, what is claimed, what the papers have, and what is drawn.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::Table;

use super::catalogue::Catalogue;
use super::outcome::Filter;

/// Why a definition cannot be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DefinitionError {
    /// The file.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// Its form.
    #[error("{file} cannot be understood")]
    Form {
        /// Which.
        file: String,
        /// Where and why.
        #[source]
        cause: Box<toml::de::Error>,
    },
    /// A name that stands for nothing.
    #[error("{place}: `{name}` is not known; known are {known}")]
    Unknown {
        /// Key.
        place: String,
        /// What was written.
        name: String,
        /// What could be.
        known: String,
    },
    /// A value that does not fit.
    #[error("{place}: {problem}")]
    Value {
        /// Key.
        place: String,
        /// What does not fit, and what would.
        problem: String,
    },
}

/// One experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Definition {
    /// As on the command line and as the file.
    pub(crate) name: String,
    /// Heading of the report.
    pub(crate) title: String,
    /// What it asks, in a paragraph.
    pub(crate) question: String,
    /// Who trains.
    pub(crate) kind: Kind,
    /// About how long it takes on a quiet machine of two cores.
    pub(crate) minutes: f64,
    /// Cores of the agents at each heterogeneity level; more agents repeat them.
    pub(crate) levels: BTreeMap<String, Vec<f64>>,
    /// What runs.
    #[serde(default)]
    pub(crate) cases: Vec<Case>,
    /// What is done to processes, for [`Kind::Operations`].
    pub(crate) operations: Option<OperationsPlan>,
    /// What is said of the result, and is checked.
    #[serde(default)]
    pub(crate) claims: Vec<Claim>,
    /// What the papers report.
    #[serde(default)]
    pub(crate) paper: Vec<PaperFigure>,
    /// Pictures.
    #[serde(default)]
    pub(crate) plots: Vec<Plot>,
    /// Figures in the table of rows, by name.
    #[serde(default = "columns_default")]
    pub(crate) columns: Vec<String>,
    /// Sentences about how it was done, under the table.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
}

/// Who trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// The virtual fleet.
    Virtual,
    /// Processes with CPU quotas, beside the virtual fleet's prediction.
    Throttled,
    /// Processes that are disturbed.
    Operations,
}

/// What is done to processes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OperationsPlan {
    /// Name in the catalogue.
    pub(crate) model: String,
    /// Numbers of agents at which costs and losses are measured.
    pub(crate) clients: Vec<u32>,
    /// Number of agents where that is not what varies.
    pub(crate) fleet: u32,
    /// Losses of each kind; medians are reported.
    pub(crate) trials: u32,
    /// Rounds whose bytes are counted.
    pub(crate) rounds: u64,
    /// How long rounds wait for an agent that has fallen silent, in seconds.
    pub(crate) round_deadlines_s: Vec<f64>,
    /// What part of its quota an agent keeps.
    pub(crate) quota_cut_to: f64,
    /// How long throughput is measured, in seconds.
    pub(crate) rate_s: f64,
}

impl OperationsPlan {
    /// The same with little work.
    pub(crate) fn quick(&self) -> Self {
        const CLIENTS_MAX: u32 = 2;
        let mut quick = Self { trials: 1, fleet: CLIENTS_MAX, rounds: 20, rate_s: 2.0, ..self.clone() };
        quick.clients.retain(|&clients| clients <= CLIENTS_MAX);
        quick.round_deadlines_s.truncate(1);
        quick
    }
}

/// Some rows that differ in what is listed here, in every combination.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Its name in tables.
    pub(crate) name: String,
    /// Names in the catalogue.
    pub(crate) models: Vec<String>,
    /// Heterogeneity levels.
    #[serde(default)]
    pub(crate) hl: Vec<u32>,
    /// Levels one after another, in place of `hl`.
    pub(crate) schedule: Option<Schedule>,
    /// Numbers of agents; empty for as many as a level has cores.
    #[serde(default)]
    pub(crate) agents: Vec<u32>,
    /// Rules of synchronisation, names in the catalogue.
    #[serde(default = "bsp")]
    pub(crate) modes: Vec<String>,
    /// Names in the catalogue.
    pub(crate) policies: Vec<String>,
    /// What a step costs an agent beside its samples.
    #[serde(default)]
    pub(crate) overhead: Overhead,
    /// How many cores of the machine all agents have together, if not as many as the levels say. An agent with less than one
    /// takes as much longer for the overhead, which is CPU time, too.
    pub(crate) cores_total: Option<f64>,
    /// Standard deviation of the logarithm of a step's time.
    #[serde(default)]
    pub(crate) noise: f64,
    /// Whose gradients.
    #[serde(default)]
    pub(crate) gradients: Gradients,
    /// Whether the simulator compares each row with an oracle that knows the true speeds; for BSP.
    #[serde(default)]
    pub(crate) oracle: bool,
    /// Each row is the mean over these.
    #[serde(default = "one_seed")]
    pub(crate) seeds: Vec<u64>,
    /// Global batch for each agent, for fleets of many sizes.
    pub(crate) batch_per_agent: Option<u32>,
    /// Keys of the job file, over those of model, mode and policy.
    #[serde(default)]
    pub(crate) job: Table,
}

/// Levels one after another.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Schedule {
    /// In their order.
    pub(crate) hl: Vec<u32>,
    /// How long each lasts.
    pub(crate) epochs_each: u32,
}

/// What a step costs an agent beside its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Overhead {
    /// Nothing: times are arithmetic.
    #[default]
    None,
    /// What was measured for the model.
    Measured,
}

/// Whose gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Gradients {
    /// Nobody's: only time passes.
    #[default]
    None,
    /// Every row trains.
    Real,
    /// One training serves all rows of a model, which in BSP take the same steps whatever the batches are.
    Once,
}

/// Something that is said of the result.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    /// The sentence.
    pub(crate) text: String,
    /// Which figure decides.
    pub(crate) figure: String,
    /// Of which rows; it holds if it holds for all.
    #[serde(default, rename = "where")]
    pub(crate) filter: Filter,
    /// Least value.
    pub(crate) at_least: Option<f64>,
    /// Largest value.
    pub(crate) at_most: Option<f64>,
}

/// Something that a paper reports.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperFigure {
    /// What.
    pub(crate) claim: String,
    /// How much.
    pub(crate) figure: String,
    /// Where it stands.
    pub(crate) source: String,
    /// Ours beside it.
    pub(crate) ours: Option<Ours>,
    /// Why the two are not the same thing.
    pub(crate) differs: String,
}

/// Our figure beside a paper's: the range over some rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ours {
    /// Name of the figure.
    pub(crate) figure: String,
    /// Of which rows.
    #[serde(default, rename = "where")]
    pub(crate) filter: Filter,
    /// How it is written.
    #[serde(default)]
    pub(crate) show: Show,
}

/// How a figure is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Show {
    /// As it is.
    #[default]
    Plain,
    /// As a factor.
    Times,
    /// As a percentage.
    Percent,
    /// A ratio of times as the change in time, in per cent.
    Saved,
}

/// One picture, of which each panel holds some curves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plot {
    /// Name of the file, without its ending.
    pub(crate) file: String,
    /// Heading.
    pub(crate) title: String,
    /// What is drawn.
    pub(crate) kind: PlotKind,
    /// The figure, for [`PlotKind::Figure`].
    pub(crate) figure: Option<String>,
    /// Along which axis, for [`PlotKind::Figure`].
    #[serde(default)]
    pub(crate) along: Along,
    /// What the colours mean.
    #[serde(default)]
    pub(crate) curves: Dimension,
    /// What the panels mean.
    #[serde(default = "by_model")]
    pub(crate) panels: Dimension,
    /// Which rows.
    #[serde(default, rename = "where")]
    pub(crate) filter: Filter,
}

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PlotKind {
    /// A figure of each row.
    Figure,
    /// Accuracy over time.
    Accuracy,
    /// Share of updates up to a staleness.
    Staleness,
    /// Local batches over steps, one panel a row, a colour an agent.
    Batches,
    /// Samples per second over time.
    Rate,
}

/// What a figure is drawn over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Along {
    /// Heterogeneity level.
    #[default]
    Hl,
    /// Number of agents.
    Agents,
    /// How long a round waits for an agent.
    Wait,
}

/// Something that rows differ in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dimension {
    /// Case.
    Case,
    /// Model.
    Model,
    /// Heterogeneity level.
    Hl,
    /// Rule of synchronisation.
    Mode,
    /// How batches are set.
    #[default]
    Policy,
}

fn columns_default() -> Vec<String> {
    let names = [
        "epoch_s",
        "time_to_target_s",
        "accuracy",
        "idle_share",
        "mean_staleness",
        "ratio_to_uniform",
        "ratio_to_limit",
    ];
    names.map(str::to_owned).to_vec()
}

fn bsp() -> Vec<String> {
    vec!["bsp".to_owned()]
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

fn by_model() -> Dimension {
    Dimension::Model
}

impl Definition {
    /// Reads a definition and checks it against the catalogue.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub(crate) fn read(path: &Path, catalogue: &Catalogue) -> Result<Self, DefinitionError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| DefinitionError::Read { path: path.display().to_string(), cause })?;
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self::parse(&text, &file, catalogue)
    }

    /// Like [`Definition::read`], from the text.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub(crate) fn parse(text: &str, file: &str, catalogue: &Catalogue) -> Result<Self, DefinitionError> {
        let definition: Self = toml::from_str(text)
            .map_err(|cause| DefinitionError::Form { file: file.to_owned(), cause: Box::new(cause) })?;
        definition.check(file, catalogue)?;
        Ok(definition)
    }

    /// Cores of the agents at a level.
    pub(crate) fn cores(&self, level: u32) -> Option<&[f64]> {
        self.levels.get(&level.to_string()).map(Vec::as_slice)
    }

    fn check(&self, file: &str, catalogue: &Catalogue) -> Result<(), DefinitionError> {
        let value =
            |place: &str, problem: String| Err(DefinitionError::Value { place: format!("{file}, {place}"), problem });
        if file.strip_suffix(".toml") != Some(&self.name) {
            return value("name", format!("`{}` must be the name of the file", self.name));
        }
        for (level, cores) in &self.levels {
            if level.parse::<u32>().is_err() || cores.is_empty() || !cores.iter().all(|&cores| cores > 0.0) {
                return value(&format!("levels.{level}"), "must be a number, with cores over zero".to_owned());
            }
        }
        for (index, case) in self.cases.iter().enumerate() {
            let place = |key: &str| format!("{file}, cases[{index}].{key}");
            known(&place("models"), &case.models, catalogue.models.keys())?;
            known(&place("modes"), &case.modes, catalogue.modes.keys())?;
            known(&place("policies"), &case.policies, catalogue.policies.keys())?;
            let levels: Vec<String> =
                case.schedule.as_ref().map_or(&case.hl, |schedule| &schedule.hl).iter().map(u32::to_string).collect();
            known(&place("hl"), &levels, self.levels.keys())?;
            if levels.is_empty() || (case.schedule.is_some() && !case.hl.is_empty()) {
                return value(&format!("cases[{index}]"), "needs either `hl` or `schedule`".to_owned());
            }
            if case.gradients == Gradients::Once && case.modes != ["bsp"] {
                let problem = "\"once\" holds for BSP alone, where steps do not depend on batches; write \"real\"";
                return value(&format!("cases[{index}].gradients"), problem.to_owned());
            }
            if case.cores_total.is_some_and(|total| !(total.is_finite() && total > 0.0)) {
                return value(&format!("cases[{index}].cores_total"), "must be over zero".to_owned());
            }
            if case.oracle && case.modes != ["bsp"] {
                return value(&format!("cases[{index}].oracle"), "there is one for BSP alone".to_owned());
            }
            if case.seeds.is_empty() || case.models.is_empty() || case.policies.is_empty() || case.modes.is_empty() {
                return value(&format!("cases[{index}]"), "a list is empty, so nothing would run".to_owned());
            }
        }
        if (self.kind == Kind::Operations) != self.operations.is_some() {
            return value("operations", "belongs to kind \"operations\", and to it alone".to_owned());
        }
        if let Some(plan) = &self.operations {
            known(&format!("{file}, operations.model"), std::slice::from_ref(&plan.model), catalogue.models.keys())?;
            if plan.fleet < 2 || plan.trials == 0 || plan.clients.contains(&0) {
                return value("operations", "needs a fleet of two or more, a trial or more, and clients".to_owned());
            }
        }
        for (index, claim) in self.claims.iter().enumerate() {
            if claim.at_least.is_none() && claim.at_most.is_none() {
                return value(&format!("claims[{index}]"), "needs `at_least` or `at_most`".to_owned());
            }
        }
        for (index, plot) in self.plots.iter().enumerate() {
            if (plot.kind == PlotKind::Figure) != plot.figure.is_some() {
                return value(
                    &format!("plots[{index}]"),
                    "`figure` belongs to kind \"figure\", and to it alone".into(),
                );
            }
        }
        Ok(())
    }

    /// The same with little work, to see whether it runs: no gradients, few steps, small fleets, one seed.
    pub(crate) fn quick(mut self) -> Self {
        const STEPS: i64 = 40;
        const AGENTS_MAX: u32 = 64;
        for case in &mut self.cases {
            case.gradients = Gradients::None;
            case.seeds.truncate(1);
            case.agents.retain(|&agents| agents <= AGENTS_MAX);
            if let Some(schedule) = &mut case.schedule {
                // Its levels come by epochs, so it runs for epochs: as short as they can be.
                schedule.epochs_each = 1;
            } else {
                case.job.insert("stop".to_owned(), Table::from_iter([("steps".to_owned(), STEPS.into())]).into());
            }
        }
        self
    }
}

/// Checks names against those that exist.
fn known<'a>(
    place: &str,
    names: &[String],
    known: impl Iterator<Item = &'a String> + Clone,
) -> Result<(), DefinitionError> {
    match names.iter().find(|name| !known.clone().any(|known| known == *name)) {
        None => Ok(()),
        Some(name) => Err(DefinitionError::Unknown {
            place: place.to_owned(),
            name: name.clone(),
            known: known.cloned().collect::<Vec<_>>().join(", "),
        }),
    }
}
