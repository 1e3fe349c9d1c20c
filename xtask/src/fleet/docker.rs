//! The Docker engine, as its command line shows it.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use omnilearn_devices::compose::{HUB_SERVICE, PLACE_LABEL};

use crate::workspace::has_program;

/// What Compose, old and new, notes on each container.
const PROJECT_LABEL: &str = "com.docker.compose.project";
const SERVICE_LABEL: &str = "com.docker.compose.service";
const NUMBER_LABEL: &str = "com.docker.compose.container-number";

/// An engine that answers.
#[derive(Clone, Debug)]
pub(crate) struct Docker {
    has_compose_plugin: bool,
}

/// A container of a compose fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Container {
    /// Place of its service in the compose file.
    pub(crate) place: u32,
    /// Number within its service.
    pub(crate) number: u32,
    /// Short id, which is its host name and, unless told otherwise, its agent's name.
    pub(crate) id: String,
    /// Its service.
    pub(crate) service: String,
}

impl Docker {
    /// Finds the client and asks the engine for its version.
    ///
    /// # Errors
    /// What is missing and how to get it.
    pub(crate) fn find() -> anyhow::Result<Self> {
        if !has_program("docker") {
            bail!("there is no `docker` here; Debian's package is docker.io");
        }
        let docker = Self { has_compose_plugin: quiet(Command::new("docker").args(["compose", "version"])) };
        docker.call(["version", "--format", "{{.Server.Version}}"]).context(
            "no Docker engine answers; start its service, point DOCKER_HOST at one, or, as root, run `cargo xtask fleet engine`",
        )?;
        Ok(docker)
    }

    /// Runs `docker` and returns what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub(crate) fn call<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I) -> anyhow::Result<String> {
        let mut command = Command::new("docker");
        command.args(arguments);
        output(command)
    }

    /// A command of Compose, new or old.
    ///
    /// # Errors
    /// When there is neither.
    pub(crate) fn compose(&self) -> anyhow::Result<Command> {
        if self.has_compose_plugin {
            let mut command = Command::new("docker");
            command.arg("compose");
            return Ok(command);
        }
        if has_program("docker-compose") {
            return Ok(Command::new("docker-compose"));
        }
        bail!("there is neither `docker compose` nor `docker-compose` here; Debian's package is docker-compose")
    }

    /// The containers of a project that run agents, in the order of the compose file.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) fn agents(&self, project: &str) -> anyhow::Result<Vec<Container>> {
        let format = format!(
            "{{{{.ID}}}}\t{{{{.Label \"{SERVICE_LABEL}\"}}}}\t{{{{.Label \"{NUMBER_LABEL}\"}}}}\t{{{{.Label \"{PLACE_LABEL}\"}}}}"
        );
        let filters = [format!("label={PROJECT_LABEL}={project}"), format!("label={PLACE_LABEL}")];
        let lines = self.call(["ps", "--format", &format, "--filter", &filters[0], "--filter", &filters[1]])?;
        let mut containers: Vec<Container> = lines.lines().filter_map(container).collect();
        containers.sort();
        Ok(containers)
    }

    /// Address of the hub's container in the fleet's own network, which this machine can reach.
    ///
    /// # Errors
    /// When the hub's container does not run.
    pub(crate) fn hub_address(&self, project: &str) -> anyhow::Result<String> {
        let filters = [format!("label={PROJECT_LABEL}={project}"), format!("label={SERVICE_LABEL}={HUB_SERVICE}")];
        let id = self.call(["ps", "--quiet", "--filter", &filters[0], "--filter", &filters[1]])?;
        let Some(id) = id.lines().next() else {
            bail!("no hub of the project `{project}` runs; `docker compose ls` shows which do");
        };
        let address =
            self.call(["inspect", id, "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"])?;
        let address = address.split_whitespace().next().context("the hub's container has no address")?;
        Ok(format!("http://{address}:7700"))
    }

    /// Changes a container's CPU quota while it runs.
    ///
    /// # Errors
    /// When the engine refuses it.
    pub(crate) fn set_cores(&self, container: &str, cores: f64) -> anyhow::Result<()> {
        self.call(["update", "--cpus", &format!("{cores:.4}"), container]).map(drop)
    }
}

fn container(line: &str) -> Option<Container> {
    let mut fields = line.split('\t');
    let (id, service) = (fields.next()?.to_owned(), fields.next()?.to_owned());
    let (number, place) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Container { place, number, id, service })
}

/// Runs a command to its end and returns what it printed.
///
/// # Errors
/// When it fails, with what it said.
pub(crate) fn output(mut command: Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        bail!("`{shown}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn quiet(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether the client can build with BuildKit; without, the old builder has to be asked for.
pub(crate) fn has_buildx() -> bool {
    quiet(Command::new("docker").args(["buildx", "version"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_read_with_their_places_and_others_left_out() {
        let found = container("3c87d13f49dd\tagent-4-cores\t1\t2").unwrap();
        assert_eq!((found.place, found.number, found.service.as_str()), (2, 1, "agent-4-cores"));
        assert_eq!(container("3c87d13f49dd\thub\t1\t"), None);
        assert_eq!(container(""), None);
    }

    #[test]
    fn containers_sort_by_the_place_of_their_service_and_their_number() {
        let mut containers: Vec<Container> = ["a\tlast\t1\t2", "b\tagent\t10\t0", "c\tagent\t2\t0", "d\tmiddle\t1\t1"]
            .iter()
            .filter_map(|line| container(line))
            .collect();
        containers.sort();
        assert_eq!(containers.iter().map(|container| container.id.as_str()).collect::<String>(), "cbda");
    }
}
