//! Agents that reach their hub, or tell their timings, over an MQTT broker: the hub's own, and Mosquitto.

mod cut;
mod equal;
mod operating;
mod presence;

use std::net::TcpListener;

use omnilearn_hub::view::JobView;
use omnilearn_tests::cluster::Cluster;
use omnilearn_tests::mosquitto::Mosquitto;

/// A broker that a hub uses.
enum Broker {
    OfTheHub(String),
    Theirs(Mosquitto),
}

impl Broker {
    fn of_the_hub() -> Broker {
        // A port that was free a moment ago; the hub says if somebody else was quicker.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Broker::OfTheHub(format!("127.0.0.1:{port}"))
    }

    /// The hub's own broker, and Mosquitto where it is installed.
    fn each() -> impl Iterator<Item = Broker> {
        let mosquitto = || Mosquitto::start("").unwrap().map(Broker::Theirs);
        std::iter::once_with(|| Some(Broker::of_the_hub())).chain(std::iter::once_with(mosquitto)).flatten()
    }

    fn name(&self) -> &'static str {
        match self {
            Broker::OfTheHub(_) => "the hub's own broker",
            Broker::Theirs(_) => "mosquitto",
        }
    }

    fn url(&self) -> String {
        match self {
            Broker::OfTheHub(address) => format!("mqtt://{address}"),
            Broker::Theirs(broker) => broker.url(),
        }
    }

    fn hub(&self) -> Cluster {
        match self {
            Broker::OfTheHub(address) => Cluster::start_with(&["--mqtt-listen", address]).unwrap(),
            Broker::Theirs(broker) => Cluster::start_with(&["--mqtt", &broker.url()]).unwrap(),
        }
    }
}

/// A job of this many steps on two agents, a and b, with batches of 24 and 40 samples.
fn two_agents(steps: u32) -> String {
    format!(
        r#"
        dataset = "fashion-mnist"
        seed = 5
        [kernel]
        path = "KERNEL"
        [training]
        global_batch = 64
        [batching]
        policy = "static"
        [batching.shares]
        a = 24
        b = 40
        [optimizer]
        learning_rate = 0.01
        momentum = 0.9
        [stop]
        steps = {steps}
        [evaluate]
        every_steps = 100000
        [fleet]
        agents_min = 1
        wait_for_agents = 2
        "#
    )
}

/// Steps that a job has taken.
fn version(view: &JobView) -> u64 {
    view.progress.as_ref().map_or(0, |progress| progress.version)
}

/// How often an agent's updates were accepted in a job.
fn steps_of(cluster: &Cluster, job: u64, name: &str) -> usize {
    let agents = cluster.client.agents().unwrap();
    let number = agents.iter().find(|agent| agent.name == name).map(|agent| agent.id);
    cluster.records(job).unwrap().steps.iter().filter(|step| Some(step.agent) == number).count()
}
