//! Timings that come apart from pushes.

use omnilearn_hub_core::JobConfig;
use omnilearn_hub_core::config::{Controller, Mode};

use crate::cluster::{Cluster, config, dynamic};

fn balanced(mode: Mode) -> JobConfig {
    let mut config = config();
    (config.mode, config.batching, config.wait_for_agents) = (mode, dynamic(Controller::Deadline), 4);
    (config.global_batch, config.batch_bounds) = (256, (1, 256));
    config
}

#[test]
fn they_move_batches_and_reach_the_records_before_a_push_and_after_it() {
    let asp = Mode::Asp { staleness_max: None, damping: false };
    for (mode, after_s) in [(Mode::Bsp, -1.0), (Mode::Bsp, 0.0), (Mode::Bsp, 2.5), (asp, -1.0), (asp, 2.5)] {
        let mut cluster = Cluster::new(balanced(mode));
        cluster.timings_after_s = Some(after_s);
        cluster.join_all(&[60.0, 60.0, 40.0, 320.0]);
        cluster.run_until(|cluster| cluster.steps.len() >= 200);
        let times: Vec<f64> =
            cluster.steps[196..].iter().map(|step| cluster.computed[&step.assignment].compute_s).collect();
        let (fastest, slowest) = times.iter().fold((f64::MAX, 0.0f64), |(a, b), &s| (a.min(s), b.max(s)));
        assert!(slowest < 1.1 * fastest, "{mode:?}, {after_s} s: {times:?}");

        let timed = cluster.steps.iter().filter(|step| step.timings.is_some()).count();
        let missing = cluster.steps.len() - timed - cluster.late_timings.len();
        // Those of the last seconds are under way.
        assert!(missing <= 30, "{mode:?}, {after_s} s: {missing} of {} steps have no timings", cluster.steps.len());
        assert_eq!(timed == cluster.steps.len(), after_s < 0.0, "{mode:?}, {after_s} s");
    }
}

#[test]
fn what_was_measured_before_an_agent_came_back_is_recorded_and_teaches_nothing() {
    let mut cluster = Cluster::new(balanced(Mode::Bsp));
    cluster.timings_after_s = Some(1e6);
    cluster.join_all(&[60.0, 60.0, 60.0, 60.0]);
    cluster.run_to_version(2);
    let old = cluster.steps.iter().find(|step| step.agent.0 == 3).unwrap().assignment;
    cluster.kill(3);
    cluster.join(3, 60.0);
    let agent = omnilearn_wire::AgentId(3);
    cluster.send_timings(agent, old);
    cluster.send_timings(agent, old);
    assert_eq!(cluster.late_timings.len(), 1);
    let status = cluster.training.status(cluster.now);
    assert!(status.agents.iter().all(|agent| agent.step_s.is_none()));
}
