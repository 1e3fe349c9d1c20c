//! CPU quotas for the agents of a fleet on one machine: control groups (version 1 or 2) where we may make them, a systemd
//! scope for a user without that right, and otherwise pinning to cores, which we say is only an approximation.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// The kernel's usual period. Shorter ones lose accuracy: the quota is then a few scheduler ticks.
const PERIOD_US: u64 = 100_000;

/// The smallest quota that the kernel accepts.
const QUOTA_US_MIN: u64 = 1_000;

/// What the names of our groups begin with; the id of the process that made them follows.
const GROUP_PREFIX: &str = "omnilearn-fleet-";

/// How long the last process of a group may take to disappear from it.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(3);

/// Where control groups are mounted, and which this process is in. Tests point it at an ordinary folder.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    /// The mount point, `/sys/fs/cgroup`.
    pub root: PathBuf,
    /// The text of `/proc/self/cgroup`.
    pub membership: String,
}

impl CgroupTree {
    /// This machine's.
    pub fn of_this_machine() -> Self {
        Self {
            root: PathBuf::from("/sys/fs/cgroup"),
            membership: fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
        }
    }

    /// This process's place in the hierarchy whose controllers `wanted` accepts, relative to its mount point.
    fn own_path(&self, wanted: impl Fn(&str) -> bool) -> Option<&str> {
        self.membership.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wanted(controllers).then_some(path.trim_start_matches('/'))
        })
    }

    /// Folders in which a group of version 1 could be made, the nearest to us first: a group within our own cannot get
    /// more than we have.
    fn parents_v1(&self) -> Vec<PathBuf> {
        let Some(mount) =
            ["cpu", "cpu,cpuacct", "cpuacct,cpu"].map(|name| self.root.join(name)).into_iter().find(|p| p.is_dir())
        else {
            return Vec::new();
        };
        let own = self.own_path(|controllers| controllers.split(',').any(|name| name == "cpu"));
        let mut parents: Vec<PathBuf> = own.map(|path| mount.join(path)).into_iter().filter(|p| p.is_dir()).collect();
        parents.push(mount);
        parents
    }

    /// Folders in which a group of version 2 could be made. Our own group holds us, and a group that holds processes can
    /// hand out no controllers, so its parent is tried, then the root.
    fn parents_v2(&self) -> Vec<PathBuf> {
        let own = self.own_path(str::is_empty).map(|path| self.root.join(path));
        let mut parents: Vec<PathBuf> = own
            .as_deref()
            .and_then(Path::parent)
            .filter(|parent| parent.starts_with(&self.root))
            .map(Path::to_owned)
            .into_iter()
            .collect();
        parents.push(self.root.clone());
        parents.retain(|parent| offers_cpu(parent, "cgroup.controllers"));
        parents
    }
}

/// A way to limit the CPU time of a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Limiter {
    /// Control groups, version 1, made in this folder.
    CgroupV1(PathBuf),
    /// Control groups, version 2, made in this folder.
    CgroupV2(PathBuf),
    /// Scopes of the user's systemd.
    SystemdScope,
    /// Pinning to cores.
    Taskset,
    /// Nothing.
    Unlimited,
}

impl Limiter {
    /// The best that works here, found by trying it.
    pub fn detect(tree: &CgroupTree) -> Self {
        Self::detect_cgroup(tree).unwrap_or_else(|| {
            let systemd = ["--user", "--scope", "--quiet", "--property=CPUQuota=50%", "--", "true"];
            if succeeds("systemd-run", &systemd) {
                Self::SystemdScope
            } else if succeeds("taskset", &["--cpu-list", "0", "true"]) {
                Self::Taskset
            } else {
                Self::Unlimited
            }
        })
    }

    fn detect_cgroup(tree: &CgroupTree) -> Option<Self> {
        let version_1 = tree.parents_v1().into_iter().map(Self::CgroupV1);
        let version_2 = tree.parents_v2().into_iter().map(Self::CgroupV2);
        version_1.chain(version_2).find(|limiter| {
            limiter.sweep();
            // Making a group is not enough: a user may be allowed that and still not be allowed to enter it.
            limiter.group("probe", 0.5).is_ok_and(|group| {
                group
                    .command(Path::new("true"), &[0])
                    .stdin(Stdio::null())
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|s| s.success())
            })
        })
    }

    /// What the user has to know about it, if anything.
    pub fn notice(&self) -> Option<&'static str> {
        match self {
            Self::CgroupV1(_) | Self::CgroupV2(_) | Self::SystemdScope => None,
            Self::Taskset => Some(
                "no CPU quotas here (no writable cgroup, no systemd user session): agents are pinned to cores by taskset, \
                 so the ratios hold only roughly; run as root for true quotas",
            ),
            Self::Unlimited => Some(
                "no CPU quotas here (no writable cgroup, no systemd user session, no taskset): all agents are equally \
                 fast; run as root for true quotas",
            ),
        }
    }

    /// In words.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::CgroupV1(_) => "cgroup v1 CPU quotas",
            Self::CgroupV2(_) => "cgroup v2 CPU quotas",
            Self::SystemdScope => "systemd scopes with CPU quotas",
            Self::Taskset => "pinning by taskset",
            Self::Unlimited => "no CPU limits",
        }
    }

    /// Makes a group with a quota.
    ///
    /// # Errors
    /// When the operating system refuses it.
    pub fn group(&self, name: &str, quota_cores: f64) -> anyhow::Result<CpuGroup> {
        let name = format!("{GROUP_PREFIX}{}-{name}", std::process::id());
        let place = match self {
            Self::CgroupV1(parent) => {
                let folder = parent.join(name);
                create(&folder)?;
                Place::CgroupV1(folder)
            }
            Self::CgroupV2(parent) => {
                if !offers_cpu(parent, "cgroup.subtree_control") {
                    write(&parent.join("cgroup.subtree_control"), "+cpu")?;
                }
                let folder = parent.join(name);
                create(&folder)?;
                Place::CgroupV2(folder)
            }
            Self::SystemdScope => Place::SystemdScope(format!("{name}.scope")),
            Self::Taskset => Place::Taskset,
            Self::Unlimited => Place::Unlimited,
        };
        let mut group = CpuGroup { place, quota_cores };
        if let Place::CgroupV1(folder) = &group.place {
            write(&folder.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
        }
        if matches!(group.place, Place::CgroupV1(_) | Place::CgroupV2(_)) {
            group.set_quota(quota_cores)?;
        }
        Ok(group)
    }

    /// Removes empty groups of earlier runs that were killed. A group with a process in it cannot be removed, so this
    /// harms nobody.
    fn sweep(&self) {
        let (Self::CgroupV1(parent) | Self::CgroupV2(parent)) = self else { return };
        let Ok(entries) = fs::read_dir(parent) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let maker =
                name.to_str().and_then(|name| name.strip_prefix(GROUP_PREFIX)?.split('-').next()?.parse::<u32>().ok());
            if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // Refused where a process is still in it, and then it must stay.
                let _kept = fs::remove_dir(entry.path());
            }
        }
    }
}

#[derive(Debug)]
enum Place {
    CgroupV1(PathBuf),
    CgroupV2(PathBuf),
    SystemdScope(String),
    Taskset,
    Unlimited,
}

/// A group of processes with one CPU quota. Dropping it removes it; end its processes first.
#[derive(Debug)]
pub struct CpuGroup {
    place: Place,
    quota_cores: f64,
}

impl CpuGroup {
    /// A command that runs `program` inside the group from its first instruction on. `cores` are those that taskset may
    /// use, where that is all there is.
    pub fn command(&self, program: &Path, cores: &[usize]) -> Command {
        match &self.place {
            Place::CgroupV1(folder) | Place::CgroupV2(folder) => {
                let mut command = Command::new("sh");
                // The shell enters the group and becomes the program, which so has the process id that we know.
                command.args(["-c", r#"echo $$ > "$1" || exit 125; shift; exec "$@""#, "sh"]);
                command.arg(folder.join("cgroup.procs")).arg(program);
                command
            }
            Place::SystemdScope(unit) => {
                let mut command = Command::new("systemd-run");
                command.args(["--user", "--scope", "--quiet", "--collect"]);
                command.arg(format!("--unit={unit}")).arg(format!("--property=CPUQuota={}", percent(self.quota_cores)));
                command.arg("--").arg(program);
                command
            }
            Place::Taskset => {
                let list: Vec<String> = cores.iter().map(usize::to_string).collect();
                let mut command = Command::new("taskset");
                command.arg("--cpu-list").arg(list.join(",")).arg(program);
                command
            }
            Place::Unlimited => Command::new(program),
        }
    }

    /// Changes the quota, also while processes run in the group.
    ///
    /// # Errors
    /// When the operating system refuses it, or there is nothing to set here.
    pub fn set_quota(&mut self, quota_cores: f64) -> anyhow::Result<()> {
        if !(quota_cores.is_finite() && quota_cores > 0.0) {
            bail!("a CPU quota of {quota_cores} cores is impossible");
        }
        let quota_us = ((quota_cores * PERIOD_US as f64).round() as u64).max(QUOTA_US_MIN);
        match &self.place {
            Place::CgroupV1(folder) => write(&folder.join("cpu.cfs_quota_us"), &quota_us.to_string())?,
            Place::CgroupV2(folder) => write(&folder.join("cpu.max"), &format!("{quota_us} {PERIOD_US}"))?,
            Place::SystemdScope(unit) => {
                let property = format!("CPUQuota={}", percent(quota_cores));
                if !succeeds("systemctl", &["--user", "set-property", "--runtime", unit, &property]) {
                    bail!("systemctl cannot set {property} of {unit}");
                }
            }
            Place::Taskset | Place::Unlimited => bail!("there is no CPU quota to change here"),
        }
        self.quota_cores = quota_cores;
        Ok(())
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        let (Place::CgroupV1(folder) | Place::CgroupV2(folder)) = &self.place else { return };
        let deadline = Instant::now() + REMOVAL_PATIENCE;
        // A process that has just ended may be in its group for a moment longer.
        while fs::remove_dir(folder).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Cores for each agent where pinning is all there is: as many as its quota needs, taken in turn.
pub fn pinned_cores(quotas: &[f64], cores: usize) -> Vec<Vec<usize>> {
    let mut next = 0;
    quotas
        .iter()
        .map(|quota| {
            let count = (quota.ceil() as usize).clamp(1, cores);
            let mine = (0..count).map(|offset| (next + offset) % cores).collect();
            next += count;
            mine
        })
        .collect()
}

/// Makes a group's folder. One that is there already was left by a process that had our id.
fn create(folder: &Path) -> anyhow::Result<()> {
    let created = match fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_dir(folder).and_then(|()| fs::create_dir(folder))
        }
        other => other,
    };
    created.with_context(|| format!("creating control group {}", folder.display()))
}

fn percent(quota_cores: f64) -> String {
    format!("{:.2}%", quota_cores * 100.0)
}

fn offers_cpu(group: &Path, file: &str) -> bool {
    fs::read_to_string(group.join(file))
        .is_ok_and(|text| text.split_whitespace().any(|name| name.trim_start_matches('+') == "cpu"))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("writing `{text}` to {}", file.display()))
}

fn succeeds(program: &str, arguments: &[impl AsRef<OsStr>]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(membership: &str) -> (tempfile::TempDir, CgroupTree) {
        let folder = tempfile::tempdir().unwrap();
        let tree = CgroupTree { root: folder.path().to_owned(), membership: membership.to_owned() };
        (folder, tree)
    }

    /// A group in an ordinary folder keeps its files, so what was written into them can be read.
    fn read(group: &CpuGroup, file: &str) -> String {
        let (Place::CgroupV1(folder) | Place::CgroupV2(folder)) = &group.place else { panic!("not a cgroup") };
        fs::read_to_string(folder.join(file)).unwrap()
    }

    #[test]
    fn version_1_is_found_in_our_own_group_and_gets_quota_and_period() {
        let (_folder, tree) = tree("3:cpu,cpuacct:/session/7\n0::/\n");
        fs::create_dir_all(tree.root.join("cpu,cpuacct/session/7")).unwrap();
        let limiter = Limiter::detect_cgroup(&tree).unwrap();
        assert_eq!(limiter, Limiter::CgroupV1(tree.root.join("cpu,cpuacct/session/7")));
        let mut group = limiter.group("agent-1", 0.225).unwrap();
        assert_eq!(read(&group, "cpu.cfs_period_us"), "100000");
        assert_eq!(read(&group, "cpu.cfs_quota_us"), "22500");
        group.set_quota(1.2).unwrap();
        assert_eq!(read(&group, "cpu.cfs_quota_us"), "120000");
    }

    #[test]
    fn a_group_that_is_not_visible_here_falls_back_to_the_mount_point() {
        let (_folder, tree) = tree("1:cpu:/docker/0123456789abcdef\n");
        fs::create_dir_all(tree.root.join("cpu")).unwrap();
        assert_eq!(Limiter::detect_cgroup(&tree), Some(Limiter::CgroupV1(tree.root.join("cpu"))));
    }

    #[test]
    fn version_2_enables_the_controller_and_writes_quota_and_period() {
        let (_folder, tree) = tree("0::/user.slice/demo.scope\n");
        let slice = tree.root.join("user.slice");
        fs::create_dir_all(slice.join("demo.scope")).unwrap();
        fs::write(slice.join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
        fs::write(slice.join("cgroup.subtree_control"), "memory\n").unwrap();
        let limiter = Limiter::detect_cgroup(&tree).unwrap();
        assert_eq!(limiter, Limiter::CgroupV2(slice.clone()));
        assert_eq!(fs::read_to_string(slice.join("cgroup.subtree_control")).unwrap(), "+cpu");
        assert_eq!(read(&limiter.group("agent-1", 0.45).unwrap(), "cpu.max"), "45000 100000");
    }

    #[test]
    fn version_2_without_a_cpu_controller_is_not_used() {
        let (_folder, tree) = tree("0::/\n");
        fs::write(tree.root.join("cgroup.controllers"), "cpuset memory\n").unwrap();
        assert_eq!(Limiter::detect_cgroup(&tree), None);
    }

    #[test]
    fn a_process_is_inside_its_group_when_its_program_begins() {
        let (_folder, tree) = tree("");
        fs::create_dir_all(tree.root.join("cpu")).unwrap();
        let group = Limiter::CgroupV1(tree.root.join("cpu")).group("agent-1", 0.1).unwrap();
        let output =
            group.command(Path::new("sh"), &[]).args(["-c", "echo $$ \"$1\"", "sh", "two words"]).output().unwrap();
        let id = read(&group, "cgroup.procs");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{} two words\n", id.trim()));
    }

    #[test]
    fn groups_of_a_process_that_is_gone_are_swept_and_ours_stay() {
        let (_folder, tree) = tree("");
        let parent = tree.root.join("cpu");
        let dead = parent.join(format!("{GROUP_PREFIX}{}-agent-1", u32::MAX)); // above the largest process id
        let ours = parent.join(format!("{GROUP_PREFIX}{}-agent-1", std::process::id()));
        let foreign = parent.join("somebody-else");
        for folder in [&dead, &ours, &foreign] {
            fs::create_dir_all(folder).unwrap();
        }
        Limiter::CgroupV1(parent).sweep();
        assert_eq!([dead.exists(), ours.exists(), foreign.exists()], [false, true, true]);
    }

    #[test]
    fn impossible_quotas_are_refused_and_tiny_ones_are_raised_to_the_kernels_least() {
        let (_folder, tree) = tree("");
        fs::create_dir_all(tree.root.join("cpu")).unwrap();
        let limiter = Limiter::CgroupV1(tree.root.join("cpu"));
        for (name, quota) in [("a", 0.0), ("b", -1.0), ("c", f64::NAN), ("d", f64::INFINITY)] {
            assert!(limiter.group(name, quota).is_err(), "{quota}");
        }
        assert_eq!(read(&limiter.group("e", 0.000_1).unwrap(), "cpu.cfs_quota_us"), "1000");
    }

    #[test]
    fn a_real_group_goes_when_its_process_has_gone() {
        let limiter = Limiter::detect(&CgroupTree::of_this_machine());
        let (Limiter::CgroupV1(parent) | Limiter::CgroupV2(parent)) = &limiter else {
            eprintln!("skipped: no control groups can be made here");
            return;
        };
        let mut group = limiter.group("test", 0.25).unwrap();
        group.set_quota(0.5).unwrap();
        assert!(group.command(Path::new("true"), &[]).status().unwrap().success());
        let folder = parent.join(format!("{GROUP_PREFIX}{}-test", std::process::id()));
        assert!(folder.is_dir());
        drop(group);
        assert!(!folder.exists());
    }

    #[test]
    fn what_is_only_an_approximation_says_so() {
        assert!(Limiter::Taskset.notice().unwrap().contains("roughly"));
        assert!(Limiter::Unlimited.notice().unwrap().contains("equally fast"));
        assert_eq!(Limiter::SystemdScope.notice(), None);
        let (_folder, tree) = tree("");
        assert_eq!(Limiter::detect_cgroup(&tree), None);
    }

    #[test]
    fn pinning_takes_as_many_cores_as_the_quota_needs() {
        assert_eq!(pinned_cores(&[0.2, 0.2, 0.1, 1.2], 2), [vec![0], vec![1], vec![0], vec![1, 0]]);
        assert_eq!(pinned_cores(&[9.0], 4), [vec![0, 1, 2, 3]]);
    }

    #[test]
    fn a_systemd_scope_gets_its_quota_in_percent() {
        let group = Limiter::SystemdScope.group("agent-1", 0.225).unwrap();
        let command = group.command(Path::new("omnilearn-agent"), &[]);
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        assert!(arguments.contains(&"--property=CPUQuota=22.50%".to_owned()), "{arguments:?}");
        assert_eq!(arguments.last().unwrap(), "omnilearn-agent");
    }
}
