//! The command line of `omnilearn-agent`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use omnilearn_kernel_host::Limits;
use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::options::BrokerArgs;
use omnilearn_mqtt::timings::TimingsFormat;
use omnilearn_wire::message::Setting;

use crate::config::{
    AgentConfig, HubAddress, MqttConfig, Secrets, Sources, TimingsWay, Token, default_name, parse_bytes,
    private_broker, sanitize_name,
};
use crate::device::DeviceChoice;
use crate::kernel_check::parse_setting;

const RUN_HELP: &str = "\
Examples:
  omnilearn-agent run --hub ws://127.0.0.1:7700
      Trains for a hub on this machine. The order does not matter: the agent waits for the hub.
  OMNILEARN_TOKEN=... omnilearn-agent run --hub ws://10.0.0.5:7700 --insecure --name kitchen-pi
      Trains for a hub on another machine, over a network that you trust.
  omnilearn-agent run --hub ws://127.0.0.1:7700 --data ~/datasets --threads 2 --memory-max 512MiB
      Looks for data sets in a folder of your own and leaves room for others on the machine.
  omnilearn-agent run --hub ws://127.0.0.1:7700 --trust \"$(omnilearn-hub key show)\"
      Runs only kernels that this hub has signed, from the first job on.
  omnilearn-agent run --hub mqtts://broker.example/lab
      Trains over a broker, for a box that can reach nothing else. The hub runs with the same --mqtt URL.
  omnilearn-agent run --hub ws://127.0.0.1:7700 --mqtt mqtt://127.0.0.1:1883 --timings mqtt
      Trains over a WebSocket, and tells the broker that it is there and what each step took; takes commands
      of `omnilearn-hub agent pause|resume|limits|reload|self-test NAME`. Training goes on while the broker is away.

Over a broker the agent is known by its name alone: a second one of that name ends. At a broker that asks for
a login and without --mqtt-user, the agent's name and the hub's token are the login, as the hub's own broker wants it.

Every kernel is signed. Without --trust the agent keeps the key that its hub first comes with, in
known-hubs in the cache folder, and refuses another one later, as ssh does. With --trust it runs
only what a key given there has signed.

Ctrl-C or SIGTERM tells the hub and ends within two seconds; a second one ends at once.
Exit codes: 0 done, 1 failed or refused by the hub, 2 bad usage.";

const PROBE_HELP: &str = "\
Examples:
  omnilearn-agent probe
      Shows cores, CPU quota, threads, memory and data sets as an agent started here would see them.
  docker run --cpus 0.5 --memory 512m IMAGE omnilearn-agent probe --json
      The same for a throttled container, for a program to read.";

const CHECK_HELP: &str = "\
Examples:
  omnilearn-agent kernel check kernels/target/components/lenet.wasm
      Describes LeNet, trains it for one step of four random samples and compares the slope of its loss with finite differences.
  omnilearn-agent kernel check resnet.wasm --set depth=50 --set channels=3 --set image_height=32 --set image_width=32 --batch 8
      The same for a ResNet-50 for colour images.

Exit codes: 0 the kernel can be trained, 1 it cannot, 2 bad usage.";

const HEALTH_HELP: &str = "\
Examples:
  omnilearn-agent run --hub ws://127.0.0.1:7700 --health-file /run/omnilearn/health
  omnilearn-agent health /run/omnilearn/health
      For health checks of containers and services, where there is no curl.

Exit codes: 0 the agent is connected to its hub, or an operator has paused it; 1 it is not, or it hangs; 2 bad usage.";

/// Trains models for a hub on this machine.
#[derive(Debug, Parser)]
#[command(name = "omnilearn-agent", version, after_help = "Example: omnilearn-agent run --hub ws://127.0.0.1:7700")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How much to log: error, warn, info, debug, trace, or a filter such as `omnilearn_agent=debug`.
    #[arg(long, global = true, value_name = "LEVEL", default_value = "info", env = "OMNILEARN_LOG")]
    pub log: String,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Connect to a hub and train until told to stop.
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Show what an agent would see of this machine, and end.
    #[command(after_help = PROBE_HELP)]
    Probe(ProbeArgs),
    /// Tell whether an agent on this machine runs and is connected to its hub.
    #[command(after_help = HEALTH_HELP)]
    Health(HealthArgs),
    /// Work on kernels, the models that agents train.
    #[command(subcommand, after_help = CHECK_HELP)]
    Kernel(KernelCommand),
}

/// Arguments of `health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The file that the agent was given as --health-file.
    #[arg(value_name = "FILE", env = "OMNILEARN_HEALTH_FILE")]
    pub file: PathBuf,
}

/// What to do with a kernel.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Show what a kernel imports, its settings and parameters; train it for one step, and check its gradient.
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
}

/// Arguments of `kernel check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The component.
    #[arg(value_name = "FILE.wasm")]
    pub file: PathBuf,
    /// A setting other than its default, as in a job file; may be given more than once.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<Setting>,
    /// Samples of the step.
    #[arg(long, value_name = "N", default_value = "4")]
    pub batch: NonZeroUsize,
    /// What computes: `cpu`, `gpu`, `gpu:N` or `auto`.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceChoice,
}

/// What `run` and `probe` share.
#[derive(Clone, Debug, Args)]
pub struct MachineArgs {
    /// Folder with data sets, each in a folder of its name, or a hub's `datasets` folder; may be given more than once. The usual
    /// places come after.
    #[arg(long, value_name = "DIR", env = "OMNILEARN_DATA", value_delimiter = ':')]
    pub data: Vec<PathBuf>,
    /// Folder for kernels and data sets that were fetched or unpacked; by default `omnilearn` in the user's cache folder.
    #[arg(long, value_name = "DIR", env = "OMNILEARN_CACHE")]
    pub cache: Option<PathBuf>,
    /// Most that data sets fetched from hubs may take in the cache folder, such as 2GiB; those used longest ago make way.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "10GiB", env = "OMNILEARN_DATA_CACHE_MAX")]
    pub data_cache_max: u64,
    /// Compute threads; by default as many as the CPU quota and the cores allow, step by step: a quota that changes is followed.
    #[arg(long, value_name = "N", env = "OMNILEARN_THREADS")]
    pub threads: Option<NonZeroUsize>,
    /// What computes: `cpu`, `gpu` (the best one), `gpu:N` (the one of that number in what `probe` lists), or `auto`, which takes
    /// a GPU that is worth using and otherwise the CPU.
    #[arg(long, value_name = "DEVICE", default_value = "auto", env = "OMNILEARN_DEVICE")]
    pub device: DeviceChoice,
    /// Most memory for tensors and kernels, such as 512MiB; by default a part of what the machine or container has.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "OMNILEARN_MEMORY_MAX")]
    pub memory_max: Option<u64>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The hub, as ws://HOST:PORT, or the broker that it is connected to, as mqtt://BROKER[:PORT][/PREFIX] or mqtts://….
    #[arg(long, value_name = "URL", env = "OMNILEARN_HUB")]
    pub hub: String,
    /// A broker beside a hub at ws://…, for presence, timings and commands: mqtt://BROKER[:PORT][/PREFIX] or mqtts://….
    #[arg(long, value_name = "URL", env = "OMNILEARN_MQTT")]
    pub mqtt: Option<String>,
    /// Name of this agent, unique within the hub; by default the host name.
    #[arg(long, env = "OMNILEARN_NAME")]
    pub name: Option<String>,
    /// What trains.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// File with the hub's token; without it the variable OMNILEARN_TOKEN is used. A token is never an argument, where
    /// every user of the machine could read it.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Run only kernels signed by this key, or by one of those in a file with a key on each line; may be given more than
    /// once, with commas in the variable. `omnilearn-hub key show` prints a hub's key, `key new` makes one for an author.
    #[arg(long, value_name = "KEY|@FILE", env = "OMNILEARN_TRUST", value_delimiter = ',')]
    pub trust: Vec<String>,
    /// Most memory of a kernel's own code, without tensors, such as 64MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB")]
    pub kernel_memory_max: u64,
    /// Longest time that a kernel's own code may take for a batch, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "10")]
    pub kernel_time_max: Duration,
    /// Longest time that the tensor operations of a batch may take, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "600")]
    pub operation_time_max: Duration,
    /// Allow a hub or broker on another machine, though the connection is not encrypted.
    #[arg(long)]
    pub insecure: bool,
    /// End when the job is over instead of waiting for the next.
    #[arg(long)]
    pub exit_when_done: bool,
    /// Keep a file that says whether the agent is connected, for `omnilearn-agent health`.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_HEALTH_FILE")]
    pub health_file: Option<PathBuf>,
    /// How the hub's controller gets what each step took: `push`, with the gradient, or `mqtt`, over the broker alone. With a
    /// broker, timings are there for others in either case.
    #[arg(long, help_heading = "Broker", value_name = "WAY", default_value = "push", env = "OMNILEARN_TIMINGS")]
    pub timings: TimingsWay,
    /// How timings are written at the broker: `json`, or `postcard`, which is smaller.
    #[arg(
        long,
        help_heading = "Broker",
        value_name = "FORMAT",
        default_value = "json",
        env = "OMNILEARN_TIMINGS_FORMAT"
    )]
    pub timings_format: TimingsFormat,
    /// How often a batch of timings is sent to the broker at most, in seconds.
    #[arg(
        long,
        help_heading = "Broker",
        value_name = "SECONDS",
        value_parser = parse_seconds,
        default_value = "1",
        env = "OMNILEARN_TIMINGS_EVERY"
    )]
    pub timings_every: Duration,
    /// How to log in at the broker. Comes last, for whatever follows would stand under its heading.
    #[command(flatten)]
    pub broker: BrokerArgs,
}

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// What would train.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A time in seconds, above zero and up to a day.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|time| !time.is_zero() && *time <= Duration::from_secs(86_400))
        .ok_or_else(|| format!("`{text}` is no number of seconds above 0 and up to 86400"))
}

impl MachineArgs {
    fn into_config(self, config: AgentConfig) -> AgentConfig {
        let MachineArgs { data, cache, data_cache_max, threads, device, memory_max } = self;
        let cache = cache.unwrap_or(config.cache);
        AgentConfig { data, cache, data_cache_max, threads, device, memory_max, ..config }
    }
}

impl ProbeArgs {
    /// The configuration that an agent on this machine would have. There is no hub behind it.
    pub fn config(self) -> AgentConfig {
        self.machine.into_config(AgentConfig::new(HubAddress::nowhere()))
    }
}

impl RunArgs {
    /// The checked configuration. `environment_token` is the value of `OMNILEARN_TOKEN`.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn config(self, environment_token: Option<String>) -> Result<AgentConfig, String> {
        let hub = self.address()?;
        let broker = self.broker_beside(&hub)?;
        if broker.is_none() && self.timings == TimingsWay::Mqtt {
            return Err("--timings mqtt needs a broker: add --mqtt mqtt://BROKER".to_owned());
        }
        let environment_token = match (&self.token_file, environment_token) {
            (None, Some(text)) => Some(Token::new(&text).map_err(|error| format!("OMNILEARN_TOKEN: {error}"))?),
            _ => None,
        };
        let name = match self.name {
            Some(name) if sanitize_name(&name) != name => {
                return Err(format!("--name {name:?} is not 1 to 256 letters, digits, `-`, `_` or `.`"));
            }
            Some(name) => name,
            None => default_name(),
        };
        let broker = broker.map(|broker| (broker, self.broker));
        let sources =
            Sources { token_file: self.token_file, environment_token, trust: self.trust, name: name.clone(), broker };
        let Secrets { token, trust, broker } = sources.read()?;
        let mqtt = broker.map(|options| MqttConfig {
            timings: self.timings,
            timings_format: self.timings_format,
            timings_every: self.timings_every,
            ..MqttConfig::new(options)
        });
        let kernel_limits = Limits {
            linear_memory_bytes: self.kernel_memory_max,
            kernel_time: self.kernel_time_max,
            host_time: self.operation_time_max,
            ..Limits::default()
        };
        let (exit_when_done, health_file, sources) = (self.exit_when_done, self.health_file, Some(sources));
        let config = AgentConfig {
            mqtt,
            name,
            token,
            trust,
            kernel_limits,
            exit_when_done,
            health_file,
            sources,
            ..AgentConfig::new(hub)
        };
        Ok(self.machine.into_config(config))
    }

    fn address(&self) -> Result<HubAddress, String> {
        let address = HubAddress::parse(&self.hub).map_err(|error| error.to_string())?;
        match self.insecure {
            true => Ok(address),
            false => address.private_only().map_err(|error| error.to_string()),
        }
    }

    /// The broker: that of the hub's address, or of `--mqtt`.
    fn broker_beside(&self, hub: &HubAddress) -> Result<Option<BrokerUrl>, String> {
        let beside = match (hub, &self.mqtt) {
            (HubAddress::Broker(_), Some(_)) => {
                return Err(
                    "--hub names a broker already, so --mqtt has no place beside it; leave one of them out".to_owned()
                );
            }
            (HubAddress::Broker(broker), None) => return Ok(Some(broker.clone())),
            (HubAddress::Socket(_), None) => return Ok(None),
            (HubAddress::Socket(_), Some(beside)) => beside,
        };
        let broker = BrokerUrl::parse(beside).map_err(|error| error.to_string())?;
        if !self.insecure {
            private_broker(&broker).map_err(|error| error.to_string())?;
        }
        Ok(Some(broker))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run(arguments: &[&str]) -> Result<AgentConfig, String> {
        let cli = Cli::try_parse_from([&["omnilearn-agent", "run"], arguments].concat())
            .map_err(|error| error.to_string())?;
        let Command::Run(arguments) = cli.command else { panic!("not run") };
        arguments.config(None)
    }

    #[test]
    fn command_line_is_consistent_and_every_help_has_an_example() {
        Cli::command().debug_assert();
        let mut command = Cli::command();
        assert!(command.render_long_help().to_string().contains("Example"));
        for subcommand in command.get_subcommands_mut().filter(|subcommand| subcommand.get_name() != "help") {
            let help = subcommand.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{help}");
        }
    }

    #[test]
    fn hub_on_another_machine_needs_insecure() {
        let refused = run(&["--hub", "ws://10.0.0.5:7700"]).unwrap_err();
        assert!(refused.contains("--insecure") && refused.lines().count() == 1, "{refused}");
        assert!(run(&["--hub", "ws://10.0.0.5:7700", "--insecure"]).is_ok());
        assert!(run(&["--hub", "ws://127.0.0.1:7700"]).is_ok());
    }

    #[test]
    fn broker_is_the_hubs_address_or_stands_beside_it() {
        let over = run(&["--hub", "mqtt://127.0.0.1:1884/lab", "--timings-format", "postcard"]).unwrap();
        assert!(matches!(&over.hub, HubAddress::Broker(broker) if broker.port() == 1884 && broker.prefix() == "lab"));
        assert_eq!(over.mqtt.unwrap().timings_format, TimingsFormat::Postcard);
        let beside = run(&[
            "--hub",
            "ws://127.0.0.1:7700",
            "--mqtt",
            "mqtt://localhost",
            "--timings",
            "mqtt",
            "--timings-every",
            "5",
        ]);
        let mqtt = beside.unwrap().mqtt.unwrap();
        assert_eq!((mqtt.timings, mqtt.timings_every), (TimingsWay::Mqtt, Duration::from_secs(5)));
        assert!(run(&["--hub", "ws://127.0.0.1:7700"]).unwrap().mqtt.is_none());
        for (arguments, named) in [
            (&["--hub", "mqtt://10.0.0.5"][..], "--insecure"),
            (&["--hub", "ws://127.0.0.1:1", "--mqtt", "mqtt://10.0.0.5"], "mqtts://"),
            (&["--hub", "mqtt://localhost", "--mqtt", "mqtt://localhost"], "--mqtt"),
            (&["--hub", "ws://127.0.0.1:1", "--mqtt", "ws://127.0.0.1:1"], "ws://127.0.0.1:1"),
            (&["--hub", "ws://127.0.0.1:1", "--timings", "mqtt"], "--mqtt"),
            (&["--hub", "ws://127.0.0.1:1", "--timings", "never"], "never"),
        ] {
            let error = run(arguments).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        assert!(run(&["--hub", "mqtt://10.0.0.5", "--insecure"]).is_ok());
        assert!(run(&["--hub", "mqtts://10.0.0.5"]).is_ok());
    }

    #[test]
    fn arguments_become_a_configuration() {
        let config = run(&[
            "--hub",
            "ws://[::1]:1",
            "--name",
            "pi.4",
            "--data",
            "/a",
            "--data",
            "/b",
            "--cache",
            "/c",
            "--threads",
            "3",
            "--memory-max",
            "1GiB",
            "--data-cache-max",
            "2GiB",
            "--exit-when-done",
            "--health-file",
            "/run/health",
        ])
        .unwrap();
        assert_eq!((config.name.as_str(), config.data.len(), config.memory_max), ("pi.4", 2, Some(1 << 30)));
        assert_eq!(config.data_cache_max, 2 << 30);
        assert_eq!(
            (config.cache, config.threads.map(NonZeroUsize::get), config.exit_when_done),
            ("/c".into(), Some(3), true)
        );
        assert_eq!(config.health_file, Some("/run/health".into()));
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (arguments, named) in [
            (&["--hub", "http://a"][..], "http://a"),
            (&["--hub", "ws://localhost:1", "--name", "my pi"], "my pi"),
            (&["--hub", "ws://localhost:1", "--token-file", "/no/such/file"], "/no/such/file"),
            (&["--hub", "ws://localhost:1", "--threads", "0"], "--threads"),
            (&["--hub", "ws://localhost:1", "--memory-max", "much"], "much"),
            (&["--hub", "ws://localhost:1", "--trust", "everybody"], "everybody"),
        ] {
            let error = run(arguments).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn token_comes_from_a_file_or_the_environment_and_is_not_shown() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "from the file\n").unwrap();
        let parse = |arguments: &[&str], environment: Option<&str>| {
            let start = ["omnilearn-agent", "run", "--hub", "ws://localhost:1"];
            let Command::Run(arguments) = Cli::try_parse_from([&start, arguments].concat()).unwrap().command else {
                panic!("not run")
            };
            arguments.config(environment.map(str::to_owned)).unwrap()
        };
        let config = parse(&["--token-file", file.to_str().unwrap()], Some("from the environment"));
        assert_eq!(config.token.as_ref().unwrap().reveal(), "from the file");
        assert!(!format!("{config:?}").contains("from the file"));
        assert_eq!(parse(&[], Some("from the environment")).token.unwrap().reveal(), "from the environment");
    }
}
