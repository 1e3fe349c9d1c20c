//! Models whose pushes are too long to be staged.

use omnilearn_hub_core::config::StopConfig;
use omnilearn_hub_core::push::STAGED_BYTES_MAX;
use omnilearn_wire::Codec;

use crate::cluster::{Cluster, Habit, config};

const ELEMENTS: u32 = STAGED_BYTES_MAX as u32 / 4 + 1000;

fn cluster(codec: Codec, agents: usize) -> Cluster {
    let mut config = config();
    (config.wait_for_agents, config.codec) = (agents as u32, codec);
    let elements = if codec == Codec::Bf16 { 2 * ELEMENTS + 1 } else { ELEMENTS };
    let mut cluster = Cluster::with_tensors(config, &[1001, elements - 1001]);
    cluster.join_all(&vec![100.0; agents]);
    cluster
}

#[test]
fn pieces_are_added_as_they_arrive_in_both_codecs() {
    for codec in [Codec::F32, Codec::Bf16] {
        let mut cluster = cluster(codec, 2);
        cluster.run_to_version(2);
        let mut small = config();
        (small.wait_for_agents, small.codec) = (2, codec);
        let mut small = Cluster::with_tensors(small, &[64, 64]);
        small.join_all(&[100.0; 2]);
        small.run_to_version(2);
        for (found, expected) in cluster.parameters().iter().take(64).zip(small.parameters()) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
        assert_eq!(cluster.training.snapshot().buffers, small.training.snapshot().buffers);
    }
}

#[test]
fn a_push_that_breaks_off_makes_the_round_start_over_and_leaves_no_trace() {
    let mut cluster = cluster(Codec::F32, 3);
    cluster.agent(2).habit = Habit::StopsHalfWay;
    cluster.run_until(|cluster| cluster.outcomes.len() == 2);
    let ids = [0, 1].map(|agent| cluster.assignment_of(agent));
    while cluster.training.status(cluster.now).counters.rounds_reopened == 0 && cluster.version() == 0 {
        cluster.step();
        if cluster.outcomes.len() == 2 && cluster.now.as_secs_f64() > 0.2 {
            cluster.kill(2);
        }
    }
    assert_eq!(cluster.version(), 0);
    assert_eq!(cluster.training.status(cluster.now).counters.rounds_reopened, 1);
    cluster.push_good(0, ids[0]); // a repeat of what no longer counts
    assert_eq!(cluster.refusals(), ["the round started over"]);
    cluster.run_to_version(1);
    assert_eq!((cluster.rounds[0].samples, cluster.rounds[0].updates), (64, 2));
    assert_eq!(cluster.steps.len(), 2, "only what counts is recorded");
    let mut clean = self::cluster(Codec::F32, 2);
    clean.run_to_version(1);
    for (found, expected) in cluster.parameters().iter().zip(clean.parameters()).take(64) {
        assert!((found - expected).abs() < 1e-6);
    }
}

#[test]
fn a_bad_value_in_a_later_piece_makes_the_round_start_over() {
    let mut cluster = cluster(Codec::F32, 2);
    cluster.agent(1).habit = Habit::NotANumber;
    cluster.run_until(|cluster| !cluster.refusals().is_empty());
    cluster.agent(1).habit = Habit::Good;
    let reopened = cluster.training.status(cluster.now).counters.rounds_reopened;
    assert_eq!(reopened, 1);
    cluster.run_to_version(1);
    assert_eq!(cluster.rounds[0].updates, 2);
    assert!(cluster.parameters().iter().all(|value| value.is_finite()));
}

#[test]
fn a_gradient_beyond_the_scale_makes_the_round_start_over_with_a_larger_one() {
    let mut cluster = cluster(Codec::F32, 2);
    let (a, b) = (cluster.assignment_of(0), cluster.assignment_of(1));
    cluster.push_good(0, a);
    let mut bytes = cluster.encoded(b);
    bytes[..4].copy_from_slice(&100.0f32.to_le_bytes());
    cluster.push(1, b, &bytes, true);
    assert!(cluster.refusals()[0].contains("the round started over"), "{:?}", cluster.refusals());
    let (a, b) = (cluster.assignment_of(0), cluster.assignment_of(1));
    cluster.push_good(0, a);
    cluster.push(1, b, &bytes, true);
    assert_eq!((cluster.version(), cluster.rounds[0].updates), (1, 2));
}

#[test]
fn every_sample_counts_once_through_rounds_that_start_over() {
    let mut config = config();
    (config.wait_for_agents, config.global_batch, config.batch_bounds) = (3, 250, (1, 250));
    config.stop = StopConfig { epochs: Some(1), ..StopConfig::default() };
    let mut cluster = Cluster::with_tensors(config, &[ELEMENTS]);
    cluster.join_all(&[100.0, 110.0, 120.0]);
    cluster.run_to_version(1);
    cluster.agent(1).habit = Habit::StopsHalfWay;
    while cluster.now.as_secs_f64() < 1.7 {
        cluster.step();
    }
    cluster.kill(1);
    cluster.run_to_end();
    cluster.assert_covered(1);
    assert_eq!(cluster.training.status(cluster.now).counters.rounds_reopened, 1);
}
