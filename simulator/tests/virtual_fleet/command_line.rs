//! The program as users and scripts call it.

use std::process::{Command, Output};

use crate::training::component;

fn omnilearn_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_omnilearn-sim"))
        .args(arguments)
        .output()
        .expect("the program was built with its tests")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_example_fleet_and_a_job_give_figures_and_files() {
    let Some(lenet) = component("lenet") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let example = omnilearn_sim(&["fleet-example"]);
    assert!(example.status.success());
    std::fs::write(path("fleet.toml"), example.stdout).unwrap();
    let job = format!("dataset = \"fashion-mnist\"\nkernel.path = {:?}\n", lenet.display().to_string());
    std::fs::write(path("job.toml"), job).unwrap();
    let arguments = [&path("fleet.toml"), &path("job.toml"), "--json", "--out", &path("run")];
    let more = ["--set", "stop.epochs=1", "--set", "batching.policy=uniform", "--oracle", "--gradients", "none"];
    let output = omnilearn_sim(&[&arguments[..], &more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in [
        "name",
        "agents",
        "mode",
        "policy",
        "controller",
        "gradients",
        "rounds",
        "virtual_s",
        "training_s",
        "epochs",
        "epoch_s",
        "time_to_target_s",
        "accuracy",
        "loss",
        "idle_share",
        "mean_staleness",
        "staleness_p95",
        "staleness_max",
        "bytes_up",
        "bytes_down",
        "core_cpu_s",
        "core_cpu_ms_per_round",
        "core_cpu_ms_per_1000_agents_and_round",
        "wall_s",
        "ratio_to_limit",
        "oracle_training_s",
    ] {
        assert!(summary.get(key).is_some(), "{key}");
    }
    let epochs = summary["epochs"].as_f64().unwrap();
    assert!((1.0..1.01).contains(&epochs), "the last batch runs on into the next epoch: {epochs}");
    assert_eq!(summary["policy"].as_str(), Some("uniform"));
    assert!(summary["accuracy"].is_null() && summary["ratio_to_limit"].as_f64().unwrap() < 0.9);
    let written: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path("run/summary.json")).unwrap()).unwrap();
    assert_eq!(written, summary);
    for (file, begin) in [
        ("rounds.csv", "wall_s,training_s,version"),
        ("steps.csv", "wall_s,round,version,agent"),
        ("batches.csv", "wall_s,version,agent,samples"),
        ("evaluations.csv", "wall_s,training_s,version"),
        ("staleness.csv", "staleness,updates\n0,"),
    ] {
        let content = std::fs::read_to_string(path(&format!("run/{file}"))).unwrap();
        assert!(content.starts_with(begin), "{file}: {}", content.lines().next().unwrap_or(""));
        assert!(content.lines().count() > 1, "{file}");
    }
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    assert_eq!(omnilearn_sim(&[]).status.code(), Some(2));
    assert_eq!(omnilearn_sim(&["a", "b", "--set", "nothing"]).status.code(), Some(2));
    std::fs::write(path("fleet.toml"), "[[agents]]\nname = \"a\"\nsamples_per_s = -1\n").unwrap();
    let output = omnilearn_sim(&[&path("fleet.toml"), &path("job.toml")]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("fleet.toml") && said.contains("samples_per_s: -1 is not between"), "{said}");
    std::fs::write(path("fleet.toml"), "[[agents]]\nname = \"a\"\nsamples_per_s = 1\n").unwrap();
    std::fs::write(path("job.toml"), "dataset = \"mnist\"\nkernel.path = \"none.wasm\"\n").unwrap();
    let output = omnilearn_sim(&[&path("fleet.toml"), &path("job.toml")]);
    assert!(text(&output.stderr).contains("cargo xtask kernels"), "{}", text(&output.stderr));
}
