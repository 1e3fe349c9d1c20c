//! The picture of a demo: batch sizes, step times and accuracy over time, one column per policy with common axes.

use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::records::RunRecords;
use super::summary::TARGETS;

/// Colours that people with any colour vision can tell apart on white (Okabe and Ito, without yellow).
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

const COLUMN_WIDTH: u32 = 620;
const TITLE_HEIGHT: u32 = 56;
const LEGEND_WIDTH: u32 = 235;
const LEGEND_HEIGHT: u32 = 26;
const PANEL_HEIGHT: u32 = 260;
const FONT: &str = "DejaVu Sans, Helvetica, Arial, sans-serif";

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
    let mut svg = String::new();
    draw_into(&mut svg, title, columns)?;
    std::fs::write(path, svg).with_context(|| format!("writing {}", path.display()))
}

fn draw_into(svg: &mut String, title: &str, columns: &[Column<'_>]) -> anyhow::Result<()> {
    let width = COLUMN_WIDTH * u32::try_from(columns.len().max(1)).context("too many columns")?;
    let agents = columns.first().map_or(0, |column| column.records.agents.len());
    let per_row = (width / LEGEND_WIDTH).max(1) as usize;
    let legend_rows = u32::try_from(agents.div_ceil(per_row)).context("too many agents")?;
    let header_height = TITLE_HEIGHT + legend_rows * LEGEND_HEIGHT + 16;
    let root = SVGBackend::with_string(svg, (width, header_height + 3 * PANEL_HEIGHT)).into_drawing_area();
    root.fill(&WHITE).context("drawing")?;
    let (header, body) = root.split_vertically(header_height);
    draw_header(&header, title, columns, per_row)?;

    let ranges = Ranges::over(columns);
    for (area, column) in body.split_evenly((1, columns.len().max(1))).iter().zip(columns) {
        for (area, panel) in area.split_evenly((3, 1)).iter().zip(panels(column, &ranges)) {
            panel.draw(area)?;
        }
    }
    root.present().context("drawing")?;
    Ok(())
}

/// One coordinate system.
struct Panel {
    caption: String,
    unit: &'static str,
    time_s: f64,
    values: Range<f64>,
    curves: Vec<Curve>,
    dots: bool,
    targets: Vec<f64>,
}

struct Curve {
    points: Vec<(f64, f64)>,
    color: RGBColor,
    width: u32,
}

/// The panels of one column, from top to bottom.
fn panels(column: &Column<'_>, ranges: &Ranges) -> [Panel; 3] {
    let Column { policy, records } = column;
    let agents = || 0..records.agents.len();
    let panel = |caption: String, unit, values, curves| Panel {
        caption,
        unit,
        time_s: ranges.time_s,
        values,
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

impl Panel {
    fn draw(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.caption, (FONT, 19))
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..self.time_s, self.values.clone())
            .context("drawing")?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .label_style((FONT, 15))
            .axis_desc_style((FONT, 16))
            .x_desc("training time, s")
            .y_desc(self.unit)
            .y_labels(6)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()
            .context("drawing")?;
        for &target in &self.targets {
            let line = [(0.0, target), (self.time_s, target)];
            chart.draw_series(DashedLineSeries::new(line, 6, 4, BLACK.mix(0.5).into())).context("drawing")?;
        }
        for curve in &self.curves {
            let points = || curve.points.iter().copied();
            let style = curve.color.stroke_width(curve.width);
            chart.draw_series(LineSeries::new(points(), style)).context("drawing")?;
            if self.dots {
                let dots = points().map(|point| Circle::new(point, 3, curve.color.filled()));
                chart.draw_series(dots).context("drawing")?;
            }
        }
        Ok(())
    }
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_header(area: &Area<'_>, title: &str, columns: &[Column<'_>], per_row: usize) -> anyhow::Result<()> {
    area.draw(&Text::new(title.to_owned(), (20, 16), (FONT, 24).into_font())).context("drawing")?;
    let Some(column) = columns.first() else { return Ok(()) };
    for (agent, (name, quota)) in column.records.agents.iter().zip(&column.records.quotas).enumerate() {
        let x = i32::try_from(agent % per_row).context("too many agents")? * LEGEND_WIDTH as i32 + 20;
        let y = i32::try_from(agent / per_row).context("too many agents")? * LEGEND_HEIGHT as i32 + TITLE_HEIGHT as i32;
        area.draw(&Rectangle::new([(x, y + 6), (x + 28, y + 12)], color(agent).filled())).context("drawing")?;
        let label = format!("{name}: {quota:.3} cores");
        area.draw(&Text::new(label, (x + 36, y), (FONT, 17).into_font())).context("drawing")?;
    }
    Ok(())
}

fn color(agent: usize) -> RGBColor {
    PALETTE[agent % PALETTE.len()]
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
    use super::super::records::tests::canned;
    use super::*;

    #[test]
    fn the_picture_holds_a_panel_per_quantity_and_policy_and_a_curve_per_agent() {
        let (uniform, dynamic) = (canned(), canned());
        let columns =
            [Column { policy: "uniform", records: &uniform }, Column { policy: "dynamic", records: &dynamic }];
        let mut svg = String::new();
        draw_into(&mut svg, "LeNet at HL8", &columns).unwrap();
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
        draw_into(&mut String::new(), "nothing", &[Column { policy: "uniform", records: &empty }]).unwrap();
        draw_into(&mut String::new(), "nothing", &[]).unwrap();
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
