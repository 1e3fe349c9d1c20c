use std::time::Duration;

use omnilearn_hub_core::config::{Controller, Mode, StopConfig};
use omnilearn_hub_core::optimizer::OptimizerConfig;
use omnilearn_wire::message::PushOutcome;

use crate::cluster::{Cluster, Habit, config, dynamic, mean_gradient};

fn asp(staleness_max: Option<u64>, damping: bool) -> omnilearn_hub_core::JobConfig {
    let mut config = config();
    config.mode = Mode::Asp { staleness_max, damping };
    config.optimizer = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    config
}

#[test]
fn each_gradient_is_applied_on_arrival_scaled_by_its_samples_and_damped_by_its_staleness() {
    for damping in [false, true] {
        let mut config = asp(None, damping);
        config.wait_for_agents = 2;
        let mut cluster = Cluster::started(config, &[100.0, 30.0]);
        let mut expected = vec![0.5f32; 10];
        let mut staleness_seen = 0;
        cluster.run_to_version(12);
        // Each agent computed from the parameters at its assignment's version.
        let mut history = vec![expected.clone()];
        for record in &cluster.steps {
            let (_, work) = &cluster.work[&record.assignment];
            let order = omnilearn_wire::sampling::permutation(7, 0, 1000);
            let span = work.spans[0];
            let samples = &order[span.start as usize..span.end as usize];
            let (_, gradient) = mean_gradient(&history[work.version.0 as usize], samples);
            assert_eq!(record.staleness, history.len() as u64 - 1 - work.version.0);
            staleness_seen = staleness_seen.max(record.staleness);
            let damp = if damping { 1.0 / (record.staleness + 1) as f32 } else { 1.0 };
            let scale = record.samples as f32 * 2.0 / 64.0 * damp;
            expected.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= 0.05 * scale * gradient);
            history.push(expected.clone());
        }
        assert!(staleness_seen >= 2);
        for (found, expected) in cluster.parameters().iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }
}

#[test]
fn a_gradient_past_the_largest_staleness_is_refused_counted_and_issued_again() {
    let mut config = asp(Some(2), false);
    (config.wait_for_agents, config.stop) = (3, StopConfig { epochs: Some(2), ..StopConfig::default() });
    let mut cluster = Cluster::started(config, &[100.0, 100.0, 15.0]);
    cluster.run_until(|cluster| !cluster.refusals().is_empty());
    assert!(cluster.refusals()[0].ends_with("steps old, at most 2 allowed"), "{:?}", cluster.refusals());
    cluster.run_to_end();
    cluster.assert_covered(2);
    assert!(cluster.steps.iter().all(|record| record.staleness <= 2));
    let counters = cluster.training.status(cluster.now).counters;
    assert_eq!(counters.refused_stale as usize, cluster.refusals().len());
    assert!(counters.samples_reissued > 0);
}

#[test]
fn dynamic_batches_lower_the_staleness_of_the_slowest_agent() {
    let staleness = |batching| {
        let mut config = asp(None, false);
        (config.wait_for_agents, config.batching) = (4, batching);
        (config.global_batch, config.batch_bounds) = (256, (1, 256));
        let mut cluster = Cluster::started(config, &[60.0, 60.0, 40.0, 320.0]);
        cluster.run_to_version(300);
        let settled: Vec<u64> = cluster
            .steps
            .iter()
            .filter(|record| record.agent.0 == 2 && record.version.0 > 150)
            .map(|record| record.staleness)
            .collect();
        settled.iter().sum::<u64>() as f64 / settled.len() as f64
    };
    let uniform = staleness(omnilearn_hub_core::config::Batching::Uniform);
    let balanced = staleness(dynamic(Controller::Deadline));
    assert!(balanced * 3.0 < uniform, "{uniform} {balanced}");
}

#[test]
fn every_sample_counts_once_through_deaths_hangs_and_joins() {
    let mut config = asp(Some(20), true);
    (config.wait_for_agents, config.batching) = (4, dynamic(Controller::Proportional));
    config.stop = StopConfig { epochs: Some(5), ..StopConfig::default() };
    let mut cluster = Cluster::started(config, &[60.0, 60.0, 40.0, 320.0]);
    cluster.run_to_version(20);
    cluster.agent(1).habit = Habit::StopsHalfWay;
    cluster.run_to_version(40);
    cluster.kill(1);
    cluster.agent(2).habit = Habit::Silent; // hangs, and is given up by the deadline
    cluster.run_to_version(60);
    cluster.join(6, 150.0);
    cluster.run_to_end();
    cluster.assert_covered(5);
    let counters = cluster.training.status(cluster.now).counters;
    assert!(counters.stragglers >= 1 && counters.abandoned == 1, "{counters:?}");
}

#[test]
fn an_agent_gets_fresh_parameters_and_new_work_with_the_answer() {
    let mut cluster = Cluster::started(asp(None, false), &[100.0, 100.0]);
    let id = cluster.assignment_of(0);
    cluster.agent(0).habit = Habit::Silent;
    cluster.push_good(0, id);
    assert!(matches!(cluster.outcomes[0].1, PushOutcome::Accepted { staleness: 0, .. }));
    let next = cluster.assignment_of(0);
    assert_ne!(next, id);
    assert_eq!(cluster.work[&next].1.version.0, 1);
}

#[test]
fn a_repeated_or_bad_push_changes_nothing() {
    let mut cluster = Cluster::started(asp(None, false), &[100.0]);
    let id = cluster.assignment_of(0);
    cluster.agent(0).habit = Habit::Silent;
    cluster.push_good(0, id);
    let before = cluster.training.snapshot();
    cluster.push_good(0, id);
    let next = cluster.assignment_of(0);
    let mut bytes = cluster.encoded(next);
    bytes[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    cluster.push(0, next, &bytes, true);
    assert_eq!(cluster.training.snapshot(), before);
    assert_eq!(cluster.refusals(), ["tensor `t0` is not finite at index 0"]);
}

#[test]
fn below_the_quorum_no_new_work_is_given_out() {
    let mut config = asp(None, false);
    (config.wait_for_agents, config.agents_min) = (2, 2);
    let mut cluster = Cluster::started(config, &[100.0, 100.0]);
    cluster.run_to_version(3);
    cluster.kill(1);
    while cluster.step() && cluster.now < Duration::from_secs(50) {}
    let version = cluster.version();
    assert_eq!(cluster.training.status(cluster.now).waiting[0].to_string(), "waiting for agents: 1 of 2 ready");
    cluster.join(2, 100.0);
    cluster.run_to_version(version + 2);
}
