//! The arithmetic limit: the shortest round that these agents allow, were batches real numbers and known from the start.

use omnilearn_hub_core::batching::apportion::{Infeasible, Share, round, targets};
use omnilearn_hub_core::{JobConfig, Now};

use crate::fleet::{AgentSpec, Fleet, Moment};

/// One agent in a round: a batch of b is in after `offset_s + b / samples_per_s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// What does not grow with the batch, transfers and latency included.
    pub offset_s: f64,
    /// X.
    pub samples_per_s: f64,
    /// Largest batch.
    pub batch_max: u32,
}

impl Pace {
    /// An agent's true pace at a time and epoch, where each round brings it new parameters. Transfers take its own link's time;
    /// that the hub's link is shared is left out, which makes the limit a lower one.
    pub fn of(spec: &AgentSpec, (now, epoch): (Now, f64), stream_bytes: u64) -> Pace {
        let transfers_s = 2.0 * spec.latency_s + spec.download_s(stream_bytes) + spec.upload_s(stream_bytes);
        Pace {
            offset_s: spec.overhead_s + transfers_s,
            samples_per_s: spec.speed(now, epoch),
            batch_max: spec.batch_max.unwrap_or(u32::MAX),
        }
    }

    fn seconds(&self, batch: f64) -> f64 {
        self.offset_s + batch / self.samples_per_s
    }
}

fn shares(paces: &[Pace], (min, max): (u32, u32)) -> Vec<Share> {
    let share = |pace: &Pace| Share {
        offset: pace.offset_s,
        rate: pace.samples_per_s,
        min,
        max: pace.batch_max.min(max),
        step: 1,
    };
    paces.iter().map(share).collect()
}

/// Time of a round with the best real batches that sum to `total` within the bounds: T = (B + Σ o·X) / ΣX without bounds.
///
/// # Errors
/// [`Infeasible`], naming the bounds that leave no choice.
pub fn ideal_round_s(total: u32, bounds: (u32, u32), paces: &[Pace]) -> Result<f64, Infeasible> {
    let batches = targets(total, &shares(paces, bounds))?;
    Ok(paces.iter().zip(batches).map(|(pace, batch)| pace.seconds(batch)).fold(0.0, f64::max))
}

/// The best whole batches.
///
/// # Errors
/// [`Infeasible`], naming the bounds that leave no choice.
pub fn whole_batches(total: u32, bounds: (u32, u32), paces: &[Pace]) -> Result<Vec<u32>, Infeasible> {
    let shares = shares(paces, bounds);
    Ok(round(total, &targets(total, &shares)?, &shares))
}

/// The moments at which any agent's speed changes, so that what depends on speeds is computed anew only then.
#[derive(Debug)]
pub(crate) struct Changes {
    times: Vec<Now>,
    epochs: Vec<f64>,
}

impl Changes {
    pub(crate) fn of(fleet: &Fleet) -> Changes {
        let moments = || fleet.agents.iter().flat_map(|agent| &agent.changes).map(|change| change.from);
        let mut times: Vec<Now> = moments()
            .filter_map(|moment| match moment {
                Moment::At(time) => Some(time),
                Moment::Epoch(_) => None,
            })
            .collect();
        let mut epochs: Vec<f64> = moments()
            .filter_map(|moment| match moment {
                Moment::Epoch(epoch) => Some(epoch),
                Moment::At(_) => None,
            })
            .collect();
        times.sort_unstable();
        times.dedup();
        epochs.sort_unstable_by(f64::total_cmp);
        epochs.dedup();
        Changes { times, epochs }
    }

    /// How many have come.
    pub(crate) fn come(&self, now: Now, epoch: f64) -> (usize, usize) {
        (self.times.partition_point(|&time| time <= now), self.epochs.partition_point(|&from| from <= epoch))
    }
}

/// An ideal round, and for which members and speeds it holds.
#[derive(Clone, Copy, Debug)]
struct Known {
    members: u64,
    changes: (usize, usize),
    /// None where the bounds leave no choice.
    ideal_s: Option<f64>,
}

/// The ideal time of each round that the hub really opened, added up.
#[derive(Debug)]
pub(crate) struct Limit {
    total: u32,
    bounds: (u32, u32),
    stream_bytes: u64,
    changes: Changes,
    /// The last answer.
    known: Option<Known>,
    /// Of the round that is open.
    open_s: Option<f64>,
    sum_s: f64,
    complete: bool,
}

impl Limit {
    pub(crate) fn new(fleet: &Fleet, config: &JobConfig, stream_bytes: u64) -> Limit {
        Limit {
            total: config.global_batch,
            bounds: config.batch_bounds,
            stream_bytes,
            changes: Changes::of(fleet),
            known: None,
            open_s: None,
            sum_s: 0.0,
            complete: true,
        }
    }

    /// A round opens with those of the fleet that `works` says. `members` is another number after each change of who that is.
    pub(crate) fn open(&mut self, fleet: &Fleet, at: (Now, f64), members: u64, works: impl Fn(usize) -> bool) {
        let changes = self.changes.come(at.0, at.1);
        let known = self.known.filter(|known| (known.members, known.changes) == (members, changes));
        let known = known.unwrap_or_else(|| {
            let working = fleet.agents.iter().enumerate().filter(|(index, _)| works(*index));
            let paces: Vec<Pace> = working.map(|(_, spec)| Pace::of(spec, at, self.stream_bytes)).collect();
            Known { members, changes, ideal_s: ideal_round_s(self.total, self.bounds, &paces).ok() }
        });
        (self.open_s, self.known) = (known.ideal_s, Some(known));
    }

    /// The round that was opened has made a step.
    pub(crate) fn close(&mut self) {
        match self.open_s.take() {
            Some(ideal_s) => self.sum_s += ideal_s,
            None => self.complete = false,
        }
    }

    /// The sum over all rounds; none if the bounds left one of them no choice.
    pub(crate) fn total_s(&self) -> Option<f64> {
        self.complete.then_some(self.sum_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paces(speeds: &[(f64, f64)]) -> Vec<Pace> {
        speeds.iter().map(|&(offset_s, samples_per_s)| Pace { offset_s, samples_per_s, batch_max: u32::MAX }).collect()
    }

    #[test]
    fn the_limit_is_the_closed_form_without_bounds() {
        for (cores, uniform_over_limit) in
            [([12.0, 12.0, 8.0, 16.0], 1.5), ([9.0, 9.0, 6.0, 24.0], 2.0), ([6.0, 6.0, 4.0, 32.0], 3.0)]
        {
            let paces = paces(&cores.map(|cores| (0.0, cores)));
            let ideal_s = ideal_round_s(256, (1, 256), &paces).unwrap();
            assert!((ideal_s - 256.0 / 48.0).abs() < 1e-9, "{ideal_s}");
            let uniform_s = 64.0 / cores.iter().copied().fold(f64::INFINITY, f64::min);
            assert!((uniform_s / ideal_s - uniform_over_limit).abs() < 1e-9);
        }
        let with_overhead = paces(&[(0.5, 100.0), (0.1, 300.0)]);
        let closed_form = (128.0 + 0.5 * 100.0 + 0.1 * 300.0) / 400.0;
        let found = ideal_round_s(128, (1, 128), &with_overhead).unwrap();
        assert!((found - closed_form).abs() < 1e-9, "{found} {closed_form}");
    }

    #[test]
    fn transfers_count_as_what_does_not_grow_with_the_batch() {
        let mut spec = AgentSpec::new("a", 100.0);
        (spec.overhead_s, spec.latency_s) = (0.1, 0.02);
        (spec.uplink_bytes_per_s, spec.downlink_bytes_per_s) = (Some(1e5), Some(1e6));
        let pace = Pace::of(&spec, (Now::ZERO, 0.0), 200_000);
        assert!((pace.offset_s - (0.1 + 0.04 + 2.0 + 0.2)).abs() < 1e-12);
    }

    #[test]
    fn whole_batches_sum_to_the_global_batch_within_memory() {
        let mut paces = paces(&[(0.0, 6.0), (0.0, 6.0), (0.0, 4.0), (0.0, 32.0)]);
        assert_eq!(whole_batches(128, (1, 128), &paces).unwrap(), [16, 16, 11, 85]);
        paces[3].batch_max = 40;
        let batches = whole_batches(128, (1, 128), &paces).unwrap();
        assert_eq!((batches[3], batches.iter().sum::<u32>()), (40, 128));
        assert!(whole_batches(500, (1, 128), &paces).is_err());
    }
}
