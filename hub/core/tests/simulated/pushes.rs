//! Pushes that must not count, and say why.

use omnilearn_hub_core::Event;
use omnilearn_wire::{AgentId, AssignmentId, Version};

use crate::cluster::{Cluster, Habit, config};

/// Two agents, both at their first assignment; nothing pushed yet.
fn cluster() -> Cluster {
    let mut config = config();
    (config.wait_for_agents, config.agents_min) = (2, 1);
    let mut cluster = Cluster::started(config, &[100.0; 2]);
    cluster.agent(0).habit = Habit::Silent;
    cluster.agent(1).habit = Habit::Silent;
    cluster
}

#[test]
fn a_push_for_an_assignment_that_was_never_made_or_is_anothers_is_refused() {
    let mut cluster = cluster();
    let (own, other) = (cluster.assignment_of(0), cluster.assignment_of(1));
    let (bytes, before) = (cluster.encoded(own), cluster.training.snapshot());
    cluster.begin(0, AssignmentId(999), Version(0), 48);
    cluster.chunk(0, AssignmentId(999), 0, &bytes);
    cluster.begin(0, other, Version(0), 48);
    cluster.chunk(0, other, 0, &bytes);
    cluster.end(0, other);
    assert_eq!(cluster.refusals(), ["assignment 999 is unknown", "assignment 2 was issued to another agent"]);
    assert_eq!(cluster.training.snapshot(), before);
    cluster.push_good(0, own);
    cluster.push_good(1, other);
    assert_eq!((cluster.version(), cluster.rounds[0].updates), (1, 2), "both are still good for their own");
    assert_eq!(cluster.training.status(cluster.now).counters.refused_malformed, 2);
}

#[test]
fn a_second_copy_is_acknowledged_and_not_counted() {
    let mut cluster = cluster();
    let id = cluster.assignment_of(0);
    cluster.push_good(0, id);
    cluster.push_good(0, id);
    cluster.end(0, id);
    let outcomes: Vec<_> = cluster.outcomes.iter().map(|(_, outcome)| outcome.clone()).collect();
    assert_eq!(outcomes.len(), 3);
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
    let other = cluster.assignment_of(1);
    cluster.push_good(1, other);
    assert_eq!((cluster.rounds[0].updates, cluster.rounds[0].samples), (2, 64));
    cluster.push_good(0, id); // also when its round is long over
    assert_eq!(cluster.outcomes.last().unwrap().1, outcomes[0]);
    assert_eq!(cluster.training.status(cluster.now).counters.duplicate, 3);
    assert_eq!(cluster.version(), 1);
}

#[test]
fn a_push_of_another_version_or_length_is_refused_and_its_samples_issued_again() {
    let mut cluster = cluster();
    let id = cluster.assignment_of(0);
    cluster.begin(0, id, Version(3), 48);
    let again = cluster.assignment_of(0);
    assert_ne!(id, again);
    assert_eq!(cluster.work[&id].1.spans, cluster.work[&again].1.spans);
    cluster.begin(0, again, Version(0), u64::from(u32::MAX) + 48);
    let refusals = cluster.refusals();
    assert_eq!(refusals[0], "gradient is of version 3, the assignment is of version 0");
    assert_eq!(refusals[1], "gradient has 4294967343 bytes, expected 48");
}

#[test]
fn pieces_out_of_order_too_many_or_too_few_are_refused() {
    for (pieces, reason) in [
        (vec![(8, 8)], "piece begins at byte 8, expected 0"),
        (vec![(0, 40), (0, 8)], "piece begins at byte 0, expected 40"),
        (vec![(0, 40), (40, 9)], "gradient has 49 bytes, expected 48"),
        (vec![(0, 47)], "gradient has 47 bytes, expected 48"),
    ] {
        let mut cluster = cluster();
        let id = cluster.assignment_of(0);
        let bytes = [0u8; 64];
        cluster.begin(0, id, Version(0), 48);
        for (offset, length) in pieces {
            cluster.chunk(0, id, offset, &bytes[..length]);
        }
        cluster.end(0, id);
        assert_eq!(cluster.refusals(), [reason], "told once");
        let (again, other) = (cluster.assignment_of(0), cluster.assignment_of(1));
        cluster.push_good(0, again);
        cluster.push_good(1, other);
        assert_eq!((cluster.version(), cluster.rounds[0].samples), (1, 64));
    }
}

#[test]
fn an_end_without_a_beginning_is_refused() {
    let mut cluster = cluster();
    let id = cluster.assignment_of(0);
    let bytes = cluster.encoded(id);
    cluster.chunk(0, id, 0, &bytes);
    cluster.end(0, id);
    assert_eq!(cluster.refusals(), ["push of assignment 1 ended before it began"]);
}

#[test]
fn a_value_that_is_not_finite_leaves_no_trace() {
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        for at in [0, 4 * 7, 4 * 10] {
            let mut cluster = cluster();
            let (id, other) = (cluster.assignment_of(0), cluster.assignment_of(1));
            let mut bytes = cluster.encoded(id);
            bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
            if at == 40 && bad == 1e30 {
                continue; // a buffer may be large
            }
            cluster.push(0, id, &bytes, true);
            let what = if bad == 1e30 { "too large" } else { "not finite" };
            let tensor = ["`t0`", "`t1`", "`shared buffers`"][[0, 28, 40].iter().position(|&a| a == at).unwrap()];
            let index = [0, 1, 0][[0, 28, 40].iter().position(|&a| a == at).unwrap()];
            assert_eq!(cluster.refusals(), [format!("tensor {tensor} is {what} at index {index}")]);
            let again = cluster.assignment_of(0);
            cluster.push_good(0, again);
            cluster.push_good(1, other);
            let mut clean = self::cluster();
            let (id, other) = (clean.assignment_of(0), clean.assignment_of(1));
            clean.push_good(0, id);
            clean.push_good(1, other);
            assert_eq!(cluster.parameters(), clean.parameters());
            assert_eq!(cluster.training.status(cluster.now).counters.refused_value, 1);
        }
    }
}

#[test]
fn a_report_with_a_loss_that_is_not_finite_or_other_metrics_is_refused() {
    let mut cluster = cluster();
    for (loss, metrics, reason) in
        [(f32::NAN, vec![0.0], "loss is NaN"), (1.0, vec![0.0, 0.0], "report has 2 metrics, the kernel has 1")]
    {
        let id = cluster.assignment_of(0);
        let bytes = cluster.encoded(id);
        cluster.begin(0, id, Version(0), 48);
        cluster.chunk(0, id, 0, &bytes);
        let mut report = cluster.report(id);
        (report.loss, report.metric_sums) = (loss, metrics);
        cluster.send(Event::PushEnd { agent: AgentId(0), assignment: id, report });
        assert_eq!(cluster.refusals().last().unwrap(), reason);
    }
}

#[test]
fn a_push_that_breaks_off_leaves_no_trace() {
    let mut cluster = cluster();
    let (id, other) = (cluster.assignment_of(0), cluster.assignment_of(1));
    let bytes = cluster.encoded(id);
    cluster.push(0, id, &bytes, false);
    cluster.kill(0);
    cluster.push_good(1, other);
    assert_eq!((cluster.version(), cluster.rounds[0].samples), (1, 32));
    let mut alone = self::cluster();
    let other = alone.assignment_of(1);
    alone.kill(0);
    alone.push_good(1, other);
    assert_eq!(cluster.parameters(), alone.parameters());
}

#[test]
fn an_agent_that_was_gone_cannot_push_what_was_issued_again() {
    let mut cluster = cluster();
    let id = cluster.assignment_of(0);
    cluster.kill(0);
    cluster.join(0, 100.0);
    cluster.push_good(0, id);
    assert_eq!(cluster.refusals(), ["the agent was gone and its samples were issued again"]);
    assert_eq!(cluster.version(), 0);
}
