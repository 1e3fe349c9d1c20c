//! What becomes of a job while there is no broker.

use std::thread::sleep;
use std::time::{Duration, Instant};

use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::mosquitto::Mosquitto;

use super::{steps_of, two_agents, version};

/// How long the broker is away: several times what it takes to give an agent up.
const OUTAGE: Duration = Duration::from_secs(60);

fn within(patience: Duration, what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < patience, "{what}: not within {patience:?}");
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn websocket_training_does_not_notice_that_the_broker_is_gone_and_mqtt_agents_resume() {
    if !crate::has_data() {
        return;
    }
    let Some(mut mosquitto) = Mosquitto::start("").unwrap() else { return };
    let broker = mosquitto.url();
    let mut cluster = Cluster::start_with(&["--mqtt", &broker]).unwrap();
    let web_socket = format!("ws://{}", cluster.address());
    cluster.add_agent_at("a", &["--hub", &web_socket, "--mqtt", &broker]).unwrap();
    cluster.add_agent_at("b", &["--hub", &broker]).unwrap();
    // Steps so long that the agent can keep the timings of all that it takes while the broker is away.
    let long_steps = two_agents(1_000_000).replace("\"static\"", "\"dynamic\"").replace("= 64", "= 2048");
    let job = cluster.submit("lenet", &long_steps).unwrap();
    within(Duration::from_secs(60), "both agents train", || {
        ["a", "b"].iter().all(|name| steps_of(&cluster, job, name) > 20)
    });
    let before = timings(&cluster, "a");
    mosquitto.cut();
    let (cut_at, cut_version) = (Instant::now(), version(&cluster.client.job(job).unwrap()));
    // The round that waits for b goes on without it; from then on a trains alone.
    within(Duration::from_secs(40), "a trains on", || version(&cluster.client.job(job).unwrap()) > cut_version + 20);
    sleep(OUTAGE.saturating_sub(cut_at.elapsed()));
    let alone = steps_of(&cluster, job, "a");
    mosquitto.resume().unwrap();
    let b_before = steps_of(&cluster, job, "b");
    within(Duration::from_secs(60), "b trains again", || steps_of(&cluster, job, "b") > b_before + 20);
    assert!(steps_of(&cluster, job, "a") > alone);

    cluster.client.stop(job).unwrap();
    cluster.wait_until(job, "the job's end", |view| view.state.is_final()).unwrap();
    let pushed = steps_of(&cluster, job, "a") as u64;
    within(Duration::from_secs(30), "what was kept on the agent arrives", || timings(&cluster, "a").0 >= pushed);
    let (received, duplicates, lost) = timings(&cluster, "a");
    println!(
        "timings of a: {received} (of {pushed} accepted steps), {duplicates} twice, {lost} lost; {} before the cut",
        before.0
    );
    assert_eq!(lost, 0);
    // Nothing counts twice: a step that was not accepted has timings, too, but there are few of them.
    assert!(received <= pushed + 5, "{received} timings of {pushed} steps");
}

/// Steps whose timings the hub has, those that came twice, and those that were lost.
fn timings(cluster: &Cluster, name: &str) -> (u64, u64, u64) {
    let agents = cluster.client.agents().unwrap();
    let agent = agents.iter().find(|agent| agent.name == name).unwrap();
    agent.timings.as_ref().map_or((0, 0, 0), |counts| (counts.received, counts.duplicates, counts.lost))
}
