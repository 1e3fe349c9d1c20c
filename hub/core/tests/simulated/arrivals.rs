//! Rules that make a step of each update, apart from ASP.

use std::collections::BTreeMap;

use omnilearn_hub_core::JobConfig;
use omnilearn_hub_core::config::{Controller, Local, Mode, StopConfig};
use omnilearn_hub_core::optimizer::OptimizerConfig;
use omnilearn_hub_core::schedule::ScheduleConfig;
use omnilearn_wire::message::PushOutcome;

use crate::cluster::{Cluster, Habit, config, dynamic, mean_gradient};

const RATES: [f64; 3] = [320.0, 60.0, 40.0];

fn plain(mode: Mode, agents: u32) -> JobConfig {
    let mut config = config();
    (config.mode, config.wait_for_agents) = (mode, agents);
    config.optimizer = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    config
}

/// Parameters at each version, and the run.
fn course(mode: Mode, rates: &[f64], versions: u64) -> (Vec<Vec<f32>>, Cluster) {
    let mut cluster = Cluster::started(plain(mode, rates.len() as u32), rates);
    let mut course = vec![cluster.parameters()];
    while (course.len() as u64) <= versions {
        assert!(cluster.step());
        if cluster.version() as usize == course.len() {
            course.push(cluster.parameters());
        }
    }
    (course, cluster)
}

fn assert_close(found: &[f32], expected: &[f32]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }
}

#[test]
fn a_lead_of_zero_goes_through_the_parameters_of_bsp() {
    let (bsp, _) = course(Mode::Bsp, &RATES, 30);
    let (ssp, cluster) = course(Mode::Ssp { lead_max: 0 }, &RATES, 90);
    for (step, expected) in bsp.iter().enumerate() {
        assert_close(&ssp[step * RATES.len()], expected);
    }
    assert!(cluster.steps.iter().all(|record| record.staleness <= 2), "only of their own round");
}

#[test]
fn nobody_begins_more_than_the_lead_ahead_of_the_slowest() {
    for lead_max in [0, 1, 4] {
        let mut cluster = Cluster::started(plain(Mode::Ssp { lead_max }, 3), &RATES);
        let mut pushes: BTreeMap<u32, u64> = [(0, 0), (1, 0), (2, 0)].into();
        let (mut seen, mut widest, mut waited) = (0, 0, false);
        while cluster.version() < 120 {
            assert!(cluster.step());
            for record in &cluster.steps[seen..] {
                *pushes.get_mut(&record.agent.0).unwrap() += 1;
            }
            seen = cluster.steps.len();
            let slowest = *pushes.values().min().unwrap();
            let most = *pushes.values().max().unwrap();
            // A push that began with the largest lead is one more when it is done.
            assert!(most - slowest <= lead_max + 1, "{pushes:?}");
            widest = widest.max(most - slowest);
            let waiting = cluster.training.status(cluster.now).waiting;
            let text = format!("others are more than lead_max = {lead_max} ahead");
            waited |= waiting.iter().any(|waiting| waiting.to_string().ends_with(&text));
        }
        assert_eq!(widest, lead_max + 1, "the lead is used");
        assert!(waited, "and the status says who waits for whom");
    }
}

#[test]
fn an_agent_that_hangs_goes_or_comes_holds_nobody_up_for_long() {
    let mut config = plain(Mode::Ssp { lead_max: 1 }, 3);
    config.stop = StopConfig { epochs: Some(6), ..StopConfig::default() };
    let mut cluster = Cluster::started(config, &RATES);
    cluster.run_to_version(30);
    cluster.agent(2).habit = Habit::Silent;
    cluster.run_to_version(60); // goes on once agent 2 is given up
    cluster.kill(1);
    cluster.run_to_version(90);
    cluster.join(7, 50.0); // begins where the slowest is, and not at 0
    let joined_s = cluster.now.as_secs_f64();
    cluster.run_to_version(95);
    assert!(cluster.now.as_secs_f64() < joined_s + 3.0);
    cluster.run_to_end();
    cluster.assert_covered(6);
}

/// Replays single updates with a coefficient of samples, agents and staleness.
fn assert_coefficient(cluster: &mut Cluster, coefficient: impl Fn(f32, f32) -> f32) {
    let mut history = vec![vec![0.5f32; 10]];
    for record in cluster.steps.clone() {
        let (_, work) = cluster.work[&record.assignment].clone();
        let samples = cluster.samples(&work);
        let (_, gradient) = mean_gradient(&history[work.version.0 as usize], &samples);
        let scale = 0.05 * coefficient(record.samples as f32, record.staleness as f32);
        let next = history.last().unwrap().iter().zip(gradient).map(|(value, gradient)| value - scale * gradient);
        let next = next.collect();
        history.push(next);
    }
    assert!(cluster.steps.iter().any(|record| record.staleness > 1));
    assert_close(&cluster.parameters(), history.last().unwrap());
}

#[test]
fn each_rule_has_its_coefficient() {
    let lead_max = 3;
    let run = |mode| course(mode, &RATES, 60).1;
    assert_coefficient(&mut run(Mode::Ssp { lead_max }), |samples, _| samples / 64.0);
    let rate = Some(0.5);
    assert_coefficient(&mut run(Mode::ConSgd { lead_max, rate }), |samples, _| 0.5 * 3.0 * samples / 64.0);
    assert_coefficient(&mut run(Mode::ConSgd { lead_max, rate: None }), |samples, _| samples / 64.0);
    let damped = |samples: f32, staleness: f32| 3.0 * samples / 64.0 / (staleness + 1.0);
    assert_coefficient(&mut run(Mode::DynSgd { lead_max }), damped);
}

#[test]
fn dyn_sgd_without_staleness_is_asp_to_the_last_bit() {
    let (dynamic, _) = course(Mode::DynSgd { lead_max: 0 }, &[100.0], 40);
    let (plain, _) = course(Mode::Asp { staleness_max: None, damping: false }, &[100.0], 40);
    assert_eq!(dynamic, plain);
    let (dynamic, _) = course(Mode::DynSgd { lead_max: u64::MAX }, &RATES, 40);
    let (damped, _) = course(Mode::Asp { staleness_max: None, damping: true }, &RATES, 40);
    assert_eq!(dynamic, damped);
}

#[test]
fn the_hub_moves_by_what_the_agents_give_whatever_their_samples() {
    let local = Local { steps: 4, learning_rate: 0.05, momentum: 0.0 };
    let mut config = plain(Mode::ElasticAveraging { local, alpha: None }, 3);
    (config.schedule, config.batching) = (ScheduleConfig::constant(1.0), dynamic(Controller::Deadline));
    let mut cluster = Cluster::new(config);
    for (agent, rate) in RATES.into_iter().enumerate() {
        cluster.join_with(agent as u32, rate, (agent == 1).then_some(10), Vec::new()); // with little memory
    }
    cluster.run_to_version(300);
    let mut expected = vec![0.5f64; 10];
    for (id, outcome) in &cluster.outcomes {
        if matches!(outcome, PushOutcome::Accepted { .. }) {
            let given = &cluster.computed[id].gradient;
            expected.iter_mut().zip(given).for_each(|(value, given)| *value -= f64::from(*given));
        }
    }
    let expected: Vec<f32> = expected.into_iter().map(|value| value as f32).collect();
    assert_close(&cluster.parameters(), &expected);
    assert_eq!(cluster.batches, [[27, 10, 27]], "samples differ, and times move none of them");
    assert!(cluster.agents.values().all(|agent| agent.own.is_some()));
    let losses: Vec<f64> = cluster.rounds.iter().map(|round| round.loss).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[250..]) < 0.95 * mean(&losses[..3]), "{} {}", mean(&losses[250..]), mean(&losses[..3]));
}
