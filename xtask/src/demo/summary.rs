//! The figures of a demo: one object for programs, one table for people.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::records::RunRecords;

/// Accuracies whose times are reported.
pub(crate) const TARGETS: [f64; 2] = [0.85, 0.88];

/// Everything that `cargo xtask demo --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DemoSummary {
    /// One entry per policy, in the order of the runs.
    pub(crate) runs: Vec<RunSummary>,
    /// Time per epoch with `uniform` over that with `dynamic`, if both ran.
    pub(crate) speedup_epoch: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunSummary {
    /// How batches were set.
    pub(crate) policy: String,
    /// `bsp` or `asp`.
    pub(crate) mode: String,
    /// Heterogeneity level.
    pub(crate) hl: u32,
    /// Mean training time of an epoch, evaluation excluded, in seconds.
    pub(crate) epoch_s: Option<f64>,
    /// Test accuracy at the end, in `0..=1`.
    pub(crate) accuracy: Option<f64>,
    /// Share of the training time in which an agent had nothing to do, averaged over the agents.
    pub(crate) idle_share: Option<f64>,
    /// Largest over smallest mean compute time of the agents in the last epoch.
    pub(crate) max_over_min_compute: Option<f64>,
    /// Mean staleness of the slowest agent's updates, in steps; over all agents the mean is near K − 1 whatever one does.
    pub(crate) mean_staleness: Option<f64>,
    /// Training time to a test accuracy, in seconds; null where it was not reached.
    pub(crate) time_to: BTreeMap<String, Option<f64>>,
}

impl RunSummary {
    /// The figures of one run.
    pub(crate) fn new(policy: &str, mode: &str, hl: u32, records: &RunRecords) -> Self {
        Self {
            policy: policy.to_owned(),
            mode: mode.to_owned(),
            hl,
            epoch_s: records.epoch_s(),
            accuracy: records.accuracy(),
            idle_share: records.idle_share(),
            max_over_min_compute: records.max_over_min_compute(),
            mean_staleness: records.slowest_staleness(),
            time_to: TARGETS.iter().map(|&target| (format!("{target:.2}"), records.time_to(target))).collect(),
        }
    }
}

impl DemoSummary {
    /// The summary of these runs.
    pub(crate) fn new(runs: Vec<RunSummary>) -> Self {
        let epoch_s = |policy: &str| runs.iter().find(|run| run.policy == policy).and_then(|run| run.epoch_s);
        let speedup_epoch = epoch_s("uniform").zip(epoch_s("dynamic")).map(|(uniform, dynamic)| uniform / dynamic);
        Self { runs, speedup_epoch }
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let seconds = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1} s"));
        let percent =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{:.1} %", value * 100.0));
        let plain = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let mut rows = vec![
            [
                "batches",
                "mode",
                "epoch",
                "to 85 %",
                "to 88 %",
                "accuracy",
                "idle",
                "max/min compute",
                "staleness (slowest)",
            ]
            .map(str::to_owned),
        ];
        for run in &self.runs {
            let time_to = |target: f64| seconds(run.time_to.get(&format!("{target:.2}")).copied().flatten());
            rows.push([
                run.policy.clone(),
                format!("{}, HL{}", run.mode, run.hl),
                seconds(run.epoch_s),
                time_to(TARGETS[0]),
                time_to(TARGETS[1]),
                percent(run.accuracy),
                percent(run.idle_share),
                plain(run.max_over_min_compute),
                plain(run.mean_staleness),
            ]);
        }
        let mut table = aligned(&rows);
        if let Some(speedup) = self.speedup_epoch {
            table.push_str(&format!(
                "dynamic takes {:.0} % of uniform's time per epoch: {speedup:.2} times as fast\n",
                100.0 / speedup
            ));
        }
        table
    }
}

/// Columns as wide as their widest cell: the first two to the left, figures to the right.
fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let gap = " ".repeat(width(column) - cell.chars().count());
            let separator = if column == 0 { "" } else { "  " };
            let (before, after) = if column < 2 { ("", gap.as_str()) } else { (gap.as_str(), "") };
            line.push_str(&format!("{separator}{before}{cell}{after}"));
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::records::tests::canned;
    use super::*;

    fn summary() -> DemoSummary {
        let mut faster = canned();
        for step in &mut faster.steps {
            step.at_s /= 2.0;
        }
        DemoSummary::new(vec![
            RunSummary::new("uniform", "bsp", 8, &canned()),
            RunSummary::new("dynamic", "bsp", 8, &faster),
        ])
    }

    #[test]
    fn json_has_exactly_the_promised_shape() {
        let value = serde_json::to_value(summary()).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), ["runs", "speedup_epoch"]);
        let mut run_keys = [
            "policy",
            "mode",
            "hl",
            "epoch_s",
            "accuracy",
            "idle_share",
            "max_over_min_compute",
            "mean_staleness",
            "time_to",
        ];
        run_keys.sort_unstable();
        let mut found = keys(&value["runs"][0]);
        found.sort_unstable();
        assert_eq!(found, run_keys);
        assert_eq!(keys(&value["runs"][0]["time_to"]), ["0.85", "0.88"]);
        assert!(value["runs"][0]["time_to"]["0.88"].is_null());
        assert!((value["speedup_epoch"].as_f64().unwrap() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn without_both_policies_there_is_no_speed_up() {
        let summary = DemoSummary::new(vec![RunSummary::new("dynamic", "bsp", 8, &canned())]);
        assert_eq!(summary.speedup_epoch, None);
        assert!(!summary.table().contains("times as fast"));
    }

    #[test]
    fn the_table_lines_up_and_ends_with_the_speed_up() {
        let table = summary().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("batches  mode      epoch"), "{table}");
        assert_eq!(lines[0].len(), lines[1].len());
        assert_eq!(lines[1].len(), lines[2].len());
        assert!(lines[1].contains("0.5 s") && lines[1].contains("87.0 %"), "{table}");
        assert!(lines[3].ends_with("2.00 times as fast"), "{table}");
    }
}
