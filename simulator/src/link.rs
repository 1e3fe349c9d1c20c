//! The hub's own link, which all agents share.
//!
//! Transfers under way get equal parts of it, but none more than its agent's link takes; what one leaves is the others' (max-min
//! fair sharing, which TCP comes near to). Transfers with equal links are always equally fast. So each such class keeps how many
//! bytes a member has been served since the class began, and a member is done at a fixed mark of that: a change costs a look at
//! each class, not at each transfer.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

use omnilearn_hub_core::Now;

use crate::agent::duration;

/// A transfer is done when what is left takes less than this: virtual time has steps of a nanosecond.
const DONE_S: f64 = 2e-9;

/// A number with an order.
#[derive(Clone, Copy, Debug)]
struct Ordered(f64);

impl PartialEq for Ordered {
    fn eq(&self, other: &Ordered) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Transfers whose agents' links are equal.
#[derive(Debug)]
struct Class<T> {
    /// Bytes that each member has been served since the class began.
    served: f64,
    /// What each member gets at present.
    bytes_per_s: f64,
    /// Marks of `served` at which members are done, in the order in which they began where marks are equal.
    members: BinaryHeap<Reverse<(Ordered, u64, T)>>,
}

/// A link and the transfers under way on it. What was begun is carried to its end.
#[derive(Debug)]
pub(crate) struct SharedLink<T> {
    bytes_per_s: f64,
    /// By the speed of the agent's link; infinite where it has no limit.
    classes: BTreeMap<Ordered, Class<T>>,
    now: Now,
    begun: u64,
}

impl<T: Ord + Copy> SharedLink<T> {
    pub(crate) fn new(bytes_per_s: f64) -> SharedLink<T> {
        SharedLink { bytes_per_s, classes: BTreeMap::new(), now: Now::ZERO, begun: 0 }
    }

    /// Begins a transfer to or from an agent whose own link takes `own_bytes_per_s`, if that has a limit.
    pub(crate) fn begin(&mut self, now: Now, bytes: u64, own_bytes_per_s: Option<f64>, transfer: T) {
        self.advance(now);
        self.begun += 1;
        let class = Ordered(own_bytes_per_s.unwrap_or(f64::INFINITY));
        let fresh = || Class { served: 0.0, bytes_per_s: 0.0, members: BinaryHeap::new() };
        let class = self.classes.entry(class).or_insert_with(fresh);
        class.members.push(Reverse((Ordered(class.served + bytes as f64), self.begun, transfer)));
        self.share();
    }

    /// When the next transfer is done, if none begins before.
    pub(crate) fn next(&self) -> Option<Now> {
        let left_s = |class: &Class<T>| {
            let Reverse((Ordered(mark), ..)) = class.members.peek()?;
            Some(((mark - class.served) / class.bytes_per_s).max(0.0))
        };
        let left_s = self.classes.values().filter_map(left_s).min_by(f64::total_cmp)?;
        Some(self.now + duration(left_s))
    }

    /// Takes out what is done by now, in the order in which it began.
    pub(crate) fn done(&mut self, now: Now) -> Vec<T> {
        self.advance(now);
        let mut done = Vec::new();
        for class in self.classes.values_mut() {
            let tolerance = class.bytes_per_s * DONE_S;
            while let Some(Reverse((Ordered(mark), ..))) = class.members.peek()
                && mark - class.served <= tolerance
            {
                done.extend(class.members.pop().map(|Reverse((_, begun, transfer))| (begun, transfer)));
            }
        }
        self.classes.retain(|_, class| !class.members.is_empty());
        self.share();
        done.sort_unstable();
        done.into_iter().map(|(_, transfer)| transfer).collect()
    }

    fn advance(&mut self, now: Now) {
        let passed_s = now.saturating_sub(self.now).as_secs_f64();
        self.now = self.now.max(now);
        self.classes.values_mut().for_each(|class| class.served += class.bytes_per_s * passed_s);
    }

    /// Divides the link anew. The slowest agents come first: what they cannot take is shared by the rest.
    fn share(&mut self) {
        let mut left = self.bytes_per_s;
        let mut members: usize = self.classes.values().map(|class| class.members.len()).sum();
        for (Ordered(own), class) in &mut self.classes {
            class.bytes_per_s = own.min(left / members.max(1) as f64);
            left -= class.bytes_per_s * class.members.len() as f64;
            members -= class.members.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seconds(seconds: f64) -> Now {
        Duration::from_secs_f64(seconds)
    }

    /// Runs to the end: who is done when.
    fn finish(link: &mut SharedLink<u32>) -> Vec<(f64, Vec<u32>)> {
        let mut times = Vec::new();
        while let Some(next) = link.next() {
            let done = link.done(next);
            if !done.is_empty() {
                times.push(((next.as_secs_f64() * 1e6).round() / 1e6, done));
            }
        }
        times
    }

    #[test]
    fn transfers_share_the_link_equally() {
        let mut link = SharedLink::new(100.0);
        for transfer in [1, 2, 3, 4] {
            link.begin(Now::ZERO, 100, None, transfer);
        }
        assert_eq!(finish(&mut link), [(4.0, vec![1, 2, 3, 4])]);
    }

    #[test]
    fn what_a_slow_agent_leaves_is_the_others() {
        let mut link = SharedLink::new(100.0);
        link.begin(Now::ZERO, 100, Some(10.0), 1);
        link.begin(Now::ZERO, 90, Some(500.0), 2);
        link.begin(Now::ZERO, 90, None, 3);
        // 10 + 45 + 45 until 2 s.
        assert_eq!(finish(&mut link), [(2.0, vec![2, 3]), (10.0, vec![1])]);
    }

    #[test]
    fn a_transfer_that_begins_later_slows_the_others_from_then_on() {
        let mut link = SharedLink::new(100.0);
        link.begin(Now::ZERO, 100, None, 1);
        link.begin(seconds(0.5), 100, None, 2); // 1 has 50 left, which take 1 s at half the speed
        assert_eq!(finish(&mut link), [(1.5, vec![1]), (2.0, vec![2])]);
    }

    #[test]
    fn all_bytes_are_carried_and_no_faster_than_the_link() {
        let mut link = SharedLink::new(1e6);
        let mut bytes = 0;
        for transfer in 0..500u32 {
            let size = 1000 + u64::from(transfer * 37 % 911);
            bytes += size;
            let own = [Some(3e3), Some(5e4), None][transfer as usize % 3];
            link.begin(seconds(f64::from(transfer) * 1e-4), size, own, transfer);
        }
        let times = finish(&mut link);
        assert_eq!(times.iter().map(|(_, done)| done.len()).sum::<usize>(), 500);
        let last = times.last().unwrap().0;
        assert!(last >= bytes as f64 / 1e6, "{last}");
    }
}
