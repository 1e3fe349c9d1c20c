//! `omnilearn-agent`: parses the command line, starts the log, and runs the agent until a signal.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use omnilearn_agent::cli::{CheckArgs, Cli, Command, HealthArgs, KernelCommand, ProbeArgs, RunArgs};
use omnilearn_agent::probe::Report;
use omnilearn_agent::{health, kernel_check};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;

fn main() -> ExitCode {
    omnilearn_agent::allocator::keep_memory();
    let Cli { command, log } = Cli::parse();
    let filter = match EnvFilter::try_new(&log) {
        Ok(filter) => filter,
        Err(error) => return complain(&format!("--log {log:?}: {error}"), BAD_USAGE),
    };
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .with_target(false)
        .init();
    match command {
        Command::Run(arguments) => run(*arguments),
        Command::Probe(arguments) => probe(arguments),
        Command::Health(arguments) => tell_health(&arguments),
        Command::Kernel(KernelCommand::Check(arguments)) => check(arguments),
    }
}

fn complain(message: &str, code: u8) -> ExitCode {
    eprintln!("omnilearn-agent: {message}");
    ExitCode::from(code)
}

fn run(arguments: RunArgs) -> ExitCode {
    let config = match arguments.config(std::env::var("OMNILEARN_TOKEN").ok()) {
        Ok(config) => config,
        Err(message) => return complain(&message, BAD_USAGE),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start: {error}"), FAILED),
    };
    let shutdown = CancellationToken::new();
    let result = runtime.block_on(async {
        let watch = tokio::spawn(watch_signals(shutdown.clone()));
        let result = omnilearn_agent::run(config, shutdown).await;
        watch.abort();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&describe(&error), FAILED),
    }
}

/// The error and its causes in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// The first signal asks the agent to end, the second does not ask.
#[cfg(unix)]
async fn watch_signals(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return tracing::warn!("cannot watch for signals; the first one ends the agent without a goodbye");
    };
    loop {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        on_signal(name, &shutdown);
    }
}

/// The first signal asks the agent to end, the second does not ask.
#[cfg(not(unix))]
async fn watch_signals(shutdown: CancellationToken) {
    while tokio::signal::ctrl_c().await.is_ok() {
        on_signal("Ctrl-C", &shutdown);
    }
}

fn on_signal(name: &str, shutdown: &CancellationToken) {
    if shutdown.is_cancelled() {
        tracing::warn!(signal = name, "ending at once");
        std::process::exit(FAILED.into());
    }
    tracing::info!(signal = name, "ending; a second signal ends at once");
    shutdown.cancel();
}

fn probe(arguments: ProbeArgs) -> ExitCode {
    let json = arguments.json;
    let report = Report::of(&arguments.config());
    if json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    ExitCode::SUCCESS
}

fn tell_health(arguments: &HealthArgs) -> ExitCode {
    match health::check(&arguments.file, std::time::SystemTime::now()) {
        Ok(health) => {
            println!("{health}");
            ExitCode::SUCCESS
        }
        Err(unwell) => complain(&describe(&unwell), FAILED),
    }
}

fn check(arguments: CheckArgs) -> ExitCode {
    let CheckArgs { file, settings, batch, device } = arguments;
    let engine = match omnilearn_agent::device::select(device) {
        Ok(selected) => selected.engine,
        Err(error) => return complain(&error.to_string(), FAILED),
    };
    let check = kernel_check::Check { file: &file, settings, batch: batch.get() };
    match kernel_check::check(&check, engine, &mut |text| print!("{text}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => complain(&message, FAILED),
    }
}
