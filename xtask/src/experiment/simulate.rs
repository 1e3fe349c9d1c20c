//! Rows on the virtual fleet, by `omnilearn-sim`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::csv::Csv;
use super::definition::Gradients;
use super::outcome::Outcome;
use super::plan::PlannedRow;
use crate::fleet::process::Process;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

/// Name of the file with what a row's figures were made from.
const DONE: &str = "row.json";

/// The simulator, and what it needs.
#[derive(Debug)]
pub(crate) struct Simulator<'a> {
    pub(crate) workspace: &'a Workspace,
    /// `omnilearn-sim`.
    pub(crate) program: PathBuf,
    /// Folder with the data sets' files.
    pub(crate) data: Option<PathBuf>,
    /// State folder of a hub, with data sets.
    pub(crate) state: Option<&'a Path>,
    /// Whether finished rows with equal inputs are taken over.
    pub(crate) resume: bool,
}

/// What `row.json` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    inputs: String,
    outcome: Outcome,
}

/// One run of the simulator.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    /// The fleet file.
    pub(crate) fleet: &'a str,
    /// The job file.
    pub(crate) job: &'a str,
    /// `real` or `none`.
    pub(crate) gradients: &'static str,
    /// Whether the simulator compares with an oracle.
    pub(crate) oracle: bool,
}

/// Accuracy by version: what was trained once for several rows.
#[derive(Clone, Debug, Default)]
struct LearningCurve(Vec<(f64, f64)>);

impl Simulator<'_> {
    /// Runs a row with all its seeds, in a folder of its own under `out`, unless it is there. What the simulator refuses
    /// is an outcome with a reason. Also returns whether the row was there.
    ///
    /// # Errors
    /// When a file cannot be written or read, and after an interrupt.
    pub(crate) fn run(
        &self,
        row: &PlannedRow<'_>,
        out: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(Outcome, bool)> {
        let skipped = |reason| Outcome { key: row.key.clone(), figures: BTreeMap::new(), skipped: Some(reason) };
        let folder = out.join("rows").join(row.key.slug());
        let component = self.workspace.component(&row.model.kernel);
        if let Err(error) = row.core_speed() {
            return Ok((skipped(format!("{error:#}")), false));
        }
        let mut inputs = Sha256::new();
        let mut files = Vec::new();
        for &seed in &row.case.seeds {
            let (fleet, job) = (row.fleet_file(seed)?, row.job_file(&component, seed)?);
            for text in [&fleet, &job] {
                inputs.update(text);
            }
            files.push((seed, fleet, job));
        }
        inputs.update(format!("{:?} {:?} {}", row.case.gradients, row.model.target_accuracy, row.case.oracle));
        let inputs: String = inputs.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some(outcome) = self.finished(&folder, &inputs) {
            return Ok((outcome, true));
        }
        let mut results = Vec::new();
        for (seed, fleet, job) in &files {
            let folder = folder.join(format!("seed-{seed}"));
            let task =
                Task { fleet, job, gradients: if row.trains() { "real" } else { "none" }, oracle: row.case.oracle };
            let figures = match self.simulate(&folder, &task, interrupt)? {
                Ok(figures) => figures,
                Err(reason) => return Ok((skipped(reason), false)),
            };
            let curve = match row.case.gradients {
                Gradients::None => LearningCurve::default(),
                Gradients::Real => LearningCurve::of_folder(&folder)?,
                Gradients::Once => match self.train_once(row, *seed, out, interrupt)? {
                    Ok(curve) => curve,
                    Err(reason) => return Ok((skipped(reason), false)),
                },
            };
            results.push(with_curve(figures, &folder, &curve, row.model.target_accuracy)?);
        }
        let outcome = Outcome { key: row.key.clone(), figures: mean(&results), skipped: None };
        let done = serde_json::to_string_pretty(&Done { inputs, outcome: outcome.clone() }).context("writing JSON")?;
        write(&folder.join(DONE), &done)?;
        Ok((outcome, false))
    }

    fn finished(&self, folder: &Path, inputs: &str) -> Option<Outcome> {
        let done: Done = serde_json::from_str(&fs::read_to_string(folder.join(DONE)).ok()?).ok()?;
        (self.resume && done.inputs == inputs).then_some(done.outcome)
    }

    /// The training that all rows of a case and model share: this row's job, with real gradients, once.
    fn train_once(
        &self,
        row: &PlannedRow<'_>,
        seed: u64,
        out: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Result<LearningCurve, String>> {
        let folder = out.join("training").join(row.training_slug(seed));
        let (fleet, job) = row.training_files(&self.workspace.component(&row.model.kernel), seed)?;
        let same = |name: &str, text: &str| fs::read_to_string(folder.join(name)).is_ok_and(|found| found == text);
        // Rows of one experiment always share it; one of an earlier call is taken over like a row.
        let trained = folder.join("summary.json").is_file() && same("fleet.toml", &fleet) && same("job.toml", &job);
        if trained {
            return LearningCurve::of_folder(&folder).map(Ok);
        }
        let task = Task { fleet: &fleet, job: &job, gradients: "real", oracle: false };
        match self.simulate(&folder, &task, interrupt)? {
            Ok(_) => LearningCurve::of_folder(&folder).map(Ok),
            Err(reason) => Ok(Err(reason)),
        }
    }

    /// One run of the simulator in a folder: its figures, or why it refused.
    ///
    /// # Errors
    /// When a file cannot be written or read, and after an interrupt.
    pub(crate) fn simulate(
        &self,
        folder: &Path,
        task: &Task<'_>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Result<BTreeMap<String, f64>, String>> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let (fleet, job) = (folder.join("fleet.toml"), folder.join("job.toml"));
        let summary = folder.join("summary.json");
        if summary.exists() {
            fs::remove_file(&summary).with_context(|| format!("removing {}", summary.display()))?;
        }
        write(&fleet, task.fleet)?;
        write(&job, task.job)?;
        let mut command = Command::new(&self.program);
        command.arg(&fleet).arg(&job).args(["--gradients", task.gradients, "--json", "--out"]).arg(folder);
        if let Some(data) = self.data.as_ref().filter(|_| task.gradients == "real") {
            command.arg("--data").arg(data);
        }
        if let Some(state) = self.state {
            command.arg("--state").arg(state);
        }
        if task.oracle {
            command.arg("--oracle");
        }
        let mut process = Process::spawn("omnilearn-sim", command, &folder.join("log"))?;
        if let Err(error) = process.run_to_end(interrupt, |_| ()) {
            interrupt.check()?;
            let log = process.log_tail();
            let reason = log.lines().rev().find(|line| line.starts_with("error")).map(str::to_owned);
            return Ok(Err(reason.unwrap_or_else(|| format!("{error:#}"))));
        }
        let text = fs::read_to_string(&summary).with_context(|| format!("reading {}", summary.display()))?;
        let summary: BTreeMap<String, serde_json::Value> =
            serde_json::from_str(&text).with_context(|| format!("reading {}", summary.display()))?;
        if summary.is_empty() {
            bail!("the simulator left no figures in {}", folder.display());
        }
        Ok(Ok(summary.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect()))
    }
}

impl LearningCurve {
    fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        let points = Csv::read(&folder.join("evaluations.csv"))?.numbers(["version", "accuracy"])?;
        Ok(Self(points.into_iter().map(|[version, accuracy]| (version, accuracy)).collect()))
    }

    /// The first version that was evaluated at the accuracy or above.
    fn reaches(&self, accuracy: f64) -> Option<f64> {
        self.0.iter().find(|(_, found)| *found >= accuracy).map(|(version, _)| *version)
    }
}

/// Figures of a run with what the curve says of accuracy: at the end, and when it reached the target in this run's time. The
/// points go beside the run's own files, as `accuracy.csv`.
fn with_curve(
    mut figures: BTreeMap<String, f64>,
    folder: &Path,
    curve: &LearningCurve,
    target: Option<f64>,
) -> anyhow::Result<BTreeMap<String, f64>> {
    // Without gradients there is nothing to be accurate with.
    for name in ["accuracy", "loss", "time_to_target_s"] {
        if curve.0.is_empty() {
            figures.remove(name);
        }
    }
    let Some((_, accuracy)) = curve.0.last() else { return Ok(figures) };
    figures.insert("accuracy".to_owned(), *accuracy);
    let times: BTreeMap<u64, f64> = Csv::read(&folder.join("rounds.csv"))?
        .numbers(["version", "training_s"])?
        .into_iter()
        .map(|[version, time]| (version as u64, time))
        .collect();
    let time_of = |version: f64| times.get(&(version as u64)).copied();
    figures.remove("time_to_target_s");
    if let Some(time) = target.and_then(|target| curve.reaches(target)).and_then(time_of) {
        figures.insert("time_to_target_s".to_owned(), time);
    }
    let mut text = "version,training_s,accuracy\n".to_owned();
    for &(version, accuracy) in &curve.0 {
        if let Some(time) = time_of(version) {
            text.push_str(&format!("{version},{time},{accuracy}\n"));
        }
    }
    write(&folder.join("accuracy.csv"), &text)?;
    Ok(figures)
}

/// Means over seeds of what all of them have, and the range of the accuracy.
fn mean(results: &[BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let Some(first) = results.first() else { return BTreeMap::new() };
    let values = |name: &str| results.iter().map(|figures| figures.get(name).copied()).collect::<Option<Vec<f64>>>();
    let mut means: BTreeMap<String, f64> = first
        .keys()
        .filter_map(|name| Some((name.clone(), values(name)?.iter().sum::<f64>() / results.len() as f64)))
        .collect();
    if let Some(accuracies) = values("accuracy").filter(|accuracies| accuracies.len() > 1) {
        means.insert("accuracy_min".to_owned(), accuracies.iter().copied().fold(f64::INFINITY, f64::min));
        means.insert("accuracy_max".to_owned(), accuracies.iter().copied().fold(0.0, f64::max));
    }
    means
}

pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(entries: &[(&str, f64)]) -> BTreeMap<String, f64> {
        entries.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn seeds_are_averaged_where_all_have_the_figure() {
        let results = [
            figures(&[("accuracy", 0.8), ("epoch_s", 2.0), ("loss", 1.0)]),
            figures(&[("accuracy", 0.9), ("epoch_s", 4.0)]),
        ];
        let mean = mean(&results);
        assert_eq!(mean["epoch_s"], 3.0);
        assert_eq!((mean["accuracy_min"], mean["accuracy_max"]), (0.8, 0.9));
        assert!(!mean.contains_key("loss"));
    }

    #[test]
    fn a_shared_training_is_laid_over_the_times_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rounds.csv"), "version,training_s\n1,0.5\n2,1.0\n3,1.5\n").unwrap();
        let curve = LearningCurve(vec![(1.0, 0.5), (2.0, 0.86), (3.0, 0.9)]);
        let found = with_curve(figures(&[("epoch_s", 1.0)]), folder.path(), &curve, Some(0.85)).unwrap();
        assert_eq!(found, figures(&[("epoch_s", 1.0), ("accuracy", 0.9), ("time_to_target_s", 1.0)]));
        let text = fs::read_to_string(folder.path().join("accuracy.csv")).unwrap();
        assert_eq!(text, "version,training_s,accuracy\n1,0.5,0.5\n2,1,0.86\n3,1.5,0.9\n");
        let never = with_curve(figures(&[]), folder.path(), &curve, Some(0.95)).unwrap();
        assert!(!never.contains_key("time_to_target_s"));
    }

    #[test]
    fn without_gradients_there_is_no_accuracy() {
        let folder = tempfile::tempdir().unwrap();
        let found =
            with_curve(figures(&[("epoch_s", 1.0), ("accuracy", 0.1)]), folder.path(), &LearningCurve::default(), None);
        assert_eq!(found.unwrap(), figures(&[("epoch_s", 1.0)]));
    }
}
