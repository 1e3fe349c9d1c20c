//! How long to wait before the next attempt to reach the broker.

use std::time::Duration;

use omnilearn_wire::sampling::SplitMix64;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// Waits that double from 0.2 s to 10 s, each drawn evenly from its upper half, so that a fleet that lost its broker does not
/// come back in one instant.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    generator: SplitMix64,
}

impl Backoff {
    /// A back-off whose jitter follows from `seed`.
    pub(super) fn new(seed: u64) -> Backoff {
        Backoff { failures: 0, generator: SplitMix64::new(seed) }
    }

    /// The next wait.
    pub(super) fn next_wait(&mut self) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(0.5 + 0.5 * (self.generator.next_u64() as f64 / u64::MAX as f64))
    }

    /// Starts over, after a connection that lasted.
    pub(super) fn reset(&mut self) {
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
}
