//! The sections of a job file that belong to one rule of synchronisation each, and the mode that they make.

use omnilearn_hub_core::config::{Balance, Local, Mode};
use serde::Deserialize;

use crate::job_file::{JobFile, ModeName};
use crate::plan::{PlanError, value};

/// `[backup_workers]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BackupWorkersSection {
    /// Agents that a round does not wait for.
    pub backups: u32,
}

impl Default for BackupWorkersSection {
    fn default() -> Self {
        BackupWorkersSection { backups: 1 }
    }
}

/// `[hop]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HopSection {
    /// Agents that a round does not wait for.
    pub backups: u32,
    /// Oldest update that counts, in rounds.
    pub staleness_max: u64,
}

impl Default for HopSection {
    fn default() -> Self {
        HopSection { backups: 1, staleness_max: 4 }
    }
}

/// `[anytime]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AnytimeSection {
    /// Computing time of a round, in seconds.
    pub compute_s: f32,
}

impl Default for AnytimeSection {
    fn default() -> Self {
        AnytimeSection { compute_s: 1.0 }
    }
}

/// `local_sgd.balance`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BalanceName {
    /// Faster agents have larger local batches.
    Batches,
    /// Faster agents make more local steps.
    #[default]
    Steps,
}

/// `[local_sgd]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalSgdSection {
    /// Local steps of a round.
    pub local_steps: u32,
    /// Learning rate of local steps, before the schedule.
    pub learning_rate: f64,
    /// Momentum of local steps, within a round.
    pub momentum: f32,
    /// What faster agents do more of.
    pub balance: BalanceName,
}

impl Default for LocalSgdSection {
    fn default() -> Self {
        LocalSgdSection { local_steps: 8, learning_rate: 0.05, momentum: 0.9, balance: BalanceName::Steps }
    }
}

/// `[ssp]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SspSection {
    /// Pushes ahead of the slowest with which an agent may still begin one.
    pub lead_max: u64,
}

/// Lead of the stale-synchronous modes where the job does not say.
const LEAD_MAX: u64 = 3;

impl Default for SspSection {
    fn default() -> Self {
        SspSection { lead_max: LEAD_MAX }
    }
}

/// `[con_sgd]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConSgdSection {
    /// As in `[ssp]`.
    pub lead_max: u64,
    /// How much one update counts; by default one over the number of agents.
    pub rate: Option<f64>,
}

impl Default for ConSgdSection {
    fn default() -> Self {
        ConSgdSection { lead_max: LEAD_MAX, rate: None }
    }
}

/// `[dyn_sgd]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynSgdSection {
    /// As in `[ssp]`.
    pub lead_max: u64,
}

impl Default for DynSgdSection {
    fn default() -> Self {
        DynSgdSection { lead_max: LEAD_MAX }
    }
}

/// `[elastic_averaging]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticAveragingSection {
    /// Local steps between two exchanges.
    pub local_steps: u32,
    /// Learning rate of local steps, before the schedule.
    pub learning_rate: f64,
    /// Momentum of local steps.
    pub momentum: f32,
    /// Part of the difference that one exchange moves; by default 0.9 over the number of agents.
    pub alpha: Option<f32>,
}

impl Default for ElasticAveragingSection {
    fn default() -> Self {
        ElasticAveragingSection { local_steps: 8, learning_rate: 0.05, momentum: 0.9, alpha: None }
    }
}

/// The rule that a job file asks for.
///
/// # Errors
/// [`PlanError::Value`] with the key and what to write instead.
pub(crate) fn mode(file: &JobFile) -> Result<Mode, PlanError> {
    match file.training.mode {
        ModeName::Bsp => Ok(Mode::Bsp),
        ModeName::BackupWorkers => {
            let backups = backups(file, "[backup_workers] backups", file.backup_workers.backups)?;
            Ok(Mode::BackupWorkers { backups })
        }
        ModeName::Hop => {
            let backups = backups(file, "[hop] backups", file.hop.backups)?;
            Ok(Mode::Hop { backups, staleness_max: file.hop.staleness_max })
        }
        ModeName::Anytime => {
            let compute_s = file.anytime.compute_s;
            if !(compute_s.is_finite() && compute_s > 0.0) {
                return Err(value("[anytime] compute_s", format!("{compute_s} is no number of seconds over 0")));
            }
            let deadline_s = file.fleet.round_deadline_s;
            if f64::from(compute_s) >= deadline_s {
                let problem = format!(
                    "{compute_s} is not below [fleet] round_deadline_s = {deadline_s}; agents would be given up before their time is over"
                );
                return Err(value("[anytime] compute_s", problem));
            }
            Ok(Mode::Anytime { compute_s })
        }
        ModeName::LocalSgd => {
            let section = &file.local_sgd;
            let local =
                Local { steps: section.local_steps, learning_rate: section.learning_rate, momentum: section.momentum };
            let keys = ["[local_sgd] local_steps", "[local_sgd] learning_rate", "[local_sgd] momentum"];
            let balance = match section.balance {
                BalanceName::Batches => Balance::Batches,
                BalanceName::Steps => Balance::Steps,
            };
            Ok(Mode::LocalSgd { local: checked(file, local, keys)?, balance })
        }
        ModeName::Asp => Ok(Mode::Asp { staleness_max: file.asp.staleness_max, damping: file.asp.damping }),
        ModeName::Ssp => Ok(Mode::Ssp { lead_max: file.ssp.lead_max }),
        ModeName::ConSgd => {
            let ConSgdSection { lead_max, rate } = file.con_sgd;
            if let Some(rate) = rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
                return Err(value("[con_sgd] rate", format!("{rate} is not a number over 0")));
            }
            Ok(Mode::ConSgd { lead_max, rate })
        }
        ModeName::DynSgd => Ok(Mode::DynSgd { lead_max: file.dyn_sgd.lead_max }),
        ModeName::ElasticAveraging => {
            let section = &file.elastic_averaging;
            let local =
                Local { steps: section.local_steps, learning_rate: section.learning_rate, momentum: section.momentum };
            let keys = [
                "[elastic_averaging] local_steps",
                "[elastic_averaging] learning_rate",
                "[elastic_averaging] momentum",
            ];
            let local = checked(file, local, keys)?;
            if let Some(alpha) = section.alpha.filter(|alpha| !(*alpha > 0.0 && *alpha < 1.0)) {
                return Err(value("[elastic_averaging] alpha", format!("{alpha} is not between 0 and 1")));
            }
            Ok(Mode::ElasticAveraging { local, alpha: section.alpha })
        }
    }
}

fn backups(file: &JobFile, key: &'static str, backups: u32) -> Result<u32, PlanError> {
    let expected = file.fleet.wait_for_agents.unwrap_or(file.fleet.agents_min);
    if expected > 1 && backups >= expected {
        return Err(value(key, format!("{backups} of {expected} agents leave nobody to wait for")));
    }
    let most = expected - backups.min(expected);
    if expected > 1 && backups > 0 && file.fleet.agents_min > most {
        let problem = format!(
            "a round that does not wait for {backups} of {expected} agents has {most} updates, but [fleet] agents_min = {} is needed to \
             close one; write agents_min = {most} or less",
            file.fleet.agents_min
        );
        return Err(value(key, problem));
    }
    Ok(backups)
}

fn checked(file: &JobFile, local: Local, [steps, rate, momentum]: [&'static str; 3]) -> Result<Local, PlanError> {
    let samples = u64::from(local.steps) * u64::from(file.training.global_batch);
    if local.steps == 0 || samples > u64::from(LOCAL_SAMPLES_MAX) {
        let problem = format!(
            "{} steps of global_batch = {} samples are not between 1 step and {LOCAL_SAMPLES_MAX} samples",
            local.steps, file.training.global_batch
        );
        return Err(value(steps, problem));
    }
    if !(local.learning_rate.is_finite() && local.learning_rate > 0.0) {
        return Err(value(rate, format!("{} is not a number over 0", local.learning_rate)));
    }
    if !(0.0..1.0).contains(&local.momentum) {
        return Err(value(momentum, format!("{} is not from 0 to below 1", local.momentum)));
    }
    Ok(local)
}

/// Most samples of one round of local steps, over all agents.
const LOCAL_SAMPLES_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(mode: &str, keys: &str) -> Result<Mode, String> {
        let text = format!(
            "dataset = \"mnist\"\nkernel.path = \"k.wasm\"\ntraining.mode = \"{mode}\"\nfleet.wait_for_agents = 3\n{keys}"
        );
        super::mode(&JobFile::parse(&text).map_err(|error| error.to_string())?).map_err(|error| error.to_string())
    }

    #[test]
    fn every_mode_has_defaults_and_is_shown_as_it_is_written() {
        use ModeName::{Anytime, Asp, BackupWorkers, Bsp, ConSgd, DynSgd, ElasticAveraging, Hop, LocalSgd, Ssp};
        for mode in [Bsp, BackupWorkers, Hop, Anytime, LocalSgd, Asp, Ssp, ConSgd, DynSgd, ElasticAveraging] {
            planned(mode.as_str(), "").unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        }
        assert_eq!(planned("ssp", ""), Ok(Mode::Ssp { lead_max: 3 }));
    }

    #[test]
    fn numbers_that_make_no_sense_are_named_by_section_and_key() {
        for (mode, keys, message) in [
            (
                "backup_workers",
                "backup_workers.backups = 3",
                "[backup_workers] backups: 3 of 3 agents leave nobody to wait for",
            ),
            ("hop", "hop.backups = 4", "[hop] backups: 4 of 3 agents leave nobody to wait for"),
            (
                "hop",
                "fleet.agents_min = 3",
                "[hop] backups: a round that does not wait for 1 of 3 agents has 2 updates, but [fleet] agents_min = 3 is needed to \
                 close one; write agents_min = 2 or less",
            ),
            ("anytime", "anytime.compute_s = 0.0", "[anytime] compute_s: 0 is no number of seconds over 0"),
            (
                "anytime",
                "anytime.compute_s = 200",
                "[anytime] compute_s: 200 is not below [fleet] round_deadline_s = 120; agents would be given up before their time is over",
            ),
            ("con_sgd", "con_sgd.rate = -1.0", "[con_sgd] rate: -1 is not a number over 0"),
            ("local_sgd", "local_sgd.momentum = 1.0", "[local_sgd] momentum: 1 is not from 0 to below 1"),
            ("local_sgd", "local_sgd.learning_rate = 0.0", "[local_sgd] learning_rate: 0 is not a number over 0"),
            (
                "elastic_averaging",
                "elastic_averaging.local_steps = 0",
                "[elastic_averaging] local_steps: 0 steps of global_batch = 256 samples are not between 1 step and 1073741824 samples",
            ),
            (
                "elastic_averaging",
                "elastic_averaging.alpha = 2.0",
                "[elastic_averaging] alpha: 2 is not between 0 and 1",
            ),
        ] {
            assert_eq!(planned(mode, keys), Err(message.to_owned()));
        }
    }

    #[test]
    fn a_misspelt_key_of_a_rule_is_answered_with_the_nearest() {
        let error = planned("ssp", "ssp.lead = 3").unwrap_err();
        assert_eq!(error, "line 5: unknown key `lead` in [ssp], did you mean `lead_max`?");
    }
}
