//! `cargo xtask bench accuracy`: a ResNet-18 trained by a hub and unequal agents, against the same training in PyTorch.
//!
//! Both sides make as many steps over as many samples, from first values of the same distributions, with the same optimizer
//! and schedule. They differ in what they draw at random, and in batch normalisation: an agent sees its own part of a batch.

mod curve;
mod picture;
mod recipe;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use self::curve::Point;
use self::recipe::{Optimizer, Recipe, Schedule};
use self::report::Report;
use super::progress::Progress;
use super::torch::{Script, Torch};
use crate::demo::{Job, Kit, RunRecords, parse_level};
use crate::fleet::process::Process;
use crate::fleet::ratios::HeterogeneityLevel;
use crate::interrupt::Interrupt;
use crate::workspace::{Workspace, has_program, run as run_command};

/// What is trained, and where.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  cargo xtask bench accuracy --torch python3\n  \
    cargo xtask bench accuracy --torch python3 --width 8 --epochs 1 --agents 4\n  \
    cargo xtask bench accuracy --torch python3 --steps 20 --json")]
pub(crate) struct AccuracyArguments {
    /// A Python interpreter that has PyTorch
    #[arg(long, value_name = "PYTHON")]
    torch: PathBuf,
    /// Channels of the first stage; the full ResNet-18 has 64, which takes hours on a small machine
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    width: u32,
    /// Samples behind one step, over all agents
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    global_batch: u32,
    /// Passes over the training set
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: u32,
    /// Steps in all, instead of epochs
    #[arg(long, conflicts_with = "epochs", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Evaluations in an epoch; the end is always evaluated
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    evaluations: u32,
    /// How a gradient changes the parameters
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: Optimizer,
    /// Learning rate before the schedule [default: 0.05 for sgd, 0.001 for adam and adamw]
    #[arg(long, value_parser = parse_positive)]
    learning_rate: Option<f64>,
    /// Momentum of sgd
    #[arg(long, default_value_t = 0.9)]
    momentum: f64,
    /// Weight decay, of all parameters
    #[arg(long, default_value_t = 5e-4)]
    weight_decay: f64,
    /// The learning rate over steps
    #[arg(long, value_enum, default_value = "cosine")]
    schedule: Schedule,
    /// Steps over which the learning rate first rises [default: a tenth of an epoch's, or of all if those are fewer]
    #[arg(long)]
    warmup_steps: Option<u32>,
    /// Where the cosine ends, as a share of the learning rate
    #[arg(long, default_value_t = 0.02)]
    minimum: f64,
    /// Number of agents
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    agents: u32,
    /// Heterogeneity level: the largest CPU quota over the smallest; 1, 2, 4 or 8
    #[arg(long, default_value = "8", value_parser = parse_level)]
    hl: HeterogeneityLevel,
    /// Sum of the agents' CPU quotas in cores; the rest is for the hub [default: 0.9 of the machine's cores]
    #[arg(long)]
    quota_total: Option<f64>,
    /// Folder with the data set's files [default: Debian's, or fetched into the user's cache]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Folder for the pictures, the table, the records and the logs [default: target/accuracy in the workspace]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("must be above 0".to_owned()) }
}

impl AccuracyArguments {
    fn recipe(&self, train_samples: u32) -> Recipe {
        let steps_per_epoch = (train_samples / self.global_batch).max(1);
        let whole_epochs = f64::from(self.epochs) * f64::from(train_samples) / f64::from(self.global_batch);
        let steps = self.steps.unwrap_or_else(|| (whole_epochs.round() as u32).max(1));
        Recipe {
            width: self.width,
            global_batch: self.global_batch,
            steps,
            evaluate_every_steps: steps_per_epoch.div_ceil(self.evaluations),
            optimizer: self.optimizer,
            learning_rate: self.learning_rate.unwrap_or_else(|| self.optimizer.learning_rate_default()),
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            schedule: self.schedule,
            warmup_steps: self.warmup_steps.unwrap_or(steps_per_epoch.min(steps) / 10),
            minimum: self.minimum,
            seed: self.seed,
        }
    }
}

/// Trains on both sides, one after the other, and prints what came out.
///
/// # Errors
/// When something is missing or does not build, or a process fails.
pub(crate) fn run(workspace: &Workspace, arguments: &AccuracyArguments) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    if arguments.agents > arguments.global_batch {
        bail!("a global batch of {} samples is too small for {} agents", arguments.global_batch, arguments.agents);
    }
    let folder = tempfile::Builder::new().prefix("omnilearn-bench-").tempdir().context("making a temporary folder")?;
    // It is the one thing that we do not get ourselves, so a user hears of it before anything is built.
    let torch = Torch::find(&arguments.torch, folder.path(), &interrupt)?;
    let out = arguments.out.clone().unwrap_or_else(|| workspace.root().join("target/accuracy"));
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    let out = out.canonicalize().with_context(|| format!("finding {}", out.display()))?;
    let kit = Kit::prepare(workspace, arguments.data.as_deref(), arguments.quota_total, &interrupt)?;
    let recipe = arguments.recipe(kit.spec().train_samples);
    eprintln!("{recipe}");

    let records = train_ours(workspace, &kit, arguments, &recipe, &out, &interrupt)?;
    let command = recipe.command(torch.command(Script::Accuracy), kit.spec(), kit.data())?;
    let theirs = train_torch(command, &recipe, &out.join("logs"), &interrupt)?;
    let report = Report::new(recipe, arguments.hl, &records, theirs, torch.version())?;
    let picture = write_results(&report, &out)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report).context("writing JSON")?);
    } else {
        println!("\n{}\npicture: {}", report.text(), picture.display());
    }
    Ok(())
}

/// A hub and agents of its own, as users have them.
fn train_ours(
    workspace: &Workspace,
    kit: &Kit,
    arguments: &AccuracyArguments,
    recipe: &Recipe,
    out: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<RunRecords> {
    let text = recipe.job_file(kit.spec(), &workspace.component("resnet"), arguments.agents)?;
    let epochs = recipe.samples().div_ceil(u64::from(kit.spec().train_samples));
    let job = Job { name: "ours", text, epochs: u32::try_from(epochs).context("too many epochs")? };
    let mut fleet = kit.start_fleet(arguments.hl, arguments.agents as usize, &out.join("logs"), interrupt)?;
    let records = fleet.run(&job, Some(&out.join("records")), interrupt)?;
    fleet.stop();
    let samples = records.samples();
    if samples != recipe.samples() {
        // A round that closed without an agent was a step over fewer samples.
        bail!(
            "our agents learned from {samples} samples instead of {}; see {}",
            recipe.samples(),
            out.join("logs").display()
        );
    }
    Ok(records)
}

/// One process on all cores.
fn train_torch(command: Command, recipe: &Recipe, logs: &Path, interrupt: &Interrupt) -> anyhow::Result<Vec<Point>> {
    let progress = Progress::start(1);
    progress.begin("PyTorch");
    let mut process = Process::spawn("PyTorch", command, &logs.join("torch.log"))?;
    let describe = |line: &str| Point::read(line).map_or_else(|_| line.to_owned(), |point| point.to_string());
    let output = process.run_to_end(interrupt, progress.follow(describe))?;
    let points = Point::read_all(&output)?;
    match points.last() {
        Some(last) if last.samples == recipe.samples() => {
            progress.end(&format!("{:.1} % accuracy", last.accuracy * 100.0));
            Ok(points)
        }
        _ => bail!("PyTorch did not reach the end; see {}", process.log().display()),
    }
}

/// Returns the path of the picture.
fn write_results(report: &Report, out: &Path) -> anyhow::Result<PathBuf> {
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display())).map(|()| path)
    };
    write("accuracy.json", &serde_json::to_string_pretty(report).context("writing JSON")?)?;
    write("table.txt", &report.text())?;
    let svg = write("accuracy.svg", &picture::draw(report)?)?;
    if has_program("rsvg-convert") {
        let mut convert = Command::new("rsvg-convert");
        convert.args(["--zoom", "2", "--output"]).arg(out.join("accuracy.png")).arg(&svg);
        run_command(convert)?;
    } else {
        eprintln!("note: no PNG beside the SVG, for want of rsvg-convert (Debian: `apt-get install librsvg2-bin`)");
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: AccuracyArguments,
    }

    fn recipe(line: &str) -> Recipe {
        let words = format!("accuracy --torch python3 {line}");
        Line::parse_from(words.split_whitespace()).arguments.recipe(60_000)
    }

    #[test]
    fn epochs_become_steps_and_an_epoch_is_evaluated_several_times() {
        let by_default = recipe("");
        assert_eq!((by_default.steps, by_default.evaluate_every_steps, by_default.warmup_steps), (703, 59, 23));
        assert_eq!(by_default.learning_rate, 0.05);
        assert_eq!(recipe("--optimizer adamw").learning_rate, 0.001);
    }

    #[test]
    fn a_training_may_be_as_short_as_a_step() {
        let short = recipe("--steps 1 --global-batch 8");
        assert_eq!((short.steps, short.samples(), short.warmup_steps), (1, 8, 0));
    }
}
