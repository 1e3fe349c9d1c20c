//! Agents on a GPU, or on a software Vulkan device in its place, beside agents on the CPU.

use omnilearn_agent::device::{DeviceChoice, select};
use omnilearn_tests::cluster::{Cluster, Weights};

use super::exactness::difference;

/// Trains a few steps on two agents with half of the batch each; `devices` are theirs.
fn train(kernel: &str, settings: &str, devices: [&str; 2], (batch, steps): (u32, u32)) -> Weights {
    let mut cluster = Cluster::start().unwrap();
    let key = cluster.key().to_owned();
    for (index, device) in devices.into_iter().enumerate() {
        cluster.add_agent_with(&format!("agent-{index}"), &["--trust", &key, "--device", device]).unwrap();
    }
    let calibration = batch / 2; // a batch that is computed anyway, since programs are compiled for each
    let job = cluster
        .submit(
            kernel,
            &format!(
                r#"
                dataset = "fashion-mnist"
                seed = 5
                [kernel]
                path = "KERNEL"
                [kernel.settings]
                {settings}
                [training]
                global_batch = {batch}
                [batching]
                policy = "uniform"
                calibration_batches = [{calibration}]
                [optimizer]
                learning_rate = 0.01
                [stop]
                steps = {steps}
                [evaluate]
                every_steps = 100000
                [fleet]
                agents_min = 2
                wait_for_agents = 2
                round_deadline_s = 120
                "#
            ),
        )
        .unwrap();
    cluster.wait_done(job).unwrap();
    assert_eq!(cluster.records(job).unwrap().rounds.len(), steps as usize);
    cluster.weights(job).unwrap()
}

fn check(kernel: &str, settings: &str, work: (u32, u32)) {
    if let Err(reason) = select(DeviceChoice::GpuAt(0)) {
        println!("skipped: {reason}");
        return;
    }
    if !super::has_data() {
        return;
    }
    let mixed = train(kernel, settings, ["gpu:0", "cpu"], work);
    let cpu = train(kernel, settings, ["cpu", "cpu"], work);
    let difference = difference(&mixed, &cpu);
    println!("{kernel}: relative difference {difference:.2e}");
    assert!(difference <= 1e-4, "{difference:e}");
}

#[test]
fn lenet_trains_on_a_gpu_and_a_cpu_in_one_job_as_on_cpus() {
    check("lenet", "", (32, 5));
}

#[test]
fn narrow_resnet_trains_on_a_gpu_and_a_cpu_in_one_job_as_on_cpus() {
    // A software device needs seconds for a step.
    check("resnet", "width = 2", (8, 2));
}
