//! How long to wait before the next attempt to reach a hub or a broker.

use std::time::Duration;

use omnilearn_wire::sampling::SplitMix64;

/// First wait, before jitter.
pub const FIRST: Duration = Duration::from_millis(200);
/// Longest wait: a hub or broker that comes up is found by everybody within this time.
pub const LONGEST: Duration = Duration::from_secs(10);

/// Exponential back-off with jitter: each wait is drawn evenly from the upper half of a bound that doubles from
/// [`FIRST`] to [`LONGEST`], so that a fleet that lost its hub or broker does not come back in one instant.
#[derive(Debug)]
pub struct Backoff {
    failures: u32,
    generator: SplitMix64,
}

impl Backoff {
    /// A back-off whose jitter follows from `seed`.
    pub fn new(seed: u64) -> Backoff {
        Backoff { failures: 0, generator: SplitMix64::new(seed) }
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(0.5 + 0.5 * self.share())
    }

    /// A wait drawn evenly from those up to `longest`, for what many hear of in one instant.
    pub fn spread(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.share())
    }

    fn share(&mut self) -> f64 {
        self.generator.next_u64() as f64 / u64::MAX as f64 // [0, 1]
    }

    /// Starts over, after a connection that lasted.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_with_jitter_up_to_the_longest() {
        let mut backoff = Backoff::new(7);
        let mut bound = FIRST;
        for _ in 0..40 {
            let wait = backoff.next_wait();
            assert!(wait >= bound / 2 && wait <= bound, "{wait:?} of {bound:?}");
            bound = (bound * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST);
    }

    #[test]
    fn agents_of_one_fleet_do_not_wait_alike() {
        let waits: std::collections::BTreeSet<Duration> = (0..100).map(|seed| Backoff::new(seed).next_wait()).collect();
        assert_eq!(waits.len(), 100);
    }
}
