//! Commands to an agent and its replies, as JSON.

use serde::{Deserialize, Serialize};

use crate::session::SessionMark;

/// Longest id of a command, in bytes.
pub const ID_BYTES_MAX: usize = 128;

/// Largest command or reply, in bytes.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;

/// What an agent is asked to do: `{"id": "…", "command": "limits", "threads": 2}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRequest {
    /// Repeated in the reply. A request whose id came before is answered as before and not done again.
    pub id: String,
    /// What to do.
    #[serde(flatten)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// Leave the hub and wait for `resume`.
    Pause,
    /// Come back to the hub.
    Resume,
    /// Reply, and do nothing else.
    Identify,
    /// Read token, keys and password files again, probe the machine again, join again.
    Reload,
    /// Try what training needs, and return figures.
    SelfTest,
    /// Use at most so much of the machine; what is absent stays as it is.
    Limits {
        /// Compute threads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threads: Option<u32>,
        /// Samples in one assignment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch_max: Option<u32>,
    },
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandReply {
    /// The request's.
    pub id: String,
    /// Who replies.
    pub session: SessionMark,
    /// Whether it was done.
    pub ok: bool,
    /// What it returns, where it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why a payload is no command or no reply.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Longer than [`COMMAND_BYTES_MAX`].
    #[error("{bytes} bytes, at most {COMMAND_BYTES_MAX} allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not this JSON.
    #[error("not a command's JSON")]
    Json(#[source] serde_json::Error),
    /// An id that is empty or too long.
    #[error("an id has 1 to {ID_BYTES_MAX} bytes, not {bytes}")]
    Id {
        /// Its length.
        bytes: usize,
    },
}

impl CommandRequest {
    /// As JSON.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn decode(payload: &[u8]) -> Result<CommandRequest, CommandError> {
        let request: CommandRequest = decode(payload)?;
        check_id(&request.id)?;
        Ok(request)
    }
}

impl CommandReply {
    /// A reply to something that was done.
    pub fn done(id: &str, session: SessionMark, result: serde_json::Value) -> CommandReply {
        CommandReply { id: id.to_owned(), session, ok: true, result: Some(result), error: None }
    }

    /// A reply to something that was not done.
    pub fn refused(id: &str, session: SessionMark, error: impl Into<String>) -> CommandReply {
        CommandReply { id: id.to_owned(), session, ok: false, result: None, error: Some(error.into()) }
    }

    /// As JSON.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn decode(payload: &[u8]) -> Result<CommandReply, CommandError> {
        let reply: CommandReply = decode(payload)?;
        check_id(&reply.id)?;
        Ok(reply)
    }
}

fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("commands and replies have string keys only")
}

fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, CommandError> {
    if payload.len() > COMMAND_BYTES_MAX {
        return Err(CommandError::TooLong { bytes: payload.len() });
    }
    serde_json::from_slice(payload).map_err(CommandError::Json)
}

fn check_id(id: &str) -> Result<(), CommandError> {
    if id.is_empty() || id.len() > ID_BYTES_MAX { Err(CommandError::Id { bytes: id.len() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_the_json_that_is_documented() {
        let json = |command: Command| {
            let request = CommandRequest { id: "7".into(), command };
            assert_eq!(CommandRequest::decode(&request.encode()).unwrap(), request);
            String::from_utf8(request.encode()).unwrap()
        };
        assert_eq!(json(Command::Pause), r#"{"id":"7","command":"pause"}"#);
        assert_eq!(json(Command::Resume), r#"{"id":"7","command":"resume"}"#);
        assert_eq!(json(Command::Identify), r#"{"id":"7","command":"identify"}"#);
        assert_eq!(json(Command::Reload), r#"{"id":"7","command":"reload"}"#);
        assert_eq!(json(Command::SelfTest), r#"{"id":"7","command":"self-test"}"#);
        let limits = Command::Limits { threads: Some(2), batch_max: Some(64) };
        assert_eq!(json(limits), r#"{"id":"7","command":"limits","threads":2,"batch_max":64}"#);
        let limits = Command::Limits { threads: None, batch_max: Some(64) };
        assert_eq!(json(limits), r#"{"id":"7","command":"limits","batch_max":64}"#);
    }

    #[test]
    fn replies_are_the_json_that_is_documented() {
        let session = SessionMark { process: 1, epoch: 2 };
        let done = CommandReply::done("a", session, serde_json::json!({"paused": true}));
        let refused = CommandReply::refused("a", session, "no job");
        let session = r#""session":{"process":"0000000000000001","epoch":2}"#;
        for (reply, expected) in [
            (done, format!(r#"{{"id":"a",{session},"ok":true,"result":{{"paused":true}}}}"#)),
            (refused, format!(r#"{{"id":"a",{session},"ok":false,"error":"no job"}}"#)),
        ] {
            assert_eq!(String::from_utf8(reply.encode()).unwrap(), expected);
            assert_eq!(CommandReply::decode(expected.as_bytes()).unwrap(), reply);
        }
    }

    #[test]
    fn other_payloads_are_refused() {
        let long = format!(r#"{{"id":"{}","command":"pause"}}"#, "x".repeat(129));
        for payload in
            ["", "{}", r#"{"id":"1"}"#, r#"{"id":"1","command":"format"}"#, r#"{"id":"","command":"pause"}"#, &long]
        {
            assert!(CommandRequest::decode(payload.as_bytes()).is_err(), "{payload}");
        }
        assert!(matches!(CommandRequest::decode(&[b' '; COMMAND_BYTES_MAX + 1]), Err(CommandError::TooLong { .. })));
    }
}
