//! The picture of a demo: batch sizes, step times and accuracy over time, one column per policy with common axes.

use std::path::Path;

use anyhow::Context;
use plotters::prelude::BLACK;

use super::records::RunRecords;
use super::summary::TARGETS;
use crate::chart::{self, Axis, Curve, Header, Panel, color};

const COLUMN_WIDTH: u32 = 620;
const LEGEND_WIDTH: u32 = 235;
const PANEL_HEIGHT: u32 = 260;

/// Points along the time axis of a step-time curve: enough to see a change, few enough to read.
const BUCKETS: usize = 160;

/// One column.
pub(crate) struct Column<'a> {
    /// Heading.
    pub(crate) policy: &'a str,
    /// What it shows.
    pub(crate) records: &'a RunRecords,
}

/// Writes the picture as SVG.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn draw(path: &Path, title: &str, columns: &[Column<'_>]) -> anyhow::Result<()> {
    chart::write(path, &picture(title, columns)?)
}

fn picture(title: &str, columns: &[Column<'_>]) -> anyhow::Result<String> {
    let width = COLUMN_WIDTH * u32::try_from(columns.len().max(1)).context("too many columns")?;
    let agents = columns.iter().take(1).flat_map(|column| column.records.agents.iter().zip(&column.records.quotas));
    let legend = agents.map(|(name, quota)| format!("{name}: {quota:.3} cores")).collect();
    let ranges = Ranges::over(columns);
    chart::picture((width, 3 * PANEL_HEIGHT), &Header { title, legend, legend_width: LEGEND_WIDTH }, |body| {
        for (area, column) in body.split_evenly((1, columns.len().max(1))).iter().zip(columns) {
            for (area, panel) in area.split_evenly((3, 1)).iter().zip(panels(column, &ranges)) {
                panel.draw(area)?;
            }
        }
        Ok(())
    })
}

/// The panels of one column, from top to bottom.
fn panels(column: &Column<'_>, ranges: &Ranges) -> [Panel; 3] {
    let Column { policy, records } = column;
    let agents = || 0..records.agents.len();
    let panel = |caption: String, unit, values, curves| Panel {
        caption,
        x: Axis { name: "training time, s", range: 0.0..ranges.time_s },
        y: Axis { name: unit, range: values },
        curves,
        dots: false,
        targets: Vec::new(),
    };
    let batches = agents().map(|agent| {
        // Equal batches lie on each other: wider below, so that each colour shows.
        let below = u32::try_from(records.agents.len() - 1 - agent).unwrap_or(0);
        Curve { points: batch_curve(records, agent), color: color(agent), width: 2 + 2 * below.min(3) }
    });
    let times = agents().map(|agent| Curve { points: step_time_curve(records, agent), color: color(agent), width: 2 });
    let accuracies = records.evaluations.iter().map(|evaluation| (evaluation.at_s, evaluation.accuracy * 100.0));
    let accuracy = Curve { points: accuracies.collect(), color: BLACK, width: 2 };
    let at_the_end = records.accuracy().map(|accuracy| format!(", {:.1} % at the end", accuracy * 100.0));
    [
        panel(format!("{policy}: local batch"), "samples", 0.0..ranges.batch, batches.collect()),
        panel(format!("{policy}: time of one step"), "ms", 0.0..ranges.step_ms, times.collect()),
        Panel {
            dots: true,
            targets: TARGETS.iter().map(|target| target * 100.0).collect(),
            ..panel(
                format!("{policy}: test accuracy{}", at_the_end.unwrap_or_default()),
                "%",
                ranges.accuracy_percent..100.0,
                vec![accuracy],
            )
        },
    ]
}

/// Ends of the axes that all columns share, so that their curves can be compared by eye.
struct Ranges {
    time_s: f64,
    batch: f64,
    step_ms: f64,
    accuracy_percent: f64,
}

impl Ranges {
    fn over(columns: &[Column<'_>]) -> Self {
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
        let records = || columns.iter().map(|column| column.records);
        let agents = || records().flat_map(|records| (0..records.agents.len()).map(move |agent| (records, agent)));
        let accuracies =
            || records().flat_map(|records| records.evaluations.iter().map(|evaluation| evaluation.accuracy * 100.0));
        let last = largest(&mut accuracies());
        // The climb from nothing says little; the last points are what one wants to tell apart.
        let lowest = accuracies().fold(last, f64::min);
        Self {
            time_s: largest(&mut records().map(RunRecords::training_s)) * 1.02,
            batch: largest(&mut records().flat_map(|records| records.steps.iter().map(|step| f64::from(step.batch))))
                * 1.08,
            step_ms: largest(
                &mut agents().flat_map(|(records, agent)| step_time_curve(records, agent)).map(|(_, ms)| ms),
            ) * 1.08,
            accuracy_percent: (lowest.clamp(0.0, 80.0) / 10.0).floor() * 10.0,
        }
    }
}

/// Batch over time, with a corner at each change and nothing between.
fn batch_curve(records: &RunRecords, agent: usize) -> Vec<(f64, f64)> {
    let mut curve: Vec<(f64, f64)> = Vec::new();
    let mut last = None;
    for step in records.steps.iter().filter(|step| step.agent == agent) {
        let batch = f64::from(step.batch);
        match curve.last() {
            Some(&(_, before)) if before != batch => curve.extend([(step.at_s, before), (step.at_s, batch)]),
            Some(_) => {}
            None => curve.push((step.at_s, batch)),
        }
        last = Some((step.at_s, batch));
    }
    curve.extend(last);
    curve
}

/// Time of a step over time: the median of each of [`BUCKETS`] spans, since single steps are noisy under a quota.
fn step_time_curve(records: &RunRecords, agent: usize) -> Vec<(f64, f64)> {
    let span_s = records.training_s() / BUCKETS as f64;
    let mut buckets: Vec<Vec<f64>> = vec![Vec::new(); BUCKETS];
    for step in records.steps.iter().filter(|step| step.agent == agent && !step.warm_up) {
        let bucket = ((step.at_s / span_s) as usize).min(BUCKETS - 1);
        buckets[bucket].push(step.sustained_s * 1000.0);
    }
    let mut curve = Vec::new();
    for (bucket, mut times) in buckets.into_iter().enumerate() {
        times.sort_unstable_by(f64::total_cmp);
        if let Some(&median) = times.get(times.len() / 2) {
            curve.push(((bucket as f64 + 0.5) * span_s, median));
        }
    }
    curve
}

#[cfg(test)]
mod tests {
    use plotters::prelude::RGBColor;

    use super::super::records::tests::canned;
    use super::*;

    #[test]
    fn the_picture_holds_a_panel_per_quantity_and_policy_and_a_curve_per_agent() {
        let (uniform, dynamic) = (canned(), canned());
        let columns =
            [Column { policy: "uniform", records: &uniform }, Column { policy: "dynamic", records: &dynamic }];
        let svg = picture("LeNet at HL8", &columns).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in [
            "LeNet at HL8",
            "uniform: local batch",
            "dynamic: local batch",
            "uniform: time of one step",
            "dynamic: test accuracy",
            "agent-2: 1.200 cores",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        for agent in 0..2 {
            let RGBColor(red, green, blue) = color(agent);
            let curves = svg.matches(&format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"")).count();
            assert!(curves >= 4, "agent {agent} has {curves} curves");
        }
    }

    #[test]
    fn an_empty_run_is_drawn_too() {
        let empty = RunRecords::default();
        picture("nothing", &[Column { policy: "uniform", records: &empty }]).unwrap();
        picture("nothing", &[]).unwrap();
    }

    #[test]
    fn a_batch_curve_has_corners_where_the_batch_changes() {
        let mut records = canned();
        for step in records.steps.iter_mut().filter(|step| step.agent == 0 && step.version > 4) {
            step.batch = 12;
        }
        let curve = batch_curve(&records, 0);
        assert_eq!(curve.iter().map(|point| point.1).collect::<Vec<_>>(), [8.0, 8.0, 12.0, 12.0]);
        assert!((curve[1].0 - 0.5).abs() < 1e-9 && (curve[2].0 - 0.5).abs() < 1e-9);
    }

    #[test]
    fn step_times_leave_out_warm_up() {
        assert!(step_time_curve(&canned(), 1).iter().all(|&(_, ms)| (ms - 50.0).abs() < 1e-9));
    }
}
