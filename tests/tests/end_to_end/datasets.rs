//! Data sets of users: added at the hub, fetched by agents that have nothing, and learned from.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use omnilearn_agent::config::default_cache;
use omnilearn_tests::cluster::Cluster;
use zune_core::bit_depth::BitDepth;
use zune_core::colorspace::ColorSpace;
use zune_core::options::EncoderOptions;
use zune_png::PngEncoder;

/// Side of the images, in pixels.
const SIDE: usize = 8;

/// A job of so many steps and two agents. `settings` are the kernel's, `keys` go to the end.
fn job(dataset: &str, settings: &str, steps: u32, keys: &str) -> String {
    format!(
        r#"
        dataset = "{dataset}"
        seed = 1
        [kernel]
        path = "KERNEL"
        [kernel.settings]
        {settings}
        [training]
        global_batch = 32
        [optimizer]
        kind = "adam"
        learning_rate = 0.01
        [evaluate]
        every_steps = 20
        [stop]
        steps = {steps}
        [fleet]
        wait_for_agents = 2
        agents_min = 2
        {keys}
        "#
    )
}

/// Starts agents whose caches are these folders, and nothing else on this machine.
fn add_agents(cluster: &mut Cluster, caches: &[&Path]) {
    for (index, cache) in caches.iter().enumerate() {
        let key = cluster.key().to_owned();
        let cache = cache.to_str().unwrap().to_owned();
        let arguments = ["--device", "cpu", "--trust", &key, "--cache", &cache];
        cluster.add_agent_with(&format!("agent-{index}"), &arguments).unwrap();
    }
}

fn png(pixels: &[u8]) -> Vec<u8> {
    let options = EncoderOptions::default()
        .set_width(SIDE)
        .set_height(SIDE)
        .set_depth(BitDepth::Eight)
        .set_colorspace(ColorSpace::RGB);
    let mut bytes = Vec::new();
    PngEncoder::new(pixels, options).encode(&mut bytes).unwrap();
    bytes
}

/// Two classes: reddish and bluish noise.
fn pictures(folder: &Path) -> PathBuf {
    let root = folder.join("pictures");
    let mut generator = omnilearn_wire::sampling::SplitMix64::new(1);
    for (class, tint) in [("blue", 2), ("red", 0)] {
        std::fs::create_dir_all(root.join(class)).unwrap();
        for number in 0..60 {
            let mut pixels: Vec<u8> = (0..3 * SIDE * SIDE).map(|_| generator.below(160) as u8).collect();
            pixels.iter_mut().skip(tint).step_by(3).for_each(|value| *value += 60);
            std::fs::write(root.join(class).join(format!("{number}.png")), png(&pixels)).unwrap();
        }
    }
    root
}

const PICTURE_SETTINGS: &str = "channels = 3\nimage_height = 8\nimage_width = 8\nclasses = 2\nhidden = 16";

fn add_pictures(cluster: &Cluster) -> String {
    let source = pictures(cluster.folder());
    cluster.dataset(&["add", "pictures", source.to_str().unwrap(), "--size", "8", "--test-part", "0.2"]).unwrap()
}

#[test]
fn agents_without_data_fetch_an_image_folder_once_and_learn_from_it() {
    let mut cluster = Cluster::start().unwrap();
    let said = add_pictures(&cluster);
    assert!(said.contains("pictures: 96 to learn from, 24 to test with, samples u8 [3, 8, 8], 2 classes"), "{said}");
    let source = cluster.folder().join("pictures");
    let again = ["add", "pictures", source.to_str().unwrap(), "--size", "8", "--test-part", "0.2"];
    assert!(cluster.dataset(&again).unwrap().contains("was here already"));
    assert!(cluster.dataset(&["list"]).unwrap().starts_with("pictures: 96 to learn from"));
    assert!(cluster.dataset(&["verify"]).unwrap().contains("pictures: sound"));

    let cache = cluster.folder().join("cache");
    add_agents(&mut cluster, &[&cache, &cache]);
    let keys = "[data]\naugment = { flip = true, crop_padding = 1 }";
    let job = cluster.submit("mlp", &job("pictures", PICTURE_SETTINGS, 60, keys)).unwrap();
    cluster.wait_done(job).unwrap();
    let last = cluster.records(job).unwrap().evaluations.pop().unwrap();
    assert_eq!(last.samples, 24);
    assert!(last.accuracy.unwrap() > 0.9, "{last:?}");
    let fetched: usize =
        cluster.agents.values().map(|agent| agent.output().matches("fetched a file from the hub").count()).sum();
    assert_eq!(fetched, 3, "the manifest and two splits, by one of the agents that share a cache");
}

#[test]
fn a_text_is_learned_byte_by_byte() {
    let mut cluster = Cluster::start().unwrap();
    let text = cluster.folder().join("text.txt");
    std::fs::write(&text, "she sells sea shells by the sea shore; ".repeat(500)).unwrap();
    cluster.dataset(&["add", "shells", text.to_str().unwrap()]).unwrap();
    let caches = [cluster.folder().join("one"), cluster.folder().join("two")];
    add_agents(&mut cluster, &[&caches[0], &caches[1]]);
    let settings = "tokens = 16\nwidth = 16\nheads = 2\nlayers = 1";
    let job = cluster.submit("gpt", &job("shells", settings, 60, "")).unwrap();
    cluster.wait_done(job).unwrap();
    let last = cluster.records(job).unwrap().evaluations.pop().unwrap();
    // 5.5 is what knowing nothing of 256 bytes costs.
    assert!(last.loss < 3.0, "{last:?}");
}

#[test]
fn windows_of_a_series_are_learned_by_an_autoencoder_and_rows_by_a_regression() {
    let mut cluster = Cluster::start().unwrap();
    let mut table = "time,a,b,next\n".to_owned();
    for row in 0..1500 {
        let phase = f64::from(row) / 5.0;
        let (a, b) = (phase.sin(), (2.0 * phase).cos());
        writeln!(table, "{row},{a:.5},{b:.5},{:.5}", 3.0 * a - 2.0 * b + 1.0).unwrap();
    }
    let source = cluster.folder().join("series.csv");
    std::fs::write(&source, table).unwrap();
    let source = source.to_str().unwrap();
    cluster.dataset(&["add", "series", source, "--columns", "a,b", "--length", "32", "--stride", "4"]).unwrap();
    cluster.dataset(&["add", "rows", source, "--columns", "a,b", "--target", "next"]).unwrap();
    let cache = cluster.folder().join("cache");
    add_agents(&mut cluster, &[&cache, &cache]);

    let settings = "channels = 2\nlength = 32\nhidden = 32\ncode = 4";
    let windows = cluster.submit("autoencoder", &job("series", settings, 200, "")).unwrap();
    let rows = cluster.submit("linear_regression", &job("rows", "features = 2", 400, "")).unwrap();
    cluster.wait_done(windows).unwrap();
    let evaluations = cluster.records(windows).unwrap().evaluations;
    let (first, last) = (evaluations.first().unwrap().loss, evaluations.last().unwrap().loss);
    assert!(last < 0.4 && last < first, "from {first} to {last}; a constant costs 1");
    cluster.wait_done(rows).unwrap();
    let last = cluster.records(rows).unwrap().evaluations.pop().unwrap();
    assert!(last.loss < 0.3, "{last:?}: the targets' variance is 6.5");
}

#[test]
fn parts_by_label_belong_to_one_agent_each() {
    let mut cluster = Cluster::start().unwrap();
    add_pictures(&cluster);
    let cache = cluster.folder().join("cache");
    add_agents(&mut cluster, &[&cache, &cache]);
    let keys = "[data]\npartition = \"labels\"\nparts = 2\nlabels_per_agent = 1";
    let job = cluster.submit("mlp", &job("pictures", PICTURE_SETTINGS, 40, keys)).unwrap();
    cluster.wait_done(job).unwrap();
    let records = cluster.records(job).unwrap();
    let last = records.evaluations.last().unwrap();
    assert!(last.accuracy.unwrap() > 0.9, "{last:?}");

    let table = cluster.folder().join("rows.csv");
    std::fs::write(&table, "a,b\n1,2\n3,4\n5,6\n7,8\n").unwrap();
    cluster.dataset(&["add", "rows", table.to_str().unwrap(), "--target", "b"]).unwrap();
    let refused = cluster.submit("linear_regression", &self::job("rows", "features = 1", 5, keys)).unwrap_err();
    assert!(refused.to_string().contains("have no classes"), "{refused}");
}

#[test]
fn a_kernel_that_does_not_fit_is_refused_before_any_agent_hears_of_it() {
    let cluster = Cluster::start().unwrap();
    add_pictures(&cluster);
    let refused =
        |settings: &str, dataset: &str| cluster.submit("mlp", &job(dataset, settings, 5, "")).unwrap_err().to_string();
    let error = refused("classes = 2", "pictures");
    assert!(
        error.contains("[3, 8, 8]") && error.contains("[1, 28, 28]") && error.contains("[kernel.settings]"),
        "{error}"
    );
    assert!(refused(PICTURE_SETTINGS, "picture").contains("did you mean \"pictures\"?"));
    assert!(cluster.dataset(&["remove", "pictures"]).unwrap().contains("removed"));
    assert!(refused(PICTURE_SETTINGS, "pictures").contains("dataset add"));
}

#[test]
fn cifar10_is_learned_from_where_it_is_there() {
    let source = std::env::var_os("OMNILEARN_CIFAR10").map(PathBuf::from);
    let source = source.unwrap_or_else(|| default_cache().join("datasets/cifar-10-batches-bin"));
    if !source.join("test_batch.bin").exists() {
        println!(
            "skipped: CIFAR-10's binary version is not in {}; OMNILEARN_CIFAR10 may name its folder",
            source.display()
        );
        return;
    }
    let mut cluster = Cluster::start().unwrap();
    let said = cluster.dataset(&["add", "cifar10", source.to_str().unwrap()]).unwrap();
    assert!(said.contains("50000 to learn from, 10000 to test with"), "{said}");
    let cache = cluster.folder().join("cache");
    add_agents(&mut cluster, &[&cache, &cache]);
    let settings = "channels = 3\nimage_height = 32\nimage_width = 32\nhidden = 64";
    let text = job("cifar10", settings, 100, "[data]\naugment = { flip = true, crop_padding = 4 }");
    let text = text.replace("global_batch = 32", "global_batch = 128").replace("every_steps = 20", "every_steps = 100");
    let job = cluster.submit("mlp", &text.replace("0.01", "0.001")).unwrap();
    cluster.wait_done(job).unwrap();
    let last = cluster.records(job).unwrap().evaluations.pop().unwrap();
    assert!(last.accuracy.unwrap() > 0.2, "{last:?}");
}
