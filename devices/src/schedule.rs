//! Schedules: CPU quotas that change while a job runs, block by block.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::heterogeneity::{HeterogeneityLevel, share};

/// Most agents that a schedule sets quotas for.
const AGENTS_MAX: usize = 4096;

/// Blocks of quotas, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// In words.
    pub title: String,
    /// The blocks; never none.
    pub blocks: Vec<Block>,
}

/// Quotas, and how long they hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Who gets what.
    pub split: Split,
    /// How long.
    pub length: Length,
}

/// How the cores are split among the agents of a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Split {
    /// In the papers' ratios, for any number of agents.
    Level(HeterogeneityLevel),
    /// In these ratios.
    Ratios(Vec<f64>),
    /// These cores, whatever the total.
    Cores(Vec<f64>),
}

/// How long a block lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Passes over the training data.
    Epochs(f64),
    /// Time in which the job trains or evaluates, in seconds.
    Seconds(f64),
}

/// Why there is no schedule.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The file cannot be read.
    #[error("cannot read the schedule {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The text is no schedule.
    #[error("this is no schedule")]
    Parse(#[from] toml::de::Error),
    /// Nothing to do.
    #[error("the schedule has no [[blocks]]")]
    Empty,
    /// A block that cannot be.
    #[error("block {number} of the schedule {problem}")]
    Block {
        /// Which, counted from 1.
        number: usize,
        /// What is wrong, as the end of the sentence.
        problem: &'static str,
    },
    /// Quotas for another number of agents.
    #[error("block {number} of the schedule has quotas for {quotas} agents, and there are {agents}")]
    Agents {
        /// Which, counted from 1.
        number: usize,
        /// Its quotas.
        quotas: usize,
        /// The agents that are there.
        agents: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleFile {
    title: String,
    #[serde(default)]
    blocks: Vec<BlockFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockFile {
    hl: Option<u32>,
    ratios: Option<Vec<f64>>,
    cores: Option<Vec<f64>>,
    epochs: Option<f64>,
    seconds: Option<f64>,
}

impl BlockFile {
    fn checked(self) -> Result<Block, &'static str> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let each = |values: &[f64]| (1..=AGENTS_MAX).contains(&values.len()) && values.iter().copied().all(positive);
        let split = match (self.hl, self.ratios, self.cores) {
            (Some(number), None, None) => {
                Split::Level(HeterogeneityLevel::from_number(number).ok_or("has an `hl` other than 1, 2, 4 or 8")?)
            }
            (None, Some(ratios), None) if each(&ratios) => Split::Ratios(ratios),
            (None, None, Some(cores)) if each(&cores) => Split::Cores(cores),
            (None, Some(_), None) | (None, None, Some(_)) => return Err("has a number that is not above 0, or none"),
            _ => return Err("needs one of `hl`, `ratios` and `cores`"),
        };
        let length = match (self.epochs, self.seconds) {
            (Some(epochs), None) if positive(epochs) => Length::Epochs(epochs),
            (None, Some(seconds)) if positive(seconds) => Length::Seconds(seconds),
            (Some(_), None) | (None, Some(_)) => return Err("has a length that is not above 0"),
            _ => return Err("needs one of `epochs` and `seconds`"),
        };
        Ok(Block { split, length })
    }
}

impl Block {
    /// The quota of each agent, in cores; `total_cores` are split where the block does not name cores.
    pub fn quotas(&self, agents: usize, total_cores: f64) -> Vec<f64> {
        match &self.split {
            Split::Level(level) => level.quotas(agents, total_cores),
            Split::Ratios(ratios) => share(ratios, total_cores),
            Split::Cores(cores) => cores.clone(),
        }
    }

    /// How the cores are split, in a few characters.
    pub fn describe(&self) -> String {
        let join = |values: &[f64]| values.iter().map(f64::to_string).collect::<Vec<_>>().join(":");
        match &self.split {
            Split::Level(level) => level.to_string(),
            Split::Ratios(ratios) => join(ratios),
            Split::Cores(cores) => format!("{} cores", join(cores)),
        }
    }
}

impl Schedule {
    /// Reads a schedule's file.
    ///
    /// # Errors
    /// [`ScheduleError`]
    pub fn read(path: &Path) -> Result<Schedule, ScheduleError> {
        let text =
            std::fs::read_to_string(path).map_err(|cause| ScheduleError::Read { path: path.to_owned(), cause })?;
        Schedule::parse(&text)
    }

    /// Reads and checks a schedule's text.
    ///
    /// # Errors
    /// [`ScheduleError`]
    pub fn parse(text: &str) -> Result<Schedule, ScheduleError> {
        let file: ScheduleFile = toml::from_str(text)?;
        let checked = |(index, block): (usize, BlockFile)| {
            block.checked().map_err(|problem| ScheduleError::Block { number: index + 1, problem })
        };
        let blocks = file.blocks.into_iter().enumerate().map(checked).collect::<Result<Vec<_>, _>>()?;
        match blocks.is_empty() {
            true => Err(ScheduleError::Empty),
            false => Ok(Schedule { title: file.title, blocks }),
        }
    }

    /// Checks that every block has a quota for each of `agents`.
    ///
    /// # Errors
    /// [`ScheduleError::Agents`]
    pub fn check_agents(&self, agents: usize) -> Result<(), ScheduleError> {
        for (index, block) in self.blocks.iter().enumerate() {
            if let Split::Ratios(values) | Split::Cores(values) = &block.split
                && values.len() != agents
            {
                return Err(ScheduleError::Agents { number: index + 1, quotas: values.len(), agents });
            }
        }
        Ok(())
    }

    /// Epochs of the whole schedule, where every block counts in them.
    pub fn epochs(&self) -> Option<f64> {
        self.blocks
            .iter()
            .map(|block| match block.length {
                Length::Epochs(epochs) => Some(epochs),
                Length::Seconds(_) => None,
            })
            .sum()
    }
}

/// Where a schedule stands: a pure walk over its blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// The block, counted from 0; the number of blocks when all are over.
    pub block: usize,
    /// Epochs when it began.
    pub since_epochs: f64,
    /// Seconds when it began.
    pub since_s: f64,
}

impl Position {
    /// The first block, from a job's beginning.
    pub const START: Position = Position { block: 0, since_epochs: 0.0, since_s: 0.0 };

    /// Where the schedule stands after this many epochs and seconds of the job. A block that was planned to end at a certain
    /// epoch ends there however late one looks, so that lateness does not add up; one in seconds ends when one looks.
    #[must_use]
    pub fn advance(self, schedule: &Schedule, epochs: f64, seconds: f64) -> Position {
        let mut position = self;
        while let Some(block) = schedule.blocks.get(position.block) {
            match block.length {
                Length::Epochs(length) if epochs >= position.since_epochs + length => {
                    position = Position {
                        block: position.block + 1,
                        since_epochs: position.since_epochs + length,
                        since_s: seconds,
                    };
                }
                Length::Seconds(length) if seconds >= position.since_s + length => {
                    position = Position { block: position.block + 1, since_epochs: epochs, since_s: seconds };
                }
                _ => break,
            }
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(blocks: &str) -> Result<Schedule, ScheduleError> {
        Schedule::parse(&format!("title = \"a\"\n{blocks}"))
    }

    #[test]
    fn the_papers_schedule_is_read() {
        let schedule = Schedule::parse(include_str!("../schedules/hl.toml")).unwrap();
        let levels: Vec<String> = schedule.blocks.iter().map(Block::describe).collect();
        assert_eq!(levels, ["HL1", "HL2", "HL4", "HL8", "HL8", "HL4", "HL2", "HL1"]);
        assert_eq!(schedule.epochs(), Some(8.0));
        assert!(schedule.check_agents(4).is_ok() && schedule.check_agents(7).is_ok());
    }

    #[test]
    fn quotas_are_shares_of_the_total_or_the_cores_named() {
        let schedule =
            parse("[[blocks]]\nratios = [1.0, 3.0]\nepochs = 1.0\n[[blocks]]\ncores = [0.5, 0.25]\nseconds = 9.0")
                .unwrap();
        assert_eq!(schedule.blocks[0].quotas(2, 2.0), [0.5, 1.5]);
        assert_eq!(schedule.blocks[1].quotas(2, 2.0), [0.5, 0.25]);
        assert_eq!(schedule.epochs(), None);
        let error = schedule.check_agents(3).unwrap_err().to_string();
        assert!(error.contains("block 1") && error.contains("2 agents") && error.contains("3"), "{error}");
    }

    #[test]
    fn wrong_blocks_are_named() {
        for (block, problem) in [
            ("hl = 3\nepochs = 1.0", "an `hl` other than"),
            ("hl = 1", "needs one of `epochs`"),
            ("hl = 1\nepochs = 1.0\nseconds = 1.0", "needs one of `epochs`"),
            ("hl = 1\nratios = [1.0]\nepochs = 1.0", "needs one of `hl`"),
            ("epochs = 1.0", "needs one of `hl`"),
            ("ratios = [1.0, 0.0]\nepochs = 1.0", "not above 0"),
            ("cores = []\nepochs = 1.0", "not above 0"),
            ("hl = 1\nepochs = nan", "length that is not above 0"),
        ] {
            let error = parse(&format!("[[blocks]]\n{block}")).unwrap_err().to_string();
            assert!(error.contains("block 1") && error.contains(problem), "{block}: {error}");
        }
        assert!(matches!(parse(""), Err(ScheduleError::Empty)));
        assert!(matches!(parse("speed = 1"), Err(ScheduleError::Parse(_))));
    }

    #[test]
    fn blocks_of_epochs_end_where_planned_and_blocks_of_seconds_when_they_were_looked_at() {
        let schedule = parse(
            "[[blocks]]\nhl = 1\nepochs = 1.0\n[[blocks]]\nhl = 2\nseconds = 10.0\n[[blocks]]\nhl = 4\nepochs = 0.5",
        )
        .unwrap();
        let begun = Position::START.advance(&schedule, 0.99, 50.0);
        assert_eq!(begun, Position::START);
        let second = begun.advance(&schedule, 1.1, 60.0);
        assert_eq!(second, Position { block: 1, since_epochs: 1.0, since_s: 60.0 });
        let third = second.advance(&schedule, 2.0, 71.0);
        assert_eq!(third, Position { block: 2, since_epochs: 2.0, since_s: 71.0 });
        assert_eq!(third.advance(&schedule, 2.5, 72.0).block, 3);
    }

    #[test]
    fn a_look_that_comes_very_late_passes_several_blocks() {
        let schedule = parse("[[blocks]]\nhl = 1\nepochs = 1.0\n[[blocks]]\nhl = 2\nepochs = 1.0").unwrap();
        assert_eq!(Position::START.advance(&schedule, 5.0, 1.0).block, 2);
    }
}
