//! One demo session: what has to be there, the processes of the fleet, and training runs on them.

mod disturb;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use omnilearn_devices::quota::{CgroupTree, CpuGroup, Limiter, pinned_cores};
use omnilearn_wire::dataset::DatasetSpec;

pub(crate) use disturb::Loss;

use super::hub_client::{HubClient, JobStatus};
use super::job::{JobPlan, Mode, Model, Policy};
use super::records::RunRecords;
use super::transport::{Route, TransportArguments};
use super::watch::{Next, watch};
use crate::fleet::hub_program::HubProgram;
use crate::fleet::process::{Process, stop_all};
use crate::fleet::ratios::HeterogeneityLevel;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;
use crate::{datasets, kernels};

/// Share of the machine's cores that agents get; the rest is for the hub and for us.
const QUOTA_SHARE: f64 = 0.9;

/// A hub's data sets in its state folder.
const LIBRARY: &str = "datasets";

/// Longest wait for the hub to listen.
const HUB_PATIENCE: Duration = Duration::from_secs(60);

/// Longest wait for all agents to connect: one with a small quota starts slowly.
const AGENTS_PATIENCE: Duration = Duration::from_secs(180);

/// Everything that has to be there before a fleet can start.
#[derive(Debug)]
pub(crate) struct Kit {
    workspace: Workspace,
    spec: &'static DatasetSpec,
    hub: PathBuf,
    agent: PathBuf,
    data: PathBuf,
    cache: PathBuf,
    /// A hub's `datasets` folder, whose data sets every hub that is started has, too.
    library: Option<PathBuf>,
    limiter: Limiter,
    cores: usize,
    quota_total: f64,
    transport: TransportArguments,
}

/// One training run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Synchronisation.
    pub(crate) mode: Mode,
    /// Number of agents.
    pub(crate) agents: usize,
    /// What is trained.
    pub(crate) model: Model,
    /// How batches are set.
    pub(crate) policy: Policy,
    /// Passes over the training set.
    pub(crate) epochs: u32,
    /// Channels of the first stage of a ResNet.
    pub(crate) width: u32,
    /// Samples behind one step, over all agents.
    pub(crate) global_batch: u32,
    /// Seed of everything random.
    pub(crate) seed: u64,
}

/// What a user hands to the hub.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// The job file.
    pub(crate) text: String,
    /// Passes over the training set, the last perhaps not whole.
    pub(crate) epochs: u32,
}

impl Kit {
    /// Gets, builds and finds out what is needed. Progress goes to standard error.
    ///
    /// # Errors
    /// One line that says what is missing and what to do.
    pub(crate) fn prepare(
        workspace: &Workspace,
        data: Option<&Path>,
        quota_total: Option<f64>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let cores = available_parallelism().context("counting cores")?.get();
        let quota_total = quota_total.unwrap_or(QUOTA_SHARE * cores as f64);
        if !(quota_total > 0.0 && quota_total <= cores as f64) {
            bail!("--quota-total {quota_total} is impossible on {cores} cores");
        }
        let spec = datasets::find_spec("fashion-mnist")?;
        let data = datasets::provide(spec, data, &|line| eprintln!("{line}"))?;
        let cache = datasets::cache_folder()?;
        eprintln!("data: {}", data.display());
        interrupt.check()?;
        eprintln!("building the kernels (the first time takes a minute or two)");
        kernels::build(workspace.root())?;
        interrupt.check()?;
        eprintln!("building hub and agent (the first time takes several minutes)");
        let mut programs = workspace.build(&["omnilearn-hub", "omnilearn-agent"])?;
        let (Some(agent), Some(hub)) = (programs.pop(), programs.pop()) else { bail!("cargo built nothing") };
        interrupt.check()?;
        let limiter = Limiter::detect(&CgroupTree::of_this_machine());
        eprintln!("{quota_total:.2} of {cores} cores for the agents by {}", limiter.describe());
        if let Some(notice) = limiter.notice() {
            eprintln!("note: {notice}");
        }
        Ok(Self {
            workspace: workspace.clone(),
            spec,
            hub,
            agent,
            data,
            cache,
            library: None,
            limiter,
            cores,
            quota_total,
            transport: TransportArguments::default(),
        })
    }

    /// The same, with the data sets in a hub's state folder.
    pub(crate) fn with_library(self, state: Option<&Path>) -> Self {
        Self { library: state.map(|state| state.join(LIBRARY)), ..self }
    }

    /// The same, with agents that reach their hubs like this.
    pub(crate) fn over(self, transport: TransportArguments) -> Self {
        Self { transport, ..self }
    }

    /// The data set.
    pub(crate) fn spec(&self) -> &'static DatasetSpec {
        self.spec
    }

    /// The folder with its files.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// The program `omnilearn-hub`.
    pub(crate) fn hub_program(&self) -> &Path {
        &self.hub
    }

    /// The program `omnilearn-agent`.
    pub(crate) fn agent_program(&self) -> &Path {
        &self.agent
    }

    /// The component of a kernel.
    pub(crate) fn component(&self, kernel: &str) -> PathBuf {
        self.workspace.component(kernel)
    }

    /// Sum of the agents' quotas, in cores.
    pub(crate) fn quota_total(&self) -> f64 {
        self.quota_total
    }

    /// The job of a run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn job(&self, run: &Run) -> anyhow::Result<Job> {
        let plan = JobPlan {
            mode: run.mode,
            model: run.model,
            policy: run.policy,
            width: run.width,
            global_batch: run.global_batch,
            epochs: run.epochs,
            agents: u32::try_from(run.agents).context("too many agents")?,
            dataset: self.spec.name,
            train_samples: self.spec.train_samples,
            seed: run.seed,
        };
        let text = plan.to_toml(&self.workspace.component(run.model.kernel()))?;
        Ok(Job { name: run.policy.name(), text, epochs: run.epochs })
    }

    /// Starts a hub with an empty state folder and the agents of a heterogeneity level, and waits until all are connected.
    ///
    /// # Errors
    /// When a process cannot be started, ends, or takes too long.
    pub(crate) fn start_fleet(
        &self,
        level: HeterogeneityLevel,
        agents: usize,
        logs: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Fleet<'_>> {
        self.start_fleet_with(level.quotas(agents, self.quota_total), logs, interrupt)
    }

    /// Like [`Kit::start_fleet`], with an agent for each of these quotas, in cores.
    ///
    /// # Errors
    /// When a process cannot be started, ends, or takes too long.
    pub(crate) fn start_fleet_with(
        &self,
        quotas: Vec<f64>,
        logs: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Fleet<'_>> {
        let agents = quotas.len();
        fs::create_dir_all(logs).with_context(|| format!("creating {}", logs.display()))?;
        let state = tempfile::Builder::new().prefix("omnilearn-demo-").tempdir().context("making a state folder")?;
        let port = free_port()?;
        let hub_state = state.path().join("hub");
        if let Some(library) = &self.library {
            fs::create_dir(&hub_state).with_context(|| format!("creating {}", hub_state.display()))?;
            std::os::unix::fs::symlink(library, hub_state.join(LIBRARY)).context("giving the hub its data sets")?;
        }
        let route = self.transport.route(port)?;
        let mut command = Command::new(&self.hub);
        command.arg("serve").args(["--listen", &format!("127.0.0.1:{port}")]).arg("--state").arg(hub_state);
        route.prepare_hub(&mut command);
        let hub = Process::spawn("the hub", command, &logs.join("hub.log"))?;
        let client = HubClient::new(format!("http://127.0.0.1:{port}"));
        let mut fleet = Fleet { kit: self, quotas, client, agents: Vec::new(), groups: Vec::new(), hub, _state: state };
        fleet.wait_for(HUB_PATIENCE, "the hub to listen", interrupt, |fleet| fleet.client.is_up())?;
        fleet.start_agents(&route, logs)?;
        fleet.wait_for(AGENTS_PATIENCE, "all agents to connect", interrupt, |fleet| {
            fleet.client.connected_agents().is_ok_and(|connected| connected >= agents)
        })?;
        eprintln!("hub at {} with {agents} agents", fleet.client.address());
        Ok(fleet)
    }
}

/// A hub and its agents. Dropping it ends them: agents first, so that none sees its hub vanish, then their groups, then the
/// hub, then its state.
#[derive(Debug)]
pub(crate) struct Fleet<'kit> {
    kit: &'kit Kit,
    quotas: Vec<f64>,
    client: HubClient,
    // Fields are dropped in this order.
    agents: Vec<Process>,
    groups: Vec<CpuGroup>,
    hub: Process,
    _state: tempfile::TempDir,
}

impl Fleet<'_> {
    /// The quotas with which the agents started, in cores.
    pub(crate) fn quotas(&self) -> &[f64] {
        &self.quotas
    }

    fn start_agents(&mut self, route: &Route, logs: &Path) -> anyhow::Result<()> {
        let cores = pinned_cores(&self.quotas, self.kit.cores);
        // Each demo's hub has a key of its own, and the user's cache folder is no place to keep them.
        let key = self.client.key()?;
        for (index, (&quota, cores)) in self.quotas.iter().zip(&cores).enumerate() {
            let name = agent_name(index);
            let group = self.kit.limiter.group(&name, quota)?;
            let mut command = group.command(&self.kit.agent, cores);
            command.args(["run", "--name", &name]);
            route.prepare_agent(index, &mut command);
            let folders = [Some(&self.kit.data), self.kit.library.as_ref()];
            command.args(folders.into_iter().flatten().flat_map(|folder| ["--data".as_ref(), folder.as_os_str()]));
            command.arg("--cache").arg(&self.kit.cache).args(["--trust", &key]);
            self.groups.push(group);
            self.agents.push(Process::spawn(&name, command, &logs.join(format!("{name}.log")))?);
        }
        Ok(())
    }

    /// Trains once and returns what was recorded, also as CSV files in the folder `csv` if one is given.
    ///
    /// # Errors
    /// When the job fails, makes no progress, or a process ends.
    pub(crate) fn train(&mut self, run: &Run, csv: Option<&Path>, interrupt: &Interrupt) -> anyhow::Result<RunRecords> {
        let job = self.kit.job(run)?;
        self.run(&job, csv, interrupt)
    }

    /// Like [`Fleet::train`], with any job.
    ///
    /// # Errors
    /// When the job fails, makes no progress, or a process ends.
    pub(crate) fn run(&mut self, run: &Job, csv: Option<&Path>, interrupt: &Interrupt) -> anyhow::Result<RunRecords> {
        self.run_watched(run, csv, interrupt, &mut |_, _| Ok(Next::GoOn))
    }

    /// Like [`Fleet::run`]; `look` sees the job's state time and again and may change quotas.
    ///
    /// # Errors
    /// When the job fails, makes no progress, or a process ends; whatever `look` has against going on.
    pub(crate) fn run_watched(
        &mut self,
        run: &Job,
        csv: Option<&Path>,
        interrupt: &Interrupt,
        look: &mut dyn FnMut(&JobStatus, &mut [CpuGroup]) -> anyhow::Result<Next>,
    ) -> anyhow::Result<RunRecords> {
        let job = self.submit(run)?;
        let (client, count) = (self.client.clone(), self.quotas.len());
        let job_view = watch(&client, (job, run), count, interrupt, &mut |status| {
            self.check_running()?;
            look(status, &mut self.groups)
        })?;
        let done = job_view.is_done();
        let agents = self.agents_in_order(&job_view.progress.unwrap_or_default())?;
        if !done {
            self.hub_program().stop(job)?;
        }
        let records = self.client.records(job)?.into_run(&agents, &self.quotas, self.kit.spec.train_samples)?;
        if let Some(folder) = csv {
            self.hub_program().export(job, folder)?;
        }
        eprintln!("{}: {}", run.name, records.describe());
        Ok(records)
    }

    /// Hands the job file to `omnilearn-hub submit`, as a user would, and returns the job's number.
    fn submit(&self, job: &Job) -> anyhow::Result<u64> {
        self.hub_program().submit(job)
    }

    fn hub_program(&self) -> HubProgram<'_> {
        HubProgram { program: &self.kit.hub, address: self.client.address(), token_file: None }
    }

    /// The hub's numbers for our agents, in the order of the quotas.
    fn agents_in_order(&self, status: &JobStatus) -> anyhow::Result<Vec<(u32, String)>> {
        let number = |index: usize| {
            let name = agent_name(index);
            let agent = status.agents.iter().find(|agent| agent.name == name);
            agent.map(|agent| (agent.agent, name.clone())).with_context(|| format!("{name} took no part"))
        };
        (0..self.quotas.len()).map(number).collect()
    }

    fn check_running(&mut self) -> anyhow::Result<()> {
        self.hub.check_running()?;
        self.agents.iter_mut().try_for_each(Process::check_running)
    }

    fn wait_for(
        &mut self,
        patience: Duration,
        what: &str,
        interrupt: &Interrupt,
        done: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        while !done(self) {
            interrupt.sleep(Duration::from_millis(50))?;
            self.check_running()?;
            if Instant::now() > deadline {
                let logs: Vec<String> =
                    self.agents.iter().chain([&self.hub]).map(|process| process.log().display().to_string()).collect();
                bail!("waited {} s for {what}; see {}", patience.as_secs(), logs.join(", "));
            }
        }
        Ok(())
    }

    /// Leaves everything running until an interrupt.
    pub(crate) fn keep(&self, interrupt: &Interrupt) {
        eprintln!("hub and agents go on at {}; Ctrl-C ends them", self.client.address());
        // The interrupt is what we wait for, so it is no error here.
        while interrupt.sleep(Duration::from_secs(3600)).is_ok() {}
    }

    /// Ends agents, then the hub.
    pub(crate) fn stop(mut self) {
        stop_all(std::mem::take(&mut self.agents));
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        stop_all(std::mem::take(&mut self.agents));
    }
}

fn agent_name(index: usize) -> String {
    format!("agent-{}", index + 1)
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}
