//! CPU credits of burstable cloud machines: a pure function of the time used.
//!
//! A credit here is one core-second. A machine earns `baseline_cores` of them each second up to `credits_s_max`, and spends
//! one for each core that computes for a second; without any it computes at its baseline. One CPU credit of Amazon EC2 is 60
//! of ours.
//!
//! Source: Amazon EC2 User Guide, "Key concepts and definitions for burstable performance instances", standard mode. There
//! the last credits fade out gradually; here the machine falls to its baseline at once.

use serde::Deserialize;

/// How a machine may burst above its baseline.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Cores that can be used for ever; also what is earned, in core-seconds per second.
    pub baseline_cores: f64,
    /// Credits when a job begins, in core-seconds.
    pub credits_s: f64,
    /// Most credits that are kept, in core-seconds.
    pub credits_s_max: f64,
}

/// What a machine has left to burst with.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Credits {
    /// Core-seconds, never below 0.
    pub core_s: f64,
}

impl Burst {
    /// The credits when a job begins.
    pub fn start(&self) -> Credits {
        Credits { core_s: self.credits_s }
    }

    /// Time in seconds to get `work_core_s` core-seconds done with `cores` that are all busy, and the credits after it:
    /// first at full speed while credits last, then at the baseline.
    pub fn time_for(&self, credits: Credits, cores: f64, work_core_s: f64) -> (f64, Credits) {
        let drain = cores - self.baseline_cores; // credits lost per second at full speed
        if work_core_s <= 0.0 {
            return (0.0, credits);
        }
        let full_s = work_core_s / cores;
        if drain <= 0.0 {
            return (full_s, self.rest_at(credits, -drain, full_s));
        }
        let burst_s = credits.core_s / drain;
        if full_s <= burst_s {
            return (full_s, Credits { core_s: (credits.core_s - drain * full_s).max(0.0) });
        }
        let left_core_s = work_core_s - cores * burst_s;
        (burst_s + left_core_s / self.baseline_cores, Credits { core_s: 0.0 })
    }

    /// The credits after `seconds` without work.
    pub fn rest(&self, credits: Credits, seconds: f64) -> Credits {
        self.rest_at(credits, self.baseline_cores, seconds)
    }

    fn rest_at(&self, credits: Credits, earned_per_s: f64, seconds: f64) -> Credits {
        Credits { core_s: (credits.core_s + earned_per_s * seconds).min(self.credits_s_max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two cores, a baseline of 0.4: ten credits last 6.25 s.
    fn burst() -> Burst {
        Burst { baseline_cores: 0.4, credits_s: 10.0, credits_s_max: 100.0 }
    }

    #[test]
    fn work_is_done_at_full_speed_while_credits_last_and_then_at_the_baseline() {
        let (time_s, credits) = burst().time_for(burst().start(), 2.0, 4.0);
        assert_eq!((time_s, credits.core_s), (2.0, 10.0 - 1.6 * 2.0));
        // 12.5 core-seconds in the burst of 6.25 s, the other 4 at 0.4 cores.
        let (time_s, credits) = burst().time_for(burst().start(), 2.0, 16.5);
        assert!((time_s - (6.25 + 10.0)).abs() < 1e-9, "{time_s}");
        assert_eq!(credits.core_s, 0.0);
    }

    #[test]
    fn work_in_pieces_takes_as_long_as_in_one() {
        let (whole_s, end) = burst().time_for(burst().start(), 2.0, 20.0);
        let mut credits = burst().start();
        let mut pieces_s = 0.0;
        for _ in 0..200 {
            let (time_s, after) = burst().time_for(credits, 2.0, 0.1);
            (pieces_s, credits) = (pieces_s + time_s, after);
        }
        assert!((whole_s - pieces_s).abs() < 1e-6, "{whole_s} and {pieces_s}");
        assert!((end.core_s - credits.core_s).abs() < 1e-6);
    }

    #[test]
    fn rest_earns_the_baseline_up_to_the_most() {
        assert_eq!(burst().rest(Credits { core_s: 0.0 }, 10.0).core_s, 4.0);
        assert_eq!(burst().rest(Credits { core_s: 99.0 }, 1000.0).core_s, 100.0);
    }

    #[test]
    fn work_below_the_baseline_earns() {
        let (time_s, credits) = burst().time_for(Credits { core_s: 0.0 }, 0.25, 1.0);
        assert_eq!(time_s, 4.0);
        assert!((credits.core_s - 0.15 * 4.0).abs() < 1e-12);
    }
}
