//! Every sample of an epoch is in exactly one accepted update, also when an agent dies.

use omnilearn_hub::view::RecordPage;
use omnilearn_tests::cluster::Cluster;

const SAMPLES: usize = 60_000;
const ROUND_DEADLINE_S: f64 = 3.0;

fn start() -> (Cluster, u64) {
    let mut cluster = Cluster::start().unwrap();
    for name in ["a", "b", "c"] {
        cluster.add_agent(name).unwrap();
    }
    let job = cluster
        .submit(
            "lenet",
            &format!(
                r#"
                dataset = "fashion-mnist"
                [kernel]
                path = "KERNEL"
                [training]
                global_batch = 250
                [optimizer]
                learning_rate = 0.02
                [evaluate]
                every_steps = 100000
                [stop]
                epochs = 1
                [fleet]
                wait_for_agents = 3
                agents_min = 1
                round_deadline_s = {ROUND_DEADLINE_S}
                "#
            ),
        )
        .unwrap();
    cluster
        .wait_until(job, "some steps", |view| view.progress.as_ref().is_some_and(|progress| progress.version > 30))
        .unwrap();
    (cluster, job)
}

/// How often each position of the first epoch is in an accepted update.
fn coverage(records: &RecordPage) -> Vec<u32> {
    coverage_of(records, 0)
}

/// How often each position of an epoch, counted from 0, is in an accepted update.
pub(super) fn coverage_of(records: &RecordPage, epoch: u32) -> Vec<u32> {
    let mut counts = vec![0; SAMPLES];
    for step in &records.steps {
        for span in step.spans.iter().filter(|span| span.epoch == epoch) {
            counts[span.start as usize..span.end as usize].iter_mut().for_each(|count| *count += 1);
        }
    }
    counts
}

fn longest_round_s(records: &RecordPage) -> f64 {
    records.rounds.windows(2).map(|pair| pair[1].wall_s - pair[0].wall_s).fold(0.0, f64::max)
}

#[test]
fn killed_agent_costs_no_sample_and_no_round_longer_than_the_deadline() {
    if !super::has_data() {
        return;
    }
    let (mut cluster, job) = start();
    cluster.agents.get_mut("b").unwrap().kill().unwrap();
    cluster.wait_done(job).unwrap();
    let records = cluster.records(job).unwrap();
    assert!(coverage(&records).iter().all(|&count| count == 1), "each position of the epoch exactly once");
    assert!(longest_round_s(&records) <= ROUND_DEADLINE_S + 1.0, "{}", longest_round_s(&records));
}

#[test]
fn frozen_agent_is_given_up_at_the_deadline_and_its_samples_are_issued_again() {
    if !super::has_data() {
        return;
    }
    let (mut cluster, job) = start();
    cluster.agents["b"].freeze().unwrap();
    cluster.wait_done(job).unwrap();
    let records = cluster.records(job).unwrap();
    assert!(coverage(&records).iter().all(|&count| count == 1), "each position of the epoch exactly once");
    assert!(longest_round_s(&records) <= ROUND_DEADLINE_S + 1.0, "{}", longest_round_s(&records));
    cluster.agents.get_mut("b").unwrap().kill().unwrap();
}

#[test]
fn agent_that_joins_late_gets_work() {
    if !super::has_data() {
        return;
    }
    let (mut cluster, job) = start();
    cluster.add_agent("d").unwrap();
    let view = cluster
        .wait_until(job, "work for the new agent", |view| {
            let progress = view.progress.as_ref();
            progress.is_some_and(|progress| progress.agents.iter().any(|agent| agent.name == "d" && agent.updates > 0))
                || view.state.is_final()
        })
        .unwrap();
    assert!(view.progress.unwrap().agents.iter().any(|agent| agent.name == "d"), "the job was over too soon");
    cluster.wait_done(job).unwrap();
    assert!(coverage(&cluster.records(job).unwrap()).iter().all(|&count| count == 1));
}
