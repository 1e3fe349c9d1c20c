//! `omnilearn-hub agent …`

use std::process::ExitCode;

use omnilearn_hub::client::HubClient;
use omnilearn_hub::view::AgentView;
use omnilearn_mqtt::command::Command;
use serde_json::Value;

use crate::cli::{AgentCommand, AgentLimits, AgentList, AgentName};
use crate::{client, json, print};

/// Does what the command line says.
pub(crate) fn run(command: &AgentCommand) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::List(AgentList { json: as_json, hub }) => {
            let agents = client(hub)?.agents()?;
            if *as_json {
                json(&agents)?
            } else {
                print(&table(&agents))?
            }
            Ok(ExitCode::SUCCESS)
        }
        AgentCommand::Pause(agent) => order(agent, &Command::Pause),
        AgentCommand::Resume(agent) => order(agent, &Command::Resume),
        AgentCommand::Reload(agent) => order(agent, &Command::Reload),
        AgentCommand::SelfTest(agent) => order(agent, &Command::SelfTest),
        AgentCommand::Limits(AgentLimits { agent, threads, batch_max }) => {
            order(agent, &Command::Limits { threads: *threads, batch_max: *batch_max })
        }
    }
}

fn order(agent: &AgentName, command: &Command) -> anyhow::Result<ExitCode> {
    let client: HubClient = client(&agent.hub)?;
    let result = client.command(&agent.name, command)?;
    if agent.json {
        json(&result)?
    } else {
        print(&figures(&agent.name, &result))?
    }
    Ok(ExitCode::SUCCESS)
}

/// What an agent returns, one figure on a line.
fn figures(name: &str, result: &Value) -> String {
    let mut text = format!("{name}: done\n");
    if let Value::Object(figures) = result {
        for (figure, value) in figures {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!("  {figure}: {value}\n"));
        }
    }
    text
}

/// How an agent is reached, in a few words.
pub(crate) fn reached(agent: &AgentView) -> String {
    let presence = agent.presence.as_ref();
    let away = || match presence {
        Some(presence) if presence.state == "online" && presence.paused => "paused",
        Some(presence) if presence.state == "online" => "at the broker only",
        _ => "not connected",
    };
    agent.address.clone().unwrap_or_else(|| away().to_owned())
}

fn table(agents: &[AgentView]) -> String {
    if agents.is_empty() {
        return "no agents; `omnilearn-agent run --hub URL` starts one\n".to_owned();
    }
    let width = agents.iter().map(|agent| agent.name.len()).max().unwrap_or(0).clamp(5, 32);
    let mut text = format!("{:width$}  {:26}  {:9}  {:8}  timings\n", "agent", "reached", "transport", "presence");
    for agent in agents {
        let presence = agent.presence.as_ref().map_or("-", |presence| match presence.state.as_str() {
            "online" if presence.paused => "paused",
            state => state,
        });
        let timings = agent.timings.map_or_else(
            || "-".to_owned(),
            |timings| format!("{} ({} lost, {} again)", timings.received, timings.lost, timings.duplicates),
        );
        let transport = agent.transport.as_deref().unwrap_or("-");
        let line = format!("{:width$}  {:26}  {transport:9}  {presence:8}  {timings}", agent.name, reached(agent));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use omnilearn_hub::view::{PresenceView, TimingsView};

    use super::*;
    use crate::cli::{self, Cli};

    fn agent(name: &str) -> AgentView {
        AgentView {
            id: 1,
            name: name.into(),
            connected: false,
            address: None,
            transport: None,
            presence: None,
            timings: None,
            machine: None,
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    #[test]
    fn agents_are_listed_with_what_is_known_of_them() {
        let presence = |state: &str, paused| {
            Some(PresenceView { state: state.into(), paused, version: "0.1.0".into(), timings: "json".into() })
        };
        let direct =
            AgentView { address: Some("tcp 10.0.0.5:4000".into()), transport: Some("websocket".into()), ..agent("pi") };
        let paused = AgentView { presence: presence("online", true), transport: Some("mqtt".into()), ..agent("nano") };
        let timings = Some(TimingsView { received: 7, duplicates: 2, lost: 1 });
        let gone = AgentView { presence: presence("offline", false), timings, ..agent("xavier") };
        let text = table(&[direct, paused, gone]);
        for expected in [
            "pi      tcp 10.0.0.5:4000           websocket  -         -\n",
            "nano    paused                      mqtt       paused    -\n",
            "xavier  not connected               -          offline   7 (1 lost, 2 again)\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }

    #[test]
    fn limits_are_one_or_both() {
        let limits = |arguments: &[&str]| {
            let arguments = ["omnilearn-hub", "agent", "limits", "pi"].iter().chain(arguments);
            let command = Cli::try_parse_from(arguments).ok()?.command;
            let cli::Command::Agent(AgentCommand::Limits(limits)) = command else { panic!("{command:?}") };
            Some((limits.threads, limits.batch_max))
        };
        assert_eq!(limits(&["--threads", "2"]), Some((Some(2), None)));
        assert_eq!(limits(&["--batch-max", "64"]), Some((None, Some(64))));
        assert_eq!(limits(&["--threads", "2", "--batch-max", "64"]), Some((Some(2), Some(64))));
        assert_eq!((limits(&[]), limits(&["--threads", "0"])), (None, None));
    }

    #[test]
    fn what_an_agent_returns_is_one_figure_a_line() {
        let result = serde_json::json!({ "paused": true, "note": "nothing to do" });
        assert_eq!(figures("pi", &result), "pi: done\n  note: nothing to do\n  paused: true\n");
        assert_eq!(figures("pi", &Value::Null), "pi: done\n");
    }
}
