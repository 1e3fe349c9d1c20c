//! The folder of a run: what went in, every row, pictures and the report.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Context;

use super::catalogue::{self, Catalogue};
use super::csv;
use super::definition::Definition;
use super::figures::cell;
use super::library::Library;
use super::outcome::Outcome;
use super::plots;
use super::png::{self, Converter};
use super::report::{Circumstances, Picture, markdown};
use super::{FOLDER, ratios};
use crate::bench::machine::processor;
use crate::workspace::Workspace;

/// Folder of published results, from the workspace's root.
const RESULTS: &str = "docs/results";

/// Largest picture that is published as PNG, too.
const PNG_BYTES_MAX: u64 = 30_000;

/// One run of an experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// Where the sources are.
    pub(crate) workspace: &'a Workspace,
    /// What runs.
    pub(crate) definition: &'a Definition,
    /// What it refers to.
    pub(crate) catalogue: &'a Catalogue,
    /// Data sets that no package has.
    pub(crate) library: Option<&'a Library>,
    /// The folder.
    pub(crate) out: &'a Path,
    /// Whether it is the small variant.
    pub(crate) quick: bool,
}

impl Run<'_> {
    /// Keeps the definition and the catalogue beside the results.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub(crate) fn write_inputs(&self) -> anyhow::Result<()> {
        let from = self.workspace.root().join(FOLDER);
        for (name, kept) in [
            (format!("{}.toml", self.definition.name), "definition.toml"),
            (catalogue::FILE.to_owned(), catalogue::FILE),
        ] {
            let source = from.join(name);
            fs::copy(&source, self.out.join(kept)).with_context(|| format!("copying {}", source.display()))?;
        }
        Ok(())
    }

    /// Writes the table of rows, pictures and the report, whose path it returns.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn write_results(
        &self,
        outcomes: &[Outcome],
        taken_over: usize,
        took: Duration,
    ) -> anyhow::Result<PathBuf> {
        self.write("rows.csv", &csv::of_outcomes(outcomes))?;
        let converter = Converter::find();
        if converter.is_none() {
            eprintln!("note: {}", png::NOTICE);
        }
        let mut pictures = Vec::new();
        for plot in &self.definition.plots {
            let Some(svg) = plots::draw(plot, outcomes, self.out)? else { continue };
            let path = self.write(&format!("{}.svg", plot.file), &svg)?;
            if let Some(converter) = converter
                && let Err(error) = converter.convert(&path, &path.with_extension("png"))
            {
                eprintln!("note: {error:#}");
            }
            pictures.push(Picture { file: format!("{}.svg", plot.file), title: plot.title.clone() });
        }
        let cores = available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let circumstances = Circumstances {
            command: format!(
                "cargo xtask experiment {}{}",
                self.definition.name,
                if self.quick { " --quick" } else { "" }
            ),
            machine: format!("{cores} cores of {}", processor()),
            commit: commit(self.workspace.root()),
            took_s: took.as_secs_f64(),
            speeds_from: self.catalogue.speeds_from.clone(),
            quick: self.quick,
            taken_over,
            costs: costs(outcomes),
        };
        let text = markdown(self.definition, self.catalogue, outcomes, &pictures, &circumstances);
        self.write("report.md", &text)
    }

    /// Copies what readers of the repository see.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub(crate) fn publish(&self) -> anyhow::Result<()> {
        let target = self.workspace.root().join(RESULTS).join(&self.definition.name);
        fs::create_dir_all(&target).with_context(|| format!("creating {}", target.display()))?;
        let mut names = vec!["report.md".to_owned(), "rows.csv".to_owned()];
        names.extend(self.definition.plots.iter().map(|plot| format!("{}.svg", plot.file)));
        for plot in &self.definition.plots {
            let name = format!("{}.png", plot.file);
            let small = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() <= PNG_BYTES_MAX);
            names.extend(Some(name).filter(|name| small(&self.out.join(name))));
        }
        for name in names {
            let source = self.out.join(&name);
            if source.is_file() {
                fs::copy(&source, target.join(&name)).with_context(|| format!("copying {}", source.display()))?;
            }
        }
        eprintln!("published in {}", target.display());
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.out.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display())).map(|()| path)
    }
}

/// What a person sees of a row when it is finished.
pub(crate) fn row_result(outcome: &Outcome) -> String {
    if let Some(reason) = &outcome.skipped {
        return format!("not run: {reason}");
    }
    let shown = ["epoch_s", "accuracy", "idle_share", "ratio_to_limit"];
    let figures = shown.iter().filter_map(|name| Some(format!("{name} {}", cell(name, Some(outcome.figure(name)?)))));
    figures.collect::<Vec<_>>().join(", ")
}

/// How the cost of the hub's core grows with the fleet, where rows differ in their number of agents.
fn costs(outcomes: &[Outcome]) -> Option<String> {
    let points: Vec<(f64, f64)> = outcomes
        .iter()
        .filter_map(|row| Some((f64::from(row.key.agents), row.figure("core_cpu_ms_per_round")?)))
        .collect();
    let (intercept, slope) = ratios::line(&points)?;
    let squares = |value: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(|point| value(point).powi(2)).sum::<f64>();
    let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
    let unexplained = squares(&|(agents, cost)| cost - intercept - slope * agents);
    let explained = 1.0 - unexplained / squares(&|(_, cost)| cost - mean).max(f64::MIN_POSITIVE);
    Some(format!(
        "CPU of the hub's core per round = {intercept:.2} ms + {:.3} ms for every 1000 agents (least squares over {} fleets of \
         {:.0} to {:.0} agents, R² = {explained:.4}).",
        slope * 1000.0,
        points.len(),
        points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min),
        points.iter().map(|point| point.0).fold(0.0, f64::max),
    ))
}

/// The commit of the sources, with a mark if they were changed since.
fn commit(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed { format!("{commit} with changes") } else { commit })
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;

    #[test]
    fn the_cost_of_the_core_is_a_line_over_fleet_sizes() {
        let mut rows = [10, 20, 40].map(|agents| {
            let mut row = outcome(8, "deadline", &[("core_cpu_ms_per_round", 0.5 + 0.002 * f64::from(agents))]);
            row.key.agents = agents;
            row
        });
        let text = costs(&rows).unwrap();
        assert!(text.contains("0.50 ms + 2.000 ms for every 1000 agents") && text.contains("10 to 40"), "{text}");
        for row in &mut rows {
            row.key.agents = 4;
        }
        assert_eq!(costs(&rows), None);
    }

    #[test]
    fn a_finished_row_is_told_in_a_line() {
        let mut row = outcome(8, "deadline", &[("epoch_s", 2.0), ("accuracy", 0.9)]);
        assert_eq!(row_result(&row), "epoch_s 2.00 s, accuracy 90.0 %");
        row.skipped = Some("no data".to_owned());
        assert_eq!(row_result(&row), "not run: no data");
    }
}
