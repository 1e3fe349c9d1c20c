//! ASP: who is how stale, and what balance does about it.

use omnilearn_hub_core::config::Batching;
use omnilearn_simulator::scale::dynamic;

use crate::fixtures::{asp, by_cores, fleet, run};

#[test]
fn among_equal_agents_each_update_is_as_stale_as_there_are_others() {
    let fleet = fleet(&[100.0; 8]);
    let (summary, outcome, _) = run(&fleet, &asp(&fleet, Batching::Uniform, 1));
    let settled: u64 =
        outcome.staleness().iter().filter(|(staleness, _)| **staleness == 7).map(|(_, count)| count).sum();
    assert_eq!(summary.staleness_max, Some(7));
    assert_eq!(settled, summary.updates - 7, "but for the first of each: {:?}", outcome.staleness());
    assert!(summary.idle_share.unwrap() < 0.01, "nobody waits: {:?}", summary.idle_share);
    assert_eq!(summary.ratio_to_limit, None);
}

#[test]
fn balanced_batches_take_the_staleness_from_the_slowest() {
    let slowest = |batching| {
        let fleet = by_cores(&[6.0, 6.0, 4.0, 32.0]);
        let (_, _, records) = run(&fleet, &asp(&fleet, batching, 2));
        let settled: Vec<u64> = records
            .steps()
            .filter(|step| step.agent.0 == 2 && step.wall_s > 100.0)
            .map(|step| step.staleness)
            .collect();
        settled.iter().sum::<u64>() as f64 / settled.len() as f64
    };
    let (uniform, balanced) = (slowest(Batching::Uniform), slowest(dynamic()));
    println!("staleness of the slowest: uniform {uniform:.2}, deadline {balanced:.2}");
    assert!(uniform > 9.0, "eight of the fastest and others for each of its own: {uniform}");
    assert!(balanced < 4.0, "{balanced}");
}
