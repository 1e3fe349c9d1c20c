//! The machine as this process may use it: cores, CPU quota, memory, and what has been used so far.

mod cgroup;
mod process_time;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use self::cgroup::Cgroups;
pub use self::process_time::process_cpu_time;

/// How long a quota that was read is believed. It is two orders of magnitude below what a user notices, and a read of three
/// small files costs microseconds.
pub(crate) const QUOTA_AGE_MAX: Duration = Duration::from_millis(50);

/// Reads what limits this process.
#[derive(Debug)]
pub struct Probe {
    root: PathBuf,
    found: RwLock<Found>,
    quota: Mutex<Option<(Instant, Option<f64>)>>,
}

/// What was found when the probe looked last.
#[derive(Debug)]
struct Found {
    cgroups: Cgroups,
    cores: usize,
    machine_memory_bytes: u64,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe::new(Path::new("/"))
    }
}

impl Probe {
    /// Reads `/proc` and the cgroup file systems below `root`, which is `/` but for tests.
    pub fn new(root: &Path) -> Probe {
        Probe { root: root.to_owned(), found: RwLock::new(Found::below(root)), quota: Mutex::default() }
    }

    /// Looks again for cores, memory and the cgroups of this process, which may have been moved.
    pub fn look_again(&self) {
        let found = Found::below(&self.root);
        *self.found.write().unwrap_or_else(PoisonError::into_inner) = found;
        *self.quota.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn found(&self) -> RwLockReadGuard<'_, Found> {
        self.found.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cores that the process may run on.
    pub fn cores(&self) -> usize {
        self.found().cores
    }

    /// CPU quota in cores, if there is one. The tightest of the cgroup and those above it, at most some milliseconds old.
    pub fn quota_cores(&self) -> Option<f64> {
        let mut known = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some((read, quota_cores)) if read.elapsed() < QUOTA_AGE_MAX => quota_cores,
            _ => {
                let quota_cores = self.found().cgroups.quota_cores();
                *known = Some((Instant::now(), quota_cores));
                quota_cores
            }
        }
    }

    /// Compute threads that pay here: one for each core or begun core of quota. `--cpus 0.25` gives 1, `--cpus 2` on 16
    /// cores gives 2.
    pub fn threads(&self) -> NonZeroUsize {
        let quota = self.quota_cores().map_or(usize::MAX, |quota_cores| quota_cores.ceil() as usize);
        NonZeroUsize::new(self.cores().min(quota)).unwrap_or(NonZeroUsize::MIN)
    }

    /// The quota, where it is less than `threads` threads can use.
    pub fn limiting_quota_cores(&self, threads: NonZeroUsize) -> Option<f64> {
        self.quota_cores().filter(|&quota_cores| quota_cores < threads.get() as f64)
    }

    /// Time for which the cgroup has been throttled so far.
    pub fn throttled(&self) -> Duration {
        self.found().cgroups.throttled()
    }

    /// Memory that the process may use, in bytes: the tightest cgroup limit, or the machine's.
    pub fn memory_bytes(&self) -> u64 {
        let found = self.found();
        found.cgroups.memory_bytes().unwrap_or(u64::MAX).min(found.machine_memory_bytes)
    }
}

impl Found {
    fn below(root: &Path) -> Found {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let allowed = field(&read("proc/self/status"), "Cpus_allowed_list:").map_or(0, |list| count_list(&list));
        let cores = if allowed > 0 { allowed } else { std::thread::available_parallelism().map_or(1, usize::from) };
        let machine_memory_bytes = field(&read("proc/meminfo"), "MemTotal:")
            .and_then(|value| value.trim_end_matches("kB").trim().parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024);
        let cgroups = Cgroups::find(&read("proc/self/cgroup"), &read("proc/self/mountinfo"), root);
        Found { cgroups, cores, machine_memory_bytes }
    }
}

/// The rest of the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

/// Number of members of a kernel list such as `0-3,7`; 0 if it is not one.
fn count_list(list: &str) -> usize {
    let members = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1),
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').map(str::trim).map(members).sum::<Option<usize>>().unwrap_or(0)
}

#[cfg(test)]
mod tests;
