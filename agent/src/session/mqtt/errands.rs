//! Commands on their way from the broker to a reply.

use std::pin::Pin;

use omnilearn_mqtt::command::{CommandReply, CommandRequest};
use omnilearn_mqtt::session::SessionMark;
use serde_json::Value;
use tracing::{debug, info, warn};

use super::commands::{Commands, Next};
use super::hands::Hands;

/// What was asked for and is being done. Outlives connections to the broker.
pub(super) struct Errands {
    hands: Hands,
    commands: Commands,
    doing: Option<Doing>,
    /// Whether a payload was no command: one line says it.
    was_puzzled: bool,
}

struct Doing {
    request: CommandRequest,
    result: Pin<Box<dyn Future<Output = Result<Value, String>>>>,
}

impl Errands {
    /// Nothing is being done yet.
    pub(super) fn new(hands: Hands) -> Errands {
        Errands { hands, commands: Commands::default(), doing: None, was_puzzled: false }
    }

    /// Takes a request; returns a reply if there is one at once.
    pub(super) fn on_payload(&mut self, payload: &[u8], session: SessionMark) -> Option<CommandReply> {
        let request = match CommandRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                if std::mem::replace(&mut self.was_puzzled, true) {
                    debug!(%error, cause, "another command is not understood");
                } else {
                    warn!(%error, cause, "a command is not understood; further ones are not reported");
                }
                return None;
            }
        };
        let (id, command) = (request.id.clone(), request.command.clone());
        match self.commands.on_request(request, session) {
            Next::Reply(reply) => {
                debug!(id, ?command, "command answered at once");
                Some(reply)
            }
            Next::Do(request) => {
                self.begin(request);
                None
            }
            Next::Wait => None,
        }
    }

    fn begin(&mut self, request: CommandRequest) {
        let result = Box::pin(self.hands.clone().perform(request.command.clone()));
        self.doing = Some(Doing { request, result });
    }

    /// The reply to what is being done; never if nothing is. May be dropped at any time.
    pub(super) async fn finished(&mut self, session: SessionMark) -> CommandReply {
        let Some(Doing { request, result }) = &mut self.doing else { return std::future::pending().await };
        let result = result.await;
        let CommandRequest { id, command } = &*request;
        let reply = match result {
            Ok(result) => {
                info!(id, ?command, %result, "command done");
                CommandReply::done(id, session, result)
            }
            Err(error) => {
                info!(id, ?command, error, "command refused");
                CommandReply::refused(id, session, error)
            }
        };
        self.doing = None;
        if let Some(next) = self.commands.on_done(reply.clone()) {
            self.begin(next);
        }
        reply
    }
}
