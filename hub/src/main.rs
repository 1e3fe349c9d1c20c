//! `omnilearn-hub`: serves, and talks to a hub that serves.

mod cli;
mod dataset_cli;
mod dataset_commands;

use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use omnilearn_hub::client::HubClient;
use omnilearn_hub::view::{AgentView, JobState, JobView};
use omnilearn_hub::{Config, Outcome, Token, export, follow, job_file, key_file, signing};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command, HubAddress, KernelCommand, KeyCommand, TokenSource};

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;

/// Time for what still runs on other threads once the hub has ended.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// Something that the user can put right on the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn main() -> ExitCode {
    omnilearn_hub::allocator::return_memory();
    let cli = Cli::parse();
    start_tracing();
    let result = match cli.command {
        Command::Serve(serve) => self::serve(&serve),
        Command::Submit(submit) => self::submit(&submit),
        Command::Status(status) => self::status(&status),
        Command::Export(export) => self::export(&export),
        Command::Stop(stop) => self::stop(&stop),
        Command::Health(health) => self::health(&health),
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

fn listen_address(serve: &cli::Serve, has_token: bool) -> anyhow::Result<SocketAddr> {
    let listen = &serve.listen;
    let mut addresses = listen.to_socket_addrs().map_err(|error| {
        Usage(format!("--listen {listen}: {error}; write ADDRESS:PORT, such as 127.0.0.1:7700 or [::]:7700"))
    })?;
    let address = addresses.next().ok_or_else(|| Usage(format!("--listen {listen}: the name has no address")))?;
    let accepted = serve.insecure && has_token;
    if !address.ip().is_loopback() && !accepted {
        let problem = format!(
            "--listen {listen} can be reached from other machines, and traffic is not encrypted; to accept that, give both \
             --insecure and a token (--token-file FILE or OMNILEARN_TOKEN)"
        );
        return Err(Usage(problem).into());
    }
    Ok(address)
}

fn serve(serve: &cli::Serve) -> anyhow::Result<ExitCode> {
    let token = token(&serve.token)?;
    let address = listen_address(serve, token.is_some())?;
    let config = Config {
        state: state_folder(serve.state.as_ref()),
        key: serve.key_file.clone(),
        token: token.as_deref().map(Token::new),
        exit_when_done: serve.exit_when_done,
    };
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address}; is another hub running? give this one another --listen")
        })?;
        let shutdown = CancellationToken::new();
        let signals = tokio::spawn(watch_signals(shutdown.clone()));
        tracing::info!(state = %config.state.display(), token = config.token.is_some(), "hub starts");
        let outcome = omnilearn_hub::run(listener, config, shutdown).await?;
        signals.abort();
        Ok::<Outcome, anyhow::Error>(outcome)
    });
    runtime.shutdown_timeout(LAST_WAIT); // a disk that hangs does not keep the process
    let outcome = outcome?;
    tracing::info!(ended = outcome.ended, failed = outcome.failed, "hub ends");
    Ok(if serve.exit_when_done && outcome.failed > 0 { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// One thread where there is one core (or a quota of one): handing work between threads would only cost.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    const WORKERS_MAX: usize = 4;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = match cores {
        1 => tokio::runtime::Builder::new_current_thread(),
        cores => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(cores.min(WORKERS_MAX));
            builder
        }
    };
    builder.enable_all().build().context("cannot start the runtime")
}

/// The first Ctrl-C or SIGTERM ends the hub in order, the second at once.
async fn watch_signals(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::warn!("signals are not handled, Ctrl-C will end the hub without a goodbye");
        return;
    };
    let mut next = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    next().await;
    tracing::info!("the hub ends; once more to end at once");
    shutdown.cancel();
    next().await;
    std::process::exit(FAILED.into());
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
        let address = agent.address.as_deref().unwrap_or("not connected");
        lines.push(format!("  {:24} {address:22} {machine}", agent.name));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn listens(arguments: &[&str], has_token: bool) -> Result<SocketAddr, String> {
        let cli = Cli::try_parse_from(["omnilearn-hub", "serve"].iter().chain(arguments)).unwrap();
        let Command::Serve(serve) = cli.command else { panic!("another command") };
        listen_address(&serve, has_token).map_err(|error| {
            assert!(error.is::<Usage>());
            error.to_string()
        })
    }

    #[test]
    fn an_address_that_others_reach_needs_insecure_and_a_token() {
        assert!(listens(&[], false).unwrap().ip().is_loopback());
        let open = ["--listen", "0.0.0.0:7700"];
        let open_insecure = ["--listen", "0.0.0.0:7700", "--insecure"];
        for (arguments, has_token) in [(&open[..], true), (&open_insecure[..], false)] {
            let error = listens(arguments, has_token).unwrap_err();
            assert!(error.contains("give both --insecure and a token"), "{error}");
        }
        assert!(listens(&open_insecure, true).is_ok());
    }

    #[test]
    fn an_address_without_a_port_is_answered_with_how_to_write_it() {
        let error = listens(&["--listen", "127.0.0.1"], false).unwrap_err();
        assert!(error.contains("write ADDRESS:PORT"), "{error}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
