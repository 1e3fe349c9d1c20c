//! What came out, as numbers and as a table.

use std::thread::available_parallelism;

use anyhow::bail;
use serde::Serialize;

use super::curve::Point;
use super::recipe::Recipe;
use crate::bench::machine::processor;
use crate::demo::RunRecords;
use crate::fleet::ratios::HeterogeneityLevel;

/// Largest difference at the end, in points of a per cent, that counts as the same accuracy. The two sides draw other first
/// values and orders, which alone moves the accuracy by some tenths.
const DIFFERENCE_MAX_POINTS: f64 = 1.0;

/// Both sides after as many samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) samples: u64,
    /// In `0..=1`.
    pub(crate) ours_accuracy: f64,
    /// In `0..=1`.
    pub(crate) torch_accuracy: f64,
    /// Mean over the test set.
    pub(crate) ours_loss: f64,
    /// Mean over the test set.
    pub(crate) torch_loss: f64,
}

/// Everything that came out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    name: &'static str,
    pub(crate) rows: Vec<Row>,
    /// Ours minus PyTorch's at the end, in points.
    difference_points: f64,
    within_1_point: bool,
    /// What both sides did.
    pub(crate) settings: Recipe,
    /// Our agents.
    pub(crate) agents: Vec<Agent>,
    /// Heterogeneity level.
    pub(crate) hl: u32,
    pub(crate) torch_version: String,
    processor: String,
    cores: usize,
}

/// One of ours.
#[derive(Debug, Serialize)]
pub(crate) struct Agent {
    quota_cores: f64,
    /// At the end, in samples; batch normalisation sees no more than this.
    local_batch: u32,
}

impl Report {
    /// From both sides' curves.
    ///
    /// # Errors
    /// When they were not evaluated after the same numbers of samples.
    pub(crate) fn new(
        settings: Recipe,
        level: HeterogeneityLevel,
        ours: &RunRecords,
        theirs: Vec<Point>,
        torch_version: &str,
    ) -> anyhow::Result<Self> {
        let rows = rows(&Point::of_run(ours), &theirs)?;
        let Some(last) = rows.last() else { bail!("nothing was evaluated") };
        let difference_points = (last.ours_accuracy - last.torch_accuracy) * 100.0;
        let local_batch = |agent| ours.steps.iter().rev().find(|step| step.agent == agent).map_or(0, |step| step.batch);
        let agents = ours.quotas.iter().enumerate();
        Ok(Self {
            name: "accuracy",
            difference_points,
            // Accuracies are multiples of a ten-thousandth, their difference in `f64` is only nearly so.
            within_1_point: difference_points.abs() <= DIFFERENCE_MAX_POINTS + 1e-9,
            rows,
            settings,
            agents: agents
                .map(|(agent, &quota)| Agent { quota_cores: quota, local_batch: local_batch(agent) })
                .collect(),
            hl: level.number(),
            torch_version: torch_version.to_owned(),
            processor: processor(),
            cores: available_parallelism().map_or(1, usize::from),
        })
    }

    /// A table for people, with what one must know to read it.
    pub(crate) fn text(&self) -> String {
        let list = |value: fn(&Agent) -> String| self.agents.iter().map(value).collect::<Vec<_>>().join(" and ");
        let mut text = format!("{}, {} cores, PyTorch {}\n", self.processor, self.cores, self.torch_version);
        text.push_str(&format!("{}\n", self.settings));
        text.push_str(&format!(
            "ours: a hub and {} agents with {} cores (HL{}), BSP, dynamic batches; PyTorch: one process on all cores\n\n",
            self.agents.len(),
            list(|agent| format!("{:.2}", agent.quota_cores)),
            self.hl
        ));
        text.push_str("samples   ours %  PyTorch %  difference  ours loss  PyTorch loss\n");
        for row in &self.rows {
            text.push_str(&format!(
                "{:>7}  {:>7.2}  {:>9.2}  {:>+10.2}  {:>9.4}  {:>12.4}\n",
                row.samples,
                row.ours_accuracy * 100.0,
                row.torch_accuracy * 100.0,
                (row.ours_accuracy - row.torch_accuracy) * 100.0,
                row.ours_loss,
                row.torch_loss
            ));
        }
        let verdict = if self.within_1_point { "within" } else { "NOT within" };
        text.push_str(&format!(
            "\nat the end ours is {:+.2} points from PyTorch's accuracy: {verdict} {DIFFERENCE_MAX_POINTS} point\n",
            self.difference_points
        ));
        text.push_str(&format!(
            "note: batch normalisation sees each agent's own part of a batch ({} samples at the end), in PyTorch all {};\n      \
             agents' running statistics are averaged by samples\n",
            list(|agent| agent.local_batch.to_string()),
            self.settings.global_batch
        ));
        text
    }
}

fn rows(ours: &[Point], theirs: &[Point]) -> anyhow::Result<Vec<Row>> {
    let samples = |points: &[Point]| points.iter().map(|point| point.samples).collect::<Vec<_>>();
    if samples(ours) != samples(theirs) {
        bail!("ours was evaluated after {:?} samples, PyTorch after {:?}", samples(ours), samples(theirs));
    }
    let row = |(ours, theirs): (&Point, &Point)| Row {
        samples: ours.samples,
        ours_accuracy: ours.accuracy,
        torch_accuracy: theirs.accuracy,
        ours_loss: ours.loss,
        torch_loss: theirs.loss,
    };
    Ok(ours.iter().zip(theirs).map(row).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::recipe::tests::recipe;
    use super::*;
    use crate::demo::canned_records;

    /// Ours ends at 0.87.
    pub(crate) fn report(torch_accuracy: f64) -> Report {
        let point = |samples, accuracy| Point { samples, accuracy, loss: 0.5 };
        let theirs = vec![point(160, 0.8), point(256, 0.85), point(320, torch_accuracy)];
        Report::new(recipe(), HeterogeneityLevel::Hl8, &canned_records(), theirs, "2.0").unwrap()
    }

    #[test]
    fn a_difference_of_one_point_is_within_and_more_is_not_either_way() {
        for (torch_accuracy, within) in [(0.88, true), (0.86, true), (0.8801, false), (0.8599, false)] {
            let report = report(torch_accuracy);
            assert_eq!(report.within_1_point, within, "{torch_accuracy}");
            assert_eq!(report.text().contains("NOT within 1 point"), !within, "{torch_accuracy}");
        }
    }

    #[test]
    fn json_has_a_name_and_a_row_for_each_evaluation() {
        let json = serde_json::to_value(report(0.88)).unwrap();
        assert_eq!(json["name"], "accuracy");
        assert_eq!(json["rows"].as_array().unwrap().len(), 3);
        assert_eq!(json["rows"][2]["samples"], 320);
        assert_eq!(json["rows"][2]["torch_accuracy"], 0.88);
        assert_eq!(json["agents"][1]["local_batch"], 24);
        assert_eq!(json["settings"]["optimizer"], "sgd");
    }

    #[test]
    fn the_text_says_what_batch_normalisation_saw() {
        let text = report(0.88).text();
        assert!(text.contains("    320    87.00      88.00       -1.00     0.1300        0.5000\n"), "{text}");
        assert!(text.contains("(8 and 24 samples at the end), in PyTorch all 256"), "{text}");
    }

    #[test]
    fn curves_of_other_samples_are_not_compared() {
        let point = |samples| Point { samples, accuracy: 0.5, loss: 1.0 };
        assert!(rows(&[point(10)], &[point(11)]).is_err() && rows(&[point(10)], &[]).is_err());
    }
}
