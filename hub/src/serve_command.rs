//! `omnilearn-hub serve`

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use omnilearn_hub::mqtt::{MqttConfig, Password};
use omnilearn_hub::{Config, Outcome, Token};
use tokio_util::sync::CancellationToken;

use crate::{FAILED, Usage, cli, state_folder, token};

/// Time for what still runs on other threads once the hub has ended.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// Serves until the hub is told to end, or is done.
pub(crate) fn run(serve: &cli::Serve) -> anyhow::Result<ExitCode> {
    let token = token(&serve.token)?;
    let accepted = serve.insecure && token.is_some();
    let address = listen_address("--listen", &serve.listen, accepted)?;
    let config = Config {
        mqtt: mqtt_config(serve, token.as_deref(), accepted)?,
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

/// The address that an argument names, where others may reach it or do not.
fn listen_address(argument: &str, listen: &str, accepted: bool) -> anyhow::Result<SocketAddr> {
    let mut addresses = listen.to_socket_addrs().map_err(|error| {
        Usage(format!("{argument} {listen}: {error}; write ADDRESS:PORT, such as 127.0.0.1:7700 or [::]:7700"))
    })?;
    let address = addresses.next().ok_or_else(|| Usage(format!("{argument} {listen}: the name has no address")))?;
    if !address.ip().is_loopback() && !accepted {
        let problem = format!(
            "{argument} {listen} can be reached from other machines, and traffic is not encrypted; to accept that, give both \
             --insecure and a token (--token-file FILE or OMNILEARN_TOKEN)"
        );
        return Err(Usage(problem).into());
    }
    Ok(address)
}

fn mqtt_config(serve: &cli::Serve, token: Option<&str>, accepted: bool) -> anyhow::Result<Option<MqttConfig>> {
    if let Some(listen) = &serve.mqtt_listen {
        return Ok(Some(MqttConfig::Own {
            listen: listen_address("--mqtt-listen", listen, accepted)?,
            password: token.map(|token| Password(token.to_owned())),
        }));
    }
    let Some(broker) = &serve.mqtt else { return Ok(None) };
    let options = serve.broker.options(broker.clone(), "hub").map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
        Usage(format!("{error}{cause}"))
    })?;
    if !broker.is_encrypted() && !broker.is_loopback() && !accepted {
        let problem = format!(
            "--mqtt {broker} is on another machine, and traffic is not encrypted; use mqtts://, or accept that with both \
             --insecure and a token (--token-file FILE or OMNILEARN_TOKEN)"
        );
        return Err(Usage(problem).into());
    }
    Ok(Some(MqttConfig::Existing(options)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn serve(arguments: &[&str]) -> cli::Serve {
        let cli = Cli::try_parse_from(["omnilearn-hub", "serve"].iter().chain(arguments)).unwrap();
        let Command::Serve(serve) = cli.command else { panic!("another command") };
        *serve
    }

    fn usage(error: anyhow::Error) -> String {
        assert!(error.is::<Usage>());
        error.to_string()
    }

    fn listens(arguments: &[&str], has_token: bool) -> Result<SocketAddr, String> {
        let serve = serve(arguments);
        listen_address("--listen", &serve.listen, serve.insecure && has_token).map_err(usage)
    }

    #[test]
    fn a_broker_is_one_of_two_and_held_to_the_same_as_the_hub() {
        let config = |arguments: &[&str], accepted| {
            mqtt_config(&serve(arguments), Some("token").filter(|_| accepted), accepted).map_err(usage)
        };
        assert!(config(&[], false).unwrap().is_none());
        let own = config(&["--mqtt-listen", "127.0.0.1:1883"], false).unwrap();
        assert!(matches!(own, Some(MqttConfig::Own { password: None, .. })), "{own:?}");
        for arguments in [["--mqtt-listen", "0.0.0.0:1883"], ["--mqtt", "mqtt://broker.example"]] {
            let error = config(&arguments, false).unwrap_err();
            assert!(error.contains("--insecure and a token"), "{error}");
            assert!(config(&arguments, true).unwrap().is_some());
        }
        assert!(config(&["--mqtt", "mqtts://broker.example/a"], false).unwrap().is_some());
        let both = ["omnilearn-hub", "serve", "--mqtt-listen", "127.0.0.1:1883", "--mqtt", "mqtt://127.0.0.1"];
        assert!(Cli::try_parse_from(both).is_err());
        let with_password = ["omnilearn-hub", "serve", "--mqtt", "mqtt://hub:secret@127.0.0.1"];
        assert!(Cli::try_parse_from(with_password).unwrap_err().to_string().contains("--mqtt-password-file"));
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
