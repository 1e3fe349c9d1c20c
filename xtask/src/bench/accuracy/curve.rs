//! Accuracy over samples.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::demo::RunRecords;

/// One evaluation on the test set.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Point {
    /// Samples that training has seen.
    pub(crate) samples: u64,
    /// Share of test samples that are classified right, in `0..=1`.
    pub(crate) accuracy: f64,
    /// Mean loss.
    pub(crate) loss: f64,
}

impl Point {
    /// From the script's output, in which each is a line of JSON among other lines.
    ///
    /// # Errors
    /// When a line of JSON says something else.
    pub(crate) fn read_all(output: &str) -> anyhow::Result<Vec<Self>> {
        output.lines().filter(|line| line.starts_with('{')).map(Self::read).collect()
    }

    /// From one such line.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn read(line: &str) -> anyhow::Result<Self> {
        serde_json::from_str(line).with_context(|| format!("unexpected JSON: {line}"))
    }

    /// From the records of a job.
    pub(crate) fn of_run(records: &RunRecords) -> Vec<Self> {
        let mut samples_by_version: BTreeMap<u64, u64> = BTreeMap::new();
        for step in &records.steps {
            *samples_by_version.entry(step.version).or_default() += u64::from(step.batch);
        }
        let evaluations = records.evaluations.iter().map(|evaluation| Self {
            samples: samples_by_version.range(..=evaluation.version).map(|(_, samples)| samples).sum(),
            accuracy: evaluation.accuracy,
            loss: evaluation.loss,
        });
        evaluations.collect()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, accuracy, loss } = self;
        write!(formatter, "accuracy {:.1} % and loss {loss:.3} after {samples} samples", accuracy * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::canned_records;

    #[test]
    fn evaluations_are_found_among_other_lines() {
        let output = "a warning\nstep 3 of 9, loss 2.1\n{\"samples\": 96, \"accuracy\": 0.5, \"loss\": 1.5}\nbye\n";
        assert_eq!(Point::read_all(output).unwrap(), [Point { samples: 96, accuracy: 0.5, loss: 1.5 }]);
        assert!(Point::read_all("{\"samples\": 96}").is_err());
    }

    #[test]
    fn an_evaluation_follows_the_samples_of_all_agents_up_to_its_version() {
        let points = Point::of_run(&canned_records()); // 32 samples a step; evaluated after 5, 8 and 10
        assert_eq!(points.iter().map(|point| point.samples).collect::<Vec<_>>(), [160, 256, 320]);
        assert_eq!(points[2].accuracy, 0.87);
    }
}
