//! Agents run what is signed by a key that they trust, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use omnilearn_agent::config::default_cache;
use omnilearn_hub::client::ClientError;
use omnilearn_hub::{follow, key_file, signing};
use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::component_path;

const JOB: &str = r#"
    dataset = "fashion-mnist"
    [kernel]
    path = "KERNEL"
    [training]
    global_batch = 64
    [evaluate]
    every_steps = 100000
    [stop]
    steps = 20
    "#;

fn end(cluster: &mut Cluster, name: &str) {
    let agent = cluster.agents.get_mut(name).unwrap();
    agent.interrupt().unwrap();
    agent.exit_code(Duration::from_secs(5)).unwrap();
}

/// Arguments for an agent with a cache of its own, which still finds the data.
fn own_cache(cluster: &Cluster) -> (PathBuf, [String; 4]) {
    let cache = cluster.folder().join("cache");
    let data = default_cache().join("datasets");
    let arguments = ["--cache".into(), cache.display().to_string(), "--data".into(), data.display().to_string()];
    (cache, arguments)
}

#[test]
fn agent_that_trusts_another_key_declines_and_the_same_agent_with_the_hubs_key_trains() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    let foreign = key_file::create(&cluster.folder().join("foreign.key")).unwrap().public();
    cluster.add_agent_with("a", &["--trust", &foreign.to_string()]).unwrap();
    let job = cluster.submit("mlp", JOB).unwrap();
    let view = cluster
        .wait_until(job, "the refusal", |view| {
            view.progress.as_ref().is_some_and(|progress| progress.declined.contains_key("a"))
        })
        .unwrap();
    let status = follow::block(&view);
    let expected = format!("a cannot take part: the kernel is signed by {}", &cluster.key()[..8]);
    for part in [&expected, &foreign.short(), "--trust KEY"] {
        assert!(status.contains(part), "{part:?} is not in\n{status}");
    }
    assert_eq!(view.progress.unwrap().version, 0);
    assert!(cluster.client.agents().unwrap()[0].connected, "the agent stays for other jobs");

    end(&mut cluster, "a");
    cluster.add_agent("a").unwrap();
    let view = cluster.wait_done(job).unwrap();
    assert!(view.progress.unwrap().declined.is_empty());
    let (log, key) = (cluster.agents["a"].output(), cluster.key());
    assert!(log.contains("signed by a trusted key") && log.contains(&key[..8]), "{log}");
}

#[test]
fn tampered_component_in_the_cache_is_fetched_anew_and_training_goes_on() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    let (cache, arguments) = own_cache(&cluster);
    let arguments = arguments.each_ref().map(String::as_str);
    cluster.add_agent_with("a", &arguments).unwrap();
    let job = cluster.submit("mlp", JOB).unwrap();
    cluster.wait_done(job).unwrap();
    end(&mut cluster, "a");
    let pins = fs::read_to_string(cache.join("known-hubs")).unwrap();
    assert!(pins.contains(&format!("ws://{}/agent {}", cluster.address(), cluster.key())), "{pins}");

    let mut kernels = fs::read_dir(cache.join("kernels")).unwrap();
    let kernel = kernels.next().unwrap().unwrap().path();
    assert!(kernels.next().is_none());
    let whole = fs::read(&kernel).unwrap();
    let mut tampered = whole.clone();
    tampered[whole.len() / 2] ^= 1;
    fs::write(&kernel, &tampered).unwrap();
    cluster.add_agent_with("a", &arguments).unwrap();
    let job = cluster.submit("mlp", JOB).unwrap();
    cluster.wait_done(job).unwrap();
    assert!(fs::read(&kernel).unwrap() == whole);
    let log = cluster.agents["a"].output();
    assert!(log.contains("cached kernel is damaged and fetched again"), "{log}");
}

fn submit_signed(cluster: &Cluster, component: &Path) -> Result<u64, ClientError> {
    let job = component.with_file_name("signed.toml");
    fs::write(&job, JOB.replace("KERNEL", &component.display().to_string())).unwrap();
    cluster.client.submit_file(&job).map(|view| view.id)
}

#[test]
fn author_signs_and_an_agent_that_trusts_only_the_author_trains() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    let component = cluster.folder().join("mlp.wasm");
    fs::copy(component_path("mlp"), &component).unwrap();
    let author = key_file::create(&cluster.folder().join("author.key")).unwrap();
    let signature = signing::sign_file(&component, &author).unwrap();
    cluster.add_agent_with("a", &["--trust", &author.public().to_string()]).unwrap();
    let job = submit_signed(&cluster, &component).unwrap();
    cluster.wait_done(job).unwrap();

    fs::write(&signature, fs::read_to_string(&signature).unwrap().replace("signature ", "signature  0")).unwrap();
    let error = submit_signed(&cluster, &component).unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 422, .. }), "{error}");
    assert_eq!(cluster.client.jobs().unwrap().len(), 1);
}
