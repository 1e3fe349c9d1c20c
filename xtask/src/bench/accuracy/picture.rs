//! Both curves in a picture.

use super::report::{Report, Row};
use crate::chart::{self, Axis, Curve, Header, Panel, color};

const PANEL_WIDTH: u32 = 620;
const PANEL_HEIGHT: u32 = 380;

/// The picture as SVG: accuracy and loss over samples.
///
/// # Errors
/// When it cannot be drawn.
pub(crate) fn draw(report: &Report) -> anyhow::Result<String> {
    let settings = &report.settings;
    let title = format!(
        "ResNet-18 of width {} on Fashion-MNIST, {} steps of {} samples",
        settings.width, settings.steps, settings.global_batch
    );
    let legend = vec![
        format!("OmniLearn: {} agents at HL{}, BSP, dynamic batches", report.agents.len(), report.hl),
        format!("PyTorch {}, one process", report.torch_version),
    ];
    let header = Header { title: &title, legend, legend_width: PANEL_WIDTH };
    let percent = |value| format!("{value:.2} %");
    let loss = |value| format!("{value:.3}");
    let panels = [
        panel(report, ("test accuracy", "%"), percent, |row| [row.ours_accuracy * 100.0, row.torch_accuracy * 100.0]),
        panel(report, ("test loss", "mean cross entropy"), loss, |row| [row.ours_loss, row.torch_loss]),
    ];
    chart::picture((2 * PANEL_WIDTH, PANEL_HEIGHT), &header, |body| {
        body.split_evenly((1, 2)).iter().zip(&panels).try_for_each(|(area, panel)| panel.draw(area))
    })
}

fn panel(
    report: &Report,
    (caption, unit): (&str, &'static str),
    figure: fn(f64) -> String,
    values: impl Fn(&Row) -> [f64; 2],
) -> Panel {
    let thousands = |row: &Row| row.samples as f64 / 1000.0;
    let curve = |side: usize| Curve {
        points: report.rows.iter().map(|row| (thousands(row), values(row)[side])).collect(),
        color: color(side),
        width: 2,
    };
    let (low, high) = report
        .rows
        .iter()
        .flat_map(&values)
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    // Where all values are the same, the axis needs some length all the same.
    let margin = ((high - low) * 0.08).max(high.abs() * 0.005).max(f64::MIN_POSITIVE);
    let at_the_end = report.rows.last().map(&values).unwrap_or_default();
    Panel {
        caption: format!("{caption}: {} and {} at the end", figure(at_the_end[0]), figure(at_the_end[1])),
        x: Axis { name: "samples, thousands", range: 0.0..report.rows.last().map_or(1.0, thousands) * 1.02 },
        y: Axis { name: unit, range: low - margin..high + margin },
        curves: vec![curve(0), curve(1)],
        dots: true,
        targets: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use plotters::prelude::RGBColor;

    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn both_sides_have_a_curve_in_both_panels() {
        let svg = draw(&report(0.88)).unwrap();
        for text in ["OmniLearn: 2 agents at HL8", "PyTorch 2.0", "test accuracy", "test loss", "samples, thousands"] {
            assert!(svg.contains(text), "{text}");
        }
        for side in 0..2 {
            let RGBColor(red, green, blue) = color(side);
            let curves = svg.matches(&format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"")).count();
            assert!(curves >= 2, "side {side} has {curves} curves");
        }
    }
}
