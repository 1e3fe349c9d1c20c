//! Equal seeds give equal runs.

use std::time::Duration;

use omnilearn_simulator::Fleet;
use omnilearn_simulator::fleet::Leaving;
use omnilearn_simulator::scale::dynamic;

use crate::fixtures::{asp, by_cores, job, run};

/// Everything that may make runs differ: noise, shared links, latency, departures.
fn lively(seed: u64) -> Fleet {
    let mut fleet = by_cores(&[6.0, 6.0, 4.0, 32.0, 9.0, 9.0]);
    (fleet.seed, fleet.hub_uplink_bytes_per_s, fleet.hub_downlink_bytes_per_s) = (seed, Some(5e6), Some(2e6));
    for agent in &mut fleet.agents {
        (agent.noise, agent.overhead_s, agent.latency_s) = (0.2, 0.05, 0.01);
        (agent.uplink_bytes_per_s, agent.downlink_bytes_per_s) = (Some(1e6), Some(3e6));
    }
    fleet.agents[2].leaves = Some((Duration::from_secs(100), Leaving::Silent));
    fleet.agents[4].joins = Duration::from_secs(30);
    fleet
}

#[test]
fn equal_seeds_give_the_same_bytes_and_other_seeds_do_not() {
    for asynchronous in [false, true] {
        let story = |seed| {
            let fleet = lively(seed);
            let mut job = if asynchronous { asp(&fleet, dynamic(), 1) } else { job(&fleet, dynamic(), 1) };
            (job.config.test_samples, job.config.wait_for_agents) = (10_000, 5);
            let (summary, outcome, records) = run(&fleet, &job);
            records.assert_covered(&job.config, 1);
            let mut summary = serde_json::to_value(summary).unwrap();
            let measured = ["core_cpu_s", "core_cpu_ms_per_round", "core_cpu_ms_per_1000_agents_and_round", "wall_s"];
            measured.iter().for_each(|key| {
                summary.as_object_mut().unwrap().remove(*key).unwrap();
            });
            format!("{summary} {:?} {:?} {:?}", outcome.staleness(), outcome.parameters, records.0)
        };
        assert_eq!(story(1), story(1));
        assert_ne!(story(1), story(2));
    }
}
