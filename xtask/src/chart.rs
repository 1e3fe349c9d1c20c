//! Pictures of curves, as SVG: a heading with a legend, and coordinate systems below it.

use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;

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

const FONT: &str = "DejaVu Sans, Helvetica, Arial, sans-serif";
const TITLE_HEIGHT: u32 = 56;
const LEGEND_HEIGHT: u32 = 26;

/// Height of a panel for each number beside it.
const PIXELS_PER_LABEL: u32 = 43;

/// Part of a picture.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The colour of the curve with this index.
pub(crate) fn color(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// A title, and below it what each colour means.
pub(crate) struct Header<'a> {
    pub(crate) title: &'a str,
    /// Meaning of the colours, in their order.
    pub(crate) legend: Vec<String>,
    /// Pixels for each of them, of which as many stand side by side as the picture is wide.
    pub(crate) legend_width: u32,
}

/// A picture of `width` pixels: the header, and below it `height` pixels that `body` fills.
///
/// # Errors
/// When it cannot be drawn.
pub(crate) fn picture(
    (width, height): (u32, u32),
    header: &Header<'_>,
    body: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    let per_row = (width / header.legend_width).max(1) as usize;
    let legend_rows = u32::try_from(header.legend.len().div_ceil(per_row)).context("the legend is too long")?;
    let header_height = TITLE_HEIGHT + legend_rows * LEGEND_HEIGHT + 16;
    let root = SVGBackend::with_string(&mut svg, (width, header_height + height)).into_drawing_area();
    root.fill(&WHITE).context("drawing")?;
    let (above, below) = root.split_vertically(header_height);
    header.draw(&above, per_row)?;
    body(&below)?;
    root.present().context("drawing")?;
    drop((above, below, root));
    Ok(svg)
}

/// Writes a picture.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &Path, svg: &str) -> anyhow::Result<()> {
    std::fs::write(path, svg).with_context(|| format!("writing {}", path.display()))
}

impl Header<'_> {
    fn draw(&self, area: &Area<'_>, per_row: usize) -> anyhow::Result<()> {
        area.draw(&Text::new(self.title.to_owned(), (20, 16), (FONT, 24).into_font())).context("drawing")?;
        for (index, label) in self.legend.iter().enumerate() {
            let (column, row) = ((index % per_row) as u32, (index / per_row) as u32);
            let x = (column * self.legend_width + 20) as i32;
            let y = (row * LEGEND_HEIGHT + TITLE_HEIGHT) as i32;
            area.draw(&Rectangle::new([(x, y + 6), (x + 28, y + 12)], color(index).filled())).context("drawing")?;
            area.draw(&Text::new(label.clone(), (x + 36, y), (FONT, 17).into_font())).context("drawing")?;
        }
        Ok(())
    }
}

/// One coordinate system.
pub(crate) struct Panel {
    pub(crate) caption: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) curves: Vec<Curve>,
    /// Whether the points themselves are shown.
    pub(crate) dots: bool,
    /// Heights of dashed lines.
    pub(crate) targets: Vec<f64>,
}

/// One axis.
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) range: Range<f64>,
}

/// A line through points.
pub(crate) struct Curve {
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) color: RGBColor,
    /// In pixels.
    pub(crate) width: u32,
}

impl Axis {
    /// A number beside the axis, with as many decimals as about six of them need to differ.
    fn label(&self, value: f64) -> String {
        let length = self.range.end - self.range.start;
        let decimals = if length > 0.0 { (0.7 - length.log10()).ceil().clamp(0.0, 6.0) as usize } else { 0 };
        format!("{value:.decimals$}")
    }
}

impl Panel {
    /// Fills the area.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub(crate) fn draw(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.caption, (FONT, 19))
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(self.x.range.clone(), self.y.range.clone())
            .context("drawing")?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .label_style((FONT, 15))
            .axis_desc_style((FONT, 16))
            .x_desc(self.x.name)
            .y_desc(self.y.name)
            .y_labels((area.dim_in_pixel().1 / PIXELS_PER_LABEL) as usize)
            .x_label_formatter(&|&value| self.x.label(value))
            .y_label_formatter(&|&value| self.y.label(value))
            .draw()
            .context("drawing")?;
        for &target in &self.targets {
            let line = [(self.x.range.start, target), (self.x.range.end, target)];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beside_an_axis_have_the_decimals_that_they_need() {
        let label = |end, value| Axis { name: "", range: 0.0..end }.label(value);
        assert_eq!(label(60.0, 20.0), "20");
        assert_eq!(label(9.0, 2.0), "2");
        assert_eq!(label(3.0, 1.5), "1.5");
        assert_eq!(label(0.7, 0.2), "0.2");
        assert_eq!(label(0.0, 0.2), "0");
    }

    #[test]
    fn a_legend_takes_as_many_rows_as_it_needs() {
        let legend = ["one", "two", "three"].map(str::to_owned).to_vec();
        let header = Header { title: "a title", legend, legend_width: 100 };
        let svg = picture((200, 50), &header, |_| Ok(())).unwrap();
        assert!(svg.starts_with("<svg width=\"200\" height=\"174\""), "{svg}"); // 56 + 2 * 26 + 16 + 50
        assert!(["a title", "one", "two", "three"].iter().all(|text| svg.contains(text)), "{svg}");
    }
}
