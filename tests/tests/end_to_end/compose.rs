//! `docker compose up` on a checked-in file trains: with more agents by `--scale`, through a crash and a changed quota.
//!
//! It runs an engine of its own. The images hold the programs that the other tests run.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use omnilearn_hub::client::HubClient;
use omnilearn_tests::cluster::{Process, all_records, programs};
use omnilearn_tests::workspace;

/// Longest wait for anything: containers with a small quota start slowly.
const PATIENCE: Duration = Duration::from_secs(240);

/// Name before those of containers, networks and volumes.
const PROJECT: &str = "omnilearn-test";

/// Epochs of the job.
const EPOCHS: u32 = 3;

/// Agents: those of the file, and two more.
const AGENTS: usize = 6;

/// Why there can be no engine here, if there can be none.
fn obstacle() -> Option<&'static str> {
    let answers = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let another = fs::read_dir("/proc").is_ok_and(|entries| {
        let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        entries.flatten().any(|entry| name(entry).trim() == "dockerd")
    });
    if !answers("sh", &["-c", "test $(id -u) = 0"]) {
        Some("a Docker engine has to be started by root")
    } else if !answers("dockerd", &["--version"]) || !answers("docker", &["--version"]) {
        Some("there is no Docker engine here (Debian's docker.io)")
    } else if !answers("docker", &["compose", "version"]) && !answers("docker-compose", &["version"]) {
        Some("there is no Docker Compose here (Debian's docker-compose)")
    } else if another {
        Some("another Docker engine runs here")
    } else {
        None
    }
}

/// An engine, and what it needs to know to run the fleet. Dropping it ends the fleet and the engine.
struct Engine {
    process: Process,
    folder: tempfile::TempDir,
    host: String,
}

impl Engine {
    fn start() -> Engine {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(programs().unwrap().join("xtask"));
        command.args(["fleet", "engine", "--folder"]).arg(folder.path().join("engine"));
        let process = Process::spawn("engine", &mut command).unwrap();
        let start = Instant::now();
        let host = loop {
            let output = process.output();
            if let Some(host) = output.lines().find_map(|line| line.strip_prefix("DOCKER_HOST=")) {
                break host.to_owned();
            }
            assert!(start.elapsed() < PATIENCE, "the engine does not start: {output}");
            sleep(Duration::from_millis(50));
        };
        Engine { process, folder, host }
    }

    /// A command of ours that talks to this engine and finds secrets and job in our folder.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("DOCKER_HOST", &self.host).env("OMNILEARN_SECRETS", self.folder.path().join("secrets"));
        command.env("OMNILEARN_JOB", self.folder.path().join("job.toml")).stdin(Stdio::null());
        command
    }

    fn docker(&self, arguments: &[&str]) -> String {
        run(self.command("docker".as_ref()).args(arguments))
    }

    fn compose(&self, arguments: &[&str]) -> String {
        let mut plugin = self.command("docker".as_ref());
        plugin.args(["compose", "version"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut command = match plugin.status().is_ok_and(|status| status.success()) {
            true => {
                let mut command = self.command("docker".as_ref());
                command.arg("compose");
                command
            }
            false => self.command("docker-compose".as_ref()),
        };
        command.arg("--file").arg(workspace().join("devices/compose/hl8.yml")).args(["--project-name", PROJECT]);
        run(command.args(arguments))
    }

    /// Ids of the containers of a service.
    fn containers(&self, service: &str) -> Vec<String> {
        let filters = [
            format!("label=com.docker.compose.project={PROJECT}"),
            format!("label=com.docker.compose.service={service}"),
        ];
        let ids = self.docker(&["ps", "--all", "--quiet", "--filter", &filters[0], "--filter", &filters[1]]);
        ids.lines().map(str::to_owned).collect()
    }

    /// One figure of a container, such as `{{.State.Pid}}`.
    fn inspect(&self, container: &str, format: &str) -> String {
        self.docker(&["inspect", "--format", format, container]).trim().to_owned()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the fleet said:\n{}", self.compose(&["logs", "--tail", "20"]));
        }
        self.compose(&["down", "--volumes", "--timeout", "2"]);
        self.process.interrupt().ok();
        self.process.exit_code(Duration::from_secs(30)).ok();
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || std::thread::panicking(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned() + if std::thread::panicking() { &said } else { "" }
}

fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(200));
    }
}

#[test]
fn compose_up_trains_with_more_agents_through_a_crash_and_a_changed_quota() {
    if let Some(obstacle) = obstacle() {
        println!("skipped: {obstacle}");
        return;
    }
    if !super::has_data() {
        return;
    }
    let engine = Engine::start();
    run(engine.command(&programs().unwrap().join("xtask")).args(["fleet", "images"]));
    let job = fs::read_to_string(workspace().join("devices/compose/jobs/lenet.toml")).unwrap();
    let job = job.replace("epochs = 4", &format!("epochs = {EPOCHS}"));
    assert!(job.contains(&format!("epochs = {EPOCHS}")));
    fs::write(engine.folder.path().join("job.toml"), job).unwrap();
    engine.compose(&["up", "--detach", "--scale", "agent=4"]);

    let groups = ["agent", "agent-4-cores", "agent-32-cores"].map(|service| engine.containers(service));
    assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [4, 1, 1]);
    let [hub] = &engine.containers("hub")[..] else { panic!("one hub") };
    for container in groups.iter().flatten().chain([hub]) {
        let format = "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}} {{.HostConfig.RestartPolicy.Name}}";
        assert_eq!(engine.inspect(container, format), "true 10001:10001 unless-stopped");
    }

    let address = engine.inspect(hub, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}");
    let token = fs::read_to_string(engine.folder.path().join("secrets/token")).unwrap();
    let client = HubClient::new(&format!("http://{address}:7700"), Some(&token));
    let epoch = || client.job(1).ok().and_then(|job| job.progress).map_or(0.0, |progress| progress.epoch);
    within("half an epoch", || epoch() > 0.5);
    assert_eq!(client.agents().unwrap().iter().filter(|agent| agent.connected).count(), AGENTS);
    engine.docker(&["exec", &groups[2][0], "/usr/bin/omnilearn-agent", "health", "/tmp/health"]);
    assert_eq!(engine.inspect(hub, "{{.State.Health.Status}}"), "healthy");

    // An agent crashes, and another one's quota is halved.
    let crashed = &groups[0][1];
    run(Command::new("kill").args(["-KILL", &engine.inspect(crashed, "{{.State.Pid}}")]));
    engine.docker(&["update", "--cpus", "0.6", &groups[2][0]]);
    within("the restart", || engine.inspect(crashed, "{{.RestartCount}} {{.State.Running}}") == "1 true");

    let [submit] = &engine.containers("submit")[..] else { panic!("one submit") };
    within("the job's end", || engine.inspect(submit, "{{.State.Status}}") == "exited");
    assert_eq!(engine.inspect(submit, "{{.State.ExitCode}}"), "0");
    assert_eq!(client.job(1).unwrap().state.as_str(), "done");
    let records = all_records(&client, 1).unwrap();
    for epoch in 0..EPOCHS {
        let coverage = super::crashes::coverage_of(&records, epoch);
        assert!(coverage.iter().all(|&count| count == 1), "each position of epoch {epoch} exactly once");
    }

    let agents = client.agents().unwrap();
    let steps_of = |container: &str| {
        let agent = agents.iter().find(|agent| container.starts_with(&agent.name)).unwrap().id;
        records.steps.iter().filter(move |step| step.agent == agent)
    };
    // Agents that share a cache do not get into each other's way, though all have the same process id.
    for container in groups.iter().flatten() {
        assert!(steps_of(container).next().is_some(), "every agent takes part");
    }
    let quotas = |container: &str| steps_of(container).filter_map(|step| step.timings?.quota_cores).collect::<Vec<_>>();
    let (plain, weak, strong) = (quotas(&groups[0][0]), quotas(&groups[1][0]), quotas(&groups[2][0]));
    for (found, expected) in [(plain[0], 0.225), (weak[0], 0.15), (strong[0], 1.2), (*strong.last().unwrap(), 0.6)] {
        assert!((found - expected).abs() < 1e-3, "an agent sees its quota, and its change: {found} and {expected}");
    }
    let samples = |container: &str| steps_of(container).map(|step| u64::from(step.samples)).sum::<u64>();
    assert!(samples(&groups[2][0]) > 2 * samples(&groups[1][0]), "work follows the quotas");
}
