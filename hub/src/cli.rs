//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::options::BrokerArgs;

use crate::dataset_cli::DatasetCommand;

/// Port of a hub unless told otherwise.
const DEFAULT_HUB: &str = "http://127.0.0.1:7700";

/// Trains one model over machines that are not alike: hands each agent a batch sized to what it can do.
///
/// A first run, in three terminals:
///
///   omnilearn-hub serve
///   omnilearn-agent run --hub ws://127.0.0.1:7700
///   omnilearn-hub submit job.toml --follow
///
/// `omnilearn-hub job-example > job.toml` writes a job file with every key explained.
/// Logs go to stderr; OMNILEARN_LOG sets how much, such as `debug` or `omnilearn_hub=debug`.
#[derive(Debug, Parser)]
#[command(name = "omnilearn-hub", version, verbatim_doc_comment)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the hub: agents and users connect to one TCP port.
    ///
    /// Without TLS and identities a hub listens on this machine only. Another address needs
    /// --insecure and a token, which every agent and client must show:
    ///
    ///   omnilearn-hub serve --state /var/lib/omnilearn
    ///   omnilearn-hub serve --listen 0.0.0.0:7700 --insecure --token-file hub.token
    ///
    /// At its first start the hub makes a key (hub.key in the state folder), with which it signs every
    /// kernel that it hands out. Agents refuse kernels under another key; keep the file when the state
    /// folder moves, and keep it to yourself. Where secrets are files that somebody else provides:
    ///
    ///   omnilearn-hub serve --token-file /run/secrets/token --key-file /run/secrets/hub_key
    ///
    /// Over MQTT agents tell that they are there, send their timings and take commands; those that reach nothing
    /// but a broker train over it, too. The hub brings a broker of its own, or uses one that is there:
    ///
    ///   omnilearn-hub serve --mqtt-listen 127.0.0.1:1883
    ///   omnilearn-hub serve --mqtt mqtts://broker.example/plant-7 --mqtt-user hub --mqtt-password-file password
    ///
    /// Clients of the hub's own broker log in with the hub's token as password, where there is one.
    ///
    /// Ctrl-C ends it within two seconds: agents are told, weights and records are written.
    #[command(verbatim_doc_comment)]
    Serve(Box<Serve>),

    /// Send a job to the hub.
    ///
    /// The kernel that the job file names is read relative to the file and sent along:
    ///
    ///   omnilearn-hub submit job.toml --follow
    ///
    /// A signature beside the kernel (KERNEL.wasm.sig, see `omnilearn-hub kernel sign --help`) goes with it, and so do
    /// the weights that the job begins with, if the file names any.
    ///
    /// With --follow the exit code says how the job ended: 0 done, 1 failed, stopped or
    /// interrupted. Ctrl-C ends the watching, not the job.
    #[command(verbatim_doc_comment)]
    Submit(Submit),

    /// Show jobs and agents, or one job in full.
    ///
    ///   omnilearn-hub status
    ///   omnilearn-hub status 3
    ///   omnilearn-hub status 3 --json | jq .progress.waiting
    #[command(verbatim_doc_comment)]
    Status(Status),

    /// Write a job's weights (safetensors) or its records (CSV).
    ///
    /// Works while the job runs and after it:
    ///
    ///   omnilearn-hub export 3 model.safetensors
    ///   omnilearn-hub export 3 --csv records/
    ///
    /// In Python: `safetensors.numpy.load_file("model.safetensors")`.
    #[command(verbatim_doc_comment)]
    Export(Export),

    /// End a job; its weights so far can be exported.
    ///
    ///   omnilearn-hub stop 3
    #[command(verbatim_doc_comment)]
    Stop(Stop),

    /// Tell whether a hub answers: exit code 0 if it does, 1 if not.
    ///
    /// For health checks of containers and services, where there is no curl:
    ///
    ///   omnilearn-hub health
    #[command(verbatim_doc_comment)]
    Health(Health),

    /// Show agents, and have one do something.
    ///
    ///   omnilearn-hub agent list
    ///   omnilearn-hub agent pause pi-4
    ///   omnilearn-hub agent limits pi-4 --threads 2 --batch-max 64
    ///
    /// Commands go over the broker: the hub runs with --mqtt-listen or --mqtt, the agent with --mqtt or with a
    /// broker's address as --hub.
    #[command(verbatim_doc_comment, subcommand)]
    Agent(AgentCommand),

    /// Print a job file with every key explained.
    ///
    ///   omnilearn-hub job-example > job.toml
    #[command(verbatim_doc_comment)]
    JobExample,

    /// Make a key to sign kernels with, or show the public half of one.
    ///
    ///   omnilearn-hub key show
    ///   omnilearn-hub key new author.key
    ///
    /// An agent that is started with `--trust KEY` runs only kernels that one of the keys given has signed.
    #[command(verbatim_doc_comment, subcommand)]
    Key(KeyCommand),

    /// Sign a kernel as its author.
    ///
    ///   omnilearn-hub kernel sign lenet.wasm --key author.key
    #[command(verbatim_doc_comment, subcommand)]
    Kernel(KernelCommand),

    /// Add, list, verify and remove data sets.
    ///
    ///   omnilearn-hub dataset add flowers ~/pictures/flowers --size 64
    ///   omnilearn-hub dataset list
    ///
    /// Agents need no copy: they fetch what a job names from the hub, and keep it in their cache.
    #[command(verbatim_doc_comment, subcommand)]
    Dataset(DatasetCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Show every agent that the hub knows, how it is reached, and what it says at the broker.
    List(AgentList),

    /// Have an agent leave the hub until it is told to resume. What it was working on is issued again.
    Pause(AgentName),

    /// Have a paused agent come back.
    Resume(AgentName),

    /// Limit what an agent uses of its machine.
    ///
    ///   omnilearn-hub agent limits pi-4 --threads 2
    ///
    /// Threads change at once; for another largest batch the agent joins again. What is not given stays as it is.
    #[command(verbatim_doc_comment)]
    Limits(AgentLimits),

    /// Have an agent read its token, keys and passwords again, look at its machine again, and join again.
    Reload(AgentName),

    /// Have an agent try what training needs, and show what it found.
    SelfTest(AgentName),
}

#[derive(Debug, Args)]
pub(crate) struct AgentList {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) hub: HubAddress,
}

#[derive(Debug, Args)]
pub(crate) struct AgentName {
    /// The agent's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Print what the agent returns as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) hub: HubAddress,
}

#[derive(Debug, Args)]
pub(crate) struct AgentLimits {
    #[command(flatten)]
    pub(crate) agent: AgentName,

    /// Compute threads.
    #[arg(long, required_unless_present = "batch_max", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) threads: Option<u32>,

    /// Most samples in one batch.
    #[arg(long, value_name = "SAMPLES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_max: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key for an author of kernels, and print its public half.
    ///
    ///   omnilearn-hub key new author.key
    ///
    /// Only you can read the file. Whoever has it can sign kernels in your name; without it nobody can,
    /// so keep a copy where you keep other secrets. The public half is for everybody: agents trust it with
    /// `omnilearn-agent run --trust KEY`.
    #[command(verbatim_doc_comment)]
    New(KeyNew),

    /// Print the public half of the hub's key, or of a key in a file.
    ///
    ///   omnilearn-hub key show
    ///   omnilearn-hub key show author.key
    ///
    /// The hub makes its key when it first starts. To let an agent take kernels from this hub only:
    ///
    ///   omnilearn-agent run --hub ws://127.0.0.1:7700 --trust "$(omnilearn-hub key show)"
    #[command(verbatim_doc_comment)]
    Show(KeyShow),
}

#[derive(Debug, Args)]
pub(crate) struct KeyNew {
    /// File for the key; one that exists is left as it is.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct KeyShow {
    /// File with a key; without it the hub's own.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// The hub's state folder. Default: $XDG_STATE_HOME/omnilearn-hub or ~/.local/state/omnilearn-hub.
    #[arg(long, value_name = "FOLDER", env = "OMNILEARN_STATE")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Write a kernel's signature beside it, as KERNEL.wasm.sig.
    ///
    ///   omnilearn-hub key new author.key
    ///   omnilearn-hub kernel sign lenet.wasm --key author.key
    ///   omnilearn-hub submit job.toml
    ///
    /// `submit` sends the signature along, and the hub hands it to agents beside its own. Sign again
    /// after every change of the kernel: a signature is of these bytes and no others.
    #[command(verbatim_doc_comment)]
    Sign(KernelSign),
}

#[derive(Debug, Args)]
pub(crate) struct KernelSign {
    /// The component, as `cargo xtask kernels` builds it.
    #[arg(value_name = "KERNEL")]
    pub(crate) kernel: PathBuf,

    /// File with the author's key; see `omnilearn-hub key new`.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7700", env = "OMNILEARN_LISTEN")]
    pub(crate) listen: String,

    /// Folder for jobs, records and weights. Default: $XDG_STATE_HOME/omnilearn-hub or ~/.local/state/omnilearn-hub.
    #[arg(long, value_name = "FOLDER", env = "OMNILEARN_STATE")]
    pub(crate) state: Option<PathBuf>,

    /// File with the hub's own key, made by `omnilearn-hub key new FILE`, where a secret comes from elsewhere. Default: hub.key
    /// in the state folder, made at the first start.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_KEY_FILE")]
    pub(crate) key_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) token: TokenSource,

    /// Allow an address that is not loopback, though traffic is not encrypted. Needs a token.
    #[arg(long)]
    pub(crate) insecure: bool,

    /// End once all jobs are done (after at least one), with exit code 1 if any failed.
    #[arg(long)]
    pub(crate) exit_when_done: bool,

    /// Run a broker beside the hub, which listens there. As with --listen, an address that others reach needs
    /// --insecure and a token.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "OMNILEARN_MQTT_LISTEN",
        conflicts_with = "mqtt",
        help_heading = "Broker"
    )]
    pub(crate) mqtt_listen: Option<String>,

    /// Use a broker that is there: mqtt://HOST[:1883][/PREFIX] or mqtts://HOST[:8883][/PREFIX]. Topics begin with PREFIX,
    /// `omnilearn` by default; each hub at a broker needs one of its own.
    #[arg(long, value_name = "URL", env = "OMNILEARN_MQTT", help_heading = "Broker")]
    pub(crate) mqtt: Option<BrokerUrl>,

    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenSource {
    /// File with the shared token. The environment variable OMNILEARN_TOKEN can hold the token itself.
    #[arg(long, value_name = "FILE", env = "OMNILEARN_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct HubAddress {
    /// Address of the hub.
    #[arg(long, value_name = "URL", default_value = DEFAULT_HUB, env = "OMNILEARN_HUB")]
    pub(crate) hub: String,

    #[command(flatten)]
    pub(crate) token: TokenSource,
}

#[derive(Debug, Args)]
pub(crate) struct Health {
    #[command(flatten)]
    pub(crate) hub: HubAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Submit {
    /// The job file; see `omnilearn-hub job-example`.
    #[arg(value_name = "JOB_FILE")]
    pub(crate) job_file: PathBuf,

    /// Show progress until the job ends.
    #[arg(long)]
    pub(crate) follow: bool,

    /// Print the job as JSON on stdout (with --follow, when it has ended).
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) hub: HubAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Number of a job; without it, all jobs and agents.
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<u64>,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) hub: HubAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Number of the job.
    #[arg(value_name = "JOB")]
    pub(crate) job: u64,

    /// File for the weights.
    #[arg(value_name = "FILE", required_unless_present = "csv")]
    pub(crate) weights: Option<PathBuf>,

    /// Folder for steps.csv, rounds.csv, evaluations.csv and batches.csv.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) csv: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) hub: HubAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// Number of the job.
    #[arg(value_name = "JOB")]
    pub(crate) job: u64,

    #[command(flatten)]
    pub(crate) hub: HubAddress,
}
