//! Training time: the time since the first assignment, without evaluation.

use crate::Now;

/// A clock that runs at a pace between 0 and 1. BSP evaluates behind a barrier: it stands still. In ASP it runs at the
/// part of the fleet's speed that is not evaluating, so that in sum it leaves out what the whole fleet would have needed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrainingClock {
    seconds: f64,
    pace: f64,
    since: Now,
}

impl TrainingClock {
    pub(crate) fn seconds(&self, now: Now) -> f64 {
        self.seconds + self.pace * now.saturating_sub(self.since).as_secs_f64()
    }

    pub(crate) fn set_pace(&mut self, now: Now, pace: f64) {
        self.seconds = self.seconds(now);
        (self.since, self.pace) = (now.max(self.since), pace.clamp(0.0, 1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_at_the_pace() {
        let mut clock = TrainingClock::default();
        clock.set_pace(Now::from_secs(10), 1.0);
        clock.set_pace(Now::from_secs(20), 0.0);
        assert_eq!(clock.seconds(Now::from_secs(25)), 10.0);
        clock.set_pace(Now::from_secs(30), 0.75);
        assert_eq!(clock.seconds(Now::from_secs(34)), 13.0);
    }
}
