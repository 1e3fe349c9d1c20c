//! Pictures of an experiment's rows: panels side by side with common axes.

use std::ops::Range;
use std::path::Path;

use anyhow::Context;

use super::csv::Csv;
use super::definition::{Along, Dimension, Plot, PlotKind};
use super::figures::Figure;
use super::operations::rates;
use super::outcome::Outcome;
use crate::chart::{self, Axis, Curve, Header, Panel, color};

const PANEL_WIDTH: u32 = 460;
const PANEL_HEIGHT: u32 = 320;
const LEGEND_WIDTH: u32 = 200;
const PANELS_ABREAST: usize = 3;

/// Width of a letter of a picture's title.
const TITLE_PIXELS_PER_LETTER: u32 = 13;

/// Accuracies below this are the same in all runs and only press the rest together.
const ACCURACY_SHOWN_PERCENT: f64 = 40.0;

/// Window in which samples are counted, in seconds: several periods of a CPU quota.
const RATE_WINDOW_S: f64 = 1.0;

/// One panel before its axes are known.
struct Draft {
    caption: String,
    /// Index of the colour, and the points.
    curves: Vec<(usize, Vec<(f64, f64)>)>,
}

/// Draws a picture of the rows that it asks for, as SVG. None if no row has what it shows.
///
/// # Errors
/// When a file of a row cannot be read, or the picture not be drawn.
pub(crate) fn draw(plot: &Plot, outcomes: &[Outcome], out: &Path) -> anyhow::Result<Option<String>> {
    let rows: Vec<&Outcome> =
        outcomes.iter().filter(|row| row.skipped.is_none() && plot.filter.matches(&row.key)).collect();
    let (drafts, legend) = match plot.kind {
        PlotKind::Batches => batches(plot, &rows, out)?,
        PlotKind::Figure | PlotKind::Accuracy | PlotKind::Staleness | PlotKind::Rate => curves(plot, &rows, out)?,
    };
    let drafts: Vec<Draft> = drafts.into_iter().filter(|draft| !draft.curves.is_empty()).collect();
    if drafts.is_empty() {
        return Ok(None);
    }
    let (x_name, y_name) = axes(plot);
    let points = || drafts.iter().flat_map(|draft| draft.curves.iter().flat_map(|(_, points)| points));
    let x = range(points().map(|point| point.0), 0.0);
    let y = match plot.kind {
        PlotKind::Accuracy => {
            let lowest = points().map(|point| point.1).fold(100.0, f64::min);
            let highest = points().map(|point| point.1).fold(0.0, f64::max);
            lowest.max(ACCURACY_SHOWN_PERCENT.min(highest - 5.0)).floor()..(highest + 1.0).ceil()
        }
        PlotKind::Staleness => 0.0..100.0,
        PlotKind::Figure | PlotKind::Batches | PlotKind::Rate => range(points().map(|point| point.1), 0.0),
    };
    let abreast = drafts.len().min(PANELS_ABREAST);
    let above_each_other = drafts.len().div_ceil(abreast);
    let size =
        |panels: usize, pixels: u32| u32::try_from(panels).context("too many panels").map(|panels| panels * pixels);
    let size = (size(abreast, PANEL_WIDTH)?, size(above_each_other, PANEL_HEIGHT)?);
    // A panel may be wider than it need be, a title must not be cut off.
    let title_width =
        u32::try_from(plot.title.chars().count()).context("too long a title")? * TITLE_PIXELS_PER_LETTER + 40;
    let size = (size.0.max(title_width), size.1);
    let header = Header { title: &plot.title, legend, legend_width: LEGEND_WIDTH };
    chart::picture(size, &header, |body| {
        for (area, draft) in body.split_evenly((above_each_other, abreast)).iter().zip(drafts) {
            let panel = Panel {
                caption: draft.caption,
                x: Axis { name: x_name, range: x.clone() },
                y: Axis { name: y_name, range: y.clone() },
                curves: draft
                    .curves
                    .into_iter()
                    .map(|(index, points)| {
                        let shown = points.into_iter().filter(|point| point.1 >= y.start).collect();
                        Curve { points: shown, color: color(index), width: 2 }
                    })
                    .collect(),
                dots: plot.kind == PlotKind::Figure,
                targets: Vec::new(),
            };
            panel.draw(area)?;
        }
        Ok(())
    })
    .map(Some)
}

fn axes(plot: &Plot) -> (&'static str, &'static str) {
    match plot.kind {
        PlotKind::Accuracy => ("training time, s", "test accuracy, %"),
        PlotKind::Staleness => ("staleness, steps", "share of updates up to it, %"),
        PlotKind::Batches => ("step", "local batch, samples"),
        PlotKind::Rate => ("training time, s", "samples per second"),
        PlotKind::Figure => {
            let along = match plot.along {
                Along::Hl => "heterogeneity level",
                Along::Agents => "agents",
                Along::Wait => "how long a round waits for an agent, s",
            };
            (along, plot.figure.as_deref().and_then(Figure::find).map_or("", |figure| figure.axis))
        }
    }
}

/// From `start` to a little past the largest value.
fn range(values: impl Iterator<Item = f64>, start: f64) -> Range<f64> {
    start..values.fold(f64::MIN_POSITIVE, f64::max) * 1.06
}

/// Values of a dimension in the order in which they first appear.
fn values(rows: &[&Outcome], dimension: Dimension) -> Vec<String> {
    let mut values = Vec::new();
    for row in rows {
        let value = row.key.value(dimension);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// Panels and legend where each row gives points to a curve.
fn curves(plot: &Plot, rows: &[&Outcome], out: &Path) -> anyhow::Result<(Vec<Draft>, Vec<String>)> {
    let legend = values(rows, plot.curves);
    let mut drafts = Vec::new();
    for caption in values(rows, plot.panels) {
        let mut curves = Vec::new();
        for (index, name) in legend.iter().enumerate() {
            let mut points = Vec::new();
            for row in rows {
                if row.key.value(plot.panels) == caption && &row.key.value(plot.curves) == name {
                    points.extend(points_of(plot, row, out)?);
                }
            }
            points.sort_by(|left, right| left.0.total_cmp(&right.0));
            if !points.is_empty() {
                curves.push((index, points));
            }
        }
        drafts.push(Draft { caption, curves });
    }
    Ok((drafts, legend))
}

fn points_of(plot: &Plot, row: &Outcome, out: &Path) -> anyhow::Result<Vec<(f64, f64)>> {
    let Some(folder) = first_seed(row, out) else { return Ok(figure_point(plot, row).into_iter().collect()) };
    match plot.kind {
        PlotKind::Figure | PlotKind::Batches => Ok(figure_point(plot, row).into_iter().collect()),
        PlotKind::Accuracy => {
            let path = folder.join("accuracy.csv");
            if !path.is_file() {
                return Ok(Vec::new());
            }
            let points = Csv::read(&path)?.numbers(["training_s", "accuracy"])?;
            Ok(points.into_iter().map(|[time, accuracy]| (time, accuracy * 100.0)).collect())
        }
        PlotKind::Staleness => {
            let counts = Csv::read(&folder.join("staleness.csv"))?.numbers(["staleness", "updates"])?;
            Ok(cumulated(&counts))
        }
        PlotKind::Rate => {
            let rounds = Csv::read(&folder.join("rounds.csv"))?.numbers(["training_s", "samples"])?;
            Ok(rates(&rounds, RATE_WINDOW_S))
        }
    }
}

fn figure_point(plot: &Plot, row: &Outcome) -> Option<(f64, f64)> {
    let name = plot.figure.as_deref()?;
    let x = match plot.along {
        Along::Hl => f64::from(row.key.hl),
        Along::Agents => f64::from(row.key.agents),
        Along::Wait => row.figure("round_deadline_s")?,
    };
    let value = row.figure(name)?;
    Some((x, Figure::find(name).map_or(value, |figure| figure.on_axis(value))))
}

/// Share of updates, in per cent, up to each staleness, as stairs.
fn cumulated(counts: &[[f64; 2]]) -> Vec<(f64, f64)> {
    let all: f64 = counts.iter().map(|[_, updates]| updates).sum();
    let (mut below, mut points) = (0.0, Vec::new());
    for [staleness, updates] in counts {
        points.push((*staleness, below));
        below += updates / all.max(1.0) * 100.0;
        points.push((*staleness, below));
    }
    points
}

/// Panels of the agents' batches, one a row.
fn batches(plot: &Plot, rows: &[&Outcome], out: &Path) -> anyhow::Result<(Vec<Draft>, Vec<String>)> {
    let (mut drafts, mut agents) = (Vec::new(), 0);
    for row in rows {
        let Some(folder) = first_seed(row, out) else { continue };
        let changes = Csv::read(&folder.join("batches.csv"))?.numbers(["version", "agent", "samples"])?;
        let last = row.figure("rounds").unwrap_or_default();
        let mut names: Vec<u64> = changes.iter().map(|[_, agent, _]| *agent as u64).collect();
        names.sort_unstable();
        names.dedup();
        agents = agents.max(names.len());
        let curves = names.iter().enumerate().map(|(index, name)| {
            let own: Vec<(f64, f64)> = changes
                .iter()
                .filter(|[_, agent, _]| *agent as u64 == *name)
                .map(|[version, _, samples]| (*version, *samples))
                .collect();
            (index, stairs(&own, last))
        });
        drafts.push(Draft { caption: row.key.value(plot.panels), curves: curves.collect() });
    }
    Ok((drafts, (1..=agents).map(|agent| format!("agent {agent}")).collect()))
}

/// A value that holds until the next, up to `end`.
fn stairs(changes: &[(f64, f64)], end: f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for &(at, value) in changes {
        if let Some(&(_, before)) = points.last() {
            points.push((at, before));
        }
        points.push((at, value));
    }
    if let Some(&(at, value)) = points.last().filter(|(at, _)| *at < end) {
        points.push((at.max(end), value));
    }
    points
}

/// The folder of a row's first seed.
fn first_seed(row: &Outcome, out: &Path) -> Option<std::path::PathBuf> {
    let folder = out.join("rows").join(row.key.slug());
    let mut seeds: Vec<_> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    seeds.retain(|path| path.is_dir());
    seeds.sort();
    seeds.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;

    fn plot(text: &str) -> Plot {
        toml::from_str(&format!("file = \"time\"\ntitle = \"Time per epoch\"\n{text}")).unwrap()
    }

    #[test]
    fn a_figure_is_drawn_over_levels_with_a_colour_for_each_policy() {
        let rows = [
            outcome(1, "uniform", &[("epoch_s", 1.0)]),
            outcome(8, "uniform", &[("epoch_s", 3.0)]),
            outcome(8, "deadline", &[("epoch_s", 1.0)]),
        ];
        let svg = draw(&plot("kind = \"figure\"\nfigure = \"epoch_s\""), &rows, Path::new("nowhere")).unwrap().unwrap();
        let texts = ["Time per epoch", "uniform", "deadline", "lenet", "heterogeneity level", "time per epoch, s"];
        assert!(texts.iter().all(|text| svg.contains(text)), "{svg}");
    }

    #[test]
    fn a_picture_of_nothing_is_not_drawn() {
        let rows = [outcome(1, "uniform", &[])];
        assert!(draw(&plot("kind = \"figure\"\nfigure = \"epoch_s\""), &rows, Path::new("nowhere")).unwrap().is_none());
    }

    #[test]
    fn staleness_is_cumulated_as_stairs() {
        assert_eq!(cumulated(&[[0.0, 1.0], [3.0, 3.0]]), [(0.0, 0.0), (0.0, 25.0), (3.0, 25.0), (3.0, 100.0)]);
    }

    #[test]
    fn a_batch_holds_until_it_changes() {
        assert_eq!(stairs(&[(0.0, 32.0), (5.0, 8.0)], 9.0), [(0.0, 32.0), (5.0, 32.0), (5.0, 8.0), (9.0, 8.0)]);
        assert_eq!(stairs(&[], 9.0), []);
    }

    #[test]
    fn accuracy_and_batches_come_from_the_rows_own_files() {
        let out = tempfile::tempdir().unwrap();
        let row = outcome(8, "deadline", &[("rounds", 4.0)]);
        let folder = out.path().join("rows").join(row.key.slug()).join("seed-1");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("accuracy.csv"), "version,training_s,accuracy\n1,0.5,0.5\n2,1,0.86\n").unwrap();
        std::fs::write(folder.join("batches.csv"), "version,agent,samples\n0,1,32\n0,2,32\n2,1,8\n2,2,56\n").unwrap();
        for kind in ["accuracy", "batches"] {
            let svg = draw(&plot(&format!("kind = \"{kind}\"")), std::slice::from_ref(&row), out.path()).unwrap();
            assert!(svg.unwrap().contains("polyline"), "{kind}");
        }
    }
}
