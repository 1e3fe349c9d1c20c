//! The command line of `omnilearn-sim`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use omnilearn_simulator::job::Override;

/// Answers what a fleet would do with a job, before anyone buys hardware.
///
/// Runs the hub's own training core under a virtual clock. An agent takes overhead + batch / speed
/// of virtual time for a gradient, with noise, transfers, changes of speed and departures as the
/// fleet file says. The job file is the hub's, so what was simulated can be submitted as it is:
///
///   omnilearn-sim fleet-example > fleet.toml     a fleet file with every key explained
///   omnilearn-hub job-example > job.toml         a job file likewise
///   omnilearn-sim fleet.toml job.toml            time, idle share, staleness, bytes
///
/// With --gradients none only time moves: ten thousand agents and a thousand rounds take about a
/// minute. With --gradients real the kernel trains on this machine's CPU, each virtual agent from
/// the parameters that it holds at its moment, and accuracy comes out too.
///
///   omnilearn-sim fleet.toml job.toml --set batching.policy=uniform
///   omnilearn-sim fleet.toml job.toml --gradients real --out run/ --json
///   omnilearn-sim scale
///
/// Equal seeds, in both files, give equal results to the bit.
/// Exit codes: 0 done, 1 failed, 2 bad usage.
#[derive(Debug, Parser)]
#[command(
    name = "omnilearn-sim",
    version,
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) run: Run,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a fleet file with every key explained.
    FleetExample,

    /// Measure what a round costs the hub's core, over fleets of several sizes.
    ///
    ///   omnilearn-sim scale --agents 1000,3000,10000
    ///
    /// Dynamic batches over agents in the ratio 6:6:4:32 and with 5 % of noise, without gradients.
    /// The slope says what each further thousand of agents costs for each round. In ASP as many
    /// updates as there are agents are a round.
    #[command(verbatim_doc_comment)]
    Scale(Scale),
}

#[derive(Debug, Args)]
pub(crate) struct Scale {
    /// Sizes, with commas.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_value = "1000,3000,10000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) agents: Vec<u32>,

    /// Rule of synchronisation.
    #[arg(long, value_enum, default_value = "bsp")]
    pub(crate) mode: ScaleMode,

    /// Rounds of each size.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,

    /// Print JSON on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a round is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScaleMode {
    /// One step of all agents' gradients.
    Bsp,
    /// A step of each gradient.
    Asp,
}

/// Whether gradients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GradientsArg {
    /// By the kernel, on this machine's CPU.
    Real,
    /// Not at all: only time moves.
    None,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The fleet; see `omnilearn-sim fleet-example`.
    #[arg(value_name = "FLEET", required = true)]
    pub(crate) fleet: Option<PathBuf>,

    /// The job, as for `omnilearn-hub submit`; see `omnilearn-hub job-example`.
    #[arg(value_name = "JOB", required = true)]
    pub(crate) job: Option<PathBuf>,

    /// Whether the kernel really trains.
    #[arg(long, value_name = "KIND", default_value = "none")]
    pub(crate) gradients: GradientsArg,

    /// A key of the job file and another value, such as batching.policy=uniform; may be given more than once.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<Override>,

    /// Compare with an oracle that knows the true speeds at each moment; BSP only.
    #[arg(long)]
    pub(crate) oracle: bool,

    /// Folder for rounds.csv, steps.csv, batches.csv, evaluations.csv, staleness.csv and summary.json.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Print the figures as one JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,

    /// State folder of a hub, whose data sets of its own (`omnilearn-hub dataset add`) the job may name.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,

    /// For real gradients: folder with data sets, before the usual places; may be given more than once.
    #[arg(long, value_name = "DIR", env = "OMNILEARN_DATA", value_delimiter = ':')]
    pub(crate) data: Vec<PathBuf>,

    /// For real gradients: folder for compiled kernels and unpacked data sets.
    #[arg(long, value_name = "DIR", env = "OMNILEARN_CACHE")]
    pub(crate) cache: Option<PathBuf>,

    /// For real gradients: compute threads. Default: what CPU quota and cores allow.
    #[arg(long, value_name = "N", env = "OMNILEARN_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,
}
