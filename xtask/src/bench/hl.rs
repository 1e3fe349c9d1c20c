//! `cargo xtask bench hl`: what dynamic batches gain on unequal machines.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::median;
use crate::demo::{Kit, Mode, Model, Policy, Run, RunRecords};
use crate::fleet::ratios::HeterogeneityLevel;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

/// The comparison of heterogeneity levels.
#[derive(Args, Debug)]
pub(crate) struct HlArguments {
    /// How agents are synchronised
    #[arg(long, value_enum, default_value = "bsp")]
    mode: Mode,
    /// What is trained
    #[arg(long, value_enum, default_value = "lenet")]
    model: Model,
    /// Passes over the training set in each run
    #[arg(long, default_value_t = 1)]
    epochs: u32,
    /// Rounds of runs; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Channels of the first stage of the ResNet
    #[arg(long, default_value_t = 8)]
    width: u32,
    /// Samples behind one step, over all agents
    #[arg(long, default_value_t = 256)]
    global_batch: u32,
    /// Sum of the agents' CPU quotas in cores [default: 0.9 of the machine's cores]
    #[arg(long)]
    quota_total: Option<f64>,
    /// Folder with the data set's files
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
}

/// One line of the comparison: medians over the repeats.
#[derive(Debug, Serialize)]
struct Line {
    hl: u32,
    policy: &'static str,
    steps_per_s: f64,
    epoch_s: f64,
    idle_share: f64,
    max_over_min_compute: f64,
    steps_per_s_min: f64,
    steps_per_s_max: f64,
}

/// The comparison.
#[derive(Debug, Serialize)]
struct Comparison {
    mode: &'static str,
    model: &'static str,
    repeats: u32,
    lines: Vec<Line>,
    /// Steps per second of dynamic at HL8 over those of uniform at HL1.
    dynamic_hl8_over_hl1: f64,
    /// Time per epoch of uniform at HL8 over that of dynamic at HL8.
    speedup_epoch_hl8: f64,
}

const CASES: [(HeterogeneityLevel, Policy); 3] = [
    (HeterogeneityLevel::Hl1, Policy::Uniform),
    (HeterogeneityLevel::Hl8, Policy::Uniform),
    (HeterogeneityLevel::Hl8, Policy::Dynamic),
];

/// Runs the comparison and prints it.
///
/// # Errors
/// When something does not build or a run fails.
pub(crate) fn run(workspace: &Workspace, arguments: &HlArguments) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    let kit = Kit::prepare(workspace, arguments.data.as_deref(), arguments.quota_total, &interrupt)?;
    let logs = tempfile::Builder::new().prefix("omnilearn-bench-").tempdir().context("making a folder for logs")?;
    let mut results: [Vec<RunRecords>; CASES.len()] = [const { Vec::new() }; CASES.len()];
    // One of each, then again, so that a slow minute of the machine falls on all of them.
    for repeat in 1..=arguments.repeats {
        for (place, (level, policy)) in CASES.into_iter().enumerate() {
            eprintln!("repeat {repeat} of {}: {level} {}", arguments.repeats, policy.name());
            let mut fleet = kit.start_fleet(level, 4, logs.path(), &interrupt)?;
            let run = Run {
                mode: arguments.mode,
                agents: 4,
                model: arguments.model,
                policy,
                epochs: arguments.epochs,
                width: arguments.width,
                global_batch: arguments.global_batch,
                seed: 1,
            };
            results[place].push(fleet.train(&run, None, &interrupt)?);
            fleet.stop();
        }
    }
    let lines = CASES
        .iter()
        .zip(&results)
        .map(|(&(level, policy), runs)| line(level, policy, runs))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let [hl1, uniform, dynamic] = &lines[..] else { bail!("a case is missing") };
    let comparison = Comparison {
        mode: arguments.mode.name(),
        model: arguments.model.kernel(),
        repeats: arguments.repeats,
        dynamic_hl8_over_hl1: dynamic.steps_per_s / hl1.steps_per_s,
        speedup_epoch_hl8: uniform.epoch_s / dynamic.epoch_s,
        lines,
    };
    if arguments.json {
        println!("{}", serde_json::to_string(&comparison).context("writing JSON")?);
    } else {
        print!("{}", comparison.table());
    }
    Ok(())
}

fn line(level: HeterogeneityLevel, policy: Policy, runs: &[RunRecords]) -> anyhow::Result<Line> {
    let figures = |figure: fn(&RunRecords) -> Option<f64>| {
        let mut values: Vec<f64> = runs.iter().filter_map(figure).collect();
        values.sort_unstable_by(f64::total_cmp);
        if values.is_empty() { bail!("a run at {level} left no figures") } else { Ok(values) }
    };
    let rates = figures(RunRecords::steps_per_s)?;
    Ok(Line {
        hl: level.number(),
        policy: policy.name(),
        steps_per_s: median(&rates),
        epoch_s: median(&figures(RunRecords::epoch_s)?),
        idle_share: median(&figures(RunRecords::idle_share)?),
        max_over_min_compute: median(&figures(RunRecords::max_over_min_compute)?),
        steps_per_s_min: rates[0],
        steps_per_s_max: rates[rates.len() - 1],
    })
}

impl Comparison {
    fn table(&self) -> String {
        let mut table = format!(
            "{} {}, medians of {} interleaved repeats\n\nHL  batches  steps/s (min to max)     epoch    idle   max/min compute\n",
            self.model, self.mode, self.repeats
        );
        for line in &self.lines {
            table.push_str(&format!(
                "{:<3} {:<8} {:7.1} ({:.1} to {:.1})  {:9.2} s  {:4.1} %  {:15.2}\n",
                line.hl,
                line.policy,
                line.steps_per_s,
                line.steps_per_s_min,
                line.steps_per_s_max,
                line.epoch_s,
                line.idle_share * 100.0,
                line.max_over_min_compute
            ));
        }
        table.push_str(&format!(
            "\ndynamic at HL8 makes {:.2} of the steps per second of HL1, and an epoch is {:.2} times as fast as uniform's at HL8\n",
            self.dynamic_hl8_over_hl1, self.speedup_epoch_hl8
        ));
        table
    }
}
