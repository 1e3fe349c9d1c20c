//! A job may begin with the weights of a file, such as another job's export.

use std::path::Path;

use omnilearn_agent::config::default_cache;
use omnilearn_hub::client::ClientError;
use omnilearn_hub::export;
use omnilearn_hub::view::JobView;
use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::component_path;
use safetensors::SafeTensors;

/// A job for a kernel with keys of its own, such as its weights, for so many steps and agents.
fn job(seed: u64, kernel: &str, learning_rate: f64, steps: u64, agents: u64) -> String {
    format!(
        r#"
        dataset = "fashion-mnist"
        seed = {seed}
        [kernel]
        path = "KERNEL"
        {kernel}
        [training]
        global_batch = 64
        [optimizer]
        learning_rate = {learning_rate:e}
        [evaluate]
        every_steps = 100000
        [stop]
        steps = {steps}
        [fleet]
        wait_for_agents = {agents}
        agents_min = {agents}
        "#
    )
}

const FROM_EXPORT: &str = "weights = \"model.safetensors\"";

fn is_running(cluster: &Cluster, job: u64) {
    cluster.wait_until(job, "the job's start", |view| view.state.as_str() == "running").unwrap();
}

#[test]
fn an_export_is_continued_where_it_was_left() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    let first = cluster.submit("lenet", &job(1, "", 0.03, 60, 1)).unwrap();
    cluster.wait_done(first).unwrap();
    let evaluated = cluster.records(first).unwrap().evaluations.pop().unwrap();
    export::weights(&cluster.client, first, &cluster.folder().join("model.safetensors")).unwrap();

    // A learning rate that is too small to change any parameter, so that the evaluation after one step is of the first values.
    let second = cluster.submit("lenet", &job(2, FROM_EXPORT, 1e-30, 1, 1)).unwrap();
    cluster.wait_done(second).unwrap();
    assert!(cluster.weights(second).unwrap() == cluster.weights(first).unwrap());
    let again = cluster.records(second).unwrap().evaluations.pop().unwrap();
    assert_eq!((again.accuracy, again.samples), (evaluated.accuracy, evaluated.samples));
    let difference = (again.loss - evaluated.loss).abs();
    assert!(difference < 1e-6, "{} is not {}", again.loss, evaluated.loss);
}

#[test]
fn running_means_are_continued_too_and_a_new_head_is_drawn() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    cluster.add_agent("a").unwrap();
    let settings = |keys: &str| format!("settings = {{ width = 4 }}\n{keys}");
    let first = cluster.submit("resnet", &job(1, &settings(""), 0.03, 5, 1)).unwrap();
    cluster.wait_done(first).unwrap();
    let trained = cluster.weights(first).unwrap();
    export::weights(&cluster.client, first, &cluster.folder().join("model.safetensors")).unwrap();

    // One agent too few, so that both jobs stay at their first values.
    let second = cluster.submit("resnet", &job(2, &settings(FROM_EXPORT), 0.03, 5, 2)).unwrap();
    is_running(&cluster, second);
    assert!(cluster.weights(second).unwrap() == trained);
    assert!(trained.keys().any(|name| name.ends_with("running_var")));
    cluster.client.stop(second).unwrap();

    let keys = format!("{FROM_EXPORT}\nweights_except = [\"fc.*\"]\nsettings = {{ width = 4, classes = 12 }}");
    let third = cluster.submit("resnet", &job(2, &keys, 0.03, 5, 2)).unwrap();
    is_running(&cluster, third);
    let tuned = cluster.weights(third).unwrap();
    assert_eq!(tuned["fc.bias"].0, [12]);
    let body = || trained.iter().filter(|(name, _)| !name.starts_with("fc."));
    assert_eq!(body().count(), tuned.len() - 2);
    assert!(body().all(|(name, values)| tuned[name] == *values));
}

#[test]
fn a_model_is_fine_tuned_with_its_first_layers_frozen() {
    if !super::has_data() {
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    let key = cluster.key().to_owned();
    for name in ["a", "b"] {
        // Each with a cache of its own, so that each has to fetch.
        let cache = cluster.folder().join(name).display().to_string();
        let data = default_cache().join("datasets").display().to_string();
        let arguments = ["--device", "cpu", "--trust", &key, "--data", &data, "--cache", &cache];
        cluster.add_agent_with(name, &arguments).unwrap();
    }
    let first = cluster.submit("lenet", &job(1, "", 0.03, 20, 2)).unwrap();
    let whole = cluster.wait_done(first).unwrap();
    let trained = cluster.weights(first).unwrap();
    export::weights(&cluster.client, first, &cluster.folder().join("model.safetensors")).unwrap();

    let keys = format!("{FROM_EXPORT}\nfrozen = [\"conv*\", \"fc1.*\"]");
    let second = cluster.submit("lenet", &job(2, &keys, 0.03, 20, 2)).unwrap();
    let tuned = cluster.wait_done(second).unwrap();
    let is_frozen = |name: &str| name.starts_with("conv") || name.starts_with("fc1.");
    let after = cluster.weights(second).unwrap();
    assert_eq!(after.len(), trained.len());
    for (name, values) in &trained {
        assert_eq!(after[name] == *values, is_frozen(name), "{name}");
    }
    let elements = |wanted: bool| -> u64 {
        let tensors = trained.iter().filter(|(name, _)| is_frozen(name) == wanted);
        tensors.map(|(_, (_, values))| values.len() as u64).sum()
    };
    assert_eq!((tuned.parameters_frozen, tuned.parameters), (elements(true), elements(true) + elements(false)));
    // Twenty rounds of two agents: the bytes are those of what is trained, and of nothing else.
    let pushed = |view: &JobView| view.progress.as_ref().unwrap().counters["push_bytes"];
    assert_eq!(pushed(&tuned), 20 * 2 * 4 * elements(false));
    assert_eq!(pushed(&whole), 20 * 2 * 4 * (elements(true) + elements(false)));
    for agent in cluster.agents.values() {
        let fetched = agent.output().matches("fetched a file from the hub").count();
        assert_eq!(fetched, 1, "the frozen parameters come once");
    }

    // A single agent takes the same steps: what the two made of their frozen values agrees.
    drop(cluster.agents.remove("b"));
    let third = cluster.submit("lenet", &job(2, &keys, 0.03, 20, 1)).unwrap();
    cluster.wait_done(third).unwrap();
    for (name, (_, values)) in cluster.weights(third).unwrap() {
        let difference = values.iter().zip(&after[&name].1).map(|(one, two)| (one - two).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-4, "{name}: {difference}");
    }
}

fn refusal(cluster: &Cluster, kernel: &str) -> String {
    let text = job(1, kernel, 0.03, 5, 1).replace("KERNEL", &component_path("lenet").display().to_string());
    let file = cluster.folder().join("refused.toml");
    std::fs::write(&file, text).unwrap();
    let error = cluster.client.submit_file(&file).unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 422, .. }), "{error}");
    error.to_string()
}

/// Writes the file again without a tensor.
fn without(file: &Path, name: &str) {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let rest = tensors.tensors().into_iter().filter(|(found, _)| found != name);
    std::fs::write(file.with_file_name("lacking.safetensors"), safetensors::serialize(rest, None).unwrap()).unwrap();
}

#[test]
fn a_file_that_lacks_a_tensor_or_has_another_shape_is_refused_by_its_name() {
    let cluster = Cluster::start().unwrap();
    let drawn = cluster.submit("lenet", &job(1, "", 0.03, 5, 1)).unwrap();
    is_running(&cluster, drawn);
    let file = cluster.folder().join("model.safetensors");
    export::weights(&cluster.client, drawn, &file).unwrap();
    let (name, (shape, _)) = cluster.weights(drawn).unwrap().pop_last().unwrap();
    let layer = name.rsplit_once('.').unwrap().0;
    let advice =
        format!("for a tensor that is to begin with drawn values, add \"{layer}.*\" to `weights_except` in [kernel]");

    without(&file, &name);
    assert_eq!(
        refusal(&cluster, "weights = \"lacking.safetensors\""),
        format!("[kernel] weights: the file has no tensor `{name}` {shape:?}; {advice}")
    );
    let message = refusal(&cluster, &format!("{FROM_EXPORT}\nsettings = {{ classes = 12 }}"));
    assert!(message.contains(" in the file and [12") && message.contains("`weights_except` in [kernel]"), "{message}");
    assert_eq!(cluster.client.jobs().unwrap().len(), 1);
}
