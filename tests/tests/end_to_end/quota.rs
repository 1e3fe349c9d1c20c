//! An agent computes on as many threads as its CPU quota allows, also when that changes during a job.

use std::path::Path;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use omnilearn_devices::quota::{CgroupTree, Limiter};
use omnilearn_tests::cluster::{Cluster, Process};

/// Clock ticks that threads other than the first may use in a second in which they have nothing to do.
const IDLE_TICKS: u64 = 1;

/// Ticks in the coming second of the threads that help the first one.
fn helpers_ticks(agent: &Process) -> u64 {
    let before = agent.thread_ticks("olrn-worker").unwrap();
    sleep(Duration::from_secs(1));
    agent.thread_ticks("olrn-worker").unwrap() - before
}

fn within_seconds(agent: &Process, what: &str, condition: impl Fn(u64) -> bool) {
    let start = Instant::now();
    while !condition(helpers_ticks(agent)) {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
    }
}

#[test]
fn threads_follow_a_quota_that_changes_during_a_job() {
    let limiter = Limiter::detect(&CgroupTree::of_this_machine());
    if !matches!(limiter, Limiter::CgroupV1(_) | Limiter::CgroupV2(_)) {
        println!("skipped: no control groups can be made here");
        return;
    }
    if available_parallelism().is_ok_and(|cores| cores.get() < 2) || Path::new("/proc/self/task").metadata().is_err() {
        println!("skipped: threads are watched on two cores or more, through /proc");
        return;
    }
    if !super::has_data() {
        return;
    }
    let mut group = limiter.group("threads", 2.0).unwrap();
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent_in(&group, "a").unwrap();
    let job = cluster
        .submit(
            "lenet",
            r#"
            dataset = "fashion-mnist"
            [kernel]
            path = "KERNEL"
            [training]
            global_batch = 512
            [optimizer]
            learning_rate = 0.01
            [evaluate]
            every_steps = 100000
            [stop]
            epochs = 1000
            "#,
        )
        .unwrap();
    cluster
        .wait_until(job, "some steps", |view| view.progress.as_ref().is_some_and(|progress| progress.version > 5))
        .unwrap();
    let agent = &cluster.agents["a"];
    within_seconds(agent, "two threads compute under a quota of 2", |ticks| ticks > 10);
    group.set_quota(0.5).unwrap();
    within_seconds(agent, "one thread computes under a quota of half a core", |ticks| ticks <= IDLE_TICKS);
    group.set_quota(2.0).unwrap();
    within_seconds(agent, "two threads compute again", |ticks| ticks > 10);
}
