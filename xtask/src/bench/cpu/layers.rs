//! The convolutions of a model one by one: operations per second of each pass, beside those of a matrix product.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::case::Case;
use super::contestant::{Contestant, Contestants};
use super::sample;
use crate::bench::progress::Progress;
use crate::interrupt::Interrupt;

/// What `train-step --layers` reports.
#[derive(Debug, Deserialize)]
struct Rates {
    /// The better of two products of 1024x1024 matrices, in 10⁹ operations per second.
    product_gflops: f64,
    layers: Vec<Layer>,
}

/// One kind of convolution; rates in 10⁹ operations per second, `None` where a pass was too short to measure.
#[derive(Debug, Deserialize, Serialize)]
struct Layer {
    inputs: usize,
    outputs: usize,
    size: usize,
    kernel: usize,
    stride: usize,
    forward_gflops: Option<f64>,
    weight_gradient_gflops: Option<f64>,
    input_gradient_gflops: Option<f64>,
}

/// The convolutions of one case.
#[derive(Debug, Serialize)]
pub(crate) struct LayerTable {
    name: &'static str,
    batch: u32,
    threads: usize,
    gemm_peak_gflops: f64,
    layers: Vec<Layer>,
    #[serde(skip)]
    title: String,
}

/// Measures our operators in every case whose convolutions are known.
///
/// # Errors
/// When a process fails, and after an interrupt.
pub(crate) fn measure(
    contestants: &Contestants,
    cases: &[Case],
    seconds: f64,
    folder: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<LayerTable>> {
    let cases: Vec<&Case> = cases.iter().filter(|case| case.model.lists_convolutions()).collect();
    let progress = Progress::start(cases.len());
    let mut tables = Vec::new();
    for case in cases {
        progress.begin(&format!("layers of {case}"));
        let mut command = contestants.command(Contestant::Ours, case, seconds);
        command.arg("--layers");
        let rates: Rates = sample::run("layers", command, folder, interrupt, progress.follow(str::to_owned))?;
        progress.end(&format!("{:.1} GFLOP/s in a matrix product", rates.product_gflops));
        tables.push(LayerTable {
            name: case.model.name(),
            batch: case.batch,
            threads: case.threads,
            gemm_peak_gflops: rates.product_gflops,
            layers: rates.layers,
            title: case.to_string(),
        });
    }
    Ok(tables)
}

impl LayerTable {
    /// A table for people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}: GFLOP/s, and per cent of the {:.1} GFLOP/s of a matrix product; operations are counted as in a direct\n\
             convolution, so that one which needs fewer can be above 100 %\n\n",
            self.title, self.gemm_peak_gflops
        );
        text.push_str("channels      size  kernel  stride          forward  weight gradient   input gradient\n");
        for layer in &self.layers {
            let channels = format!("{} -> {}", layer.inputs, layer.outputs);
            text.push_str(&format!("{channels:<12}  {:>4}  {:>6}  {:>6}", layer.size, layer.kernel, layer.stride));
            for rate in [layer.forward_gflops, layer.weight_gradient_gflops, layer.input_gradient_gflops] {
                let cell = rate.map_or("-".to_owned(), |rate| {
                    format!("{rate:.1} {:>4.0} %", rate / self.gemm_peak_gflops * 100.0)
                });
                text.push_str(&format!("  {cell:>15}"));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_stand_beside_their_part_of_the_peak() {
        let layer = r#"{"inputs":3,"outputs":64,"size":32,"kernel":3,"stride":1,"forward_gflops":25.0,"weight_gradient_gflops":50.0,"input_gradient_gflops":null}"#;
        let layers = vec![serde_json::from_str(layer).unwrap()];
        let title = "vgg11 batch 32, 1 thread".to_owned();
        let table = LayerTable { name: "vgg11", batch: 32, threads: 1, gemm_peak_gflops: 100.0, layers, title };
        let text = table.text();
        assert!(
            text.ends_with("3 -> 64         32       3       1      25.0   25 %      50.0   50 %                -\n"),
            "{text}"
        );
    }
}
