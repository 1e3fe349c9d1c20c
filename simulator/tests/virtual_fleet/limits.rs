//! How near the controllers come to what the agents' speeds allow.

use omnilearn_hub_core::config::Batching;
use omnilearn_simulator::fleet::{Change, Moment};
use omnilearn_simulator::scale::dynamic;

use crate::fixtures::{LEVELS, by_cores, job, run};

#[test]
fn deadline_is_within_3_percent_of_the_limit_at_every_level_and_never_slower_than_uniform() {
    for (cores, uniform_over_limit) in LEVELS.iter().zip([1.0, 1.5, 2.0, 3.0]) {
        let fleet = by_cores(cores);
        let (uniform, ..) = run(&fleet, &job(&fleet, Batching::Uniform, 5));
        let (deadline, ..) = run(&fleet, &job(&fleet, dynamic(), 5));
        let found = 1.0 / uniform.ratio_to_limit.unwrap();
        assert!((found / uniform_over_limit - 1.0).abs() < 1e-3, "{cores:?}: {found} is not {uniform_over_limit}");
        let ratio = deadline.ratio_to_limit.unwrap();
        println!("{cores:?}: uniform {found:.3} times the limit, deadline {:.4} times", 1.0 / ratio);
        assert!(ratio > 0.97, "{cores:?}: {ratio}");
        assert!(deadline.training_s <= uniform.training_s * (1.0 + 1e-9), "{cores:?}");
    }
}

#[test]
fn deadline_comes_within_5_percent_also_with_overheads_and_noise() {
    for cores in LEVELS {
        let mut fleet = by_cores(&cores);
        for (agent, overhead_s) in fleet.agents.iter_mut().zip([0.1, 0.3, 0.2, 0.05]) {
            (agent.overhead_s, agent.noise) = (overhead_s, 0.01);
        }
        let (summary, ..) = run(&fleet, &job(&fleet, dynamic(), 10));
        let ratio = summary.ratio_to_limit.unwrap();
        println!("{cores:?}: {ratio:.4} of the limit");
        assert!(ratio > 0.95, "{cores:?}: {ratio} {summary:?}");
    }
}

#[test]
fn over_the_schedule_of_levels_deadline_loses_less_than_3_percent_to_an_oracle() {
    const EPOCHS: u32 = 5;
    let schedule = [0usize, 1, 2, 3, 3, 2, 1, 0];
    let mut fleet = by_cores(&LEVELS[0]);
    for (index, agent) in fleet.agents.iter_mut().enumerate() {
        let change = |(block, level): (usize, &usize)| Change {
            from: Moment::Epoch(f64::from(EPOCHS) * block as f64),
            samples_per_s: LEVELS[*level][index] * 10.0,
        };
        agent.changes = schedule.iter().enumerate().map(change).collect();
    }
    let job = job(&fleet, dynamic(), EPOCHS * schedule.len() as u32);
    let (mut summary, outcome, _) = run(&fleet, &job);
    summary.ask_oracle(&job, &fleet, &outcome).unwrap();
    let over = summary.over_oracle.unwrap();
    println!("over the oracle: {:.2} %, of the limit: {:.4}", over * 100.0, summary.ratio_to_limit.unwrap());
    assert!((0.0..0.03).contains(&over), "{over}");
}

#[test]
fn the_oracle_is_never_beaten_and_reaches_the_limit_but_for_whole_samples() {
    for cores in LEVELS {
        let fleet = by_cores(&cores);
        let job = job(&fleet, dynamic(), 2);
        let (mut summary, outcome, _) = run(&fleet, &job);
        summary.ask_oracle(&job, &fleet, &outcome).unwrap();
        let (oracle_s, limit_s) = (summary.oracle_training_s.unwrap(), summary.limit_s.unwrap());
        assert!(oracle_s <= summary.training_s * (1.0 + 1e-9), "{cores:?}: {oracle_s} {}", summary.training_s);
        assert!((1.0 - 1e-9..1.02).contains(&(oracle_s / limit_s)), "{cores:?}: {oracle_s} {limit_s}");
    }
}
