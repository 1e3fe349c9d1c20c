//! How agents are synchronised: which rule of `sync/`, and its numbers. `docs/rules.md` compares them.

use crate::config::ConfigError;

/// Most local steps of one assignment.
const LOCAL_STEPS_MAX: u32 = 65_536;

/// A rule of synchronisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Bulk synchronous: a step is the mean over one global batch, behind a barrier.
    Bsp,
    /// BSP that does not wait for the last ones; what they would have brought is thrown away.
    BackupWorkers {
        /// b: a round of K agents closes with K − b updates.
        backups: u32,
    },
    /// BSP that does not wait for the last ones; what they bring counts in a later round.
    Hop {
        /// How many agents a round does not wait for.
        backups: u32,
        /// Largest staleness that counts, in rounds.
        staleness_max: u64,
    },
    /// Rounds of a fixed time: each agent contributes as many samples as it managed.
    Anytime {
        /// Computing time of a round, in seconds.
        compute_s: f32,
    },
    /// Rounds of several local steps: the mean of what they changed is one step of the hub's optimizer.
    LocalSgd {
        /// The local steps.
        local: Local,
        /// What a faster agent does more of.
        balance: Balance,
    },
    /// Asynchronous: each gradient is applied on arrival.
    Asp {
        /// Largest staleness that is applied; an older gradient is refused and its samples are issued again.
        staleness_max: Option<u64>,
        /// Divide a gradient by its staleness + 1, as [`Mode::DynSgd`] does.
        damping: bool,
    },
    /// Stale-synchronous: applied on arrival, but nobody gets too far ahead of the slowest.
    Ssp {
        /// No agent begins a push while it is more than so many pushes ahead of the slowest.
        lead_max: u64,
    },
    /// SSP with one constant rate for every gradient.
    ConSgd {
        /// As in [`Mode::Ssp`].
        lead_max: u64,
        /// λ; none for one over the number of agents.
        rate: Option<f64>,
    },
    /// SSP whose gradients count the less the staler they are.
    DynSgd {
        /// As in [`Mode::Ssp`].
        lead_max: u64,
    },
    /// Agents keep parameters of their own, drawn to the hub's by an elastic force.
    ElasticAveraging {
        /// Local steps between two exchanges.
        local: Local,
        /// α, the part of the difference that one exchange moves; none for 0.9 over the number of agents.
        alpha: Option<f32>,
    },
}

/// SGD on the agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// H: steps of one assignment, each over one local batch.
    pub steps: u32,
    /// Learning rate, which the job's schedule shapes.
    pub learning_rate: f64,
    /// Momentum.
    pub momentum: f32,
}

/// How agents of unequal speed end their local steps at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// All do as many steps, over local batches as the batching policy sets them.
    Batches,
    /// All have the same local batch; who would be given more samples does more steps.
    Steps,
}

impl Mode {
    /// The local steps, where agents make any.
    pub fn local(&self) -> Option<Local> {
        match *self {
            Mode::LocalSgd { local, .. } | Mode::ElasticAveraging { local, .. } => Some(local),
            _ => None,
        }
    }

    /// Local batches behind one update.
    pub fn local_steps(&self) -> u32 {
        self.local().map_or(1, |local| local.steps)
    }

    /// Whether times say how batches should be. They do not where the time is what is given; nor where updates count the same
    /// whatever their samples, and nobody waits: a fast agent just makes more of them, and a small local batch would only be noisy.
    pub(crate) fn follows_times(&self) -> bool {
        !matches!(self, Mode::Anytime { .. } | Mode::ElasticAveraging { .. })
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`ConfigError::Value`] at the first that makes no sense.
    pub(crate) fn validate(&self, global_batch: u32) -> Result<(), ConfigError> {
        let check = |valid: bool, field, value: String, expected| {
            if valid { Ok(()) } else { Err(ConfigError::Value { field, value, expected }) }
        };
        match *self {
            Mode::Anytime { compute_s } => {
                let valid = compute_s.is_finite() && compute_s > 0.0;
                check(valid, "compute_s", compute_s.to_string(), "a number of seconds over 0")?;
            }
            Mode::ConSgd { rate: Some(rate), .. } => {
                check(rate.is_finite() && rate > 0.0, "rate", rate.to_string(), "over 0")?;
            }
            Mode::ElasticAveraging { alpha: Some(alpha), .. } => {
                check(alpha > 0.0 && alpha < 1.0, "alpha", alpha.to_string(), "over 0 and below 1")?;
            }
            _ => {}
        }
        let Some(Local { steps, learning_rate, momentum }) = self.local() else { return Ok(()) };
        let valid =
            (1..=LOCAL_STEPS_MAX).contains(&steps) && steps.checked_mul(global_batch).is_some_and(|n| n < 1 << 31);
        check(valid, "local_steps", steps.to_string(), "at least 1, and together below 2^31 samples")?;
        let valid = learning_rate.is_finite() && learning_rate > 0.0;
        check(valid, "local learning_rate", learning_rate.to_string(), "over 0")?;
        check((0.0..1.0).contains(&momentum), "local momentum", momentum.to_string(), "from 0 to below 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_sense_are_named() {
        let local = Local { steps: 4, learning_rate: 0.1, momentum: 0.0 };
        let elastic = |local, alpha| Mode::ElasticAveraging { local, alpha };
        assert_eq!(elastic(local, None).validate(64), Ok(()));
        for (mode, field) in [
            (Mode::Anytime { compute_s: f32::NAN }, "compute_s"),
            (Mode::ConSgd { lead_max: 1, rate: Some(0.0) }, "rate"),
            (elastic(local, Some(1.0)), "alpha"),
            (elastic(Local { steps: 0, ..local }, None), "local_steps"),
            (elastic(Local { learning_rate: -0.1, ..local }, None), "local learning_rate"),
            (elastic(Local { momentum: 1.0, ..local }, None), "local momentum"),
        ] {
            let Err(ConfigError::Value { field: found, .. }) = mode.validate(64) else { panic!("{mode:?} was taken") };
            assert_eq!(found, field);
        }
        assert!(elastic(Local { steps: 65_536, ..local }, None).validate(1 << 15).is_err());
    }
}
