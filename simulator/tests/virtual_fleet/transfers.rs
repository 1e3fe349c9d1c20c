//! Time on the way.

use std::time::Duration;

use omnilearn_hub_core::config::{Batching, StopConfig};
use omnilearn_simulator::Job;

use crate::fixtures::{fleet, job, run};

const ROUNDS: u64 = 50;

fn rounds(mut job: Job, stream_bytes: u64) -> Job {
    job.stream_bytes = stream_bytes;
    job.config.stop = StopConfig { steps: Some(ROUNDS), ..StopConfig::default() };
    job
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} is not {expected}");
}

#[test]
fn a_round_takes_latency_download_computation_and_upload() {
    let mut fleet = fleet(&[128.0]);
    let agent = &mut fleet.agents[0];
    (agent.overhead_s, agent.latency_s) = (0.3, 0.05);
    (agent.downlink_bytes_per_s, agent.uplink_bytes_per_s) = (Some(2e6), Some(5e5));
    let job = rounds(job(&fleet, Batching::Uniform, 1), 1_000_000);
    let (summary, _, records) = run(&fleet, &job);
    let round_s = 2.0 * 0.05 + 0.5 + 0.3 + 2.0 + 2.0;
    close(summary.training_s, ROUNDS as f64 * round_s);
    close(summary.ratio_to_limit.unwrap(), 1.0);
    close(summary.idle_share.unwrap(), 0.1 / round_s);
    assert_eq!((summary.bytes_up, summary.bytes_down), (ROUNDS * 1_000_000, ROUNDS * 1_000_000));
    let timings = records.steps().last().unwrap().timings.unwrap();
    close(timings.sustained_s(), 0.5 + 0.3 + 2.0 + 2.0);
    close(timings.wait_s.into(), 0.1);
}

#[test]
fn all_agents_share_the_hubs_own_link() {
    let mut fleet = fleet(&[64.0; 4]);
    (fleet.hub_uplink_bytes_per_s, fleet.hub_downlink_bytes_per_s) = (Some(1e6), Some(2e6));
    let job = rounds(job(&fleet, Batching::Uniform, 1), 1_000_000);
    let (summary, ..) = run(&fleet, &job);
    close(summary.training_s, ROUNDS as f64 * (4.0 + 1.0 + 2.0)); // four downloads at once, 64 samples, four uploads
    close(summary.ratio_to_limit.unwrap(), 1.0 / 7.0); // the limit knows nothing of the shared link
}

#[test]
fn an_upload_that_takes_longer_than_the_round_deadline_is_progress_all_the_same() {
    for shared in [false, true] {
        let mut fleet = fleet(&[128.0, 128.0]);
        fleet.agents[0].uplink_bytes_per_s = Some(1e3);
        fleet.hub_downlink_bytes_per_s = shared.then_some(1e6);
        let mut job = rounds(job(&fleet, Batching::Uniform, 1), 1_000_000);
        (job.config.round_deadline, job.config.stop.steps) = (Duration::from_secs(20), Some(3));
        let (summary, ..) = run(&fleet, &job);
        assert_eq!((summary.stragglers, summary.updates), (0, 6), "shared {shared}");
        assert!(summary.training_s > 3000.0, "{}", summary.training_s);
    }
}
