//! What this process and the others use of the machine, as Linux counts it.

use std::fs;
use std::time::{Duration, Instant};

use omnilearn_agent::machine::process_cpu_time;

/// Length of the ticks in `/proc/stat`: `USER_HZ` is 100 on every architecture that we run on.
const TICK: Duration = Duration::from_millis(10);

/// CPU time that other processes use from a moment on.
#[derive(Clone, Copy, Debug)]
pub struct ForeignLoad {
    start: Instant,
    machine: Option<Duration>,
    own: Duration,
}

impl ForeignLoad {
    /// From now on.
    pub fn start() -> ForeignLoad {
        ForeignLoad { start: Instant::now(), machine: machine_busy(), own: process_cpu_time() }
    }

    /// Mean number of cores in use by others until now. `None` where the system does not tell.
    pub fn cores(&self) -> Option<f64> {
        let busy = machine_busy()?.checked_sub(self.machine?)?;
        let own = process_cpu_time().checked_sub(self.own)?;
        // Ticks are coarser than our own clock, so the difference can fall below zero.
        Some(busy.saturating_sub(own).as_secs_f64() / self.start.elapsed().as_secs_f64())
    }
}

/// Time that all cores together were busy since the machine started, with what a host took from them.
fn machine_busy() -> Option<Duration> {
    busy_ticks(&fs::read_to_string("/proc/stat").ok()?).map(|ticks| TICK * ticks)
}

/// user + nice + system + irq + softirq + steal; guests are within user.
fn busy_ticks(stat: &str) -> Option<u32> {
    let fields: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let &[user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = &fields[..] else { return None };
    u32::try_from(user + nice + system + irq + softirq + steal).ok()
}

/// The most memory that this process has had resident, in bytes. `None` where the system does not tell.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_everything_but_idle_and_waiting() {
        let stat = "cpu  100 2 30 4000 500 6 7 80 90 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(100 + 2 + 30 + 6 + 7 + 80));
        assert_eq!(busy_ticks("cpu  1 2 3\n"), None);
        assert_eq!(busy_ticks(""), None);
    }
}
