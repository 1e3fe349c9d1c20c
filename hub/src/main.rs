//! `omnilearn-hub`: serves, and talks to a hub that serves.

mod agent_commands;
mod cli;
mod dataset_cli;
mod dataset_commands;
mod serve_command;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use omnilearn_hub::client::HubClient;
use omnilearn_hub::view::{AgentView, JobState, JobView};
use omnilearn_hub::{export, follow, job_file, key_file, signing};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command, HubAddress, KernelCommand, KeyCommand, TokenSource};

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;

/// Something that the user can put right on the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn main() -> ExitCode {
    omnilearn_hub::allocator::return_memory();
    let cli = Cli::parse();
    start_tracing();
    let result = match cli.command {
        Command::Serve(serve) => serve_command::run(&serve),
        Command::Submit(submit) => self::submit(&submit),
        Command::Status(status) => self::status(&status),
        Command::Export(export) => self::export(&export),
        Command::Stop(stop) => self::stop(&stop),
        Command::Health(health) => self::health(&health),
        Command::Agent(command) => agent_commands::run(&command),
        Command::JobExample => print(job_file::EXAMPLE).map(|()| ExitCode::SUCCESS),
        Command::Key(KeyCommand::New(new)) => key_new(&new.file),
        Command::Key(KeyCommand::Show(show)) => key_show(&show),
        Command::Kernel(KernelCommand::Sign(sign)) => kernel_sign(&sign),
        Command::Dataset(command) => dataset_commands::run(&command),
    };
    result.unwrap_or_else(|error| {
        eprintln!("omnilearn-hub: {error:#}");
        ExitCode::from(if error.is::<Usage>() { BAD_USAGE } else { FAILED })
    })
}

fn start_tracing() {
    let filter = EnvFilter::try_from_env("OMNILEARN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
}

/// Prints to stdout; a reader that has left is no error.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

/// The shared token from its file or the environment. It is never an argument, which others could see in `ps`.
fn token(source: &TokenSource) -> anyhow::Result<Option<String>> {
    let token = match &source.token_file {
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("cannot read the token file {}", path.display()))?
        }
        None => std::env::var("OMNILEARN_TOKEN").unwrap_or_default(),
    };
    let token = token.trim().to_owned();
    match (&source.token_file, token.is_empty()) {
        (Some(path), true) => bail!("the token file {} is empty", path.display()),
        (None, true) => Ok(None),
        (_, false) => Ok(Some(token)),
    }
}

fn client(hub: &HubAddress) -> anyhow::Result<HubClient> {
    // Agents know the hub by the same variable, as ws://ADDRESS:PORT.
    let address = hub.hub.strip_prefix("http://").or_else(|| hub.hub.strip_prefix("ws://"));
    let address = address.map(|address| address.trim_end_matches('/').trim_end_matches("/agent"));
    let Some(address) = address.filter(|address| !address.is_empty()) else {
        return Err(Usage(format!("--hub {}: write it as http://ADDRESS:PORT", hub.hub)).into());
    };
    Ok(HubClient::new(&format!("http://{address}"), token(&hub.token)?.as_deref()))
}

fn state_folder(given: Option<&PathBuf>) -> PathBuf {
    let from = |variable: &str, rest: &str| {
        std::env::var_os(variable).filter(|value| !value.is_empty()).map(|value| PathBuf::from(value).join(rest))
    };
    given
        .cloned()
        .or_else(|| from("XDG_STATE_HOME", "omnilearn-hub"))
        .or_else(|| from("HOME", ".local/state/omnilearn-hub"))
        .unwrap_or_else(|| PathBuf::from("omnilearn-state"))
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

fn submit(submit: &cli::Submit) -> anyhow::Result<ExitCode> {
    let client = client(&submit.hub)?;
    let mut view = client.submit_file(&submit.job_file)?;
    eprintln!("job {} submitted: {}", view.id, view.name);
    if !view.message.is_empty() {
        eprintln!("{}", view.message);
    }
    if let Some(frozen) = follow::frozen(&view) {
        eprintln!("it {frozen}");
    }
    if submit.follow {
        view = follow::follow(&client, view.id)?;
    } else if !submit.json {
        eprintln!("watch it with `omnilearn-hub status {}`", view.id);
    }
    if submit.json {
        json(&view)?;
    }
    Ok(match view.state {
        JobState::Queued | JobState::Running | JobState::Done => ExitCode::SUCCESS,
        JobState::Stopped | JobState::Failed | JobState::Interrupted => ExitCode::from(FAILED),
    })
}

fn status(status: &cli::Status) -> anyhow::Result<ExitCode> {
    let client = client(&status.hub)?;
    match status.job {
        Some(job) => {
            let view = client.job(job)?;
            if status.json { json(&view)? } else { print(&format!("{}\n", follow::block(&view)))? }
        }
        None => {
            let (jobs, agents) = (client.jobs()?, client.agents()?);
            if status.json {
                json(&serde_json::json!({ "jobs": jobs, "agents": agents }))?;
            } else {
                print(&overview(&jobs, &agents))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn overview(jobs: &[JobView], agents: &[AgentView]) -> String {
    let mut lines = Vec::new();
    if jobs.is_empty() {
        lines.push("no jobs; `omnilearn-hub submit job.toml` sends one".to_owned());
    }
    for view in jobs {
        let running = view.state == JobState::Running;
        lines.push(if running { follow::block(view) } else { follow::line(view) });
    }
    let connected = agents.iter().filter(|agent| agent.connected).count();
    lines.push(format!("{connected} of {} known agents connected", agents.len()));
    for agent in agents {
        let machine = agent.machine.as_ref().map_or_else(String::new, |machine| {
            let quota = machine.quota_cores.map_or_else(String::new, |quota| format!(", quota {quota:.2}"));
            format!(
                "{} {}, {} cores{quota}, {}",
                machine.os, machine.architecture, machine.cores, machine.compute_device
            )
        });
        lines.push(format!("  {:24} {:26} {machine}", agent.name, agent_commands::reached(agent)));
    }
    lines.join("\n") + "\n"
}

fn export(arguments: &cli::Export) -> anyhow::Result<ExitCode> {
    let client = client(&arguments.hub)?;
    if let Some(path) = &arguments.weights {
        let bytes = export::weights(&client, arguments.job, path)?;
        eprintln!("{}: {bytes} bytes", path.display());
    }
    if let Some(folder) = &arguments.csv {
        let rows = export::csv(&client, arguments.job, folder)?;
        eprintln!("{}: {rows} rows in steps.csv, rounds.csv, evaluations.csv and batches.csv", folder.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn health(arguments: &cli::Health) -> anyhow::Result<ExitCode> {
    let health = client(&arguments.hub)?.health()?;
    print(&format!("{} answers, version {}\n", arguments.hub.hub, health.version))?;
    Ok(ExitCode::SUCCESS)
}

fn stop(arguments: &cli::Stop) -> anyhow::Result<ExitCode> {
    let view = client(&arguments.hub)?.stop(arguments.job)?;
    eprintln!("{}", follow::line(&view));
    Ok(ExitCode::SUCCESS)
}

fn key_new(file: &Path) -> anyhow::Result<ExitCode> {
    let key = key_file::create(file)?;
    eprintln!("{}: a new secret key, for you alone; its public half:", file.display());
    print(&format!("{}\n", key.public()))?;
    Ok(ExitCode::SUCCESS)
}

fn key_show(show: &cli::KeyShow) -> anyhow::Result<ExitCode> {
    let key = match &show.file {
        Some(file) => key_file::read(file)?,
        None => {
            let state = state_folder(show.state.as_ref());
            key_file::read(&state.join(key_file::HUB_KEY)).with_context(|| {
                format!(
                    "no key of a hub in {}; the hub makes it when it first starts, in the folder that --state names",
                    state.display()
                )
            })?
        }
    };
    print(&format!("{}\n", key.public()))?;
    Ok(ExitCode::SUCCESS)
}

fn kernel_sign(sign: &cli::KernelSign) -> anyhow::Result<ExitCode> {
    let key = key_file::read(&sign.key)?;
    let path =
        signing::sign_file(&sign.kernel, &key).with_context(|| format!("cannot sign {}", sign.kernel.display()))?;
    eprintln!("{}: signed with key {}", path.display(), key.public());
    Ok(ExitCode::SUCCESS)
}
