//! `cargo xtask fleet compare`: does it matter whether agents are containers or plain processes in control groups?

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::compose_files;
use super::containers::{ComposeProject, ContainerFleet};
use super::docker::Docker;
use super::images;
use super::ratios::HeterogeneityLevel;
use super::secrets::{self, SecretsArguments};
use super::throttled::{Decision, Throttled};
use crate::bench::median;
use crate::demo::{Job, Kit, Mode, Model, Next, Policy, Run, parse_level};
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

/// Project of our containers, so that a fleet of the user's own is left alone.
const PROJECT: &str = "omnilearn-compare";

/// Agents of the papers' fleets.
const AGENTS: usize = 4;

/// The comparison.
#[derive(Args, Debug)]
#[command(
    after_help = "One of each, then again, so that a slow minute of the machine falls on both. Needs a Docker engine; see \
    `cargo xtask fleet engine`."
)]
pub(crate) struct CompareArguments {
    /// Heterogeneity level; 1, 2, 4 or 8
    #[arg(long, default_value = "8", value_parser = parse_level)]
    hl: HeterogeneityLevel,
    /// How often both are run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Passes over the training set in each run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: u32,
    /// How batches are set
    #[arg(long, value_enum, default_value = "dynamic")]
    policy: Policy,
    /// What is trained
    #[arg(long, value_enum, default_value = "lenet")]
    model: Model,
    /// Sum of the agents' CPU quotas in cores [default: 0.9 of the machine's cores]
    #[arg(long)]
    quota_total: Option<f64>,
    /// Folder with the data set's files [default: Debian's, or fetched into the user's cache]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    secrets: SecretsArguments,
}

/// Time per epoch on both, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    cgroups_epoch_s: f64,
    containers_epoch_s: f64,
    containers_over_cgroups: f64,
}

/// The result.
#[derive(Debug, Serialize)]
struct Comparison {
    hl: u32,
    model: &'static str,
    policy: &'static str,
    epochs: u32,
    pairs: Vec<Pair>,
    containers_over_cgroups_median: f64,
}

/// Runs the comparison and prints it.
///
/// # Errors
/// When something is missing, does not build, or a run fails.
pub(crate) fn run(workspace: &Workspace, arguments: &CompareArguments) -> anyhow::Result<()> {
    let docker = Docker::find()?;
    let interrupt = Interrupt::listen()?;
    let kit = Kit::prepare(workspace, arguments.data.as_deref(), arguments.quota_total, &interrupt)?;
    let folder = secrets::folder(workspace, &arguments.secrets);
    secrets::make(&folder, kit.hub_program())?;
    images::build(workspace, &[kit.hub_program().to_owned(), kit.agent_program().to_owned()])?;
    let logs = tempfile::Builder::new().prefix("omnilearn-compare-").tempdir().context("making a folder for logs")?;
    let file = compose_files::folder(workspace).join(arguments.hl.to_string().to_lowercase()).with_extension("yml");
    let project = ComposeProject { name: PROJECT.to_owned(), secrets: folder };
    let job = kit.job(&Run {
        mode: Mode::Bsp,
        agents: AGENTS,
        model: arguments.model,
        policy: arguments.policy,
        epochs: arguments.epochs,
        width: 8,
        global_batch: 256,
        seed: 1,
    })?;
    let quotas = arguments.hl.quotas(AGENTS, kit.quota_total());
    let mut pairs = Vec::new();
    for number in 1..=arguments.pairs {
        eprintln!("pair {number} of {}: plain control groups", arguments.pairs);
        let mut fleet = kit.start_fleet(arguments.hl, AGENTS, logs.path(), &interrupt)?;
        let cgroups_epoch_s = epoch_s(&mut fleet, &job, &interrupt)?;
        fleet.stop();
        eprintln!("pair {number} of {}: containers", arguments.pairs);
        let mut fleet = ContainerFleet::start(&kit, &docker, &file, project.clone(), &interrupt)?;
        fleet.set_quotas(&quotas)?;
        let containers_epoch_s = epoch_s(&mut fleet, &job, &interrupt)?;
        drop(fleet);
        let containers_over_cgroups = containers_epoch_s / cgroups_epoch_s;
        pairs.push(Pair { cgroups_epoch_s, containers_epoch_s, containers_over_cgroups });
    }
    let mut ratios: Vec<f64> = pairs.iter().map(|pair| pair.containers_over_cgroups).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let comparison = Comparison {
        hl: arguments.hl.number(),
        model: arguments.model.kernel(),
        policy: arguments.policy.name(),
        epochs: arguments.epochs,
        containers_over_cgroups_median: median(&ratios),
        pairs,
    };
    match arguments.json {
        true => println!("{}", serde_json::to_string(&comparison).context("writing JSON")?),
        false => print!("{}", comparison.table()),
    }
    Ok(())
}

fn epoch_s(fleet: &mut dyn Throttled, job: &Job, interrupt: &Interrupt) -> anyhow::Result<f64> {
    let go_on = &mut |_: &_| Decision { quotas: None, next: Next::GoOn };
    fleet.train_deciding(job, None, interrupt, go_on)?.epoch_s().context("the run left no records")
}

impl Comparison {
    fn table(&self) -> String {
        let mut table = format!(
            "{} at HL{}, {} batches, {} epochs a run\n\npair  control groups  containers  ratio\n",
            self.model, self.hl, self.policy, self.epochs
        );
        for (index, pair) in self.pairs.iter().enumerate() {
            table.push_str(&format!(
                "{:>4}  {:>6.2} s/epoch  {:>6.2} s/ep.  {:>5.3}\n",
                index + 1,
                pair.cgroups_epoch_s,
                pair.containers_epoch_s,
                pair.containers_over_cgroups
            ));
        }
        table.push_str(&format!("\nmedian ratio {:.3}\n", self.containers_over_cgroups_median));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_every_pair_and_the_median() {
        let pair = Pair { cgroups_epoch_s: 2.0, containers_epoch_s: 2.1, containers_over_cgroups: 1.05 };
        let comparison = Comparison {
            hl: 8,
            model: "lenet",
            policy: "dynamic",
            epochs: 2,
            pairs: vec![pair, pair],
            containers_over_cgroups_median: 1.05,
        };
        let table = comparison.table();
        assert_eq!(table.matches("1.050").count(), 3, "{table}");
        assert!(table.contains("lenet at HL8"), "{table}");
    }
}
