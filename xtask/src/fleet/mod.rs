//! `cargo xtask fleet`: a fleet on one machine, as plain processes or as containers, each agent with the CPU quota of the
//! device that it stands for.

mod compare;
mod compose_files;
mod containers;
mod docker;
mod engine;
pub(crate) mod hub_program;
mod images;
pub(crate) mod mosquitto;
pub(crate) mod process;
mod profiles;
pub(crate) mod ratios;
mod report;
mod schedule;
mod secrets;
mod throttled;

use clap::Subcommand;

use crate::workspace::Workspace;

/// Fleets of containers and of plain processes.
#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// List the device profiles: what boards, computers and cloud machines can do, and where the figures are from.
    Profiles(profiles::ProfilesArguments),
    /// Write compose files: those that are checked in, or one for a fleet of your own.
    Compose(compose_files::ComposeArguments),
    /// Build the images of hub and agent from scratch, without a base image, and the fleet's secrets if there are none.
    Images(images::ImagesArguments),
    /// Make the secrets of the compose fleets: a token, the hub's key, and its public half.
    Secrets(secrets::SecretsArguments),
    /// Run a Docker engine of your own until Ctrl-C, where no service does: as root, without systemd and firewall rules.
    Engine(engine::EngineArguments),
    /// Change the agents' CPU quotas while a job trains, block by block, and measure each block.
    Schedule(schedule::ScheduleArguments),
    /// Train the same job on containers and on plain control groups, in turn, and compare the time per epoch.
    Compare(compare::CompareArguments),
}

/// Runs a command.
///
/// # Errors
/// One line that says what is missing or went wrong.
pub(crate) fn run(workspace: &Workspace, command: &FleetCommand) -> anyhow::Result<()> {
    match command {
        FleetCommand::Profiles(arguments) => profiles::run(arguments),
        FleetCommand::Compose(arguments) => compose_files::run(workspace, arguments),
        FleetCommand::Images(arguments) => images::run(workspace, arguments),
        FleetCommand::Secrets(arguments) => secrets::run(workspace, arguments),
        FleetCommand::Engine(arguments) => engine::run(arguments),
        FleetCommand::Schedule(arguments) => schedule::run(workspace, arguments),
        FleetCommand::Compare(arguments) => compare::run(workspace, arguments),
    }
}
