//! Which command of the fleet's operator is done when: one at a time, and each once however often it arrives.

use std::collections::VecDeque;

use omnilearn_mqtt::command::{Command, CommandReply, CommandRequest};
use omnilearn_mqtt::session::SessionMark;

/// Replies that are kept for requests that come again.
const ANSWERED_MAX: usize = 64;
/// Requests that wait for the one that is being done. When there are more, they are refused.
const WAITING_MAX: usize = 16;

/// What to do next.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Say this.
    Reply(CommandReply),
    /// Do this and say with [`Commands::on_done`] what came of it.
    Do(CommandRequest),
    /// Nothing; a reply comes when it is done.
    Wait,
}

/// What was asked and answered.
#[derive(Debug, Default)]
pub(super) struct Commands {
    answered: VecDeque<CommandReply>,
    waiting: VecDeque<CommandRequest>,
    /// Id of what is being done.
    doing: Option<String>,
}

impl Commands {
    /// A request. `session` is who replies.
    pub(super) fn on_request(&mut self, request: CommandRequest, session: SessionMark) -> Next {
        if request.command == Command::Identify {
            // Whoever asks waits for no longer than it takes to find out whether anybody is there.
            return Next::Reply(CommandReply::done(&request.id, session, serde_json::json!({})));
        }
        if let Some(reply) = self.answered.iter().find(|reply| reply.id == request.id) {
            return Next::Reply(reply.clone());
        }
        if self.is_known(&request.id) {
            return Next::Wait;
        }
        if self.doing.is_none() {
            self.doing = Some(request.id.clone());
            return Next::Do(request);
        }
        if self.waiting.len() == WAITING_MAX {
            let error = format!("{WAITING_MAX} commands are waiting already");
            return Next::Reply(CommandReply::refused(&request.id, session, error));
        }
        self.waiting.push_back(request);
        Next::Wait
    }

    fn is_known(&self, id: &str) -> bool {
        self.doing.as_deref() == Some(id) || self.waiting.iter().any(|request| request.id == id)
    }

    /// What came of the request that was being done; returns the next one.
    pub(super) fn on_done(&mut self, reply: CommandReply) -> Option<CommandRequest> {
        if self.answered.len() == ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back(reply);
        let next = self.waiting.pop_front();
        self.doing = next.as_ref().map(|request| request.id.clone());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionMark = SessionMark { process: 1, epoch: 1 };

    fn request(id: &str, command: Command) -> CommandRequest {
        CommandRequest { id: id.to_owned(), command }
    }

    fn pause(id: &str) -> CommandRequest {
        request(id, Command::Pause)
    }

    fn done(id: &str) -> CommandReply {
        CommandReply::done(id, SESSION, serde_json::json!({ "of": id }))
    }

    #[test]
    fn request_that_comes_again_is_done_once_and_answered_alike() {
        let mut commands = Commands::default();
        assert_eq!(commands.on_request(pause("a"), SESSION), Next::Do(pause("a")));
        assert_eq!(commands.on_request(pause("a"), SESSION), Next::Wait);
        assert_eq!(commands.on_done(done("a")), None);
        let later = SessionMark { process: 1, epoch: 2 };
        assert_eq!(commands.on_request(pause("a"), later), Next::Reply(done("a")));
        assert_eq!(commands.on_request(request("a", Command::Resume), later), Next::Reply(done("a")));
    }

    #[test]
    fn commands_are_done_one_after_the_other_in_the_order_in_which_they_came() {
        let mut commands = Commands::default();
        commands.on_request(pause("a"), SESSION);
        for id in ["b", "c", "b"] {
            assert_eq!(commands.on_request(pause(id), SESSION), Next::Wait);
        }
        assert_eq!(commands.on_done(done("a")), Some(pause("b")));
        assert_eq!(commands.on_done(done("b")), Some(pause("c")));
        assert_eq!(commands.on_done(done("c")), None);
        assert_eq!(commands.on_request(pause("d"), SESSION), Next::Do(pause("d")));
    }

    #[test]
    fn whoever_asks_who_is_there_is_answered_at_once() {
        let mut commands = Commands::default();
        commands.on_request(request("a", Command::SelfTest), SESSION);
        let Next::Reply(reply) = commands.on_request(request("b", Command::Identify), SESSION) else {
            panic!("no reply")
        };
        assert!(reply.ok && reply.session == SESSION && reply.id == "b");
    }

    #[test]
    fn memory_for_commands_is_bounded() {
        let mut commands = Commands::default();
        commands.on_request(pause("first"), SESSION);
        let replies: Vec<Next> =
            (0..20).map(|number| commands.on_request(pause(&number.to_string()), SESSION)).collect();
        assert!(replies[..WAITING_MAX].iter().all(|next| *next == Next::Wait));
        assert!(replies[WAITING_MAX..].iter().all(|next| matches!(next, Next::Reply(reply) if !reply.ok)));
        let mut next = Some(pause("first"));
        while let Some(request) = next {
            next = commands.on_done(done(&request.id));
        }
        for number in 0..2 * ANSWERED_MAX {
            let id = format!("later {number}");
            assert_eq!(commands.on_request(pause(&id), SESSION), Next::Do(pause(&id)));
            commands.on_done(done(&id));
        }
        assert_eq!(commands.answered.len(), ANSWERED_MAX);
        assert!(matches!(commands.on_request(pause("first"), SESSION), Next::Do(_)));
    }
}
