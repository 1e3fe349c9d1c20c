use std::fs;

use super::*;

/// A root with the files of this machine that matter.
fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

const STATUS_16: (&str, &str) = ("proc/self/status", "Name:\tagent\nCpus_allowed_list:\t0-15\n");
const MOUNT_V2: (&str, &str) = ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");

fn v2(quota: &str) -> Probe {
    let root = root(&[
        STATUS_16,
        MOUNT_V2,
        ("proc/meminfo", "MemTotal:       16000000 kB\n"),
        ("proc/self/cgroup", "0::/a/b\n"),
        ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/a/b/cpu.max", quota),
        ("sys/fs/cgroup/a/b/cpu.stat", "usage_usec 5\nthrottled_usec 1500000\n"),
        ("sys/fs/cgroup/a/b/memory.max", "max\n"),
    ]);
    let probe = Probe::new(root.path());
    probe.quota_cores();
    assert_eq!(probe.throttled(), Duration::from_millis(1500));
    assert_eq!(probe.memory_bytes(), 1 << 30);
    probe
}

#[test]
fn threads_follow_the_quota_and_not_the_cores() {
    for (quota, threads) in [("25000 100000", 1), ("200000 100000", 2), ("120000 100000", 2), ("max 100000", 16)] {
        let probe = v2(quota);
        assert_eq!(probe.threads().get(), threads, "{quota}");
    }
    assert_eq!(v2("25000 100000").quota_cores(), Some(0.25));
}

#[test]
fn quota_at_or_above_the_threads_does_not_limit() {
    let two = NonZeroUsize::new(2).unwrap();
    assert_eq!(v2("200000 100000").limiting_quota_cores(two), None);
    assert_eq!(v2("120000 100000").limiting_quota_cores(two), Some(1.2));
}

#[test]
fn tightest_quota_above_holds_and_version_1_is_read() {
    let root = root(&[
        ("proc/self/status", "Cpus_allowed_list:\t0,2-3\n"),
        ("proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"),
        ("proc/self/cgroup", "2:memory:/x\n1:cpu,cpuacct:/outer/inner\n0::/\n"),
        ("sys/fs/cgroup/cpu/outer/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu/outer/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu/outer/inner/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu/outer/inner/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu/outer/inner/cpu.stat", "nr_periods 3\nthrottled_time 2000000000\n"),
    ]);
    let probe = Probe::new(root.path());
    assert_eq!((probe.cores(), probe.quota_cores(), probe.threads().get()), (3, Some(0.5), 1));
    assert_eq!(probe.throttled(), Duration::from_secs(2));
}

#[test]
fn a_process_that_was_moved_is_found_again() {
    let root =
        root(&[STATUS_16, MOUNT_V2, ("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/cpu.max", "100000 100000\n")]);
    let probe = Probe::new(root.path());
    assert_eq!((probe.cores(), probe.quota_cores()), (16, Some(1.0)));
    for (path, text) in [
        ("proc/self/status", "Cpus_allowed_list:\t0-3\n"),
        ("proc/self/cgroup", "0::/b\n"),
        ("sys/fs/cgroup/b/cpu.max", "50000 100000\n"),
    ] {
        fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
        fs::write(root.path().join(path), text).unwrap();
    }
    probe.look_again();
    assert_eq!((probe.cores(), probe.quota_cores()), (4, Some(0.5)));
}

#[test]
fn container_without_a_cgroup_namespace_sees_its_own_limit() {
    let root = root(&[
        STATUS_16,
        ("proc/self/mountinfo", "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"),
        ("proc/self/cgroup", "1:cpu:/docker/abc\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
    ]);
    assert_eq!(Probe::new(root.path()).quota_cores(), Some(1.5));
}

#[test]
fn quota_changed_at_run_time_is_seen() {
    let root =
        root(&[STATUS_16, MOUNT_V2, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "200000 100000\n")]);
    let cgroups = Cgroups::find("0::/\n", MOUNT_V2.1, root.path());
    assert_eq!(cgroups.quota_cores(), Some(2.0));
    fs::write(root.path().join("sys/fs/cgroup/cpu.max"), "50000 100000\n").unwrap();
    assert_eq!(cgroups.quota_cores(), Some(0.5));
}

#[test]
fn machine_without_cgroups_has_no_quota_and_nonsense_does_no_harm() {
    let nothing = root(&[]);
    let probe = Probe::new(nothing.path());
    assert_eq!((probe.quota_cores(), probe.throttled()), (None, Duration::ZERO));
    assert!(probe.threads().get() >= 1);
    let nonsense = root(&[
        ("proc/self/status", "Cpus_allowed_list:\t9-1,x\n"),
        ("proc/self/mountinfo", "x - cgroup2\n\n1 2 3 - cgroup2 a b\n1 2 3 / /sys rw - cgroup2 cgroup2 rw\n"),
        ("proc/self/cgroup", "0::/../..\n:::\nnothing\n"),
        ("sys/cpu.max", "9 0 4\n"),
    ]);
    let probe = Probe::new(nonsense.path());
    assert_eq!(probe.quota_cores(), None);
    assert!(probe.threads().get() >= 1);
}

#[test]
fn work_takes_cpu_time() {
    let before = process_cpu_time();
    let mut sum = 0u64;
    while process_cpu_time() == before {
        sum = std::hint::black_box(sum + 1);
    }
    assert!(process_cpu_time() > before);
}
