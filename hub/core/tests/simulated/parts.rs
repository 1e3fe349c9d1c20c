//! A training set that is divided over agents.

use std::collections::HashSet;

use omnilearn_hub_core::config::{JobConfig, Mode};
use omnilearn_hub_core::status::AgentState;
use omnilearn_wire::AgentId;

use crate::cluster::{Cluster, config};

fn divided(mode: Mode) -> JobConfig {
    JobConfig { parts: vec![300, 700], mode, wait_for_agents: 2, ..config() }
}

/// Every position that an agent has learned from, which must be different ones.
fn learned(cluster: &Cluster, agent: u32, seen: &mut HashSet<(u32, u32)>) -> Vec<u32> {
    let steps = cluster.steps.iter().filter(|step| step.agent == AgentId(agent));
    let spans = steps.flat_map(|step| step.spans.iter().copied());
    let positions: Vec<(u32, u32)> =
        spans.flat_map(|span| (span.start..span.end).map(move |position| (span.epoch, position))).collect();
    assert!(positions.iter().all(|position| seen.insert(*position)), "a position is in two accepted updates");
    positions.into_iter().map(|(_, position)| position).collect()
}

#[test]
fn each_agent_learns_from_its_own_part_whatever_its_batch() {
    for mode in [Mode::Bsp, Mode::Asp { staleness_max: None, damping: false }] {
        let mut cluster = Cluster::started(divided(mode), &[100.0, 50.0]);
        cluster.run_to_version(40);
        let mut seen = HashSet::new();
        let (first, second) = (learned(&cluster, 0, &mut seen), learned(&cluster, 1, &mut seen));
        assert!(first.len() > 300 && first.iter().all(|&position| position < 300), "over an epoch of its part");
        assert!(!second.is_empty() && second.iter().all(|&position| (300..1000).contains(&position)));
    }
}

#[test]
fn a_part_whose_agent_leaves_goes_on_with_the_one_that_waits() {
    let mut cluster = Cluster::started(divided(Mode::Bsp), &[100.0, 100.0, 100.0]);
    let status = cluster.training.status(cluster.now);
    assert!(
        matches!(&status.agents[2].state, AgentState::Unfit { reason } if reason.contains("takes over when one leaves"))
    );
    cluster.run_to_version(3);
    cluster.kill(0);
    cluster.run_to_version(9);
    let mut seen = HashSet::new();
    let before = learned(&cluster, 0, &mut seen);
    let after = learned(&cluster, 2, &mut seen);
    // The fourth round closed without the one that left.
    assert_eq!((before.len(), after.len()), (96, 160));
    assert!(after.iter().all(|&position| (96..300).contains(&position)), "it goes on where the other was");
    assert_eq!(cluster.rounds.iter().filter(|round| round.samples == 64).count(), 8, "all the others are whole");
}
