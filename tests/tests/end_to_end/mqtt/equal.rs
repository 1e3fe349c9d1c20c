//! The transport makes no difference to what is computed.

use omnilearn_tests::cluster::{Cluster, Weights};
use omnilearn_tests::mosquitto::Mosquitto;

use super::{Broker, two_agents, version};

#[derive(Clone, Copy, Debug)]
enum Way {
    WebSocket,
    Mqtt,
}

fn train(broker: &Broker, ways: [Way; 2]) -> Weights {
    let mut cluster = broker.hub();
    let web_socket = format!("ws://{}", cluster.address());
    for (name, way) in ["a", "b"].into_iter().zip(ways) {
        match way {
            Way::WebSocket => cluster.add_agent_at(name, &["--hub", &web_socket]).unwrap(),
            Way::Mqtt => cluster.add_agent_at(name, &["--hub", &broker.url()]).unwrap(),
        }
        cluster.wait_connected(name).unwrap();
    }
    let job = cluster.submit("lenet", &two_agents(100)).unwrap();
    cluster.wait_done(job).unwrap();
    let records = cluster.records(job).unwrap();
    assert_eq!((records.rounds.len(), records.steps.len()), (100, 200), "every update was in time");
    cluster.weights(job).unwrap()
}

/// Whether two models are the same to the last bit.
fn same_bits(a: &Weights, b: &Weights) -> bool {
    let bits = |(_, values): &(Vec<usize>, Vec<f32>)| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    a.len() == b.len() && a.iter().zip(b).all(|((name, a), (other, b))| name == other && bits(a) == bits(b))
}

#[test]
fn bsp_over_websocket_mqtt_and_both_is_equal_to_the_bit_after_100_steps() {
    if !crate::has_data() {
        return;
    }
    for broker in Broker::each() {
        let expected = train(&broker, [Way::WebSocket, Way::WebSocket]);
        for ways in [[Way::Mqtt, Way::Mqtt], [Way::WebSocket, Way::Mqtt]] {
            assert!(same_bits(&expected, &train(&broker, ways)), "{ways:?} over {}", broker.name());
        }
    }
}

#[test]
fn resnet18_trains_through_a_broker_that_caps_packets_at_128_kib() {
    if !crate::has_data() {
        return;
    }
    let Some(mosquitto) = Mosquitto::start("max_packet_size 131072").unwrap() else { return };
    let mut cluster = Cluster::start_with(&["--mqtt", &mosquitto.url()]).unwrap();
    for name in ["a", "b"] {
        cluster.add_agent_at(name, &["--hub", &mosquitto.url()]).unwrap();
    }
    let toml = r#"
        dataset = "fashion-mnist"
        [kernel]
        path = "KERNEL"
        settings = { depth = 18, width = 64 }
        [training]
        global_batch = 8
        [optimizer]
        learning_rate = 0.01
        [evaluate]
        every_steps = 100000
        [fleet]
        agents_min = 2
        wait_for_agents = 2
    "#;
    let job = cluster.submit("resnet", toml).unwrap();
    cluster.wait_until(job, "steps", |view| version(view) >= 4).unwrap();
    cluster.client.stop(job).unwrap();
    cluster.wait_until(job, "the job's end", |view| view.state.is_final()).unwrap();
    let parameters: usize = cluster.weights(job).unwrap().values().map(|(_, values)| values.len()).sum();
    assert!(parameters > 11_000_000, "{parameters}");
}
