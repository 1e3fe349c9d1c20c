//! A hub and agents as real processes on loopback, ended when dropped.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use omnilearn_devices::quota::CpuGroup;
use omnilearn_hub::client::HubClient;
use omnilearn_hub::view::{JobView, RecordPage};

use crate::{component_path, workspace};

/// Longest time that a job in a test may take before the test fails with what the processes said.
const JOB_WAIT: Duration = Duration::from_secs(240);

/// The folder with the workspace's programs, which are built once, so that a test never runs yesterday's.
///
/// # Errors
/// If they do not build.
pub fn programs() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let folder = this.ancestors().nth(2).ok_or("the test program lies in no build folder")?.to_owned();
        let mut build = Command::new(env!("CARGO"));
        // A test runner sets these, and packages whose build looks at them would be built anew.
        for (name, _) in std::env::vars_os() {
            if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                build.env_remove(name);
            }
        }
        let build = build
            .args(["build", "--quiet", "--workspace", "--bins"])
            .args(if cfg!(feature = "gpu") { &["--features", "omnilearn-tests/gpu"][..] } else { &[] })
            .current_dir(workspace())
            .stdout(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run cargo: {error}"))?;
        match build.status.success() {
            true => Ok(folder),
            false => Err(format!("cannot build the programs: {}", String::from_utf8_lossy(&build.stderr))),
        }
    });
    folder.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// A process whose output is kept, killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Mutex<String>>,
}

impl Process {
    /// Starts a process.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Process> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let output = Arc::new(Mutex::new(String::new()));
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let streams: [Box<dyn Read + Send>; 2] = [Box::new(stdout), Box::new(stderr)];
        for stream in streams {
            let output = Arc::clone(&output);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                    output.push_str(&line);
                    output.push('\n');
                }
            });
        }
        Ok(Process { name: name.to_owned(), child, output })
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL, as a crash would.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().ok();
        self.child.wait().with_context(|| format!("waiting for {}", self.name))?;
        Ok(())
    }

    /// Sends SIGINT, as Ctrl-C does.
    ///
    /// # Errors
    /// If `kill` cannot be run.
    pub fn interrupt(&self) -> Result<()> {
        self.signal("-INT")
    }

    /// Sends SIGSTOP: the process stays, with its connections open, and does nothing.
    ///
    /// # Errors
    /// If `kill` cannot be run.
    pub fn freeze(&self) -> Result<()> {
        self.signal("-STOP")
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
        ensure!(sent.success(), "cannot signal {}", self.name);
        Ok(())
    }

    /// Waits for its end and returns its exit code.
    ///
    /// # Errors
    /// If it has not ended in time.
    pub fn exit_code(&mut self, wait: Duration) -> Result<Option<i32>> {
        let start = Instant::now();
        while start.elapsed() < wait {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("{} has not ended after {wait:?}; it said:\n{}", self.name, self.output())
    }

    /// CPU time so far of its threads whose names begin with this, in clock ticks of 10 ms.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn thread_ticks(&self, name: &str) -> Result<u64> {
        let mut ticks = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let stat = std::fs::read_to_string(task?.path().join("stat"))?;
            let (head, tail) = stat.rsplit_once(") ").context("no thread name")?;
            if head.split_once(" (").is_some_and(|(_, thread)| thread.starts_with(name)) {
                let mut times = tail.split(' ').skip(11); // utime and stime are fields 14 and 15
                ticks += times.by_ref().take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
            }
        }
        Ok(ticks)
    }

    /// Largest resident memory so far, in bytes.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn peak_memory_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("--- {} said:\n{}", self.name, self.output());
        }
    }
}

/// Tensors by name: shape and values.
pub type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A hub and its agents.
pub struct Cluster {
    /// The hub's process.
    pub hub: Process,
    /// The agents' processes, by name.
    pub agents: BTreeMap<String, Process>,
    /// The hub's interface.
    pub client: HubClient,
    address: String,
    /// The hub's public key. Agents are told it, so that no port that is used again has a key of old in the user's cache.
    key: String,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts a hub and no agents.
    ///
    /// # Errors
    /// If it does not answer within seconds.
    pub fn start() -> Result<Cluster> {
        Self::start_with(&[])
    }

    /// Starts a hub with more arguments, and no agents.
    ///
    /// # Errors
    /// If it does not answer within seconds.
    pub fn start_with(arguments: &[&str]) -> Result<Cluster> {
        let folder = tempfile::tempdir()?;
        // A port that was free a moment ago; the hub says if somebody else was quicker.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(programs()?.join("omnilearn-hub"));
        command.args(["serve", "--listen", &address, "--state"]).arg(folder.path().join("state")).args(arguments);
        let hub = Process::spawn("hub", &mut command)?;
        let client = HubClient::new(&format!("http://{address}"), None);
        let key = first_key(&hub, &client)?;
        Ok(Cluster { hub, agents: BTreeMap::new(), client, address, key, folder })
    }

    /// Kills the hub and starts it again with these arguments on the same address and state.
    ///
    /// # Errors
    /// If it does not answer within seconds.
    pub fn restart_hub(&mut self, arguments: &[&str]) -> Result<()> {
        self.hub.kill()?;
        let mut command = Command::new(programs()?.join("omnilearn-hub"));
        command.args(["serve", "--listen", &self.address, "--state"]).arg(self.folder.path().join("state"));
        self.hub = Process::spawn("hub", command.args(arguments))?;
        first_key(&self.hub, &self.client).map(drop)
    }

    /// The hub's public key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where the hub listens, as `address:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A folder that lives as long as the cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `omnilearn-hub dataset` on the hub's state folder, and returns what it said.
    ///
    /// # Errors
    /// What it said, if it failed.
    pub fn dataset(&self, arguments: &[&str]) -> Result<String> {
        self.hub_command(&[&["dataset"], arguments].concat())
    }

    /// Runs `omnilearn-hub` with these arguments for this hub and its state folder, and returns what it said.
    ///
    /// # Errors
    /// What it said, if it failed.
    pub fn hub_command(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(programs()?.join("omnilearn-hub"));
        command.args(arguments).env("OMNILEARN_STATE", self.folder.path().join("state"));
        command.env("OMNILEARN_HUB", format!("http://{}", self.address));
        let output = command.stdin(Stdio::null()).output()?;
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        ensure!(output.status.success(), "omnilearn-hub {}: {said}", arguments.join(" "));
        Ok(said)
    }

    /// Starts an agent of this name with one compute thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn add_agent(&mut self, name: &str) -> Result<()> {
        let mut command = Command::new(programs()?.join("omnilearn-agent"));
        command.args(["run", "--threads", "1", "--device", "cpu", "--trust", &self.key]);
        self.start_agent(name, command)
    }

    /// Starts an agent of this name with one compute thread and arguments of its own. It trusts on first use if they do not
    /// say whom.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn add_agent_with(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(programs()?.join("omnilearn-agent"));
        command.args(["run", "--threads", "1"]).args(arguments);
        self.start_agent(name, command)
    }

    /// Starts an agent of this name under a CPU quota, which says how many threads compute.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn add_agent_in(&mut self, group: &CpuGroup, name: &str) -> Result<()> {
        let mut command = group.command(&programs()?.join("omnilearn-agent"), &[]);
        command.args(["run", "--trust", &self.key]);
        self.start_agent(name, command)
    }

    /// Starts an agent of this name with one compute thread that reaches its hub, and maybe a broker, as these arguments say.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn add_agent_at(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(programs()?.join("omnilearn-agent"));
        command.args(["run", "--threads", "1", "--device", "cpu", "--trust", &self.key, "--name", name]);
        self.agents.insert(name.to_owned(), Process::spawn(name, command.args(arguments))?);
        Ok(())
    }

    /// Waits until an agent is connected, so that the next one gets the next number.
    ///
    /// # Errors
    /// If it is not in time.
    pub fn wait_connected(&self, name: &str) -> Result<()> {
        let start = Instant::now();
        while !self.client.agents()?.iter().any(|agent| agent.name == name && agent.connected) {
            let said = self.agents.get(name).map(Process::output).unwrap_or_default();
            ensure!(start.elapsed() < Duration::from_secs(60), "{name} does not connect; it said:\n{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn start_agent(&mut self, name: &str, mut command: Command) -> Result<()> {
        command.args(["--hub", &format!("ws://{}", self.address), "--name", name]);
        self.agents.insert(name.to_owned(), Process::spawn(name, &mut command)?);
        Ok(())
    }

    /// Submits a job: `toml` is all of the job file but the kernel's path, which is that of `kernel`.
    ///
    /// # Errors
    /// Whatever the hub has against it.
    pub fn submit(&self, kernel: &str, toml: &str) -> Result<u64> {
        let path = component_path(kernel);
        ensure!(path.exists(), "{} is missing: run `cargo xtask kernels`", path.display());
        let file = self.folder.path().join("job.toml");
        std::fs::write(&file, toml.replace("KERNEL", &path.display().to_string()))?;
        Ok(self.client.submit_file(&file)?.id)
    }

    /// Waits until the job satisfies a condition.
    ///
    /// # Errors
    /// If it does not in time, with its last state.
    pub fn wait_until(&self, job: u64, what: &str, condition: impl Fn(&JobView) -> bool) -> Result<JobView> {
        let start = Instant::now();
        loop {
            let view = self.client.job(job)?;
            if condition(&view) {
                return Ok(view);
            }
            ensure!(start.elapsed() < JOB_WAIT, "{what}: not within {JOB_WAIT:?}; the job: {view:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the end of a job and checks that it was done.
    ///
    /// # Errors
    /// If it ended otherwise or not in time.
    pub fn wait_done(&self, job: u64) -> Result<JobView> {
        let view = self.wait_until(job, "the job's end", |view| view.state.is_final())?;
        ensure!(view.state.as_str() == "done", "the job ended as {}: {}", view.state.as_str(), view.message);
        Ok(view)
    }

    /// All records of a job.
    ///
    /// # Errors
    /// If the hub does not answer.
    pub fn records(&self, job: u64) -> Result<RecordPage> {
        all_records(&self.client, job)
    }

    /// The job's weights.
    ///
    /// # Errors
    /// If there are none or they are not safetensors.
    pub fn weights(&self, job: u64) -> Result<Weights> {
        let mut bytes = Vec::new();
        self.client.weights(job)?.read_to_end(&mut bytes)?;
        let file = safetensors::SafeTensors::deserialize(&bytes)?;
        let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            let values = view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            (name, (view.shape().to_vec(), values))
        };
        Ok(file.tensors().into_iter().map(tensor).collect())
    }
}

/// The hub's public key, once it answers.
fn first_key(hub: &Process, client: &HubClient) -> Result<String> {
    let start = Instant::now();
    loop {
        if let Ok(health) = client.health() {
            return Ok(health.key);
        }
        ensure!(start.elapsed() < Duration::from_secs(20), "the hub does not answer; it said:\n{}", hub.output());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All records of a job.
///
/// # Errors
/// If the hub does not answer.
pub fn all_records(client: &HubClient, job: u64) -> Result<RecordPage> {
    let mut all = RecordPage::default();
    loop {
        let page = client.records(job, all.next)?;
        let more = page.more;
        all.next = page.next;
        all.steps.extend(page.steps);
        all.rounds.extend(page.rounds);
        all.evaluations.extend(page.evaluations);
        all.batches.extend(page.batches);
        if !more {
            return Ok(all);
        }
    }
}
