//! Limits that cgroups put on this process, of version 1 and 2, from its own cgroup up to the mount point: the tightest
//! holds.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The cgroups of this process, innermost first.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    cpu: Vec<CpuFiles>,
    memory: Vec<PathBuf>,
}

/// Where one cgroup says how much CPU it may use.
#[derive(Debug)]
enum CpuFiles {
    /// Quota and period in two files of microseconds.
    V1(PathBuf),
    /// `cpu.max`.
    V2(PathBuf),
}

impl CpuFiles {
    fn quota_cores(&self) -> Option<f64> {
        let (quota, period) = match self {
            CpuFiles::V1(folder) => {
                (number(&folder.join("cpu.cfs_quota_us"))?, number(&folder.join("cpu.cfs_period_us"))?)
            }
            CpuFiles::V2(folder) => {
                let text = std::fs::read_to_string(folder.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse().ok()?, period.parse().ok()?) // "max" is no number: no limit
            }
        };
        (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
    }

    fn throttled(&self) -> Option<Duration> {
        let (CpuFiles::V1(folder) | CpuFiles::V2(folder)) = self;
        let text = std::fs::read_to_string(folder.join("cpu.stat")).ok()?;
        let value = |name| super::field(&text, name)?.parse::<u64>().ok();
        match self {
            CpuFiles::V1(_) => value("throttled_time ").map(Duration::from_nanos),
            CpuFiles::V2(_) => value("throttled_usec ").map(Duration::from_micros),
        }
    }
}

impl Cgroups {
    /// Finds the cgroups from the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`; mount points are taken below `root`.
    pub(super) fn find(own: &str, mounts: &str, root: &Path) -> Cgroups {
        let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
        let v1 = |controller| {
            let path = own_path(own, |controllers| controllers.split(',').any(|name| name == controller))?;
            let mount =
                mounts.iter().find(|mount| !mount.v2 && mount.options.split(',').any(|name| name == controller))?;
            Some(mount.folders(path, root))
        };
        let v2 = || {
            let path = own_path(own, str::is_empty)?;
            Some(mounts.iter().find(|mount| mount.v2)?.folders(path, root))
        };
        let v2: Vec<PathBuf> = v2().unwrap_or_default();
        let v2_cpu = v2.iter().filter(|folder| folder.join("cpu.max").exists()).cloned().map(CpuFiles::V2);
        let v2_memory = v2.iter().map(|folder| folder.join("memory.max"));
        let v1_cpu = v1("cpu").unwrap_or_default().into_iter().map(CpuFiles::V1);
        let v1_memory = v1("memory").unwrap_or_default().into_iter().map(|folder| folder.join("memory.limit_in_bytes"));
        Cgroups {
            cpu: v1_cpu.chain(v2_cpu).collect(),
            memory: v1_memory.chain(v2_memory).filter(|file| file.exists()).collect(),
        }
    }

    /// The tightest quota, in cores.
    pub(super) fn quota_cores(&self) -> Option<f64> {
        self.cpu.iter().filter_map(CpuFiles::quota_cores).min_by(f64::total_cmp)
    }

    /// How long the cgroup that was throttled longest has been.
    pub(super) fn throttled(&self) -> Duration {
        self.cpu.iter().filter_map(CpuFiles::throttled).max().unwrap_or_default()
    }

    /// The tightest memory limit, in bytes.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.memory.iter().filter_map(|file| number(file)).filter_map(|bytes| u64::try_from(bytes).ok()).min()
    }
}

/// The path after the second colon of the line whose controllers satisfy `is_wanted`.
fn own_path(own: &str, is_wanted: impl Fn(&str) -> bool) -> Option<&str> {
    own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        is_wanted(controllers).then_some(path)
    })
}

fn number(file: &Path) -> Option<i64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A mounted cgroup hierarchy.
struct Mount<'a> {
    v2: bool,
    /// The part of the hierarchy that is mounted; not `/` in a container without a cgroup namespace.
    mounted: &'a str,
    point: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of mountinfo: `31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu`.
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (mounted, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let v2 = match kind {
            "cgroup" => false,
            "cgroup2" => true,
            _ => return None,
        };
        Some(Mount { v2, mounted, point, options })
    }

    /// Folders of a cgroup and of those above it that can be seen, innermost first.
    fn folders(&self, path: &str, root: &Path) -> Vec<PathBuf> {
        let relative = path.strip_prefix(self.mounted).unwrap_or(path).trim_start_matches('/');
        let point = root.join(self.point.trim_start_matches('/'));
        // A path that leaves the mount (`/../..`) names a cgroup that cannot be seen from here.
        let inside = Path::new(relative).components().all(|part| matches!(part, Component::Normal(_)));
        let own = if inside { point.join(relative) } else { point.clone() };
        let seen = own.ancestors().take_while(|folder| folder.starts_with(&point)).map(Path::to_owned);
        seen.filter(|folder| folder.is_dir()).collect()
    }
}
