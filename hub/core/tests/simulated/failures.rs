//! Agents that cannot do what they are given.

use std::time::Duration;

use omnilearn_hub_core::config::StopConfig;
use omnilearn_hub_core::status::{AgentState, Waiting};
use omnilearn_wire::message::Failure;
use omnilearn_wire::sampling::SplitMix64;

use crate::cluster::{Cluster, Habit, config};

#[test]
fn a_failed_assignment_is_tried_again_within_its_round() {
    let mut config = config();
    config.wait_for_agents = 2;
    let mut cluster = Cluster::started(config, &[100.0; 2]);
    cluster.agent(1).habit = Habit::Fails(Failure::Trap);
    cluster.run_until(|cluster| cluster.training.status(cluster.now).counters.failed == 2);
    cluster.agent(1).habit = Habit::Good;
    cluster.run_to_version(1);
    assert_eq!((cluster.rounds[0].samples, cluster.rounds[0].updates), (64, 2));
}

#[test]
fn three_failures_in_a_row_earn_a_rest_that_doubles_and_ends_by_itself() {
    for habit in [Habit::NotANumber, Habit::Fails(Failure::Device)] {
        let mut config = config();
        config.wait_for_agents = 2;
        let mut cluster = Cluster::started(config, &[100.0; 2]);
        cluster.agent(1).habit = habit;
        cluster.run_to_version(1);
        let status = cluster.training.status(cluster.now);
        let AgentState::Benched { reason, until } = &status.agents[1].state else { panic!("{status:?}") };
        assert!(reason.starts_with("failed 3 times in a row, last: "), "{reason}");
        let rest = *until - cluster.now;
        assert!(rest <= Duration::from_secs(10) && rest > Duration::from_secs(9), "{rest:?}");
        let until = *until;
        cluster.run_until(|cluster| cluster.now > until);
        cluster.run_until(|cluster| {
            matches!(cluster.training.status(cluster.now).agents[1].state, AgentState::Benched { .. })
        });
        let AgentState::Benched { until, .. } = cluster.training.status(cluster.now).agents[1].state else { panic!() };
        let rest = until - cluster.now;
        assert!(rest > Duration::from_secs(19), "{rest:?}");
        cluster.agent(1).habit = Habit::Good;
        cluster.run_until(|cluster| cluster.now > until);
        let version = cluster.version();
        cluster.run_to_version(version + 2);
        assert_eq!(cluster.rounds.last().unwrap().updates, 2);
    }
}

#[test]
fn when_all_agents_rest_the_job_waits_and_goes_on() {
    let mut cluster = Cluster::started(config(), &[100.0]);
    cluster.agent(0).habit = Habit::NotANumber;
    cluster.run_until(|cluster| cluster.training.status(cluster.now).counters.refused_value == 3);
    assert_eq!(cluster.training.status(cluster.now).waiting[0].to_string(), "waiting for agents: 0 of 1 ready");
    cluster.agent(0).habit = Habit::Good;
    cluster.run_to_version(1);
    assert!(cluster.now > Duration::from_secs(10));
}

fn halves_the_batch(failure: Failure) {
    let mut config = config();
    (config.wait_for_agents, config.stop) = (2, StopConfig { epochs: Some(1), ..StopConfig::default() });
    let mut cluster = Cluster::started(config, &[100.0; 2]);
    cluster.agent(1).habit = Habit::Fails(failure);
    cluster.run_until(|cluster| cluster.training.status(cluster.now).counters.failed == 4);
    cluster.agent(1).habit = Habit::Good;
    cluster.run_to_version(2);
    let status = cluster.training.status(cluster.now);
    assert_eq!((status.agents[1].batch_max, status.agents[1].local_batch), (Some(2), 2));
    assert_eq!(status.agents[0].local_batch, 62);
    assert_eq!(cluster.rounds[0].samples, 34, "what the round could still get");
    assert_eq!(cluster.rounds[1].samples, 64);
    cluster.run_to_end();
    cluster.assert_covered(1);
}

#[test]
fn running_out_of_memory_halves_the_batch_until_it_fits() {
    halves_the_batch(Failure::Memory);
}

#[test]
fn a_device_that_is_lost_works_on_with_smaller_batches() {
    halves_the_batch(Failure::Device);
}

/// The core counts who is here as it changes; whatever happens, that is what a look at every agent says.
#[test]
fn the_number_of_agents_that_are_ready_is_right_through_joins_failures_rests_and_departures() {
    let mut config = config();
    (config.agents_min, config.round_deadline) = (3, Duration::from_secs(2));
    let mut cluster = Cluster::started(config, &[100.0, 80.0, 60.0, 40.0]);
    let mut generator = SplitMix64::new(11);
    let (mut waited, mut rested, mut gone) = (0, 0, std::collections::BTreeSet::new());
    for round in 0..1000 {
        let agent = generator.below(4) as u32;
        match generator.below(10) {
            0 => {
                cluster.kill(agent);
                gone.insert(agent);
            }
            1..4 if gone.remove(&agent) => cluster.join(agent, 100.0),
            4 => cluster.agent(agent).habit = Habit::Silent,
            5..7 => cluster.agent(agent).habit = Habit::Fails(Failure::Trap),
            _ => cluster.agent(agent).habit = Habit::Good,
        }
        for _ in 0..generator.below(12) {
            cluster.step();
        }
        let status = cluster.training.status(cluster.now);
        let resting = status.agents.iter().filter(|agent| matches!(agent.state, AgentState::Benched { .. })).count();
        let able = status.agents.len() - resting;
        rested += resting;
        let ready = status.waiting.iter().find_map(|waiting| match waiting {
            Waiting::Agents { ready, .. } => Some(*ready as usize),
            _ => None,
        });
        assert!(ready.is_none_or(|ready| ready == able), "round {round}: {ready:?} {status:?}");
        assert_eq!(ready.is_some(), able < 3, "round {round}: {status:?}");
        waited += usize::from(ready.is_some());
    }
    assert!(waited > 30 && rested > 30, "{waited} {rested}");
}
