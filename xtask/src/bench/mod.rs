//! `cargo xtask bench`: what the project claims, measured.

mod accuracy;
mod cpu;
mod hl;
pub(crate) mod machine;
mod overhead;
pub(crate) mod progress;
mod torch;
mod transport;

use clap::Subcommand;

use crate::workspace::Workspace;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Training steps through the WebAssembly component against the same models written natively on Burn
    Overhead {
        /// Arguments for the benchmark; `-- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Steps per second and time per epoch at HL1 and HL8, uniform and dynamic, in interleaved repeats
    Hl(hl::HlArguments),
    /// Training steps on our CPU operators, on Burn's and on PyTorch, in interleaved rounds of fresh processes
    Cpu(cpu::CpuArguments),
    /// Test accuracy of a ResNet-18 trained by a hub and unequal agents, against the same training in PyTorch
    ///
    /// Both sides take the same steps over batches of the same size, on the same images, from first values of the same
    /// distributions, and are evaluated on the whole test set. The agents are processes with CPU quotas, as in the demo.
    Accuracy(accuracy::AccuracyArguments),
    /// Steps per second over WebSockets, over the hub's own MQTT broker and over Mosquitto, in interleaved repeats
    Transport(transport::BenchTransportArguments),
}

/// Runs a benchmark.
///
/// # Errors
/// When something does not build or a run fails.
pub(crate) fn run(workspace: &Workspace, bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Overhead { arguments } => overhead::run(workspace, arguments),
        Bench::Hl(arguments) => hl::run(workspace, arguments),
        Bench::Cpu(arguments) => cpu::run(workspace, arguments),
        Bench::Accuracy(arguments) => accuracy::run(workspace, arguments),
        Bench::Transport(arguments) => transport::run(workspace, arguments),
    }
}

/// The median of values in any order, if there are any.
pub(crate) fn median_of(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    (!values.is_empty()).then(|| median(&values))
}

/// The median of sorted values, of which there is at least one.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert_eq!((median_of([9.0, 1.0, 2.0]), median_of([])), (Some(2.0), None));
    }
}
