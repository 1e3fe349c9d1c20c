//! What agents are asked to make of their samples under the rules of synchronisation, with real kernels and real data.

use omnilearn_hub::view::{RecordPage, RoundRow};
use omnilearn_tests::cluster::Cluster;

/// Ends of the training losses: mean over the first and the last tenth of the steps.
fn losses(rounds: &[RoundRow]) -> (f64, f64) {
    let tenth = (rounds.len() / 10).max(1);
    let mean = |rounds: &[RoundRow]| rounds.iter().map(|round| round.loss).sum::<f64>() / rounds.len() as f64;
    (mean(&rounds[..tenth]), mean(&rounds[rounds.len() - tenth..]))
}

/// Trains LeNet with two agents for so many steps, and checks that the loss falls.
fn learns(mode: &str, section: &str, optimizer: &str, steps: u64) -> Option<RecordPage> {
    learns_with(mode, section, optimizer, steps, 2)
}

fn learns_with(mode: &str, section: &str, optimizer: &str, steps: u64, agents_min: u32) -> Option<RecordPage> {
    if !super::has_data() {
        return None;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    cluster.add_agent("b").unwrap();
    let job = format!(
        r#"
        dataset = "fashion-mnist"
        seed = 1
        [kernel]
        path = "KERNEL"
        [training]
        mode = "{mode}"
        global_batch = 64
        [{mode}]
        {section}
        {optimizer}
        [evaluate]
        every_steps = 100000
        [stop]
        steps = {steps}
        [fleet]
        wait_for_agents = 2
        agents_min = {agents_min}
        "#
    );
    let job = cluster.submit("lenet", &job).unwrap();
    let view = cluster.wait_done(job).unwrap();
    assert_eq!(view.mode, mode);
    let records = cluster.records(job).unwrap();
    assert_eq!(records.rounds.len() as u64, steps);
    let (first, last) = losses(&records.rounds);
    // How much is learned in a given time depends on the machine; chance is 0.1.
    assert!(last < 0.95 * first, "{mode}: the loss went from {first} to {last}");
    let accuracy = records.evaluations.last().unwrap().accuracy.unwrap();
    assert!(accuracy > 0.25, "{mode}: {accuracy}");
    Some(records)
}

#[test]
fn a_fixed_time_is_filled_with_samples() {
    let Some(records) = learns("anytime", "compute_s = 0.1", "[optimizer]\nlearning_rate = 0.02", 80) else { return };
    let agents = |version| records.steps.iter().filter(move |step| step.version == version);
    for round in &records.rounds {
        assert_eq!(agents(round.version).map(|step| step.samples).sum::<u32>(), round.samples);
    }
    let counts: std::collections::BTreeSet<u32> = records.steps.iter().map(|step| step.samples).collect();
    assert!(counts.len() > 1, "agents find their own batches: {counts:?}");
}

#[test]
fn local_steps_are_averaged() {
    let section = "local_steps = 4\nlearning_rate = 0.02";
    let Some(records) = learns("local_sgd", section, "", 50) else { return };
    assert!(records.rounds.iter().all(|round| round.samples == 4 * 64 && round.updates == 2));
}

#[test]
fn agents_with_parameters_of_their_own_draw_the_hubs_along() {
    let section = "local_steps = 4\nlearning_rate = 0.02";
    let Some(records) = learns("elastic_averaging", section, "", 120) else { return };
    assert!(records.rounds.iter().all(|round| round.updates == 1));
}

#[test]
fn rules_of_the_hub_alone_train_with_real_agents() {
    for (mode, section) in [
        ("backup_workers", "backups = 1"),
        ("hop", "backups = 1\nstaleness_max = 2"),
        ("ssp", "lead_max = 1"),
        ("con_sgd", "lead_max = 1\nrate = 0.5"),
        ("dyn_sgd", "lead_max = 1"),
    ] {
        // A backup can be left out only if the quorum does not need it.
        let agents_min = if section.contains("backups") { 1 } else { 2 };
        let Some(records) = learns_with(mode, section, "[optimizer]\nlearning_rate = 0.02", 120, agents_min) else {
            return;
        };
        let staleness = records.steps.iter().map(|step| step.staleness).max().unwrap();
        let staleness_max = match mode {
            "backup_workers" => 0,
            "hop" => 2,
            // While one that was a push ahead makes another, the other gets from one push behind to one ahead and makes its next.
            _ => 3,
        };
        assert!(staleness <= staleness_max, "{mode}: {staleness}");
    }
}
