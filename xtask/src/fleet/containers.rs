//! A fleet of containers that Compose started: its hub is asked, its agents are throttled.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use omnilearn_devices::compose::SUBMIT_SERVICE;

use super::docker::{Container, Docker, output};
use super::hub_program::HubProgram;
use super::secrets::TOKEN;
use crate::demo::{HubClient, Job, JobStatus, Kit, Next, RunRecords, watch};
use crate::interrupt::Interrupt;

/// Longest wait for the hub and all agents: one with a small quota starts slowly.
const PATIENCE: Duration = Duration::from_secs(300);

/// A fleet that Compose runs, or shall.
#[derive(Clone, Debug)]
pub(crate) struct ComposeProject {
    /// Name of the project, before the names of its containers, networks and volumes.
    pub(crate) name: String,
    /// Folder with the secrets.
    pub(crate) secrets: PathBuf,
}

/// A fleet of containers.
pub(crate) struct ContainerFleet<'kit> {
    kit: &'kit Kit,
    docker: Docker,
    project: ComposeProject,
    client: HubClient,
    containers: Vec<Container>,
    /// The compose file, if we started the fleet and shall end it.
    started_from: Option<PathBuf>,
}

impl<'kit> ContainerFleet<'kit> {
    /// Starts hub and agents of a compose file, without its job, and waits until all are connected. Dropping it ends them and
    /// removes their state.
    ///
    /// # Errors
    /// When Compose fails or an agent does not connect in time.
    pub(crate) fn start(
        kit: &'kit Kit,
        docker: &Docker,
        file: &Path,
        project: ComposeProject,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        // What was started is ended also if the rest fails.
        let fleet = Self::new(kit, docker, project, Some(file.to_owned()));
        let mut up = fleet.compose(file)?;
        up.args(["up", "--detach", "--scale", &format!("{SUBMIT_SERVICE}=0")]);
        output(up)?;
        fleet.connected(interrupt)
    }

    /// Takes a fleet that runs, and leaves it running.
    ///
    /// # Errors
    /// When there is none of this name, or an agent does not connect in time.
    pub(crate) fn attach(
        kit: &'kit Kit,
        docker: &Docker,
        project: ComposeProject,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        Self::new(kit, docker, project, None).connected(interrupt)
    }

    fn new(kit: &'kit Kit, docker: &Docker, project: ComposeProject, started_from: Option<PathBuf>) -> Self {
        let client = HubClient::new(String::new());
        Self { kit, docker: docker.clone(), project, client, containers: Vec::new(), started_from }
    }

    fn connected(mut self, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let file = self.token_file();
        let token = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        self.client = HubClient::new(self.docker.hub_address(&self.project.name)?).with_token(&token);
        self.containers = self.docker.agents(&self.project.name)?;
        let (count, name) = (self.containers.len(), &self.project.name);
        if count == 0 {
            bail!("no agents of the project `{name}` run");
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.client.connected_agents().is_ok_and(|connected| connected >= count) {
            interrupt.sleep(Duration::from_millis(200))?;
            if Instant::now() > deadline {
                let waited_s = PATIENCE.as_secs();
                bail!("waited {waited_s} s for {count} agents to connect; see `docker compose -p {name} logs`");
            }
        }
        eprintln!("hub at {} with {count} agents in containers", self.client.address());
        Ok(self)
    }

    /// Compose for this project, with the data set that the kit found.
    fn compose(&self, file: &Path) -> anyhow::Result<Command> {
        let data = self.kit.data().parent().context("the data set lies in no folder")?;
        let mut command = self.docker.compose()?;
        command.arg("--file").arg(file).args(["--project-name", &self.project.name]);
        command.env("OMNILEARN_DATA", data).env("OMNILEARN_SECRETS", &self.project.secrets);
        Ok(command)
    }

    fn token_file(&self) -> PathBuf {
        self.project.secrets.join(TOKEN)
    }

    /// The agents' containers, in the order of the compose file.
    pub(crate) fn containers(&self) -> &[Container] {
        &self.containers
    }

    /// Sets every agent's quota, in cores, in the order of [`ContainerFleet::containers`].
    ///
    /// # Errors
    /// When the engine refuses one.
    pub(crate) fn set_quotas(&self, quotas: &[f64]) -> anyhow::Result<()> {
        self.containers.iter().zip(quotas).try_for_each(|(agent, &cores)| self.docker.set_cores(&agent.id, cores))
    }

    /// Trains a job and returns what was recorded, also as CSV files in the folder `csv` if one is given. `look` sees its state
    /// time and again.
    ///
    /// # Errors
    /// When the job fails or makes no progress; whatever `look` has against going on.
    pub(crate) fn run_watched(
        &mut self,
        run: &Job,
        csv: Option<&Path>,
        interrupt: &Interrupt,
        look: &mut dyn FnMut(&JobStatus, &Self) -> anyhow::Result<Next>,
    ) -> anyhow::Result<RunRecords> {
        let token_file = self.token_file();
        let address = self.client.address().to_owned();
        let hub = HubProgram { program: self.kit.hub_program(), address: &address, token_file: Some(&token_file) };
        let job = hub.submit(run)?;
        let view = watch(&self.client, (job, run), self.containers.len(), interrupt, &mut |status| look(status, self))?;
        let agents = self.agents_in_order(&view.progress.clone().unwrap_or_default())?;
        if !view.is_done() {
            hub.stop(job)?;
        }
        if let Some(folder) = csv {
            hub.export(job, folder)?;
        }
        let quotas = vec![self.kit.quota_total() / agents.len() as f64; agents.len()];
        let records = self.client.records(job)?.into_run(&agents, &quotas, self.kit.spec().train_samples)?;
        eprintln!("{}: {}", run.name, records.describe());
        Ok(records)
    }

    /// The hub's numbers for our agents, in the order of the containers; an agent is called after its container.
    fn agents_in_order(&self, status: &JobStatus) -> anyhow::Result<Vec<(u32, String)>> {
        let number = |container: &Container| {
            let agent = status.agents.iter().find(|agent| agent.name == container.id);
            let name = format!("{}-{}", container.service, container.number);
            agent.map(|agent| (agent.agent, name.clone())).with_context(|| format!("{name} took no part"))
        };
        self.containers.iter().map(number).collect()
    }
}

impl Drop for ContainerFleet<'_> {
    fn drop(&mut self) {
        let Some(file) = &self.started_from else { return };
        let ended = self.compose(file).and_then(|mut down| {
            down.args(["down", "--volumes", "--timeout", "5"]);
            output(down)
        });
        if let Err(error) = ended {
            eprintln!("the containers of `{}` may still run: {error:#}", self.project.name);
        }
    }
}
