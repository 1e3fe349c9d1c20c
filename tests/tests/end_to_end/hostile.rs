//! What an agent must not do is refused with its reason, counted, and leaves the model as it was.

use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::scripted::{ScriptedAgent, report};
use omnilearn_wire::AssignmentId;
use omnilearn_wire::limits::FRAME_BYTES_MAX;
use omnilearn_wire::message::{AgentMessage, PushOutcome};

fn start(agents: usize) -> (Cluster, u64) {
    let cluster = Cluster::start().unwrap();
    let job = cluster
        .submit(
            "mlp",
            &format!(
                r#"
                dataset = "fashion-mnist"
                [kernel]
                path = "KERNEL"
                [training]
                global_batch = 64
                [batching]
                policy = "uniform"
                [evaluate]
                every_steps = 100000
                [stop]
                steps = 1000
                [fleet]
                wait_for_agents = {agents}
                agents_min = {agents}
                round_deadline_s = 600
                "#
            ),
        )
        .unwrap();
    (cluster, job)
}

fn join_all(cluster: &Cluster, count: usize) -> Vec<ScriptedAgent> {
    let address = cluster.address();
    let joined = (0..count).map(|index| ScriptedAgent::join(address, &format!("scripted-{index}")));
    joined.collect::<Result<_, _>>().unwrap()
}

fn refusal(outcome: PushOutcome) -> String {
    match outcome {
        PushOutcome::Refused { reason } => reason,
        accepted => panic!("{accepted:?}"),
    }
}

#[test]
fn gradient_with_a_nan_is_refused_and_the_samples_are_issued_again() {
    let (cluster, job) = start(1);
    let mut agent = join_all(&cluster, 1).remove(0);
    let train = agent.next_train().unwrap();
    let before = cluster.weights(job).unwrap();
    agent.push(&train, f32::NAN).unwrap();
    let reason = refusal(agent.outcome(train.assignment).unwrap());
    assert!(reason.contains("finite"), "{reason}");
    let again = agent.next_train().unwrap();
    assert_eq!(again.spans, train.spans, "the same samples again");
    assert!(cluster.weights(job).unwrap() == before, "the model's bytes are unchanged");
    agent.push(&again, 1e-3).unwrap();
    assert!(matches!(agent.outcome(again.assignment).unwrap(), PushOutcome::Accepted { .. }));
    let progress = cluster.client.job(job).unwrap().progress.unwrap();
    assert_eq!(progress.agents[0].refused, 1);
}

#[test]
fn push_for_another_agents_assignment_and_a_repeated_push_do_not_count() {
    let (cluster, job) = start(2);
    let mut agents = join_all(&cluster, 2);
    let trains: Vec<_> = agents.iter_mut().map(|agent| agent.next_train().unwrap()).collect();
    let before = cluster.weights(job).unwrap();
    agents[0].push(&trains[1], 1.0).unwrap();
    let reason = refusal(agents[0].outcome(trains[1].assignment).unwrap());
    assert!(reason.contains("assign"), "{reason}");
    agents[0].push(&trains[0], 1e-3).unwrap();
    assert!(matches!(agents[0].outcome(trains[0].assignment).unwrap(), PushOutcome::Accepted { .. }));
    agents[0].push(&trains[0], 1e-3).unwrap();
    assert!(
        matches!(agents[0].outcome(trains[0].assignment).unwrap(), PushOutcome::Accepted { .. }),
        "acknowledged again"
    );
    assert!(cluster.weights(job).unwrap() == before, "the round is still open");
    agents[1].push(&trains[1], 1e-3).unwrap();
    assert!(matches!(agents[1].outcome(trains[1].assignment).unwrap(), PushOutcome::Accepted { .. }));
    agents[0].next_train().unwrap();
    let progress = cluster.client.job(job).unwrap().progress.unwrap();
    assert_eq!(progress.version, 1);
    assert_eq!(progress.agents.iter().map(|agent| agent.updates).sum::<u64>(), 2, "each update counts once");
}

#[test]
fn wrong_lengths_versions_and_unknown_assignments_are_refused() {
    let (cluster, job) = start(1);
    let mut agent = join_all(&cluster, 1).remove(0);
    let mut train = agent.next_train().unwrap();
    let (number, version, bytes) = (agent.offer.job, train.version, agent.stream_bytes);
    let before = cluster.weights(job).unwrap();
    for (known, version, bytes, named) in [
        (false, version, bytes, "assign"),
        (true, version, bytes + 4, "bytes"),
        (true, version, u64::MAX, "bytes"),
        (true, version.next(), bytes, "version"),
    ] {
        let assignment = if known { train.assignment } else { AssignmentId(u64::MAX) };
        agent.send(&AgentMessage::PushBegin { job: number, assignment, version, bytes }).unwrap();
        agent.send(&AgentMessage::PushEnd { assignment, report: report(&train) }).unwrap();
        let reason = refusal(agent.outcome(assignment).unwrap());
        assert!(reason.contains(named), "{reason}");
        if known && named == "bytes" {
            train = agent.next_train().unwrap(); // the same samples, issued again
        }
    }
    assert!(cluster.weights(job).unwrap() == before);
    cluster.client.health().unwrap();
}

/// How the hub closes the connection.
fn closing_words(agent: &mut ScriptedAgent) -> String {
    loop {
        if let Err(error) = agent.receive_bytes() {
            return error.to_string();
        }
    }
}

#[test]
fn frames_that_are_no_messages_close_only_their_own_connection() {
    let (cluster, _) = start(2);
    let mut agents = join_all(&cluster, 2);
    let trains: Vec<_> = agents.iter_mut().map(|agent| agent.next_train().unwrap()).collect();
    let mut bad = agents.remove(0);
    bad.send_bytes(vec![0xff; 64]).unwrap();
    let closed = closing_words(&mut bad);
    assert!(closed.contains("closed"), "{closed}");
    let mut large = ScriptedAgent::join(cluster.address(), "large").unwrap();
    large.send_bytes(vec![0; FRAME_BYTES_MAX + 1]).unwrap();
    let closed = closing_words(&mut large);
    assert!(closed.contains("Size") || closed.contains("1009"), "{closed}");
    agents[0].push(&trains[1], 1e-3).unwrap();
    assert!(matches!(agents[0].outcome(trains[1].assignment).unwrap(), PushOutcome::Accepted { .. }));
}
