//! `cargo xtask experiment`: the papers' tables, each by one command, from a definition in `experiments/`.

mod calibrate;
mod catalogue;
mod claims;
mod csv;
mod definition;
mod figures;
mod library;
mod operations;
mod outcome;
mod plan;
mod plots;
mod png;
mod ratios;
mod report;
mod side_by_side;
mod simulate;
mod throttled;
mod write;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use self::catalogue::Catalogue;
use self::definition::{Definition, Kind};
use self::library::Library;
use self::outcome::{Outcome, Row};
use self::simulate::Simulator;
use self::write::Run;
use crate::bench::progress::Progress;
use crate::demo::Kit;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;
use crate::{datasets, kernels};

/// Folder of the definitions, from the workspace's root.
const FOLDER: &str = "experiments";

/// What stands for every experiment.
const ALL: &str = "all";

/// Repeats the papers' tables: an experiment is a file in `experiments/`, a run a folder with its report
///
/// The virtual fleet (`omnilearn-sim`) runs the hub's real core under a virtual clock, with agents as fast as the papers'
/// cores; `throttled` and `operations` start real processes under CPU quotas. A run's folder holds the definition, every row's
/// records, `rows.csv`, pictures, and `report.md`, which puts the papers' figures beside ours.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  cargo xtask experiment --list\n  cargo xtask experiment hl-bsp\n  \
    cargo xtask experiment hl-bsp --quick --json\n  cargo xtask experiment all --publish\n\n\
    docs/experiments.md says what each of them shows, and how to write one.")]
pub(crate) struct ExperimentArguments {
    /// Which: names as `--list` shows them, or `all`
    #[arg(required_unless_present = "list", value_name = "NAME")]
    names: Vec<String>,
    /// Show what there is, and how long it takes
    #[arg(long)]
    list: bool,
    /// A small variant in seconds: few steps, no gradients
    #[arg(long)]
    quick: bool,
    /// Take over rows of an earlier call whose inputs are the same, such as after Ctrl-C
    #[arg(long)]
    resume: bool,
    /// Measure first how fast one core of this machine is with each model, in place of the speeds in the catalogue
    #[arg(long, conflicts_with = "quick")]
    calibrate: bool,
    /// Folder for the results; each experiment gets a folder in it [default: target/experiments in the workspace]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Copy the report, its pictures and the table of rows to docs/results
    #[arg(long, conflicts_with = "quick")]
    publish: bool,
    /// The simulator, in place of the one that is built from these sources
    #[arg(long, value_name = "FILE")]
    simulator: Option<PathBuf>,
    /// Folder with the data sets' files [default: Debian's, or fetched into the user's cache]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object for each experiment and nothing else on standard output
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    name: &'a str,
    rows: Vec<Row<'a>>,
}

/// Runs experiments one after another.
///
/// # Errors
/// When a definition is wrong, something is missing or does not build, a run fails, or after an interrupt; finished rows stay.
pub(crate) fn run(workspace: &Workspace, arguments: &ExperimentArguments) -> anyhow::Result<()> {
    let folder = workspace.root().join(FOLDER);
    let mut catalogue = Catalogue::read(&folder)?;
    let all = definitions(&folder, &catalogue)?;
    if arguments.list {
        print!("{}", list(&all));
        return Ok(());
    }
    let wanted = choose(all, &arguments.names)?;
    let interrupt = Interrupt::listen()?;
    let out = arguments.out.clone().unwrap_or_else(|| workspace.root().join("target/experiments"));
    let library = Library::make(workspace, &library::wanted(&wanted, &catalogue), out.join("library"))?;
    interrupt.check()?;
    if arguments.calibrate {
        let kit = Kit::prepare(workspace, arguments.data.as_deref(), None, &interrupt)?;
        let kit = kit.with_library(library.as_ref().map(Library::state));
        calibrate::measure(&kit, library.as_ref(), &wanted, &mut catalogue, &interrupt)?;
    }
    let mut failed = Vec::new();
    for definition in wanted {
        let mut definition = if arguments.quick { definition.quick() } else { definition };
        if let Some(library) = &library {
            let notes = library.notes(&library::wanted(std::slice::from_ref(&definition), &catalogue));
            definition.notes.extend(notes);
        }
        let out = folder_for(&definition, &out)?;
        let run = Run {
            workspace,
            definition: &definition,
            catalogue: &catalogue,
            library: library.as_ref(),
            out: &out,
            quick: arguments.quick,
        };
        let outcomes = run_one(&run, arguments, &interrupt)?;
        if outcomes.iter().all(|outcome| outcome.skipped.is_some()) {
            failed.push(definition.name.clone());
        }
    }
    if !failed.is_empty() {
        bail!("no row of {} ran; the reports say why", failed.join(", "));
    }
    Ok(())
}

/// All definitions, by name.
fn definitions(folder: &Path, catalogue: &Catalogue) -> anyhow::Result<Vec<Definition>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|ending| ending == "toml")
            && path.file_name().is_some_and(|name| name != catalogue::FILE)
    });
    paths.sort();
    paths.iter().map(|path| Ok(Definition::read(path, catalogue)?)).collect()
}

fn choose(all: Vec<Definition>, names: &[String]) -> anyhow::Result<Vec<Definition>> {
    if names.iter().any(|name| name == ALL) {
        return Ok(all);
    }
    let find = |name: &String| {
        let found = all.iter().find(|definition| &definition.name == name).cloned();
        found.with_context(|| {
            let known: Vec<&str> = all.iter().map(|definition| definition.name.as_str()).collect();
            format!("there is no experiment `{name}`; there are {}, and `{ALL}`", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

fn list(all: &[Definition]) -> String {
    let width = all.iter().map(|definition| definition.name.len()).max().unwrap_or_default();
    let line = |definition: &Definition| {
        format!("{:<width$}  about {:>2.0} min  {}\n", definition.name, definition.minutes, definition.title)
    };
    all.iter().map(line).collect()
}

/// The folder of an experiment's run.
fn folder_for(definition: &Definition, out: &Path) -> anyhow::Result<PathBuf> {
    let folder = out.join(&definition.name);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    folder.canonicalize().with_context(|| format!("finding {}", folder.display()))
}

fn run_one(run: &Run<'_>, arguments: &ExperimentArguments, interrupt: &Interrupt) -> anyhow::Result<Vec<Outcome>> {
    let definition = run.definition;
    run.write_inputs()?;
    eprintln!("{}: {}, about {:.0} min", definition.name, definition.title, definition.minutes);
    let started = Instant::now();
    let rows = match definition.kind {
        Kind::Virtual => run_virtual(run, arguments, interrupt)?,
        Kind::Throttled => throttled::run(run, arguments, interrupt)?,
        Kind::Operations => operations::run(run, arguments.data.as_deref(), interrupt)?,
    };
    let mut outcomes = rows.outcomes;
    ratios::compare(&mut outcomes);
    let report = run.write_results(&outcomes, rows.taken_over, started.elapsed())?;
    if arguments.publish {
        run.publish()?;
    }
    if arguments.json {
        let rows = outcomes.iter().map(Outcome::row).collect();
        println!("{}", serde_json::to_string(&Printed { name: &definition.name, rows }).context("writing JSON")?);
    } else {
        println!("{}", report.display());
    }
    Ok(outcomes)
}

/// Rows that have run.
#[derive(Debug, Default)]
struct Rows {
    outcomes: Vec<Outcome>,
    /// How many of them are of an earlier call.
    taken_over: usize,
}

fn run_virtual(run: &Run<'_>, arguments: &ExperimentArguments, interrupt: &Interrupt) -> anyhow::Result<Rows> {
    let planned = plan::rows(run.definition, run.catalogue)?;
    let trains = planned.iter().any(|row| row.case.gradients != definition::Gradients::None);
    let data = match trains {
        true => {
            let spec = datasets::find_spec("fashion-mnist")?;
            Some(datasets::provide(spec, arguments.data.as_deref(), &|line| eprintln!("{line}"))?)
        }
        false => arguments.data.clone(),
    };
    eprintln!("building the kernels (the first time takes a minute or two)");
    kernels::build(run.workspace.root())?;
    interrupt.check()?;
    let program = simulator(run.workspace, arguments)?;
    let state = run.library.map(Library::state);
    let simulator = Simulator { workspace: run.workspace, program, data, state, resume: arguments.resume };
    simulate_all(&simulator, &planned, run.out, interrupt)
}

/// The simulator's program.
fn simulator(workspace: &Workspace, arguments: &ExperimentArguments) -> anyhow::Result<PathBuf> {
    if let Some(program) = &arguments.simulator {
        return program.canonicalize().with_context(|| format!("finding {}", program.display()));
    }
    eprintln!("building the simulator (the first time takes several minutes)");
    workspace.build(&["omnilearn-sim"])?.pop().context("cargo built no simulator")
}

fn simulate_all(
    simulator: &Simulator<'_>,
    planned: &[plan::PlannedRow<'_>],
    out: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Rows> {
    let progress = Progress::start(planned.len());
    let mut rows = Rows::default();
    for row in planned {
        progress.begin(&row.key.slug());
        let (outcome, taken_over) = simulator.run(row, out, interrupt).with_context(|| {
            format!("{} of {} rows are finished, `--resume` takes them over", rows.outcomes.len(), planned.len())
        })?;
        rows.taken_over += usize::from(taken_over);
        progress.end(&write::row_result(&outcome));
        rows.outcomes.push(outcome);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
