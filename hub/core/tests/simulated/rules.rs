//! What must hold under every rule, whatever its agents do.

use std::time::Duration;

use omnilearn_hub_core::action::StopReason;
use omnilearn_hub_core::config::{Balance, Controller, Local, Mode, StopConfig};
use omnilearn_wire::AgentId;
use omnilearn_wire::message::Failure;
use proptest::prelude::*;

use crate::cluster::{Cluster, Habit, config, dynamic};

const LOCAL: Local = Local { steps: 3, learning_rate: 0.05, momentum: 0.5 };

/// Every rule, and where it has one, its extreme.
const MODES: [Mode; 16] = [
    Mode::Bsp,
    Mode::BackupWorkers { backups: 1 },
    Mode::BackupWorkers { backups: 9 },
    Mode::Hop { backups: 1, staleness_max: 2 },
    Mode::Hop { backups: 2, staleness_max: 0 },
    Mode::Hop { backups: 9, staleness_max: 9 },
    Mode::Anytime { compute_s: 0.4 },
    Mode::LocalSgd { local: LOCAL, balance: Balance::Batches },
    Mode::LocalSgd { local: LOCAL, balance: Balance::Steps },
    Mode::Asp { staleness_max: Some(3), damping: false },
    Mode::Asp { staleness_max: None, damping: true },
    Mode::Ssp { lead_max: 0 },
    Mode::Ssp { lead_max: 3 },
    Mode::ConSgd { lead_max: 2, rate: Some(0.7) },
    Mode::DynSgd { lead_max: 2 },
    Mode::ElasticAveraging { local: LOCAL, alpha: None },
];

#[derive(Clone, Debug)]
enum Turn {
    Kill(u32),
    Join(u32, f64),
    Behave(u32, Habit),
}

fn turn() -> impl Strategy<Value = Turn> {
    let agent = || 0u32..6;
    let habit = prop_oneof![
        Just(Habit::Silent),
        Just(Habit::Stubborn),
        Just(Habit::NotANumber),
        Just(Habit::StopsHalfWay),
        Just(Habit::Fails(Failure::Memory)),
        Just(Habit::Fails(Failure::Trap)),
        Just(Habit::Good),
    ];
    prop_oneof![
        agent().prop_map(Turn::Kill),
        (agent(), 5.0..400.0).prop_map(|(agent, rate)| Turn::Join(agent, rate)),
        (agent(), habit).prop_map(|(agent, habit)| Turn::Behave(agent, habit)),
    ]
}

fn take(cluster: &mut Cluster, turn: &Turn) {
    match *turn {
        Turn::Kill(agent) if cluster.agents.contains_key(&AgentId(agent)) => cluster.kill(agent),
        Turn::Join(agent, rate) => cluster.join(agent, rate),
        Turn::Behave(agent, habit) if cluster.agents.contains_key(&AgentId(agent)) => {
            cluster.agent(agent).habit = habit;
        }
        Turn::Kill(_) | Turn::Behave(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_job_ends_and_has_learned_from_each_sample_once_whatever_its_agents_do(
        mode in prop::sample::select(&MODES[..]),
        measured: bool,
        evaluated: bool,
        turns in prop::collection::vec((0usize..40, turn()), 0..12),
    ) {
        let mut config = config();
        (config.mode, config.train_samples, config.agents_min, config.wait_for_agents) = (mode, 400, 2, 3);
        (config.round_deadline, config.global_batch) = (Duration::from_secs(5), 48);
        config.test_samples = if evaluated { 60 } else { 0 };
        config.stop = StopConfig { epochs: Some(3), ..StopConfig::default() };
        if measured {
            config.batching = dynamic(Controller::Deadline);
        }
        let mut cluster = Cluster::started(config, &[60.0, 90.0, 40.0, 320.0]);
        for (steps, turn) in &turns {
            for _ in 0..*steps {
                cluster.step();
            }
            if cluster.training.finished().is_none() {
                take(&mut cluster, turn);
            }
        }
        // From here on there are as many agents as are needed, and no more trouble.
        for agent in 0..2 {
            if cluster.training.finished().is_none() {
                cluster.join(agent, 80.0);
            }
        }
        cluster.run_to_end();
        prop_assert_eq!(cluster.training.finished(), Some(&StopReason::Epochs { epochs: 3 }));
        cluster.assert_covered(3);
        let committed: u32 = cluster.steps.iter().map(|record| record.samples).sum();
        prop_assert!(committed >= 1200);
    }
}

#[test]
fn every_rule_lowers_the_loss_with_unequal_agents() {
    for mode in MODES {
        let mut config = config();
        (config.mode, config.wait_for_agents) = (mode, 4);
        config.optimizer =
            omnilearn_hub_core::optimizer::OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        config.schedule.learning_rate = if mode.local().is_some() { 1.0 } else { 0.05 };
        config.stop = StopConfig { epochs: Some(8), ..StopConfig::default() };
        let mut cluster = Cluster::started(config, &[60.0, 60.0, 40.0, 320.0]);
        cluster.run_to_end();
        cluster.assert_covered(8);
        let tail = cluster.rounds.len() / 4;
        let mean = |rounds: &[omnilearn_hub_core::record::RoundRecord]| {
            rounds.iter().map(|round| round.loss).sum::<f64>() / rounds.len() as f64
        };
        let (first, last) = (mean(&cluster.rounds[..1]), mean(&cluster.rounds[cluster.rounds.len() - tail..]));
        assert!(last < first, "{mode:?}: {first} {last}");
    }
}
