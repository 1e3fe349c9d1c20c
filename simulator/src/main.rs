//! `omnilearn-sim`: parses the command line, simulates, and prints or writes what came out.

mod cli;
mod files;
mod progress;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Parser;
use omnilearn_datasets::Library;
use omnilearn_hub::follow;
use omnilearn_hub::view::{JobState, JobView, Progress as JobProgress};
use omnilearn_hub_core::config::Mode;
use omnilearn_hub_core::{Now, Record};
use omnilearn_simulator::gradients::{Machine, NoGradients, RealGradients};
use omnilearn_simulator::{Fleet, Gradients, Job, Observer, Outcome, Summary, fleet, job, scale, simulate};

use crate::cli::{Cli, Command, GradientsArg, Run};
use crate::files::Files;
use crate::progress::Progress;

const FAILED: u8 = 1;

/// Agents of a fleet that is still shown agent by agent.
const AGENTS_SHOWN: usize = 32;

fn main() -> ExitCode {
    omnilearn_agent::allocator::keep_memory();
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Command::FleetExample) => print(fleet::EXAMPLE),
        Some(Command::Scale(arguments)) => measure_scale(&arguments),
        None => run(&cli.run),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("omnilearn-sim: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Prints to stdout; a reader that has left is no error.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

/// Shows progress, and writes records where they are asked for.
struct Watch {
    progress: Progress,
    files: Option<Files>,
}

impl Observer for Watch {
    fn record(&mut self, record: &Record) -> std::io::Result<()> {
        self.files.as_mut().map_or(Ok(()), |files| files.record(record))
    }

    fn progress(&mut self, now: Now, epoch: f64, version: u64) {
        self.progress.update(now, epoch, version);
    }
}

fn run(arguments: &Run) -> anyhow::Result<()> {
    let (Some(fleet_path), Some(job_path)) = (&arguments.fleet, &arguments.job) else {
        return Err(anyhow!("a fleet file and a job file are needed; see --help"));
    };
    let fleet = Fleet::read(fleet_path).with_context(|| fleet_path.display().to_string())?;
    let added = arguments.state.as_ref().map(|state| state.join(omnilearn_hub::DATASETS));
    // Without one there is a library with nothing in it.
    let library = Library::at(added.as_deref().unwrap_or(Path::new("")));
    let offline = job::read(job_path, &arguments.overrides, &library)?;
    let job = Job::new(&offline);
    let real = arguments.gradients == GradientsArg::Real;
    let mut gradients: Box<dyn Gradients + '_> = if real {
        let data = arguments.data.iter().cloned().chain(added).collect();
        let (cache, threads) = (arguments.cache.clone(), arguments.threads);
        Box::new(RealGradients::new(&offline, Machine { data, cache, threads }, fleet.agents.len())?)
    } else {
        Box::new(NoGradients::default())
    };
    let files = arguments.out.as_deref().map(Files::create).transpose()?;
    let mut watch = Watch { progress: Progress::new(job.config.stop), files };
    let outcome = simulate(&fleet, &job, gradients.as_mut(), &mut watch);
    watch.progress.finish();
    let outcome = outcome?;
    let mut summary = Summary::new(&job, &fleet, &outcome, real);
    summary.set = arguments.overrides.iter().map(ToString::to_string).collect();
    if arguments.oracle {
        summary.ask_oracle(&job, &fleet, &outcome).map_err(|reason| anyhow!("--oracle: {reason}"))?;
    }
    if let Some(files) = watch.files {
        files.finish(&summary, outcome.staleness())?;
    }
    if arguments.json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&summary)?));
    }
    print(&summary.table())?;
    print(&details(offline.view(), &outcome, real))
}

/// The agents as `omnilearn-hub status` shows them, and what the hub would have warned of.
fn details(view: JobView, outcome: &Outcome, real: bool) -> String {
    let mut text = String::new();
    if outcome.status.agents.len() <= AGENTS_SHOWN {
        let mut progress = JobProgress::from(&outcome.status);
        if !real {
            (progress.loss, progress.test_loss, progress.accuracy) = (None, None, None);
        }
        let view = JobView { state: JobState::Done, progress: Some(progress), ..view };
        text.push_str(&format!("\n{}\n", follow::block(&view)));
    }
    for (warning, times) in outcome.warnings() {
        text.push_str(&format!("  the hub warned {times} times: {warning}\n"));
    }
    text
}

fn measure_scale(arguments: &cli::Scale) -> anyhow::Result<()> {
    if !arguments.json {
        print("    agents  rounds  core CPU ms/round  ms/1,000 agents and round  simulated in\n")?;
    }
    let mode = match arguments.mode {
        cli::ScaleMode::Bsp => Mode::Bsp,
        cli::ScaleMode::Asp => Mode::Asp { staleness_max: None, damping: false },
    };
    let scale = scale::scale(mode, &arguments.agents, arguments.rounds, |size| {
        let line = format!(
            "{:>10}  {:>6}  {:>17.3}  {:>25.3}  {:>10.1} s\n",
            size.agents,
            size.rounds,
            size.core_cpu_ms_per_round,
            size.core_cpu_ms_per_1000_agents_and_round,
            size.wall_s
        );
        if !arguments.json {
            print(&line).ok(); // a reader that has left is told when the end is printed
        }
    })?;
    match arguments.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&scale)?)),
        false => print(&scale.footer()),
    }
}
