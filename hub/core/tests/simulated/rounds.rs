//! Rules that make one step of many updates, apart from BSP.

use omnilearn_hub_core::JobConfig;
use omnilearn_hub_core::config::{Balance, Batching, Controller, Local, Mode, StopConfig};
use omnilearn_hub_core::optimizer::OptimizerConfig;
use omnilearn_hub_core::schedule::ScheduleConfig;
use omnilearn_wire::message::{CalibrationPoint, Computation, PushOutcome};

use crate::cluster::{Cluster, Habit, config, descend, dynamic, mean_gradient};

fn plain(mode: Mode, agents: u32) -> JobConfig {
    let mut config = config();
    (config.mode, config.wait_for_agents) = (mode, agents);
    config.optimizer = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    config
}

fn two_epochs() -> StopConfig {
    StopConfig { epochs: Some(2), ..StopConfig::default() }
}

fn assert_close(found: &[f32], expected: &[f32]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }
}

/// The longest time between two steps.
fn longest_step_s(cluster: &Cluster) -> f64 {
    cluster.rounds.windows(2).map(|pair| pair[1].wall_s - pair[0].wall_s).fold(0.0, f64::max)
}

/// Parameters after the recorded updates: each step is the mean over its updates' samples, from the parameters that each update
/// was computed from.
fn replayed(cluster: &mut Cluster, rate: f32) -> Vec<f32> {
    let mut history = vec![vec![0.5f32; 10]];
    let mut steps = cluster.steps.clone();
    steps.sort_by_key(|step| step.version);
    for step in steps.chunk_by(|a, b| a.version == b.version) {
        let mut next = history.last().unwrap().clone();
        let all = step.iter().map(|record| record.samples).sum::<u32>() as f32;
        for record in step {
            let (_, mut work) = cluster.work[&record.assignment].clone();
            assert_eq!(record.staleness, history.len() as u64 - 1 - work.version.0);
            work.spans.clone_from(&record.spans);
            let samples = cluster.samples(&work);
            let (_, gradient) = mean_gradient(&history[work.version.0 as usize], &samples);
            let share = record.samples as f32 / all;
            next.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= rate * share * gradient);
        }
        history.push(next);
    }
    history.pop().unwrap()
}

#[test]
fn backups_never_delay_a_step_and_their_samples_come_again() {
    for (slow, rates) in [([2, 3], [100.0, 100.0, 1.0, 2.0]), ([0, 1], [1.0, 2.0, 100.0, 100.0])] {
        let mut config = plain(Mode::BackupWorkers { backups: 2 }, 4);
        config.stop = two_epochs();
        let mut cluster = Cluster::started(config, &rates);
        cluster.run_to_end();
        cluster.assert_covered(2);
        assert!(longest_step_s(&cluster) < 0.18, "{}", longest_step_s(&cluster));
        assert!(cluster.rounds.iter().all(|round| (round.updates, round.samples) == (2, 32)));
        assert!(cluster.steps.iter().all(|record| !slow.contains(&record.agent.0)));
        let counters = cluster.training.status(cluster.now).counters;
        assert_eq!(counters.left_out, 2 * cluster.version());
        assert_eq!(counters.stragglers, 0, "to be a backup is no fault");
    }
}

#[test]
fn an_agent_that_is_always_left_out_gets_less_until_it_is_not() {
    for controller in [Controller::Deadline, Controller::Proportional] {
        let mut config = plain(Mode::BackupWorkers { backups: 1 }, 4);
        config.batching = dynamic(controller);
        let mut cluster = Cluster::started(config, &[100.0, 100.0, 100.0, 22.0]);
        cluster.run_to_version(300);
        let (first, last) = (&cluster.batches[0], &cluster.batches[cluster.batches.len() - 1]);
        // In proportion to speed it would have 4.4 of 64, and 4 take less time than the 20 of the others.
        assert!(first[3] == 16 && last[3] <= 6, "{controller:?}: {:?}", cluster.batches);
        let counts = cluster.steps.iter().any(|record| record.agent.0 == 3 && record.version.0 > 200);
        assert!(counts, "{controller:?}");
        // What came too late was only looked at for its time.
        let expected = replayed(&mut cluster, 0.05);
        assert_close(&cluster.parameters(), &expected);
    }
}

#[test]
fn an_update_that_comes_after_its_round_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::started(plain(Mode::BackupWorkers { backups: 1 }, 3), &[100.0, 100.0, 25.0]);
    cluster.agent(2).habit = Habit::Stubborn;
    let late = cluster.assignment_of(2);
    cluster.run_until(|cluster| !cluster.refusals().is_empty());
    assert_eq!(cluster.refusals()[0], "the round was closed without it");
    assert!(cluster.outcomes.iter().any(|(id, _)| *id == late));
    cluster.run_to_version(20);
    let expected = replayed(&mut cluster, 0.05);
    assert_close(&cluster.parameters(), &expected);
}

#[test]
fn the_quorum_is_waited_for_even_if_backups_would_leave_fewer() {
    let mut config = plain(Mode::BackupWorkers { backups: 3 }, 4);
    config.agents_min = 3;
    let mut cluster = Cluster::started(config, &[100.0, 100.0, 50.0, 10.0]);
    cluster.run_to_version(5);
    assert!(cluster.rounds.iter().all(|round| round.updates == 3));
}

#[test]
fn a_step_is_never_made_of_the_small_batches_alone() {
    let mut config = plain(Mode::BackupWorkers { backups: 1 }, 3);
    config.batching = Batching::Static;
    let mut cluster = Cluster::new(config);
    for (agent, rating) in [(0, 8.0), (1, 8.0), (2, 48.0)] {
        // All are as fast as this in truth, so those with small batches are done first.
        cluster.join_with(agent, 100.0, None, vec![CalibrationPoint { samples: 8, step_s: 1.0 / rating }]);
    }
    assert_eq!(cluster.batches, [[8, 8, 48]]);
    cluster.run_to_version(10);
    assert!(cluster.rounds.iter().all(|round| round.samples >= 64 - 22), "{:?}", cluster.rounds);
}

#[test]
fn a_late_update_counts_in_a_later_round() {
    let mut config = plain(Mode::Hop { backups: 1, staleness_max: 4 }, 4);
    config.stop = two_epochs();
    let mut cluster = Cluster::started(config, &[100.0, 100.0, 100.0, 40.0]);
    cluster.run_to_end();
    cluster.assert_covered(2);
    assert!(longest_step_s(&cluster) < 0.18, "nobody waits for agent 3");
    let late: Vec<u64> =
        cluster.steps.iter().filter(|record| record.agent.0 == 3).map(|record| record.staleness).collect();
    assert!(late.len() > 5 && late.iter().all(|staleness| (1..=4).contains(staleness)), "{late:?}");
    assert!(cluster.rounds.iter().all(|round| round.updates >= 3));
    let expected = replayed(&mut cluster, 0.05);
    assert_close(&cluster.parameters(), &expected);
}

#[test]
fn an_update_one_round_too_old_is_refused_and_its_agent_skips_to_the_present() {
    let mut config = plain(Mode::Hop { backups: 1, staleness_max: 1 }, 4);
    config.stop = two_epochs();
    let mut cluster = Cluster::started(config, &[100.0, 100.0, 100.0, 40.0]);
    cluster.agent(3).habit = Habit::Stubborn;
    cluster.run_until(|cluster| !cluster.refusals().is_empty());
    assert_eq!(cluster.refusals()[0], "gradient is 2 steps old, at most 1 allowed");
    let work = &cluster.work[&cluster.assignment_of(3)].1;
    assert!(work.version.0 >= 2, "it has newer work");
    cluster.run_to_end();
    cluster.assert_covered(2);
    assert!(cluster.steps.iter().all(|record| record.staleness <= 1));
    let counters = cluster.training.status(cluster.now).counters;
    assert!(counters.refused_stale > 0 && counters.left_out > 0, "{counters:?}");
}

#[test]
fn hop_without_backups_is_bsp() {
    let parameters = |mode| {
        let mut cluster = Cluster::started(plain(mode, 3), &[100.0, 60.0, 30.0]);
        cluster.run_to_version(20);
        cluster.parameters()
    };
    assert_close(&parameters(Mode::Hop { backups: 0, staleness_max: 3 }), &parameters(Mode::Bsp));
}

#[test]
fn agents_do_what_they_can_in_a_fixed_time_and_the_rest_comes_again() {
    let mut config = plain(Mode::Anytime { compute_s: 1.0 }, 3);
    (config.batch_bounds, config.stop) = ((1, 512), two_epochs());
    let mut cluster = Cluster::started(config, &[100.0, 20.0, 10.0]);
    cluster.run_to_end();
    cluster.assert_covered(2);
    let done = |agent| cluster.steps.iter().rev().find(|record| record.agent.0 == agent).unwrap().samples;
    assert_eq!([0, 1, 2].map(done), [99, 19, 9]);
    assert!(longest_step_s(&cluster) <= 1.001, "nobody waits: {}", longest_step_s(&cluster));
    for record in &cluster.steps {
        let assigned = cluster.work[&record.assignment].1.samples();
        assert!(record.samples <= assigned && assigned <= 198);
        assert_eq!(record.samples, record.spans.iter().map(|span| span.len()).sum::<u32>());
    }
    let status = cluster.training.status(cluster.now);
    assert_eq!(status.agents.iter().map(|agent| agent.local_batch).collect::<Vec<_>>(), [99, 19, 9]);
    let expected = replayed(&mut cluster, 0.05);
    assert_close(&cluster.parameters(), &expected);
}

#[test]
fn only_a_given_time_may_leave_samples_undone() {
    for (mode, found, accepted) in [
        (Mode::Bsp, 31, false),
        (Mode::Bsp, 33, false),
        (Mode::Anytime { compute_s: 9.0 }, 0, false),
        (Mode::Anytime { compute_s: 9.0 }, 33, false),
        (Mode::Anytime { compute_s: 9.0 }, 31, true),
    ] {
        let mut cluster = Cluster::started(plain(mode, 2), &[100.0, 100.0]);
        let id = cluster.assignment_of(0);
        cluster.computed.get_mut(&id).unwrap().samples = found;
        cluster.push_good(0, id);
        let (_, outcome) = &cluster.outcomes[0];
        match outcome {
            PushOutcome::Accepted { .. } => assert!(accepted, "{mode:?} {found}"),
            PushOutcome::Refused { reason } => {
                assert!(!accepted);
                assert_eq!(*reason, format!("update is of {found} samples, the assignment is of 32"));
            }
        }
    }
}

fn local(steps: u32, momentum: f32) -> Local {
    Local { steps, learning_rate: 0.05, momentum }
}

#[test]
fn one_local_step_taken_over_whole_is_a_step_of_bsp() {
    let parameters = |mode, rate| {
        let mut config = plain(mode, 3);
        config.schedule = ScheduleConfig::constant(rate);
        let mut cluster = Cluster::started(config, &[100.0, 60.0, 30.0]);
        cluster.run_to_version(30);
        cluster.parameters()
    };
    let local = parameters(Mode::LocalSgd { local: local(1, 0.0), balance: Balance::Batches }, 1.0);
    assert_close(&local, &parameters(Mode::Bsp, 0.05));
}

#[test]
fn a_round_of_local_steps_ends_at_the_mean_of_the_agents_parameters() {
    let mut config = plain(Mode::LocalSgd { local: local(4, 0.9), balance: Balance::Batches }, 2);
    (config.batching, config.schedule) = (Batching::Static, ScheduleConfig::constant(1.0));
    let mut cluster = Cluster::new(config);
    for (agent, rate) in [(0, 1.0), (1, 3.0)] {
        cluster.join_with(agent, rate, None, vec![CalibrationPoint { samples: 8, step_s: 1.0 / rate }]);
    }
    let works = [0, 1].map(|agent| cluster.work[&cluster.assignment_of(agent)].1.clone());
    assert_eq!(works.each_ref().map(|work| work.samples()), [4 * 16, 4 * 48]);
    cluster.run_to_version(1);
    let ends = works.map(|work| {
        let samples = cluster.samples(&work);
        descend(vec![0.5; 10], samples.chunks(samples.len() / 4), 0.05, 0.9).1
    });
    let expected: Vec<f32> = ends[0].iter().zip(&ends[1]).map(|(a, b)| 0.25 * a + 0.75 * b).collect();
    assert_close(&cluster.parameters(), &expected);
    assert_eq!(cluster.rounds[0].samples, 4 * 64);
}

#[test]
fn who_would_have_a_larger_batch_makes_more_steps_instead() {
    let mut config = plain(Mode::LocalSgd { local: local(3, 0.0), balance: Balance::Steps }, 2);
    config.batching = Batching::Static;
    let mut cluster = Cluster::new(config);
    for (agent, rate) in [(0, 1.0), (1, 3.0)] {
        cluster.join_with(agent, rate, None, vec![CalibrationPoint { samples: 8, step_s: 1.0 / rate }]);
    }
    let work = [0, 1].map(|agent| {
        let work = &cluster.work[&cluster.assignment_of(agent)].1;
        let Computation::Local(local) = work.computation else { panic!("{work:?}") };
        (work.samples(), local.steps)
    });
    assert_eq!(work, [(48, 2), (144, 5)], "batches of at most 64 / 2");
}

#[test]
fn local_steps_are_balanced_by_measured_speed() {
    let mut config = plain(Mode::LocalSgd { local: local(5, 0.0), balance: Balance::Batches }, 4);
    (config.batching, config.global_batch, config.batch_bounds) = (dynamic(Controller::Deadline), 256, (1, 256));
    config.train_samples = 5000;
    let mut cluster = Cluster::started(config, &[60.0, 60.0, 40.0, 320.0]);
    cluster.run_to_version(40);
    let last = &cluster.steps[cluster.steps.len() - 4..];
    let compute_s: Vec<f32> = last.iter().filter_map(|step| step.timings).map(|timings| timings.compute_s).collect();
    let (fastest, slowest) = compute_s.iter().fold((f32::MAX, 0.0f32), |(a, b), &s| (a.min(s), b.max(s)));
    assert!(slowest < 1.08 * fastest, "{compute_s:?}");
    assert!(cluster.rounds.iter().all(|round| round.samples == 5 * 256));
}

#[test]
fn the_schedule_shapes_local_steps_and_not_what_the_hub_takes_over() {
    let mut config = plain(Mode::LocalSgd { local: local(2, 0.0), balance: Balance::Batches }, 1);
    config.schedule = ScheduleConfig { warm_up_steps: 4, ..ScheduleConfig::constant(1.0) };
    let mut cluster = Cluster::started(config, &[100.0]);
    cluster.run_to_version(5);
    let rates: Vec<f32> = cluster
        .work
        .values()
        .map(|(_, work)| match work.computation {
            Computation::Local(local) => local.learning_rate,
            _ => panic!("{work:?}"),
        })
        .collect();
    assert_eq!(rates[..5], [0.0125, 0.025, 0.0375, 0.05, 0.05]);
    assert!(cluster.rounds.iter().all(|round| (round.learning_rate - 1.0).abs() < 1e-12));
}
