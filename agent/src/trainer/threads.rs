//! How many threads compute.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::machine::Probe;

/// The number of compute threads: what the user said, or what the CPU quota allows at the moment; or what an operator says
/// while the agent runs. Clones share that.
#[derive(Clone, Debug)]
pub(crate) struct Threads {
    fixed: Option<NonZeroUsize>,
    probe: Arc<Probe>,
    /// 0 if nobody has said anything.
    ordered: Arc<AtomicUsize>,
}

/// More threads than there are.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{threads} threads were asked for, at most {most} can compute here")]
pub(crate) struct TooManyThreads {
    threads: NonZeroUsize,
    most: NonZeroUsize,
}

impl Threads {
    /// As many as `fixed`, or as the quota of this machine allows.
    pub(crate) fn new(fixed: Option<NonZeroUsize>, probe: Arc<Probe>) -> Threads {
        Threads { fixed, probe, ordered: Arc::default() }
    }

    /// How many compute now.
    pub(crate) fn now(&self) -> NonZeroUsize {
        let ordered = NonZeroUsize::new(self.ordered.load(Ordering::Relaxed));
        ordered.or(self.fixed).unwrap_or_else(|| self.probe.threads())
    }

    /// Uses so many from the next step on, or as many as without this if none are named.
    pub(crate) fn order(&self, threads: Option<NonZeroUsize>) -> Result<(), TooManyThreads> {
        let most = self.most();
        if let Some(threads) = threads.filter(|threads| *threads > most) {
            return Err(TooManyThreads { threads, most });
        }
        self.ordered.store(threads.map_or(0, NonZeroUsize::get), Ordering::Relaxed);
        Ok(())
    }

    /// Most that may ever compute: a quota can be raised up to the machine's cores.
    pub(crate) fn most(&self) -> NonZeroUsize {
        self.fixed.or(NonZeroUsize::new(self.probe.cores())).unwrap_or(NonZeroUsize::MIN)
    }

    /// Lets operators use as many threads as the quota allows now. A quota that changed is seen by the next step: reading it
    /// costs microseconds.
    pub(crate) fn follow_quota(&self) {
        omnilearn_cpu::set_threads(self.now());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_number_of_threads_follows_a_quota_that_changes_unless_it_was_given() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/status", "Cpus_allowed_list:\t0-3\n");
        write("proc/self/cgroup", "0::/box\n");
        write("proc/self/mountinfo", "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/box/cpu.max", "200000 100000\n");
        let probe = Arc::new(Probe::new(root.path()));
        let threads = Threads::new(None, probe.clone());
        assert_eq!((threads.now().get(), threads.most().get()), (2, 4));
        write("sys/fs/cgroup/box/cpu.max", "50000 100000\n");
        std::thread::sleep(crate::machine::QUOTA_AGE_MAX);
        assert_eq!((threads.now().get(), threads.most().get()), (1, 4));
        let fixed = Threads::new(NonZeroUsize::new(3), probe);
        assert_eq!((fixed.now().get(), fixed.most().get()), (3, 3));
    }

    #[test]
    fn an_operator_may_take_threads_away_and_give_them_back() {
        let threads = Threads::new(NonZeroUsize::new(3), Arc::default());
        let clone = threads.clone();
        threads.order(NonZeroUsize::new(2)).unwrap();
        assert_eq!((clone.now().get(), clone.most().get()), (2, 3));
        let error = threads.order(NonZeroUsize::new(4)).unwrap_err().to_string();
        assert!(error.contains("at most 3"), "{error}");
        assert_eq!(threads.now().get(), 2);
        threads.order(None).unwrap();
        assert_eq!(clone.now().get(), 3);
    }
}
