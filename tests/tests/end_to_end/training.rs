//! Jobs as a user runs them.

use std::time::Duration;

use omnilearn_tests::cluster::Cluster;

fn job(mode: &str, kernel_settings: &str, stop: &str) -> String {
    // Momentum multiplies what stale gradients get wrong.
    let learning_rate = if mode == "asp" { 0.01 } else { 0.03 };
    format!(
        r#"
        dataset = "fashion-mnist"
        seed = 1
        [kernel]
        path = "KERNEL"
        [kernel.settings]
        {kernel_settings}
        [training]
        mode = "{mode}"
        global_batch = 128
        [optimizer]
        learning_rate = {learning_rate}
        [evaluate]
        every_steps = 100
        [stop]
        {stop}
        [fleet]
        wait_for_agents = 2
        agents_min = 2
        "#
    )
}

#[test]
fn two_agents_learn_in_bsp_and_the_records_say_how() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    cluster.add_agent("b").unwrap();
    let job = cluster.submit("lenet", &job("bsp", "", "steps = 300")).unwrap();
    cluster.wait_done(job).unwrap();
    let records = cluster.records(job).unwrap();
    assert_eq!(records.rounds.len(), 300);
    assert!(records.rounds.iter().all(|round| round.samples == 128), "the global batch never changes");
    assert!(records.steps.iter().all(|step| step.staleness == 0));
    let last = records.evaluations.last().unwrap();
    assert_eq!((last.version, last.samples), (300, 10_000));
    assert!(last.accuracy.unwrap() > 0.7, "{last:?}");
}

#[test]
fn two_agents_learn_in_asp_and_staleness_is_recorded() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    cluster.add_agent("b").unwrap();
    let job = cluster.submit("lenet", &job("asp", "", "steps = 600")).unwrap();
    cluster.wait_done(job).unwrap();
    let records = cluster.records(job).unwrap();
    assert!(records.steps.iter().any(|step| step.staleness > 0));
    let last = records.evaluations.last().unwrap();
    assert!(last.accuracy.unwrap() > 0.6, "{last:?}");
}

#[test]
fn a_kernel_written_in_c_is_trained_like_any_other() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    cluster.add_agent("b").unwrap();
    let job = cluster.submit("perceptron", &job("bsp", "hidden = 64", "steps = 200")).unwrap();
    cluster.wait_done(job).unwrap();
    let records = cluster.records(job).unwrap();
    let (first, last) = (records.rounds.first().unwrap(), records.rounds.last().unwrap());
    assert!(last.loss < first.loss / 2.0, "{first:?} {last:?}");
    assert!(records.evaluations.last().unwrap().accuracy.unwrap() > 0.75, "{:?}", records.evaluations.last());
}

#[test]
fn batch_norm_buffers_are_merged_so_that_evaluation_works() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    cluster.add_agent("b").unwrap();
    let job = cluster.submit("resnet", &job("bsp", "width = 4", "steps = 100")).unwrap();
    cluster.wait_done(job).unwrap();
    let last = cluster.records(job).unwrap().evaluations.pop().unwrap();
    assert!(last.accuracy.unwrap() > 0.55, "{last:?}");
}

#[test]
fn interrupt_ends_both_programs_cleanly_in_mid_job() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    cluster.add_agent("b").unwrap();
    let job = cluster.submit("lenet", &job("bsp", "", "epochs = 50")).unwrap();
    cluster
        .wait_until(job, "some steps", |view| view.progress.as_ref().is_some_and(|progress| progress.version > 10))
        .unwrap();
    let agent = cluster.agents.get_mut("a").unwrap();
    agent.interrupt().unwrap();
    assert_eq!(agent.exit_code(Duration::from_secs(5)).unwrap(), Some(0), "{}", agent.output());
    cluster.hub.interrupt().unwrap();
    assert_eq!(cluster.hub.exit_code(Duration::from_secs(5)).unwrap(), Some(0), "{}", cluster.hub.output());
}
