//! How the agents of a fleet reach their hub: over WebSockets, over an MQTT broker, or some each way.

use std::process::Command;

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::session::free_port;

/// How agents reach the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// A WebSocket each.
    #[default]
    #[value(alias = "ws")]
    Websocket,
    /// An MQTT broker, which the hub runs unless --broker names another.
    Mqtt,
    /// Every other agent over MQTT; the rest train over WebSockets, with presence and timings over MQTT.
    Mixed,
}

impl Transport {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Websocket => "websocket",
            Self::Mqtt => "mqtt",
            Self::Mixed => "mixed",
        }
    }
}

/// How agents reach the hub, as a user says it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TransportArguments {
    /// How agents reach the hub
    #[arg(long, value_enum, default_value = "websocket")]
    pub(crate) transport: Transport,
    /// MQTT broker to use, such as mqtt://127.0.0.1:1883 [default: one that the hub runs]
    #[arg(long, value_name = "URL")]
    pub(crate) broker: Option<String>,
}

impl TransportArguments {
    /// The way for one fleet.
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) fn route(&self, hub_port: u16) -> anyhow::Result<Route> {
        let broker = match (self.transport, &self.broker) {
            (Transport::Websocket, None) => None,
            (Transport::Websocket, Some(_)) => anyhow::bail!("--broker goes with --transport mqtt or mixed"),
            (_, Some(url)) => Some(Broker::Theirs(with_own_topics(url))),
            (_, None) => Some(Broker::OfTheHub(free_port().context("for the broker")?)),
        };
        Ok(Route { transport: self.transport, broker, hub_port })
    }
}

/// A broker may serve others as well, so what we say there is under a prefix of our own.
fn with_own_topics(url: &str) -> String {
    let has_prefix = url.split_once("://").is_some_and(|(_, rest)| rest.trim_end_matches('/').contains('/'));
    match has_prefix {
        true => url.to_owned(),
        false => format!("{}/omnilearn-demo-{}", url.trim_end_matches('/'), std::process::id()),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Broker {
    OfTheHub(u16),
    Theirs(String),
}

/// How the agents of one fleet reach its hub.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    transport: Transport,
    broker: Option<Broker>,
    hub_port: u16,
}

impl Route {
    /// Tells the hub.
    pub(crate) fn prepare_hub(&self, command: &mut Command) {
        match &self.broker {
            None => command,
            Some(Broker::OfTheHub(port)) => command.args(["--mqtt-listen", &format!("127.0.0.1:{port}")]),
            Some(Broker::Theirs(url)) => command.args(["--mqtt", url]),
        };
    }

    /// Tells an agent.
    pub(crate) fn prepare_agent(&self, index: usize, command: &mut Command) {
        let hub = format!("ws://127.0.0.1:{}", self.hub_port);
        let broker = match &self.broker {
            None => {
                command.args(["--hub", &hub]);
                return;
            }
            Some(Broker::OfTheHub(port)) => format!("mqtt://127.0.0.1:{port}"),
            Some(Broker::Theirs(url)) => url.clone(),
        };
        match self.transport == Transport::Mixed && index.is_multiple_of(2) {
            true => command.args(["--hub", &hub, "--mqtt", &broker]),
            false => command.args(["--hub", &broker]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(command: &Command) -> Vec<String> {
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    fn agents(transport: Transport, broker: Option<&str>) -> [Vec<String>; 2] {
        let told = TransportArguments { transport, broker: broker.map(str::to_owned) };
        let route = told.route(7700).unwrap();
        [0, 1].map(|index| {
            let mut command = Command::new("agent");
            route.prepare_agent(index, &mut command);
            arguments(&command)
        })
    }

    #[test]
    fn every_other_agent_of_a_mixed_fleet_trains_over_the_broker() {
        let [first, second] = agents(Transport::Mixed, Some("mqtt://localhost:1883/here"));
        assert_eq!(first, ["--hub", "ws://127.0.0.1:7700", "--mqtt", "mqtt://localhost:1883/here"]);
        assert_eq!(second, ["--hub", "mqtt://localhost:1883/here"]);
        let [first, second] = agents(Transport::Websocket, None);
        assert_eq!(first, second);
    }

    #[test]
    fn a_foreign_broker_gets_topics_of_our_own() {
        let expected = format!("mqtt://localhost:1883/omnilearn-demo-{}", std::process::id());
        for url in ["mqtt://localhost:1883", "mqtt://localhost:1883/"] {
            assert_eq!(with_own_topics(url), expected);
        }
        assert_eq!(with_own_topics("mqtts://broker/site1"), "mqtts://broker/site1");
    }

    #[test]
    fn a_broker_without_anybody_to_use_it_is_a_mistake() {
        let told = TransportArguments { transport: Transport::Websocket, broker: Some("mqtt://localhost".to_owned()) };
        assert!(told.route(7700).is_err());
    }
}
