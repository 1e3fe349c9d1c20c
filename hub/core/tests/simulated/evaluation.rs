use std::time::Duration;

use omnilearn_hub_core::action::StopReason;
use omnilearn_hub_core::config::{EvaluateEvery, Mode, StopConfig};
use omnilearn_wire::message::Failure;

use crate::cluster::{Cluster, Habit, TEST_SAMPLES, config};

fn evaluating(mode: Mode) -> omnilearn_hub_core::JobConfig {
    let mut config = config();
    (config.mode, config.test_samples, config.wait_for_agents) = (mode, TEST_SAMPLES, 3);
    config.evaluate.every = EvaluateEvery::Steps(4);
    config
}

const ASP: Mode = Mode::Asp { staleness_max: None, damping: false };
const LOSS: f64 = (TEST_SAMPLES - 1) as f64 / 2.0;

#[test]
fn the_whole_test_set_is_evaluated_on_one_version_in_both_modes() {
    for mode in [Mode::Bsp, ASP] {
        let mut cluster = Cluster::started(evaluating(mode), &[100.0, 50.0, 30.0]);
        cluster.run_until(|cluster| cluster.evaluated.len() == 3);
        for record in &cluster.evaluated {
            assert_eq!((record.samples, record.loss, record.accuracy), (TEST_SAMPLES, LOSS, Some(0.5)));
            assert_eq!(record.metrics, [("correct".to_owned(), 0.5)]);
        }
        assert_eq!(cluster.evaluated[0].version.0, 4);
        let status = cluster.training.status(cluster.now);
        assert_eq!((status.accuracy, status.test_loss), (Some(0.5), Some(LOSS)));
    }
}

#[test]
fn training_time_leaves_evaluation_out() {
    for mode in [Mode::Bsp, ASP] {
        let training_s = |test_samples: u32| {
            let mut config = evaluating(mode);
            config.test_samples = test_samples;
            // With equal batches agents evaluate in proportion to their speed all the same.
            let mut cluster = Cluster::started(config, &[300.0, 50.0, 30.0]);
            cluster.run_to_version(100);
            let last = cluster.rounds.last().unwrap();
            assert!(cluster.rounds.is_sorted_by_key(|round| round.training_s));
            (last.training_s, last.wall_s)
        };
        let (without_s, _) = training_s(0);
        let (with_s, wall_s) = training_s(TEST_SAMPLES);
        assert!(wall_s > 1.05 * without_s, "{wall_s} {without_s}");
        let tolerance = if mode == Mode::Bsp { 1e-6 } else { 0.05 * without_s };
        assert!((with_s - without_s).abs() <= tolerance, "{with_s} {without_s}");
    }
}

#[test]
fn parts_of_agents_that_go_fail_or_hang_are_evaluated_by_others() {
    for mode in [Mode::Bsp, ASP] {
        for trouble in [None, Some(Habit::Fails(Failure::Device)), Some(Habit::Silent)] {
            let mut config = evaluating(mode);
            config.evaluate.every = EvaluateEvery::Steps(1000);
            config.stop = StopConfig { steps: Some(10), ..StopConfig::default() };
            let mut cluster = Cluster::started(config, &[100.0, 50.0, 30.0]);
            cluster.run_to_version(10);
            match trouble {
                None => cluster.kill(1),
                Some(habit) => cluster.agent(1).habit = habit,
            }
            cluster.run_to_end();
            assert_eq!(cluster.evaluated.len(), 1, "{mode:?} {trouble:?}");
            assert_eq!((cluster.evaluated[0].samples, cluster.evaluated[0].loss), (TEST_SAMPLES, LOSS));
            assert_eq!(cluster.evaluated[0].version.0, 10);
        }
    }
}

#[test]
fn the_accuracy_asked_for_ends_the_job() {
    for mode in [Mode::Bsp, ASP] {
        let mut config = evaluating(mode);
        config.stop = StopConfig { target_accuracy: Some(0.4), ..StopConfig::default() };
        let mut cluster = Cluster::started(config, &[100.0, 50.0, 30.0]);
        cluster.run_to_end();
        assert_eq!(cluster.training.finished(), Some(&StopReason::TargetAccuracy { accuracy: 0.5, target: 0.4 }));
        assert_eq!(cluster.evaluated.len(), 1);
    }
}

#[test]
fn epochs_are_evaluated_as_they_complete_and_the_end_always_is() {
    for mode in [Mode::Bsp, ASP] {
        let mut config = evaluating(mode);
        config.evaluate.every = EvaluateEvery::Epochs(2);
        config.stop = StopConfig { epochs: Some(5), ..StopConfig::default() };
        let mut cluster = Cluster::started(config, &[100.0, 50.0, 30.0]);
        cluster.run_to_end();
        cluster.assert_covered(5);
        let epochs: Vec<f64> = cluster.evaluated.iter().map(|record| record.epoch).collect();
        assert_eq!(epochs.len(), 3, "{epochs:?}");
        for (epoch, expected) in epochs.iter().zip([2.0, 4.0, 5.0]) {
            assert!((epoch - expected).abs() < 0.2, "{epochs:?}");
        }
        assert_eq!(cluster.evaluated[2].version.0, cluster.version());
    }
}

#[test]
fn the_last_evaluation_is_not_waited_for_without_agents() {
    let mut config = evaluating(Mode::Bsp);
    config.stop = StopConfig { steps: Some(2), ..StopConfig::default() };
    let mut cluster = Cluster::started(config, &[100.0, 50.0, 30.0]);
    cluster.run_to_version(2);
    for agent in 0..3 {
        cluster.kill(agent);
    }
    let left = cluster.now;
    cluster.run_to_end();
    assert!(cluster.now <= left + Duration::from_secs(31));
    assert!(cluster.evaluated.is_empty());
}
