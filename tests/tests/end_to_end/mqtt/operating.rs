//! Commands, clones, and messages that do not belong where they are.

use std::process::Command;
use std::time::{Duration, Instant};

use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::mosquitto::Mosquitto;

use super::{Broker, steps_of, two_agents, version};

fn hub(cluster: &Cluster, arguments: &[&str]) -> Result<String, String> {
    cluster.hub_command(arguments).map_err(|error| error.to_string())
}

#[test]
fn an_agent_is_paused_limited_tested_and_resumed_from_the_hub() {
    if !crate::has_data() {
        return;
    }
    for broker in Broker::each() {
        let mut cluster = broker.hub();
        let web_socket = format!("ws://{}", cluster.address());
        cluster.add_agent_at("a", &["--hub", &broker.url()]).unwrap();
        cluster.add_agent_at("b", &["--hub", &web_socket, "--mqtt", &broker.url()]).unwrap();
        let job = cluster.submit("lenet", &two_agents(1_000_000)).unwrap();
        cluster.wait_until(job, "steps", |view| version(view) > 20).unwrap();
        for name in ["a", "b"] {
            hub(&cluster, &["agent", "pause", name]).unwrap();
            // Records reach the hub's store a moment later.
            let trains_on = || {
                let now = version(&cluster.client.job(job).unwrap());
                cluster.wait_until(job, "the other trains on", |view| version(view) > now + 200).unwrap();
                steps_of(&cluster, job, name)
            };
            let paused = trains_on();
            assert_eq!(trains_on(), paused, "{name} is paused");
            hub(&cluster, &["agent", "resume", name]).unwrap();
            let start = Instant::now();
            while steps_of(&cluster, job, name) < paused + 10 {
                assert!(start.elapsed() < Duration::from_secs(60), "{name} trains again");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        hub(&cluster, &["agent", "limits", "a", "--batch-max", "8"]).unwrap();
        let limited = |view: &omnilearn_hub::view::JobView| {
            let agents = view.progress.iter().flat_map(|progress| &progress.agents);
            agents.filter(|agent| agent.name == "a").any(|agent| agent.local_batch == 8)
        };
        cluster.wait_until(job, "a batch of 8", limited).unwrap();
        let said = hub(&cluster, &["agent", "self-test", "b"]).unwrap();
        assert!(said.contains("data"), "{said}");
        let unknown = hub(&cluster, &["agent", "pause", "nobody"]).unwrap_err();
        assert!(unknown.contains("nobody"), "{unknown}");
    }
}

#[test]
fn a_clone_of_an_agent_is_refused_and_the_agent_trains_on() {
    if !crate::has_data() {
        return;
    }
    for broker in Broker::each() {
        let mut cluster = broker.hub();
        for name in ["a", "b"] {
            cluster.add_agent_at(name, &["--hub", &broker.url()]).unwrap();
        }
        let job = cluster.submit("lenet", &two_agents(1_000_000)).unwrap();
        cluster.wait_until(job, "steps", |view| version(view) > 20).unwrap();
        let original = cluster.agents.remove("a").unwrap();
        cluster.add_agent_at("a", &["--hub", &broker.url()]).unwrap();
        let mut clone = cluster.agents.insert("a".to_owned(), original).unwrap();
        assert_eq!(clone.exit_code(Duration::from_secs(30)).unwrap(), Some(1));
        let said = clone.output();
        assert!(said.contains("`a`") && said.contains("--name"), "it says what to do: {said}");
        let lost = cluster.agents["a"].output().matches("connected to the hub").count();
        assert_eq!(lost, 1, "the original was never disturbed");
        let now = version(&cluster.client.job(job).unwrap());
        cluster.wait_until(job, "steps", |view| version(view) > now + 20).unwrap();
    }
}

#[test]
fn messages_that_are_far_too_long_are_reported_once_and_skipped() {
    if !crate::has_data() {
        return;
    }
    let Some(mosquitto) = Mosquitto::start("").unwrap() else { return };
    mosquitto.publish("omnilearn/agents/a/command", &vec![b'x'; 64 << 10], true).unwrap();
    let mut cluster = Cluster::start_with(&["--mqtt", &mosquitto.url()]).unwrap();
    for name in ["a", "b"] {
        cluster.add_agent_at(name, &["--hub", &mosquitto.url()]).unwrap();
    }
    let job = cluster.submit("lenet", &two_agents(1_000_000)).unwrap();
    cluster.wait_until(job, "steps", |view| version(view) > 20).unwrap();
    for topic in ["command", "down"] {
        mosquitto.publish(&format!("omnilearn/agents/a/{topic}"), &vec![b'x'; 2 << 20], false).unwrap();
    }
    let now = version(&cluster.client.job(job).unwrap());
    cluster.wait_until(job, "steps", |view| version(view) > now + 20).unwrap();
    let said = cluster.agents["a"].output();
    assert_eq!(said.matches("connected to the hub").count(), 1, "{said}");
    for topic in ["agents/a/command", "agents/a/down"] {
        let reports = said.lines().filter(|line| line.contains("WARN") && line.contains(topic)).count();
        assert_eq!(reports, 1, "one line about {topic}: {said}");
    }
}

#[test]
fn the_access_list_that_we_ship_confines_an_agent_to_its_own_topics() {
    if !crate::has_data() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    for user in ["hub", "a", "b"] {
        let mut command = Command::new("mosquitto_passwd");
        command.args(if user == "hub" { &["-c", "-b"][..] } else { &["-b"] });
        let Ok(made) = command.arg(&passwords).args([user, &format!("secret-of-{user}")]).status() else {
            println!("skipped: mosquitto_passwd is not installed");
            return;
        };
        assert!(made.success());
        std::fs::write(folder.path().join(user), format!("secret-of-{user}")).unwrap();
    }
    let configuration = format!(
        "allow_anonymous false\npassword_file {}\nacl_file {}",
        passwords.display(),
        omnilearn_tests::workspace().join("devices/mosquitto/omnilearn.acl").display()
    );
    let Some(mosquitto) = Mosquitto::start_with(&configuration).unwrap() else { return };
    let (url, secret) = (mosquitto.url(), |user: &str| folder.path().join(user).display().to_string());
    let hub_secret = secret("hub");
    let hub = ["--mqtt", &url, "--mqtt-user", "hub", "--mqtt-password-file", &hub_secret];
    let mut cluster = Cluster::start_with(&hub).unwrap();
    for name in ["a", "b"] {
        cluster.add_agent_at(name, &["--hub", &url, "--mqtt-password-file", &secret(name)]).unwrap();
    }
    let job = cluster.submit("lenet", &two_agents(1_000_000)).unwrap();
    cluster.wait_until(job, "steps", |view| version(view) > 20).unwrap();
    let pause = br#"{"id":"from-b","command":"pause"}"#;
    mosquitto.publish_as(Some(("b", "secret-of-b")), "omnilearn/agents/a/command", pause, false).unwrap();
    let (now, steps) = (version(&cluster.client.job(job).unwrap()), steps_of(&cluster, job, "a"));
    // Records reach the hub's store a moment later.
    cluster.wait_until(job, "steps", |view| version(view) > now + 400).unwrap();
    assert!(steps_of(&cluster, job, "a") > steps + 100, "b cannot pause a");
    mosquitto.publish_as(Some(("hub", "secret-of-hub")), "omnilearn/agents/a/command", pause, false).unwrap();
    let start = Instant::now();
    while !cluster.agents["a"].output().contains("paused") {
        assert!(start.elapsed() < Duration::from_secs(20), "the hub's user can pause a");
        std::thread::sleep(Duration::from_millis(50));
    }
}
