//! The hub's memory does not grow with the number of agents beyond a fixed allowance for each.

use std::sync::mpsc;

use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::scripted::ScriptedAgent;

const MIB: u64 = 1 << 20;
/// ResNet-18 for one channel and ten classes, in `f32`.
const MODEL_BYTES: u64 = 11_172_810 * 4;

#[test]
fn hub_peaks_at_three_models_and_16_mib_per_agent() {
    for agents in [2u64, 8, 32] {
        let cluster = Cluster::start().unwrap();
        let job = cluster
            .submit(
                "resnet",
                &format!(
                    r#"
                    dataset = "fashion-mnist"
                    [kernel]
                    path = "KERNEL"
                    [training]
                    global_batch = 256
                    [batching]
                    policy = "uniform"
                    [evaluate]
                    every_steps = 100000
                    [stop]
                    steps = 2
                    [fleet]
                    wait_for_agents = {agents}
                    agents_min = {agents}
                    "#
                ),
            )
            .unwrap();
        let (done, all_done) = mpsc::channel();
        for index in 0..agents {
            let (address, done) = (cluster.address().to_owned(), done.clone());
            std::thread::spawn(move || {
                let result = (|| {
                    let mut agent = ScriptedAgent::join(&address, &format!("scripted-{index}"))?;
                    for _ in 0..2 {
                        let train = agent.next_train()?;
                        agent.push(&train, 1e-3)?;
                        agent.outcome(train.assignment)?;
                    }
                    anyhow::Ok(())
                })();
                done.send(result).ok();
            });
        }
        drop(done);
        for result in all_done {
            result.unwrap();
        }
        cluster
            .wait_until(job, "the end", |view| view.progress.as_ref().is_some_and(|progress| progress.version == 2))
            .unwrap();
        let peak = cluster.hub.peak_memory_bytes().unwrap();
        let allowed = 3 * MODEL_BYTES + agents * 16 * MIB;
        println!("{agents} agents: peak {} MiB of {} MiB", peak / MIB, allowed / MIB);
        assert!(peak <= allowed, "{agents} agents: {} MiB, allowed {} MiB", peak / MIB, allowed / MIB);
    }
}
