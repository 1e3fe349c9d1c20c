//! `cargo xtask bench cpu`: a training step on our CPU operators against Burn's and PyTorch's.
//!
//! Every sample is a fresh process, and the contestants take turns within a round, so that a slow minute of the machine falls
//! on all. What other processes used meanwhile is measured beside each sample: where that is much, the times mean little.

mod case;
mod contestant;
mod layers;
mod report;
mod sample;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, bail};
use clap::Args;

use self::case::{Case, Model};
use self::contestant::{Contestant, Contestants};
use self::report::{Report, Row};
use self::sample::Sample;
use super::progress::Progress;
use super::torch::Torch;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

/// Seconds of timed steps in a process: in a sweep, there are too many processes for more.
const SECONDS: f64 = 2.0;
const SWEEP_SECONDS: f64 = 0.3;

const ROUNDS: u32 = 3;
const SWEEP_ROUNDS: u32 = 1;

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct CpuArguments {
    /// A Python interpreter that has PyTorch, to measure that, too
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// Numbers of threads that compute [default: 1 and all cores; 1 and 2 in a sweep]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<NonZeroUsize>,
    /// Models [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    models: Vec<Model>,
    /// Samples of a step [default: 64; 32 for vgg11; 32 and 128 for resnet18; 1 to 256 in a sweep]
    #[arg(long, value_delimiter = ',')]
    batches: Vec<NonZeroU32>,
    /// Rounds; their median is reported [default: 3; 1 in a sweep]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// About how long each process times steps, in seconds; three steps at least [default: 2; 0.3 in a sweep]
    #[arg(long, value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Measure the convolutions of resnet18 and vgg11 one by one, too
    #[arg(long, conflicts_with = "sweep")]
    layers: bool,
    /// Many batches, few steps, ours against Burn's, and where the ratio is worst
    #[arg(long, conflicts_with = "torch")]
    sweep: bool,
    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if seconds > 0.0 && seconds <= 3600.0 { Ok(seconds) } else { Err("must be above 0 and at most 3600".to_owned()) }
}

impl CpuArguments {
    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.sweep { SWEEP_SECONDS } else { SECONDS })
    }

    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.sweep { SWEEP_ROUNDS } else { ROUNDS })
    }
}

/// Runs the benchmark and prints what came out.
///
/// # Errors
/// When something does not build or a process fails; what has been measured by then is printed all the same.
pub(crate) fn run(workspace: &Workspace, arguments: &CpuArguments) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    let cores = available_parallelism().context("counting cores")?.get();
    let cases = Case::choose(arguments, cores);
    if arguments.layers && !cases.iter().any(|case| case.model.lists_convolutions()) {
        bail!("--layers knows the convolutions of resnet18 and vgg11, and --models names neither");
    }
    let folder = tempfile::Builder::new().prefix("omnilearn-bench-").tempdir().context("making a temporary folder")?;
    let torch = match &arguments.torch {
        Some(python) => Some(Torch::find(python, folder.path(), &interrupt)?),
        None => None,
    };
    eprintln!("building the training step (the first time takes several minutes)");
    let programs = workspace.build(&["train-step"])?;
    interrupt.check()?;
    let train_step = programs.into_iter().next().context("cargo built nothing")?;
    let contestants = Contestants { train_step, torch };
    let (rows, mut ended) = measure(&contestants, &cases, arguments, folder.path(), &interrupt);
    let mut report = Report::new(rows);
    if arguments.layers && ended.is_ok() {
        let seconds = arguments.seconds();
        match layers::measure(&contestants, &cases, seconds, folder.path(), &interrupt) {
            Ok(layers) => report = report.with_layers(layers),
            Err(error) => ended = Err(error),
        }
    }
    if arguments.sweep {
        report = report.with_worst();
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report).context("writing JSON")?);
    } else {
        let torch_version = contestants.torch.as_ref().map(Torch::version);
        print!("{}", report.text(cores, arguments.rounds(), torch_version));
    }
    ended
}

/// All rounds of all cases. Whatever ends them early, cases that have been measured have their row.
fn measure(
    contestants: &Contestants,
    cases: &[Case],
    arguments: &CpuArguments,
    folder: &Path,
    interrupt: &Interrupt,
) -> (Vec<Row>, anyhow::Result<()>) {
    let rounds = arguments.rounds();
    let turns = contestants.all();
    let progress = Progress::start(rounds as usize * cases.len() * turns.len());
    let mut samples: Vec<[Vec<Sample>; Contestant::COUNT]> = cases.iter().map(|_| Default::default()).collect();
    let mut measure_all = || -> anyhow::Result<()> {
        for round in 1..=rounds {
            for (case, samples) in cases.iter().zip(&mut samples) {
                for &contestant in &turns {
                    progress.begin(&format!("round {round} of {rounds}, {case}, {}", contestant.name()));
                    let command = contestants.command(contestant, case, arguments.seconds());
                    let sample: Sample = sample::run(contestant.name(), command, folder, interrupt, |_| ())?;
                    progress.end(&sample.to_string());
                    samples[contestant as usize].push(sample);
                }
            }
        }
        Ok(())
    };
    let ended = measure_all();
    (cases.iter().zip(&samples).filter_map(|(case, samples)| Row::new(case, samples)).collect(), ended)
}
