use std::time::Duration;

use omnilearn_hub_core::action::StopReason;
use omnilearn_hub_core::config::{Batching, Controller, StopConfig};
use omnilearn_hub_core::status::{Phase, Waiting};
use omnilearn_wire::AgentId;
use omnilearn_wire::message::CalibrationPoint;
use omnilearn_wire::sampling::permutation;

use crate::cluster::{Cluster, Habit, config, dynamic, mean_gradient};

const HL8: [f64; 4] = [60.0, 60.0, 40.0, 320.0];

#[test]
fn steps_over_unequal_batches_equal_one_process_on_the_same_samples() {
    let mut config = config();
    (config.batching, config.wait_for_agents) = (Batching::Static, 3);
    let mut cluster = Cluster::new(config.clone());
    for (agent, batch) in [7u32, 16, 41].into_iter().enumerate() {
        let calibration = vec![CalibrationPoint { samples: 8, step_s: 1.0 / f64::from(batch) }];
        cluster.join_with(agent as u32, f64::from(batch), None, calibration);
    }
    assert_eq!(cluster.batches, [[7, 16, 41]]);
    cluster.run_to_version(200);
    let (mut parameters, mut momentum) = (vec![0.5f32; 10], vec![0.0f32; 10]);
    for step in 0..200u32 {
        let position = |at: u32| permutation(config.seed, at / 1000, 1000)[at as usize % 1000];
        let samples: Vec<u32> = (step * 64..step * 64 + 64).map(position).collect();
        let (_, gradient) = mean_gradient(&parameters, &samples);
        for ((parameter, velocity), gradient) in parameters.iter_mut().zip(&mut momentum).zip(gradient) {
            *velocity = 0.9 * *velocity + gradient;
            *parameter -= 0.05 * *velocity;
        }
    }
    for (found, expected) in cluster.parameters().iter().zip(&parameters) {
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }
}

#[test]
fn the_order_of_arrival_does_not_show_in_one_bit() {
    let run = |rates: &[f64]| {
        let mut config = config();
        config.wait_for_agents = 4;
        let mut cluster = Cluster::started(config, rates);
        cluster.run_to_version(30);
        (cluster.training.snapshot(), cluster.rounds.iter().map(|round| round.loss.to_bits()).collect::<Vec<_>>())
    };
    let (a, b) = (run(&[60.0, 50.0, 40.0, 320.0]), run(&[320.0, 40.0, 50.0, 60.0]));
    assert_eq!(a, b);
}

#[test]
fn deadline_batching_makes_a_skewed_fleet_as_fast_as_an_even_one() {
    let seconds = |batching, rates: &[f64]| {
        let mut config = config();
        (config.batching, config.global_batch, config.batch_bounds) = (batching, 256, (1, 256));
        config.wait_for_agents = 4;
        let mut cluster = Cluster::started(config, rates);
        cluster.run_to_version(60);
        let settled_s = cluster.now.as_secs_f64();
        cluster.run_to_version(300);
        cluster.now.as_secs_f64() - settled_s
    };
    let even = seconds(Batching::Uniform, &[120.0; 4]);
    let uniform = seconds(Batching::Uniform, &HL8);
    for controller in [Controller::Deadline, Controller::Proportional] {
        let balanced = seconds(dynamic(controller), &HL8);
        assert!(balanced < even * 1.06 && balanced < uniform / 2.75, "{even} {uniform} {balanced}");
    }
}

#[test]
fn every_sample_is_in_exactly_one_accepted_update_through_joins_deaths_and_changing_batches() {
    let mut config = config();
    (config.batching, config.wait_for_agents) = (dynamic(Controller::Deadline), 4);
    config.stop = StopConfig { epochs: Some(6), ..StopConfig::default() };
    let mut cluster = Cluster::started(config, &HL8);
    cluster.run_to_version(5);
    cluster.agent(2).habit = Habit::StopsHalfWay;
    let before = cluster.now;
    while cluster.now < before + Duration::from_secs(1) {
        cluster.step(); // until agent 2 has sent half of its push
    }
    cluster.kill(2);
    cluster.run_to_version(15);
    cluster.join(5, 100.0);
    cluster.run_to_version(40);
    cluster.kill(3); // at its work
    cluster.run_to_version(50);
    cluster.join(3, 320.0);
    cluster.run_to_end();
    cluster.assert_covered(6);
    assert_eq!(cluster.training.finished(), Some(&StopReason::Epochs { epochs: 6 }));
    assert!(cluster.batches.len() >= 5, "{:?}", cluster.batches);
    assert!(cluster.batches.iter().all(|batches| batches.iter().sum::<u32>() == 64));
}

#[test]
fn a_round_closes_with_the_rest_when_an_agent_dies_and_its_samples_come_again() {
    let mut config = config();
    config.wait_for_agents = 4;
    let mut cluster = Cluster::started(config, &[100.0; 4]);
    cluster.agent(1).habit = Habit::Silent;
    cluster.run_until(|cluster| cluster.outcomes.len() == 3);
    assert_eq!(cluster.version(), 0, "agent 1 is missing");
    let lost = cluster.work[&cluster.assignment_of(1)].1.spans.clone();
    cluster.kill(1);
    assert_eq!(cluster.version(), 1, "at once");
    assert_eq!((cluster.rounds[0].samples, cluster.rounds[0].updates), (48, 3));
    let again: Vec<_> =
        cluster.work.values().filter(|(_, work)| work.version.0 == 1).map(|(_, work)| work.spans[0]).collect();
    assert!(again.iter().any(|span| span.start == lost[0].start), "{again:?} has not {lost:?}");
    assert_eq!(cluster.training.status(cluster.now).counters.abandoned, 1);
}

#[test]
fn a_straggler_is_given_up_at_the_deadline_and_comes_back() {
    let mut config = config();
    (config.wait_for_agents, config.agents_min) = (4, 2);
    let mut cluster = Cluster::started(config, &[100.0; 4]);
    cluster.agent(1).habit = Habit::Silent;
    let missed = cluster.assignment_of(1);
    cluster.run_to_version(1);
    let closed_s = cluster.now.as_secs_f64();
    assert!(closed_s > 30.0 && closed_s < 31.0, "{closed_s}");
    cluster.run_to_version(3);
    assert_eq!(cluster.rounds[1].updates, 3, "the straggler gets no work for a while");
    let before = cluster.parameters();
    cluster.agent(1).habit = Habit::Good;
    cluster.push_good(1, missed);
    assert_eq!(cluster.refusals(), ["the round was closed without it"]);
    assert_eq!(cluster.parameters(), before);
    cluster.run_to_version(6);
    assert_eq!(cluster.rounds[5].updates, 4, "it has shown that it is alive");
    let status = cluster.training.status(cluster.now);
    assert_eq!((status.counters.stragglers, status.counters.refused_closed), (1, 1));
}

#[test]
fn a_step_of_ten_minutes_is_accepted_if_the_deadline_allows_it() {
    let mut config = config();
    (config.wait_for_agents, config.round_deadline) = (2, Duration::from_secs(700));
    let mut cluster = Cluster::started(config, &[100.0, 32.0 / 600.0]);
    cluster.run_to_version(2);
    assert_eq!(cluster.rounds[1].updates, 2);
}

#[test]
fn below_the_quorum_it_waits_says_so_and_resumes_by_itself() {
    let mut config = config();
    (config.wait_for_agents, config.agents_min) = (4, 2);
    let mut cluster = Cluster::started(config, &[100.0; 4]);
    cluster.run_to_version(3);
    for agent in 1..4 {
        cluster.kill(agent);
    }
    while cluster.step() && cluster.now < Duration::from_secs(100) {}
    let version = cluster.version();
    let status = cluster.training.status(cluster.now);
    assert_eq!(status.phase, Phase::Waiting);
    assert_eq!(status.waiting[0].to_string(), "waiting for agents: 1 of 2 ready");
    for agent in 4..7 {
        cluster.join(agent, 100.0);
    }
    let resumed_at = cluster.now;
    cluster.run_to_version(version + 2);
    assert!(cluster.now < resumed_at + Duration::from_secs(2));
    cluster.assert_covered(0);
}

#[test]
fn a_round_that_cannot_reach_its_quorum_makes_way_for_agents_that_came_meanwhile() {
    let mut config = config();
    (config.wait_for_agents, config.agents_min) = (2, 2);
    let mut cluster = Cluster::started(config, &[100.0; 2]);
    cluster.agent(1).habit = Habit::Silent;
    cluster.run_until(|cluster| cluster.outcomes.len() == 1);
    cluster.join(2, 100.0);
    cluster.run_to_version(1);
    assert!(cluster.now < Duration::from_secs(31));
    assert_eq!(cluster.steps.iter().map(|record| record.agent.0).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(cluster.training.status(cluster.now).counters.rounds_reopened, 1);
}

#[test]
fn the_first_step_waits_for_the_agents_expected_or_the_timeout() {
    let mut config = config();
    (config.wait_for_agents, config.wait_timeout) = (3, Duration::from_secs(20));
    let mut cluster = Cluster::started(config.clone(), &[100.0; 2]);
    let waiting = cluster.training.status(cluster.now).waiting;
    let expected = Waiting::Agents { ready: 2, needed: 3, until: Some(Duration::from_secs(20)) };
    assert_eq!(waiting, [expected]);
    cluster.run_to_version(1);
    assert!(cluster.now > Duration::from_secs(20));
    let mut cluster = Cluster::started(config, &[100.0; 3]);
    cluster.run_to_version(1);
    assert!(cluster.now < Duration::from_secs(1));
}

#[test]
fn status_names_those_who_are_missing() {
    let mut config = config();
    (config.wait_for_agents, config.agents_min) = (3, 2);
    let mut cluster = Cluster::started(config, &[100.0; 3]);
    cluster.agent(2).habit = Habit::Silent;
    cluster.run_until(|cluster| cluster.outcomes.len() == 2);
    let status = cluster.training.status(cluster.now);
    assert_eq!(status.phase, Phase::Training);
    let waiting: Vec<String> = status.waiting.iter().map(ToString::to_string).collect();
    assert_eq!(waiting, ["waiting for updates of agent-2: 2 in, 2 will do from 30.2 s on"]);
}

#[test]
fn status_says_when_a_minimum_batch_keeps_the_step_from_being_balanced() {
    let mut config = config();
    (config.batching, config.batch_bounds, config.wait_for_agents) = (dynamic(Controller::Deadline), (8, 64), 4);
    let mut cluster = Cluster::started(config, &[100.0, 100.0, 100.0, 5.0]);
    cluster.run_to_version(60);
    let status = cluster.training.status(cluster.now);
    assert_eq!(status.remarks, ["agent agent-3 is on its minimum batch of 8; a balanced step would give it less"]);
    assert_eq!(status.agents[3].local_batch, 8);
    assert!(status.max_over_min_step.unwrap() > 5.0);
}

#[test]
fn where_memory_is_short_the_global_batch_and_the_learning_rate_shrink_together() {
    let mut config = config();
    config.wait_for_agents = 2;
    let mut cluster = Cluster::new(config);
    cluster.join_with(0, 100.0, Some(16), Vec::new());
    cluster.join_with(1, 100.0, Some(16), Vec::new());
    cluster.run_to_version(1);
    let status = cluster.training.status(cluster.now);
    assert_eq!((status.global_batch, cluster.rounds[0].samples), (32, 32));
    assert!((cluster.rounds[0].learning_rate - 0.025).abs() < 1e-12);
    assert!(status.remarks[0].starts_with("the largest batches sum to 32, 32 short of the global batch of 64"));
}

#[test]
fn training_stops_after_steps_or_when_the_time_is_up() {
    let mut config = config();
    config.stop = StopConfig { steps: Some(5), ..StopConfig::default() };
    let mut cluster = Cluster::started(config.clone(), &[100.0; 2]);
    cluster.run_to_end();
    assert_eq!((cluster.version(), cluster.training.finished()), (5, Some(&StopReason::Steps { steps: 5 })));
    config.stop = StopConfig { wall_time: Some(Duration::from_secs(10)), ..StopConfig::default() };
    let mut cluster = Cluster::started(config.clone(), &[100.0; 2]);
    cluster.run_to_end();
    assert_eq!(cluster.training.finished(), Some(&StopReason::WallTime { seconds: 10 }));
    assert_eq!(cluster.now, Duration::from_secs(10));
    let mut cluster = Cluster::started(config, &[100.0; 2]);
    cluster.run_to_version(2);
    let actions = cluster.training.stop(cluster.now, "by an operator".to_owned());
    assert_eq!(actions.len(), 3, "two cancelled assignments and the end: {actions:?}");
    assert_eq!(cluster.training.next_deadline(), None);
    let id = cluster.assignment_of(0);
    cluster.push_good(0, id);
    assert_eq!(cluster.refusals(), ["the job is over"]);
}

#[test]
fn shared_buffers_are_merged_by_samples() {
    let mut config = config();
    (config.batching, config.wait_for_agents) = (Batching::Static, 2);
    let mut cluster = Cluster::new(config);
    for (agent, rate) in [(0, 1.0), (1, 3.0)] {
        cluster.join_with(agent, rate, None, vec![CalibrationPoint { samples: 8, step_s: 1.0 / rate }]);
    }
    let ids = [0, 1].map(|agent| cluster.assignment_of(agent).0 as f32);
    cluster.run_to_version(1);
    let expected = (ids[0] * 16.0 + ids[1] * 48.0) / 64.0;
    assert_eq!(&*cluster.training.snapshot().buffers, [expected, 1.0]);
}

#[test]
fn an_agent_with_another_data_set_gets_no_work() {
    let mut config = config();
    config.test_samples = 10;
    let mut cluster = Cluster::new(config);
    let ready = omnilearn_wire::message::JobReady {
        train_samples: 999,
        test_samples: 10,
        batch_max: None,
        batch_step: 1,
        calibration: vec![],
    };
    cluster.send(omnilearn_hub_core::Event::Ready {
        agent: AgentId(0),
        name: "other".to_owned(),
        machine: omnilearn_wire::message::Machine::default(),
        ready,
    });
    assert!(cluster.work.is_empty());
    let state = &cluster.training.status(cluster.now).agents[0].state;
    let expected = "has 999 training samples, the job has 1000".to_owned();
    assert_eq!(*state, omnilearn_hub_core::status::AgentState::Unfit { reason: expected });
}
