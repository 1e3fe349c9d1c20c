//! `cargo xtask fleet schedule`: CPU quotas that change while a job trains.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use omnilearn_devices::schedule::{Position, Schedule};

use super::containers::{ComposeProject, ContainerFleet};
use super::docker::Docker;
use super::ratios::HeterogeneityLevel;
use super::report::{BlockStart, blocks, table};
use super::secrets::{self, SecretsArguments};
use super::throttled::{Decision, Throttled};
use crate::demo::{Job, JobStatus, Kit, Mode, Model, Next, Policy, Run};
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

/// Epochs of a job whose schedule does not count in epochs: it is stopped when the schedule is over.
const EPOCHS_WITHOUT_END: u32 = 1_000_000;

/// What to run.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo xtask fleet schedule devices/schedules/hl.toml\n      The papers' HL 1, 2, 4, 8, 8, 4, 2, \
    1 on plain control groups.\n  docker compose -f devices/compose/hl1.yml -p fleet up -d --scale submit=0\n  cargo xtask fleet \
    schedule devices/schedules/hl.toml --compose fleet\n      The same on containers that run.\n\nThe job is handed in by the command. A \
    change is made when the hub has seen the block's epochs, or after the block's time."
)]
pub(crate) struct ScheduleArguments {
    /// The schedule; devices/schedules/hl.toml explains the format
    #[arg(value_name = "FILE")]
    schedule: PathBuf,
    /// Use the containers of this compose project, which run already [default: plain processes in control groups]
    #[arg(long, value_name = "PROJECT")]
    compose: Option<String>,
    /// Number of agents without --compose
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    agents: u32,
    /// How batches are set
    #[arg(long, value_enum, default_value = "dynamic")]
    policy: Policy,
    /// How agents are synchronised
    #[arg(long, value_enum, default_value = "bsp")]
    mode: Mode,
    /// What is trained
    #[arg(long, value_enum, default_value = "lenet")]
    model: Model,
    /// Samples behind one step, over all agents
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    global_batch: u32,
    /// Sum of the agents' CPU quotas in cores [default: 0.9 of the machine's cores]
    #[arg(long)]
    quota_total: Option<f64>,
    /// Folder with the data set's files [default: Debian's, or fetched into the user's cache]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder for every step's and every change's record as CSV files
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    secrets: SecretsArguments,
}

/// Runs a job through the schedule and prints what each block took.
///
/// # Errors
/// When the schedule is wrong, something is missing, or the job fails.
pub(crate) fn run(workspace: &Workspace, arguments: &ScheduleArguments) -> anyhow::Result<()> {
    let schedule = Schedule::read(&arguments.schedule)?;
    let interrupt = Interrupt::listen()?;
    let kit = Kit::prepare(workspace, arguments.data.as_deref(), arguments.quota_total, &interrupt)?;
    let logs = tempfile::Builder::new().prefix("omnilearn-schedule-").tempdir().context("making a folder for logs")?;
    match &arguments.compose {
        Some(name) => {
            let secrets = secrets::folder(workspace, &arguments.secrets);
            let project = ComposeProject { name: name.clone(), secrets };
            let mut fleet = ContainerFleet::attach(&kit, &Docker::find()?, project, &interrupt)?;
            run_on(&mut fleet, &kit, &schedule, arguments, &interrupt)
        }
        None => {
            let agents = arguments.agents as usize;
            let mut fleet = kit.start_fleet(HeterogeneityLevel::Hl1, agents, logs.path(), &interrupt)?;
            run_on(&mut fleet, &kit, &schedule, arguments, &interrupt)?;
            fleet.stop();
            Ok(())
        }
    }
}

fn run_on(
    fleet: &mut dyn Throttled,
    kit: &Kit,
    schedule: &Schedule,
    arguments: &ScheduleArguments,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let agents = fleet.agents();
    schedule.check_agents(agents)?;
    let job = job(kit, schedule, arguments, agents)?;
    let mut runner = Runner::new(schedule, agents, kit.quota_total());
    let began = Instant::now();
    let run = fleet.train_deciding(&job, arguments.csv.as_deref(), interrupt, &mut |status| {
        let decision = runner.decide(status, began.elapsed().as_secs_f64());
        if let (Some(quotas), Some(start)) = (&decision.quotas, runner.starts.last()) {
            let quotas: Vec<String> = quotas.iter().map(|quota| format!("{quota:.3}")).collect();
            eprintln!(
                "block {} of {}, {}: at epoch {:.2}, {} s: {} cores",
                start.block + 1,
                schedule.blocks.len(),
                schedule.blocks[start.block].describe(),
                status.epoch,
                began.elapsed().as_secs(),
                quotas.join(", ")
            );
        }
        decision
    })?;
    println!("{}, {} batches, {} agents\n", schedule.title, arguments.policy.name(), agents);
    print!("{}", table(&blocks(schedule, &run, &runner.starts)));
    Ok(())
}

/// A job that lasts as long as the schedule, or longer.
fn job(kit: &Kit, schedule: &Schedule, arguments: &ScheduleArguments, agents: usize) -> anyhow::Result<Job> {
    // A job counts whole epochs; one that goes on after the last block is stopped.
    let epochs = schedule.epochs().map_or(EPOCHS_WITHOUT_END, |epochs| epochs.ceil() as u32);
    kit.job(&Run {
        mode: arguments.mode,
        agents,
        model: arguments.model,
        policy: arguments.policy,
        epochs,
        width: 8,
        global_batch: arguments.global_batch,
        seed: 1,
    })
}

/// Walks the schedule as the job goes on.
struct Runner<'a> {
    schedule: &'a Schedule,
    agents: usize,
    total_cores: f64,
    position: Position,
    starts: Vec<BlockStart>,
}

impl<'a> Runner<'a> {
    fn new(schedule: &'a Schedule, agents: usize, total_cores: f64) -> Self {
        Self { schedule, agents, total_cores, position: Position::START, starts: Vec::new() }
    }

    fn decide(&mut self, status: &JobStatus, now_s: f64) -> Decision {
        self.position = self.position.advance(self.schedule, status.epoch, now_s);
        let block = self.position.block;
        let Some(current) = self.schedule.blocks.get(block) else {
            // A job of whole epochs ends by itself, and evaluates first.
            let ends = self.schedule.epochs().is_some_and(|epochs| epochs.fract() == 0.0);
            return Decision { quotas: None, next: if ends { Next::GoOn } else { Next::Enough } };
        };
        if self.starts.last().is_some_and(|start| start.block == block) {
            return Decision { quotas: None, next: Next::GoOn };
        }
        self.starts.push(BlockStart { block, version: status.version });
        Decision { quotas: Some(current.quotas(self.agents, self.total_cores)), next: Next::GoOn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(version: u64, epoch: f64) -> JobStatus {
        JobStatus { version, epoch, ..JobStatus::default() }
    }

    #[test]
    fn quotas_are_set_once_for_each_block_and_the_end_is_told() {
        let text = "title = \"t\"\n[[blocks]]\nhl = 1\nepochs = 1.0\n[[blocks]]\nhl = 8\nseconds = 5.0";
        let schedule = Schedule::parse(text).unwrap();
        let mut runner = Runner::new(&schedule, 4, 1.8);
        assert_eq!(runner.decide(&status(0, 0.0), 0.0).quotas, Some(vec![0.45; 4]));
        assert_eq!(runner.decide(&status(100, 0.9), 9.0), Decision { quotas: None, next: Next::GoOn });
        let quotas = runner.decide(&status(240, 1.01), 10.0).quotas.unwrap();
        assert!((quotas[3] - 1.2).abs() < 1e-12, "{quotas:?}");
        assert_eq!(runner.decide(&status(300, 1.2), 14.9), Decision { quotas: None, next: Next::GoOn });
        assert_eq!(runner.decide(&status(301, 1.3), 15.0), Decision { quotas: None, next: Next::Enough });
        assert_eq!(runner.starts, [BlockStart { block: 0, version: 0 }, BlockStart { block: 1, version: 240 }]);
    }

    #[test]
    fn a_job_that_ends_with_its_schedule_is_left_to_evaluate() {
        let schedule = Schedule::parse("title = \"t\"\n[[blocks]]\nhl = 1\nepochs = 2.0").unwrap();
        let mut runner = Runner::new(&schedule, 4, 1.8);
        assert!(runner.decide(&status(0, 0.0), 0.0).quotas.is_some());
        assert_eq!(runner.decide(&status(480, 2.0), 9.0), Decision { quotas: None, next: Next::GoOn });
    }
}
