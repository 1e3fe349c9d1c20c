//! Agents that go and come: no sample is lost or counted twice.

use std::time::Duration;

use omnilearn_simulator::fleet::{AgentSpec, Leaving};
use omnilearn_simulator::scale::dynamic;
use omnilearn_simulator::{SimulationError, Unwatched, gradients::NoGradients, simulate};

use crate::fixtures::{asp, by_cores, fleet, job, run};

#[test]
fn every_sample_counts_once_however_an_agent_goes_and_the_hub_notices_as_it_would() {
    for how in [Leaving::Closes, Leaving::Silent, Leaving::Hangs] {
        for asynchronous in [false, true] {
            let mut fleet = by_cores(&[6.0, 6.0, 4.0, 32.0]);
            fleet.agents[1].leaves = Some((Duration::from_secs_f64(50.3), how));
            fleet.agents.push(AgentSpec { joins: Duration::from_secs(100), ..AgentSpec::new("late", 150.0) });
            let mut job = if asynchronous { asp(&fleet, dynamic(), 2) } else { job(&fleet, dynamic(), 2) };
            (job.config.wait_for_agents, job.config.round_deadline) = (4, Duration::from_secs(40));
            let (summary, _, records) = run(&fleet, &job);
            records.assert_covered(&job.config, 2);
            let late = records.steps().filter(|step| step.agent.0 == 4).count();
            assert!(late > 10, "the one that came late has {late} updates");
            let lost = (summary.abandoned, summary.stragglers > 0);
            assert_eq!(lost, if how == Leaving::Hangs { (0, true) } else { (1, false) }, "{how:?} {asynchronous}");
            assert!(summary.samples_reissued > 0);
            let after = records.steps().filter(|step| step.agent.0 == 1 && step.wall_s > 50.3).count();
            assert_eq!(after, 0, "nothing comes from an agent that is gone");
            if !asynchronous {
                let gap = longest_gap(records.steps().map(|step| step.wall_s));
                let expected = match how {
                    Leaving::Closes => 0.0..5.0,
                    Leaving::Silent => 12.0..20.0,
                    Leaving::Hangs => 38.0..45.0,
                };
                assert!(expected.contains(&gap), "{how:?}: {gap}");
            }
        }
    }
}

fn longest_gap(times: impl Iterator<Item = f64>) -> f64 {
    let mut last = None;
    let gap = |time: f64| time - last.replace(time).unwrap_or(time);
    times.map(gap).fold(0.0, f64::max)
}

#[test]
fn a_job_that_nobody_is_left_for_is_told_from_one_that_ends() {
    let mut fleet = fleet(&[100.0, 100.0]);
    fleet.agents[0].leaves = Some((Duration::from_secs(10), Leaving::Closes));
    let mut job = job(&fleet, dynamic(), 1);
    job.config.agents_min = 2;
    let error = simulate(&fleet, &job, &mut NoGradients::default(), &mut Unwatched).unwrap_err();
    assert!(matches!(error, SimulationError::Stuck { .. }), "{error}");
    assert!(error.to_string().contains("waiting for agents: 1 of 2 ready"), "{error}");
}

#[test]
fn without_gradients_a_job_that_ends_by_accuracy_only_is_refused() {
    let fleet = fleet(&[100.0]);
    let mut job = job(&fleet, dynamic(), 1);
    job.config.stop = omnilearn_hub_core::config::StopConfig::default();
    let error = simulate(&fleet, &job, &mut NoGradients::default(), &mut Unwatched).unwrap_err();
    assert!(matches!(error, SimulationError::NoEnd), "{error}");
}
