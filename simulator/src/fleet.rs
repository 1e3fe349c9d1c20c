//! The fleet file: what a user writes to say which agents there are. [`EXAMPLE`] explains every key.

use std::path::{Path, PathBuf};

use omnilearn_hub_core::Now;
use omnilearn_wire::limits::NAME_BYTES_MAX;
use serde::Deserialize;

use crate::agent::duration;

/// A fleet file with every key explained; `omnilearn-sim fleet-example` prints it.
pub const EXAMPLE: &str = include_str!("../fleet.example.toml");

/// Most agents of a fleet.
pub const AGENTS_MAX: u32 = 1_000_000;

/// Why a fleet file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The file itself.
    #[error("cannot read the fleet file {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong kind; the text shows the line.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A value that makes no sense.
    #[error("{place} {key}: {problem}")]
    Value {
        /// Section, such as `[[agents]] \"pi\"`.
        place: String,
        /// Key.
        key: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// No agents.
    #[error("the fleet has no agents; write at least one [[agents]] with `name` and `samples_per_s`")]
    NoAgents,
}

/// The agents of a simulation, in the order of their numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// Seed of everything random about the agents.
    pub seed: u64,
    /// What the hub can receive, over all agents; none for any amount.
    pub hub_downlink_bytes_per_s: Option<f64>,
    /// What the hub can send, over all agents; none for any amount.
    pub hub_uplink_bytes_per_s: Option<f64>,
    /// The agents.
    pub agents: Vec<AgentSpec>,
}

/// One agent: a batch of b takes o + b/X, with noise.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSpec {
    /// Its name.
    pub name: String,
    /// X.
    pub samples_per_s: f64,
    /// o, in seconds.
    pub overhead_s: f64,
    /// σ of the lognormal factor, of mean 1, on each step's time.
    pub noise: f64,
    /// Its link to the hub; none for any amount.
    pub uplink_bytes_per_s: Option<f64>,
    /// Its link from the hub; none for any amount.
    pub downlink_bytes_per_s: Option<f64>,
    /// What each message takes beside its bytes, one way, in seconds.
    pub latency_s: f64,
    /// When it connects.
    pub joins: Now,
    /// When and how it goes.
    pub leaves: Option<(Now, Leaving)>,
    /// Largest batch that its memory allows.
    pub batch_max: Option<u32>,
    /// Cores that it tells the hub of.
    pub cores: f64,
    /// Later speeds, in order; the last that has come holds.
    pub changes: Vec<Change>,
}

impl AgentSpec {
    /// An agent of this speed without overhead, noise or changes, with any bandwidth, from the beginning to the end.
    pub fn new(name: impl Into<String>, samples_per_s: f64) -> AgentSpec {
        AgentSpec {
            name: name.into(),
            samples_per_s,
            overhead_s: 0.0,
            noise: 0.0,
            uplink_bytes_per_s: None,
            downlink_bytes_per_s: None,
            latency_s: 0.0,
            joins: Now::ZERO,
            leaves: None,
            batch_max: None,
            cores: 1.0,
            changes: Vec::new(),
        }
    }
}

/// A new speed. It holds from the next step that begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// From when.
    pub from: Moment,
    /// X from then on.
    pub samples_per_s: f64,
}

/// A point of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// Virtual time.
    At(Now),
    /// Epochs of accepted samples.
    Epoch(f64),
}

impl Moment {
    /// Whether it has come.
    pub fn has_come(self, now: Now, epoch: f64) -> bool {
        match self {
            Moment::At(time) => now >= time,
            Moment::Epoch(from) => epoch >= from,
        }
    }
}

/// How an agent goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Leaving {
    /// Its connection closes, as when its process ends or is killed. The hub sees it at once.
    #[default]
    Closes,
    /// Nothing more is heard, as when power or network fails. The hub gives the connection up after its missed heartbeats.
    Silent,
    /// It computes no more, but its heartbeats go on. The hub's round deadline finds it.
    Hangs,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    hub: HubSection,
    #[serde(default)]
    agents: Vec<AgentSection>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HubSection {
    uplink_bytes_per_s: Option<f64>,
    downlink_bytes_per_s: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentSection {
    name: String,
    #[serde(default = "one")]
    count: u32,
    samples_per_s: f64,
    #[serde(default)]
    overhead_s: f64,
    #[serde(default)]
    noise: f64,
    uplink_bytes_per_s: Option<f64>,
    downlink_bytes_per_s: Option<f64>,
    #[serde(default)]
    latency_s: f64,
    #[serde(default)]
    joins_at_s: f64,
    leaves_at_s: Option<f64>,
    leaves: Option<Leaving>,
    batch_max: Option<u32>,
    cores: Option<f64>,
    #[serde(default)]
    changes: Vec<ChangeSection>,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeSection {
    at_s: Option<f64>,
    at_epoch: Option<f64>,
    speed: Option<f64>,
    samples_per_s: Option<f64>,
}

/// Where a value stands, for errors.
struct Place(String);

impl Place {
    fn error(&self, key: &'static str, problem: impl Into<String>) -> FleetError {
        FleetError::Value { place: self.0.clone(), key, problem: problem.into() }
    }

    /// A number that must lie in a range, both ends included.
    fn within(&self, key: &'static str, value: f64, (low, high): (f64, f64)) -> Result<f64, FleetError> {
        match (low..=high).contains(&value) {
            true => Ok(value),
            false => Err(self.error(key, format!("{value} is not between {low} and {high}"))),
        }
    }

    /// Samples or bytes per second.
    fn rate(&self, key: &'static str, value: f64) -> Result<f64, FleetError> {
        self.within(key, value, (1e-3, 1e15))
    }

    fn bandwidth(&self, key: &'static str, value: Option<f64>) -> Result<Option<f64>, FleetError> {
        value.map(|value| self.rate(key, value)).transpose()
    }

    fn time(&self, key: &'static str, value: f64) -> Result<Now, FleetError> {
        self.within(key, value, (0.0, 1e9)).map(duration)
    }
}

impl Fleet {
    /// Reads a fleet file.
    ///
    /// # Errors
    /// [`FleetError`] with the section, the key and what to write.
    pub fn read(path: &Path) -> Result<Fleet, FleetError> {
        let text = std::fs::read_to_string(path).map_err(|cause| FleetError::Read { path: path.to_owned(), cause })?;
        Fleet::parse(&text)
    }

    /// Reads the text of a fleet file.
    ///
    /// # Errors
    /// [`FleetError`] with the section, the key and what to write.
    pub fn parse(text: &str) -> Result<Fleet, FleetError> {
        let file: File = toml::from_str(text)?;
        let hub = Place("[hub]".to_owned());
        let mut fleet = Fleet {
            seed: file.seed,
            hub_uplink_bytes_per_s: hub.bandwidth("uplink_bytes_per_s", file.hub.uplink_bytes_per_s)?,
            hub_downlink_bytes_per_s: hub.bandwidth("downlink_bytes_per_s", file.hub.downlink_bytes_per_s)?,
            agents: Vec::new(),
        };
        for section in file.agents {
            let place = Place(format!("[[agents]] \"{}\"", section.name.chars().take(64).collect::<String>()));
            let (count, spec) = (section.count, section.check(&place)?);
            let most = AGENTS_MAX - fleet.agents.len() as u32;
            if count == 0 || count > most {
                return Err(place.error("count", format!("{count} is not between 1 and {most}")));
            }
            match count {
                1 => fleet.agents.push(spec),
                _ => fleet.agents.extend((1..=count).map(|number| {
                    let name = format!("{}-{number}", spec.name);
                    AgentSpec { name, ..spec.clone() }
                })),
            }
        }
        if fleet.agents.is_empty() {
            return Err(FleetError::NoAgents);
        }
        let mut names = std::collections::HashSet::new();
        if let Some(twice) = fleet.agents.iter().find(|agent| !names.insert(agent.name.as_str())) {
            let place = Place(format!("[[agents]] \"{}\"", twice.name));
            return Err(place.error("name", "two agents have this name; give each group a name of its own"));
        }
        Ok(fleet)
    }
}

impl AgentSection {
    fn check(self, place: &Place) -> Result<AgentSpec, FleetError> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX - 8 || self.name.chars().any(char::is_control) {
            return Err(place.error("name", format!("must have 1 to {} bytes on one line", NAME_BYTES_MAX - 8)));
        }
        let samples_per_s = place.rate("samples_per_s", self.samples_per_s)?;
        let joins = place.time("joins_at_s", self.joins_at_s)?;
        let leaves = match (self.leaves_at_s, self.leaves) {
            (None, None) => None,
            (None, Some(_)) => return Err(place.error("leaves", "says how, and `leaves_at_s` must say when")),
            (Some(at_s), how) => {
                let at = place.time("leaves_at_s", at_s)?;
                if at <= joins {
                    return Err(place.error("leaves_at_s", format!("{at_s} is not after joins_at_s")));
                }
                Some((at, how.unwrap_or_default()))
            }
        };
        if self.batch_max == Some(0) {
            return Err(place.error("batch_max", "0 leaves no room for work, at least 1 is needed"));
        }
        let changes = self.changes.iter().map(|change| change.check(place, samples_per_s));
        Ok(AgentSpec {
            changes: changes.collect::<Result<_, _>>()?,
            samples_per_s,
            overhead_s: place.within("overhead_s", self.overhead_s, (0.0, 1e6))?,
            noise: place.within("noise", self.noise, (0.0, 3.0))?,
            uplink_bytes_per_s: place.bandwidth("uplink_bytes_per_s", self.uplink_bytes_per_s)?,
            downlink_bytes_per_s: place.bandwidth("downlink_bytes_per_s", self.downlink_bytes_per_s)?,
            latency_s: place.within("latency_s", self.latency_s, (0.0, 1e6))?,
            joins,
            leaves,
            batch_max: self.batch_max,
            cores: place.within("cores", self.cores.unwrap_or(1.0), (1e-3, 1e6))?,
            name: self.name,
        })
    }
}

impl ChangeSection {
    fn check(&self, place: &Place, before: f64) -> Result<Change, FleetError> {
        let from = match (self.at_s, self.at_epoch) {
            (Some(at_s), None) => Moment::At(place.time("changes.at_s", at_s)?),
            (None, Some(epoch)) => Moment::Epoch(place.within("changes.at_epoch", epoch, (0.0, 1e9))?),
            _ => return Err(place.error("changes", "each needs either `at_s` or `at_epoch`")),
        };
        let samples_per_s = match (self.speed, self.samples_per_s) {
            (Some(factor), None) => place.rate("changes.speed", factor * before)?,
            (None, Some(samples_per_s)) => place.rate("changes.samples_per_s", samples_per_s)?,
            _ => return Err(place.error("changes", "each needs either `speed`, a factor, or `samples_per_s`")),
        };
        Ok(Change { from, samples_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        Fleet::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_name_and_a_speed_are_enough_and_a_count_numbers_the_names() {
        let fleet = Fleet::parse(
            "[[agents]]\nname = \"pi\"\nsamples_per_s = 60\ncount = 2\n[[agents]]\nname = \"box\"\nsamples_per_s = 9.5\n",
        )
        .unwrap();
        let pi = |number| AgentSpec::new(format!("pi-{number}"), 60.0);
        assert_eq!(fleet.agents, [pi(1), pi(2), AgentSpec::new("box", 9.5)]);
    }

    #[test]
    fn changes_are_factors_on_the_first_speed_or_speeds_and_the_last_that_has_come_holds() {
        let fleet = Fleet::parse(
            "[[agents]]\nname = \"pi\"\nsamples_per_s = 60\n\
             [[agents.changes]]\nat_s = 10\nspeed = 0.5\n\
             [[agents.changes]]\nat_epoch = 2\nsamples_per_s = 90\n",
        )
        .unwrap();
        let speed = |seconds, epoch| fleet.agents[0].speed(Now::from_secs(seconds), epoch);
        assert_eq!((speed(9, 0.0), speed(10, 0.0), speed(10, 1.9)), (60.0, 30.0, 30.0));
        assert_eq!((speed(5, 2.0), speed(50, 2.0)), (90.0, 90.0));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_would() {
        let agent = |more: &str| format!("[[agents]]\nname = \"pi\"\nsamples_per_s = 60\n{more}\n");
        assert_eq!(message(""), FleetError::NoAgents.to_string());
        assert!(message(&agent("sample_per_s = 1")).contains("unknown field `sample_per_s`"));
        for (text, expected) in [
            (agent("count = 0"), "[[agents]] \"pi\" count: 0 is not between 1 and 1000000"),
            (agent("noise = -1"), "[[agents]] \"pi\" noise: -1 is not between 0 and 3"),
            (agent("noise = nan"), "[[agents]] \"pi\" noise: NaN is not between 0 and 3"),
            (agent("leaves = \"silent\""), "[[agents]] \"pi\" leaves: says how, and `leaves_at_s` must say when"),
            (agent("joins_at_s = 5\nleaves_at_s = 5"), "[[agents]] \"pi\" leaves_at_s: 5 is not after joins_at_s"),
            (
                agent("[[agents.changes]]\nspeed = 2"),
                "[[agents]] \"pi\" changes: each needs either `at_s` or `at_epoch`",
            ),
            (
                agent("[[agents.changes]]\nat_s = 1\nspeed = 0"),
                "[[agents]] \"pi\" changes.speed: 0 is not between 0.001 and 1000000000000000",
            ),
            (
                agent("") + &agent(""),
                "[[agents]] \"pi\" name: two agents have this name; give each group a name of its own",
            ),
            (
                format!("[hub]\nuplink_bytes_per_s = 0\n{}", agent("")),
                "[hub] uplink_bytes_per_s: 0 is not between 0.001 and 1000000000000000",
            ),
        ] {
            assert_eq!(message(&text), expected);
        }
    }

    #[test]
    fn the_example_parses_also_with_every_alternative_switched_on() {
        let plain = Fleet::parse(EXAMPLE).unwrap();
        assert!(plain.agents.len() >= 4);
        let all: String =
            EXAMPLE.lines().map(|line| format!("{}\n", line.strip_prefix("#: ").unwrap_or(line))).collect();
        let all = Fleet::parse(&all).unwrap();
        assert!(all.hub_uplink_bytes_per_s.is_some() && all.hub_downlink_bytes_per_s.is_some());
        for key in ["count", "overhead_s", "noise", "latency_s", "joins_at_s", "leaves", "batch_max", "cores", "speed"]
        {
            assert!(EXAMPLE.contains(&format!("{key} = ")), "{key} is not in the example");
        }
    }

    #[test]
    fn every_fleet_beside_this_crate_parses() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let mut fleets = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("fleet-") {
                Fleet::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                fleets += 1;
            }
        }
        assert!(fleets >= 5, "{fleets}");
    }
}
