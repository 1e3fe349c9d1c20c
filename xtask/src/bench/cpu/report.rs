//! What came out, as numbers and as a table.

use serde::Serialize;

use super::case::{Case, threads_text};
use super::contestant::Contestant;
use super::layers::LayerTable;
use super::sample::Sample;
use crate::bench::machine::processor;
use crate::bench::median_of;

/// Cores beyond the machine's that threads and other processes may use together before a line is called crowded: ticks are
/// coarse, and something small always runs.
const CROWDING_MAX: f64 = 0.1;

/// One line: medians over the rounds. MB are 10⁶ bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    name: &'static str,
    batch: u32,
    threads: usize,
    ours_ms: f64,
    flex_ms: f64,
    torch_ms: Option<f64>,
    /// Our time over PyTorch's.
    ratio_torch: Option<f64>,
    /// Our time over flex's.
    ratio_flex: f64,
    ours_peak_mb: Option<f64>,
    flex_peak_mb: Option<f64>,
    torch_peak_mb: Option<f64>,
    /// Cores that other processes used, the mean over all samples: a median would hide a disturbance that fell on one of them.
    foreign_cores: Option<f64>,
}

/// Where we compare worst with flex.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Worst {
    name: &'static str,
    batch: u32,
    threads: usize,
    /// Our time over flex's.
    ratio_flex: f64,
}

/// Everything that came out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    models: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<LayerTable>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worst: Option<Worst>,
}

impl Report {
    /// Of rows alone.
    pub(crate) fn new(models: Vec<Row>) -> Self {
        Self { models, layers: None, worst: None }
    }

    /// With convolutions one by one.
    pub(crate) fn with_layers(self, layers: Vec<LayerTable>) -> Self {
        Self { layers: Some(layers), ..self }
    }

    /// With the row whose ratio is worst.
    pub(crate) fn with_worst(self) -> Self {
        Self { worst: worst(&self.models), ..self }
    }

    /// Tables for people.
    pub(crate) fn text(&self, cores: usize, rounds: u32, torch_version: Option<&str>) -> String {
        let mut text = heading(cores, rounds, torch_version) + "\n" + &table(&self.models);
        if let Some(Worst { name, batch, threads, ratio_flex }) = self.worst {
            let threads = threads_text(threads);
            text.push_str(&format!("\nworst of flex: {ratio_flex:.3} at {name} batch {batch}, {threads}\n"));
        }
        if let Some(warning) = warning(&self.models, cores) {
            text.push_str(&format!("\n{warning}\n"));
        }
        for layers in self.layers.iter().flatten() {
            text.push('\n');
            text.push_str(&layers.text());
        }
        text
    }
}

impl Row {
    /// From at least one sample of ours and of flex; `None` without.
    pub(crate) fn new(case: &Case, samples: &[Vec<Sample>; Contestant::COUNT]) -> Option<Self> {
        let of = |contestant: Contestant| &samples[contestant as usize][..];
        let time = |contestant| median_of(of(contestant).iter().map(|sample| sample.step_ms));
        let peak =
            |contestant| median_of(of(contestant).iter().filter_map(|sample| Some(sample.peak_bytes? as f64 * 1e-6)));
        let (ours_ms, flex_ms) = (time(Contestant::Ours)?, time(Contestant::Flex)?);
        let torch_ms = time(Contestant::Torch);
        let foreign: Vec<f64> = samples.iter().flatten().filter_map(|sample| sample.foreign_cores).collect();
        Some(Self {
            name: case.model.name(),
            batch: case.batch,
            threads: case.threads,
            ours_ms,
            flex_ms,
            torch_ms,
            ratio_torch: torch_ms.map(|torch_ms| ours_ms / torch_ms),
            ratio_flex: ours_ms / flex_ms,
            ours_peak_mb: peak(Contestant::Ours),
            flex_peak_mb: peak(Contestant::Flex),
            torch_peak_mb: peak(Contestant::Torch),
            foreign_cores: (!foreign.is_empty()).then(|| foreign.iter().sum::<f64>() / foreign.len() as f64),
        })
    }
}

/// The row with the largest time against flex.
fn worst(rows: &[Row]) -> Option<Worst> {
    let row = rows.iter().max_by(|a, b| a.ratio_flex.total_cmp(&b.ratio_flex))?;
    Some(Worst { name: row.name, batch: row.batch, threads: row.threads, ratio_flex: row.ratio_flex })
}

/// What the numbers were measured on.
fn heading(cores: usize, rounds: u32, torch_version: Option<&str>) -> String {
    let torch = torch_version.map(|version| format!(", PyTorch {version}")).unwrap_or_default();
    let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("medians of {rounds} interleaved rounds") };
    format!("{}, {cores} cores{torch}, {rounds}\n", processor())
}

/// Says so where others kept the computing threads waiting.
fn warning(rows: &[Row], cores: usize) -> Option<String> {
    let is_crowded = |row: &&Row| {
        row.foreign_cores.is_some_and(|foreign| row.threads as f64 + foreign > cores as f64 + CROWDING_MAX)
    };
    let crowded = rows.iter().filter(is_crowded).count();
    (crowded > 0).then(|| {
        let lines = rows.len();
        format!("note: in {crowded} of {lines} lines others left fewer cores than threads, so these times mean little")
    })
}

/// A table with PyTorch's columns if any row has them.
fn table(rows: &[Row]) -> String {
    let with_torch = rows.iter().any(|row| row.torch_ms.is_some());
    let number =
        |value: Option<f64>, decimals: usize| value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"));
    let mut lines = vec![
        ["model", "batch", "threads", "ours ms", "flex ms", "torch ms", "of flex", "of torch", "ours MB", "flex MB"]
            .into_iter()
            .chain(["torch MB", "others"])
            .map(str::to_owned)
            .collect::<Vec<String>>(),
    ];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.name.to_owned(),
            row.batch.to_string(),
            row.threads.to_string(),
            number(Some(row.ours_ms), 3),
            number(Some(row.flex_ms), 3),
            number(row.torch_ms, 3),
            number(Some(row.ratio_flex), 3),
            number(row.ratio_torch, 3),
            number(row.ours_peak_mb, 0),
            number(row.flex_peak_mb, 0),
            number(row.torch_peak_mb, 0),
            number(row.foreign_cores, 2),
        ]
    }));
    let mut table = String::new();
    for line in &lines {
        table.push_str(&format!("{:<8}", line[0]));
        for (column, cell) in line.iter().enumerate().skip(1) {
            if with_torch || !lines[0][column].contains("torch") {
                table.push_str(&format!("  {cell:>9}"));
            }
        }
        table.push('\n');
    }
    table.push_str("\nms: median step; of: our time over theirs; MB: peak resident, 10^6 bytes; others: cores that other processes used\n");
    table
}

#[cfg(test)]
mod tests {
    use super::super::case::Model;
    use super::*;

    fn sample(step_ms: f64) -> Sample {
        Sample { step_ms, peak_bytes: Some(50_000_000), foreign_cores: Some(step_ms / 10.0) }
    }

    fn row(batch: u32, ours: &[f64], flex: &[f64], torch: &[f64]) -> Row {
        let samples = [ours, flex, torch].map(|times| times.iter().copied().map(sample).collect());
        Row::new(&Case { model: Model::Lenet, batch, threads: 1 }, &samples).unwrap()
    }

    #[test]
    fn a_row_has_medians_and_our_time_over_theirs() {
        let row = row(8, &[3.0, 1.0, 2.0], &[4.0, 9.0, 4.0], &[1.0, 1.0, 5.0]);
        let json = serde_json::to_string(&row).unwrap();
        let expected = r#"{"name":"lenet","batch":8,"threads":1,"ours_ms":2.0,"flex_ms":4.0,"torch_ms":1.0,"ratio_torch":2.0,"ratio_flex":0.5,"ours_peak_mb":50.0,"flex_peak_mb":50.0,"torch_peak_mb":50.0,"foreign_cores":"#;
        assert!(json.starts_with(expected), "{json}");
        assert!((row.foreign_cores.unwrap() - 3.0 / 9.0).abs() < 1e-9);
    }

    #[test]
    fn without_torch_its_fields_are_null_and_its_columns_missing() {
        let row = row(8, &[2.0], &[4.0], &[]);
        let json = serde_json::to_value(&row).unwrap();
        assert!(["torch_ms", "ratio_torch", "torch_peak_mb"].iter().all(|field| json[field].is_null()));
        assert!(!table(std::slice::from_ref(&row)).contains("torch"));
        let json = serde_json::to_value(Report::new(vec![row])).unwrap();
        assert_eq!(json.as_object().unwrap().keys().collect::<Vec<_>>(), ["models"]);
    }

    #[test]
    fn the_worst_row_is_the_one_with_the_largest_ratio() {
        let rows = [row(1, &[1.0], &[2.0], &[]), row(2, &[3.0], &[2.0], &[]), row(4, &[1.0], &[1.0], &[])];
        assert_eq!(worst(&rows), Some(Worst { name: "lenet", batch: 2, threads: 1, ratio_flex: 1.5 }));
        assert_eq!(worst(&[]), None);
    }

    #[test]
    fn crowded_lines_are_counted() {
        let rows = [row(1, &[1.0], &[1.0], &[]), row(2, &[9.0], &[9.0], &[])]; // 0.1 and 0.9 cores used by others
        assert_eq!(warning(&rows, 2), None);
        assert!(warning(&rows, 1).is_some_and(|warning| warning.contains("1 of 2 lines")));
    }
}
