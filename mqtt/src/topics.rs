//! Names of topics. [docs/mqtt.md](../../docs/mqtt.md) describes them as an interface.

/// The topics below one prefix: `PREFIX/agents/NAME/…` and `PREFIX/hub/…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    prefix: String,
}

impl Topics {
    /// The topics below `prefix`.
    pub fn new(prefix: &str) -> Topics {
        Topics { prefix: prefix.to_owned() }
    }

    fn agent(&self, name: &str, leaf: &str) -> String {
        format!("{}/agents/{name}/{leaf}", self.prefix)
    }

    /// An agent's presence (retained).
    pub fn agent_presence(&self, name: &str) -> String {
        self.agent(name, "presence")
    }

    /// Times of an agent's steps.
    pub fn agent_timings(&self, name: &str) -> String {
        self.agent(name, "timings")
    }

    /// Up to where the hub has taken an agent's timings.
    pub fn agent_received(&self, name: &str) -> String {
        self.agent(name, "received")
    }

    /// Commands to an agent.
    pub fn agent_command(&self, name: &str) -> String {
        self.agent(name, "command")
    }

    /// An agent's replies to commands.
    pub fn agent_reply(&self, name: &str) -> String {
        self.agent(name, "reply")
    }

    /// Segments of streams from an agent to the hub.
    pub fn agent_up(&self, name: &str) -> String {
        self.agent(name, "up")
    }

    /// Segments of streams from the hub to an agent.
    pub fn agent_down(&self, name: &str) -> String {
        self.agent(name, "down")
    }

    /// Messages that an agent sends to itself to learn what the broker carries.
    pub fn agent_probe(&self, name: &str) -> String {
        self.agent(name, "probe")
    }

    /// The hub's presence (retained).
    pub fn hub_presence(&self) -> String {
        format!("{}/hub/presence", self.prefix)
    }

    /// Messages that the hub sends to itself to learn what the broker carries.
    pub fn hub_probe(&self) -> String {
        format!("{}/hub/probe", self.prefix)
    }

    /// Filter: the presence of every agent.
    pub fn all_presence(&self) -> String {
        self.agent_presence("+")
    }

    /// Filter: the timings of every agent.
    pub fn all_timings(&self) -> String {
        self.agent_timings("+")
    }

    /// Filter: the replies of every agent.
    pub fn all_replies(&self) -> String {
        self.agent_reply("+")
    }

    /// Filter: the segments of every agent.
    pub fn all_up(&self) -> String {
        self.agent_up("+")
    }

    /// The agent that a topic belongs to, if it is an agent's.
    pub fn agent_of<'a>(&self, topic: &'a str) -> Option<&'a str> {
        let rest = topic.strip_prefix(self.prefix.as_str())?.strip_prefix("/agents/")?;
        let (name, leaf) = rest.split_once('/')?;
        (!name.is_empty() && !leaf.contains('/')).then_some(name)
    }
}

/// Whether a topic is among those of a filter. rumqttc's own panics on topics that begin with other characters than ASCII.
pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    let (mut levels, mut found) = (filter.split('/'), topic.split('/'));
    loop {
        match (levels.next(), found.next()) {
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(level), Some(found)) if level == found => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_lie_below_the_prefix() {
        let topics = Topics::new("plant/a");
        let of_agent = [
            topics.agent_presence("pi-4"),
            topics.agent_timings("pi-4"),
            topics.agent_received("pi-4"),
            topics.agent_command("pi-4"),
            topics.agent_reply("pi-4"),
            topics.agent_up("pi-4"),
            topics.agent_down("pi-4"),
            topics.agent_probe("pi-4"),
        ];
        let leaves: Vec<&str> =
            of_agent.iter().filter_map(|topic| topic.strip_prefix("plant/a/agents/pi-4/")).collect();
        assert_eq!(leaves, ["presence", "timings", "received", "command", "reply", "up", "down", "probe"]);
        assert!(of_agent.iter().all(|topic| topics.agent_of(topic) == Some("pi-4")));
        assert_eq!(
            (topics.hub_presence(), topics.hub_probe()),
            ("plant/a/hub/presence".into(), "plant/a/hub/probe".into())
        );
    }

    #[test]
    fn filters_match_every_agent_and_nothing_else() {
        let topics = Topics::new("omnilearn");
        let filters = [topics.all_presence(), topics.all_timings(), topics.all_replies(), topics.all_up()];
        let matching =
            [topics.agent_presence("x"), topics.agent_timings("x"), topics.agent_reply("x"), topics.agent_up("x")];
        for (row, filter) in filters.iter().enumerate() {
            for (column, topic) in matching.iter().enumerate() {
                assert_eq!(matches(filter, topic), row == column, "{filter} {topic}");
            }
        }
    }

    #[test]
    fn wildcards_match_as_mqtt_says() {
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/b/c", "a/b", false),
            ("a/+/c", "a/b/c", true),
            ("a/+/c", "a//c", true),
            ("+", "", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("#", "ü/$", true),
            ("a", "ü", false),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn topics_of_others_belong_to_no_agent() {
        let topics = Topics::new("a");
        for topic in [
            "",
            "a",
            "a/agents/",
            "a/agents/x",
            "a/agents//up",
            "b/agents/x/up",
            "aa/agents/x/up",
            "a/agents/x/up/y",
            "a/hub/presence",
        ] {
            assert_eq!(topics.agent_of(topic), None, "{topic}");
        }
    }
}
