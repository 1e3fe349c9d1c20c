//! The workspace's tool: `cargo xtask demo | experiment | test | kernels | bench | fleet | fetch-data`.

mod bench;
mod chart;
mod datasets;
mod demo;
mod emulated;
mod experiment;
mod fleet;
mod gpu;
mod interrupt;
mod kernels;
mod test_command;
mod toolchain;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Builds, shows, tests and measures OmniLearn. Everything runs on this machine and talks over loopback only.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a model with a hub and unequal agents on real images: uniform batches first, then dynamic ones.
    Demo(demo::DemoArguments),
    /// Repeats the papers' tables: heterogeneity, schedules, rules of synchronisation, large fleets, real quotas.
    Experiment(experiment::ExperimentArguments),
    /// Runs every test: builds the kernels, then the CPU operators' tests on other processors by QEMU, doc tests, and the rest
    /// by cargo-nextest if it is installed or else `cargo test`.
    Test(test_command::TestArguments),
    /// Builds the kernels as WebAssembly components into kernels/target/components, or begins one of your own.
    Kernels(kernels::KernelsArguments),
    /// Measures what the project claims.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Fleets of containers or plain processes under the CPU quotas of real devices: profiles, compose files, images, schedules.
    #[command(subcommand)]
    Fleet(fleet::FleetCommand),
    /// Gets a data set (Debian package, or its authors' server with the SHA-256 checked) and prints its folder.
    FetchData {
        /// Name of the data set, such as `fashion-mnist`.
        name: String,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match command {
        Command::Demo(arguments) => demo::run(&workspace, &arguments),
        Command::Experiment(arguments) => experiment::run(&workspace, &arguments),
        Command::Test(arguments) => test_command::run(&workspace, &arguments),
        Command::Kernels(arguments) => kernels::run(&workspace, &arguments),
        Command::Bench(bench) => bench::run(&workspace, &bench),
        Command::Fleet(command) => fleet::run(&workspace, &command),
        Command::FetchData { name } => {
            let spec = datasets::find_spec(&name)?;
            let folder = datasets::provide(spec, None, &|line| eprintln!("{line}"))?;
            println!("{}", folder.display());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
