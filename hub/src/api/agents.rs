//! Agents: who there is, which way they are reached, and commands to them.

use std::collections::HashMap;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use omnilearn_mqtt::command::Command;
use omnilearn_mqtt::presence::{PresenceState, Transport};
use serde_json::Value;

use super::{Answer, Api, Refused, internal};
use crate::metered::PeerAddress;
use crate::mqtt::{CommandError, Mqtt, Seen};
use crate::view::{AgentView, PresenceView, TimingsView};

impl From<CommandError> for Refused {
    fn from(error: CommandError) -> Refused {
        let status = match &error {
            CommandError::Unknown { .. } => StatusCode::NOT_FOUND,
            CommandError::NoBroker | CommandError::NotAtBroker { .. } | CommandError::Offline { .. } => {
                StatusCode::CONFLICT
            }
            CommandError::Refused { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            CommandError::BrokerAway | CommandError::TooMany | CommandError::NotSent(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            CommandError::NoReply { .. } => StatusCode::GATEWAY_TIMEOUT,
        };
        let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
        Refused(status, format!("{error}{cause}"))
    }
}

/// Has an agent do something; what it returns.
pub(super) async fn command(
    State(api): State<Api>,
    Path(name): Path<String>,
    command: Result<Json<Command>, JsonRejection>,
) -> Answer<Json<Value>> {
    let Json(command) = command.map_err(|rejection| Refused(rejection.status(), rejection.body_text()))?;
    let mqtt = api.mqtt.as_ref().ok_or(CommandError::NoBroker)?;
    let known = api.gate.registry.number(&name).is_some();
    tracing::info!(agent = name, ?command, "command");
    Ok(Json(mqtt.command(&name, command, known).await?))
}

/// Every agent that ever connected, and those that only the broker knows.
pub(super) async fn list(State(api): State<Api>) -> Answer<Json<Vec<AgentView>>> {
    let known = api.gate.store.agents().await.map_err(internal)?;
    let unseen = |id, name: String, machine| AgentView {
        id,
        name,
        connected: false,
        address: None,
        transport: None,
        presence: None,
        timings: None,
        machine,
        received_bytes: 0,
        sent_bytes: 0,
    };
    let mut views: Vec<AgentView> = known.into_iter().map(|(id, name, machine)| unseen(id.0, name, machine)).collect();
    let places: HashMap<u32, usize> = views.iter().enumerate().map(|(place, view)| (view.id, place)).collect();
    for (id, session) in api.gate.registry.sessions() {
        if let Some(view) = places.get(&id.0).map(|&place| &mut views[place]) {
            view.connected = true;
            view.transport = Some(transport(&session.address).to_owned());
            view.address = Some(session.address.to_string());
            view.machine = Some(session.machine);
            view.received_bytes = session.meter.read_bytes();
            view.sent_bytes = session.meter.written_bytes();
        }
    }
    if let Some(mqtt) = &api.mqtt {
        let places: HashMap<String, usize> =
            views.iter().enumerate().map(|(place, view)| (view.name.clone(), place)).collect();
        for seen in mqtt.presence() {
            match places.get(&seen.presence.name) {
                Some(&place) => add(&mut views[place], mqtt, &seen),
                None => {
                    let mut view = unseen(0, seen.presence.name.clone(), None);
                    add(&mut view, mqtt, &seen);
                    views.push(view);
                }
            }
        }
    }
    Ok(Json(views))
}

fn transport(address: &PeerAddress) -> &'static str {
    match address {
        PeerAddress::Tcp(_) => "websocket",
        PeerAddress::Mqtt(_) => "mqtt",
    }
}

fn add(view: &mut AgentView, mqtt: &Mqtt, seen: &Seen) {
    let presence = &seen.presence;
    let state = match (presence.state, seen.certain) {
        (PresenceState::Offline, _) => "offline",
        (PresenceState::Online, true) => "online",
        (PresenceState::Online, false) => "unknown",
    };
    let said = match presence.transport {
        Transport::Mqtt => "mqtt",
        Transport::WebSocket => "websocket",
    };
    view.transport.get_or_insert_with(|| said.to_owned());
    view.presence = Some(PresenceView {
        state: state.to_owned(),
        paused: presence.paused,
        version: presence.version.clone(),
        timings: presence.timings.to_string(),
    });
    let counts = mqtt.timings(&view.name);
    view.timings = counts.map(|counts| TimingsView {
        received: counts.received,
        duplicates: counts.duplicates,
        lost: counts.lost,
    });
}
