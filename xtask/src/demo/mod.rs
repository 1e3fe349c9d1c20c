//! `cargo xtask demo`: a hub and unequal agents as real processes, training on real images.

mod hub_client;
mod job;
mod plot;
mod progress;
mod records;
mod session;
mod summary;
mod transport;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use crate::fleet::ratios::HeterogeneityLevel;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

pub(crate) use hub_client::{HubClient, JobStatus};
pub(crate) use job::{Mode, Model, Policy, table};
pub(crate) use records::RunRecords;
#[cfg(test)]
pub(crate) use records::StepRecord;
#[cfg(test)]
pub(crate) use records::tests::canned as canned_records;
pub(crate) use session::{Fleet, Job, Kit, Loss, Run, free_port};
pub(crate) use summary::{DemoSummary, RunSummary};
pub(crate) use transport::{Transport, TransportArguments};
pub(crate) use watch::{Next, watch};

/// Trains a model with a hub and unequal agents on real images, and shows what batches that follow speed are worth.
///
/// The agents are processes with CPU quotas in the ratios of the OmniLearn paper (HL8 is 6:6:4:32), scaled to this
/// machine. The same job runs once with equal batches and once with batches that follow measured speed; a table and an SVG
/// picture compare them. What is missing is installed or named in one line: the WebAssembly target, Fashion-MNIST.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  cargo xtask demo\n  cargo xtask demo --mode asp --hl 4\n  \
    cargo xtask demo --model resnet --epochs 1\n  \
    cargo xtask demo --transport mixed\n  cargo xtask demo --transport mqtt --broker mqtt://127.0.0.1:1883\n  cargo xtask demo --json > result.json\n\n\
    Times are training time without evaluation. `mean_staleness` in the JSON is that of the slowest agent.")]
pub(crate) struct DemoArguments {
    /// How agents are synchronised
    #[arg(long, value_enum, default_value = "bsp")]
    mode: Mode,
    /// Heterogeneity level: the largest CPU quota over the smallest; 1, 2, 4 or 8
    #[arg(long, default_value = "8", value_parser = parse_level)]
    hl: HeterogeneityLevel,
    /// Number of agents; four have the paper's ratios, more repeat them, fewer take the last of them
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    agents: u32,
    /// What is trained
    #[arg(long, value_enum, default_value = "lenet")]
    model: Model,
    /// Passes over the training set [default: 8 for lenet, 6 for mlp, 2 for resnet]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: Option<u32>,
    /// How batches are set, one run each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform,dynamic")]
    policy: Vec<Policy>,
    /// Channels of the first stage of the ResNet; the full ResNet-18 has 64, which would take hours here
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    width: u32,
    /// Samples behind one step, over all agents
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    global_batch: u32,
    /// Sum of the agents' CPU quotas in cores; the rest is for the hub [default: 0.9 of the machine's cores]
    #[arg(long)]
    quota_total: Option<f64>,
    #[command(flatten)]
    transport: TransportArguments,
    /// Folder with the data set's files [default: Debian's, or fetched into the user's cache]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Folder for the picture, the table, the records and the logs [default: target/demo in the workspace]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
    /// Leave hub and agents running at the end, until Ctrl-C, to look at them by hand
    #[arg(long)]
    keep: bool,
}

/// Reads `8` or `HL8`.
pub(crate) fn parse_level(text: &str) -> Result<HeterogeneityLevel, String> {
    let number = text.trim_start_matches(['h', 'H', 'l', 'L']).parse().map_err(|_| "1, 2, 4 or 8".to_owned())?;
    HeterogeneityLevel::from_number(number).ok_or_else(|| "1, 2, 4 or 8".to_owned())
}

impl DemoArguments {
    /// The run of one policy.
    pub(crate) fn run_of(&self, policy: Policy) -> Run {
        Run {
            mode: self.mode,
            agents: self.agents as usize,
            model: self.model,
            policy,
            epochs: self.epochs.unwrap_or_else(|| self.model.epochs_default()),
            width: self.width,
            global_batch: self.global_batch,
            seed: self.seed,
        }
    }
}

/// Runs the demo.
///
/// # Errors
/// When something is missing, does not build, or a process fails; whatever was started is ended first.
pub(crate) fn run(workspace: &Workspace, arguments: &DemoArguments) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    if arguments.agents > arguments.global_batch {
        bail!("a global batch of {} samples is too small for {} agents", arguments.global_batch, arguments.agents);
    }
    let out = arguments.out.clone().unwrap_or_else(|| workspace.root().join("target/demo"));
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    let out = out.canonicalize().with_context(|| format!("finding {}", out.display()))?;
    let kit = Kit::prepare(workspace, arguments.data.as_deref(), arguments.quota_total, &interrupt)?
        .over(arguments.transport.clone());

    let mut results: Vec<(Policy, RunRecords)> = Vec::new();
    let mut fleet = kit.start_fleet(arguments.hl, arguments.agents as usize, &out.join("logs"), &interrupt)?;
    for &policy in &arguments.policy {
        let records =
            fleet.train(&arguments.run_of(policy), Some(&out.join("records").join(policy.name())), &interrupt)?;
        results.push((policy, records));
    }
    let summary = summarise(arguments, &results);
    let picture = write_results(arguments, &out, &summary, &results)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&summary).context("writing JSON")?);
    } else {
        println!("\n{}\npicture: {}", summary.table(), picture.display());
    }
    if arguments.keep {
        fleet.keep(&interrupt);
    }
    fleet.stop();
    Ok(())
}

fn summarise(arguments: &DemoArguments, results: &[(Policy, RunRecords)]) -> DemoSummary {
    let run = |(policy, records): &(Policy, RunRecords)| {
        RunSummary::new(policy.name(), arguments.mode.name(), arguments.hl.number(), records)
    };
    DemoSummary::new(results.iter().map(run).collect())
}

fn write_results(
    arguments: &DemoArguments,
    out: &Path,
    summary: &DemoSummary,
    results: &[(Policy, RunRecords)],
) -> anyhow::Result<PathBuf> {
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display())).map(|()| path)
    };
    write("summary.json", &serde_json::to_string_pretty(summary).context("writing JSON")?)?;
    write("table.txt", &summary.table())?;
    let columns: Vec<plot::Column<'_>> =
        results.iter().map(|(policy, records)| plot::Column { policy: policy.name(), records }).collect();
    let title = format!(
        "{} on Fashion-MNIST, {} at {}, global batch {}",
        arguments.model.describe(arguments.width),
        arguments.mode.name().to_uppercase(),
        arguments.hl,
        arguments.global_batch
    );
    let picture = out.join("demo.svg");
    plot::draw(&picture, &title, &columns)?;
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_numbers_with_or_without_hl() {
        assert_eq!(parse_level("8"), Ok(HeterogeneityLevel::Hl8));
        assert_eq!(parse_level("HL2"), Ok(HeterogeneityLevel::Hl2));
        assert!(parse_level("3").is_err() && parse_level("").is_err());
    }
}
