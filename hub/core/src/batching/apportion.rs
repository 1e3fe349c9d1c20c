//! From speeds and bounds to whole batches that sum to the global batch, always.

/// What one agent can take: its batch takes `offset + batch / rate`, and must lie in the bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Time that does not grow with the batch. Any unit, the same for all.
    pub offset: f64,
    /// Samples per unit of time, over 0. With all offsets 0, batches are in proportion to it.
    pub rate: f64,
    /// Smallest batch.
    pub min: u32,
    /// Largest batch.
    pub max: u32,
    /// Batches that are multiples of this suit the device best, over 0.
    pub step: u32,
}

/// Why no batches within the bounds sum to the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// Nobody to share among.
    #[error("no agents to share {total} samples")]
    NoAgents {
        /// The global batch.
        total: u32,
    },
    /// The smallest batches are too large together.
    #[error("the smallest batches sum to {sum}, {excess} over the global batch of {total}", excess = sum - u64::from(*total))]
    Minimum {
        /// Their sum.
        sum: u64,
        /// The global batch.
        total: u32,
    },
    /// The largest batches are too small together.
    #[error("the largest batches sum to {sum}, {missing} short of the global batch of {total}", missing = u64::from(*total) - sum)]
    Maximum {
        /// Their sum.
        sum: u64,
        /// The global batch.
        total: u32,
    },
}

fn check(total: u32, shares: &[Share]) -> Result<(), Infeasible> {
    if shares.is_empty() {
        return Err(Infeasible::NoAgents { total });
    }
    let sum: u64 = shares.iter().map(|share| u64::from(share.min)).sum();
    if sum > u64::from(total) {
        return Err(Infeasible::Minimum { sum, total });
    }
    let sum: u64 = shares.iter().map(|share| u64::from(share.max)).sum();
    if sum < u64::from(total) {
        return Err(Infeasible::Maximum { sum, total });
    }
    Ok(())
}

/// Real batches by water-filling: one finish time T for all, b_k = (T − o_k)·X_k cut to its bounds, Σb_k = total.
///
/// Σb_k(T) is piecewise linear and rises with T, its corners being where an agent leaves its minimum or meets its maximum;
/// so T is found on the piece between two corners.
///
/// # Errors
/// [`Infeasible`], naming the bounds that leave no choice.
pub fn targets(total: u32, shares: &[Share]) -> Result<Vec<f64>, Infeasible> {
    check(total, shares)?;
    let batch = |share: &Share, time: f64| {
        ((time - share.offset) * share.rate).clamp(f64::from(share.min), f64::from(share.max))
    };
    let sum = |time: f64| shares.iter().map(|share| batch(share, time)).sum::<f64>();
    let corner = |share: &Share, bound: u32| share.offset + f64::from(bound) / share.rate;
    let mut corners: Vec<f64> =
        shares.iter().flat_map(|share| [corner(share, share.min), corner(share, share.max)]).collect();
    corners.sort_by(f64::total_cmp);
    let total = f64::from(total);
    let above = corners.partition_point(|&time| sum(time) < total);
    let time = match (above.checked_sub(1).map(|below| corners[below]), corners.get(above)) {
        (Some(low), Some(&high)) => {
            let (sum_low, sum_high) = (sum(low), sum(high));
            low + (high - low) * (total - sum_low) / (sum_high - sum_low)
        }
        // Everyone at the minimum, or (by rounding) at the maximum.
        (None, Some(&time)) | (Some(time), None) => time,
        (None, None) => 0.0,
    };
    Ok(shares.iter().map(|share| batch(share, time)).collect())
}

/// Whole batches next to real ones by largest remainder, ties to the earlier agent. Bounds hold, and the sum is `total`.
///
/// The real batches must come from [`targets`], or lie within feasible bounds.
pub fn round(total: u32, targets: &[f64], shares: &[Share]) -> Vec<u32> {
    const SNAP: f64 = 1e-9; // a real batch this close to a whole one is meant to be that
    let mut batches: Vec<u32> = Vec::with_capacity(targets.len());
    let mut order: Vec<(usize, f64)> = Vec::with_capacity(targets.len());
    for (index, (&target, share)) in targets.iter().zip(shares).enumerate() {
        let nearest = target.round();
        let floor = if (target - nearest).abs() <= SNAP * nearest.max(1.0) { nearest } else { target.floor() };
        let batch = (floor as u32).clamp(share.min, share.max);
        batches.push(batch);
        order.push((index, target - f64::from(batch)));
    }
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut sum = batches.iter().map(|&batch| u64::from(batch)).sum::<u64>();
    let total = u64::from(total);
    // One pass is enough but for rounding errors; more passes end because the bounds are feasible.
    while sum < total {
        let before = sum;
        for &(index, _) in &order {
            if sum < total && batches[index] < shares[index].max {
                batches[index] += 1;
                sum += 1;
            }
        }
        assert!(sum > before, "feasible bounds leave room for the rest");
    }
    while sum > total {
        let before = sum;
        for &(index, _) in order.iter().rev() {
            if sum > total && batches[index] > shares[index].min {
                batches[index] -= 1;
                sum -= 1;
            }
        }
        assert!(sum < before, "feasible bounds leave room for the rest");
    }
    coarsen(&mut batches, shares);
    batches
}

/// Rounds batches down to their agents' steps and gives what is left to agents that take any number, then in whole steps, and what
/// is less than a step to whoever has room: so at most one batch more than need be is not a multiple, and the sum stays.
fn coarsen(batches: &mut [u32], shares: &[Share]) {
    let mut left = 0;
    for (batch, share) in batches.iter_mut().zip(shares) {
        let rest = *batch % share.step;
        if *batch - rest >= share.min {
            *batch -= rest;
            left += rest;
        }
    }
    // Rounds, so that no agent gets all of it.
    for fine in [true, false] {
        let mut gives = left > 0;
        while gives {
            gives = false;
            for (batch, share) in batches.iter_mut().zip(shares) {
                if (share.step == 1) == fine && share.step <= left && share.max - *batch >= share.step {
                    *batch += share.step;
                    left -= share.step;
                    gives = true;
                }
            }
        }
    }
    for (batch, share) in batches.iter_mut().zip(shares) {
        let more = left.min(share.max - *batch);
        *batch += more;
        left -= more;
    }
}

/// Whole batches for everyone: [`targets`], then [`round`].
///
/// # Errors
/// [`Infeasible`], naming the bounds that leave no choice.
pub fn apportion(total: u32, shares: &[Share]) -> Result<Vec<u32>, Infeasible> {
    Ok(round(total, &targets(total, shares)?, shares))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_rate(rates: &[f64], min: u32, max: u32) -> Vec<Share> {
        rates.iter().map(|&rate| Share { offset: 0.0, rate, min, max, step: 1 }).collect()
    }

    #[test]
    fn core_counts_of_the_paper_give_the_known_batches() {
        for (cores, bounds, expected) in [
            ([12.0, 12.0, 8.0, 16.0], (1, 128), [32, 32, 21, 43]),
            ([9.0, 9.0, 6.0, 24.0], (1, 128), [24, 24, 16, 64]),
            ([6.0, 6.0, 4.0, 32.0], (1, 128), [16, 16, 11, 85]),
            ([6.0, 6.0, 4.0, 32.0], (16, 96), [16, 16, 16, 80]),
        ] {
            assert_eq!(apportion(128, &by_rate(&cores, bounds.0, bounds.1)).unwrap(), expected);
        }
    }

    #[test]
    fn ties_go_to_the_earlier_agent() {
        assert_eq!(apportion(10, &by_rate(&[1.0; 4], 1, 10)).unwrap(), [3, 3, 2, 2]);
    }

    #[test]
    fn bounds_that_leave_no_choice_are_named() {
        let shares = by_rate(&[1.0; 4], 16, 96);
        let error = apportion(63, &shares).unwrap_err();
        assert_eq!(error.to_string(), "the smallest batches sum to 64, 1 over the global batch of 63");
        let error = apportion(400, &shares).unwrap_err();
        assert_eq!(error.to_string(), "the largest batches sum to 384, 16 short of the global batch of 400");
        assert_eq!(apportion(4, &[]).unwrap_err(), Infeasible::NoAgents { total: 4 });
        assert_eq!(apportion(64, &shares).unwrap(), [16; 4]);
        assert_eq!(apportion(384, &shares).unwrap(), [96; 4]);
    }

    #[test]
    fn offsets_are_paid_for_by_smaller_batches() {
        let share = |offset, rate| Share { offset, rate, min: 1, max: 1000, step: 1 };
        let shares = [share(0.0, 100.0), share(0.5, 100.0)];
        assert_eq!(apportion(150, &shares).unwrap(), [100, 50]); // both finish at 1.0
    }

    #[test]
    fn batches_are_multiples_where_a_device_likes_that() {
        let share = |rate, step| Share { offset: 0.0, rate, min: 1, max: 1000, step };
        assert_eq!(apportion(128, &[share(1.0, 1), share(1.0, 1), share(5.0, 16)]).unwrap(), [24, 24, 80]);
        // Only devices with steps: the remainder goes to one of them.
        assert_eq!(apportion(100, &[share(1.0, 16), share(1.0, 16)]).unwrap(), [52, 48]);
        // A step above what an agent may have changes nothing.
        let tight = Share { max: 10, ..share(1.0, 16) };
        assert_eq!(apportion(20, &[tight, share(1.0, 1)]).unwrap().iter().sum::<u32>(), 20);
    }

    fn shares() -> impl Strategy<Value = Vec<Share>> {
        let share = (0.0f64..2.0, 1e-3f64..1e3, 1u32..50, 0u32..200);
        prop::collection::vec(
            share.prop_map(|(offset, rate, min, more)| Share { offset, rate, min, max: min + more, step: 1 }),
            1..20,
        )
    }

    /// A total between the sum of the smallest batches, at 0, and that of the largest, at 1.
    fn feasible(shares: &[Share], at: f64) -> u32 {
        let low: u32 = shares.iter().map(|share| share.min).sum();
        let high: u32 = shares.iter().map(|share| share.max).sum();
        low + (f64::from(high - low) * at) as u32
    }

    fn check_sum_and_bounds(batches: &[u32], total: u32, shares: &[Share]) -> Result<(), TestCaseError> {
        prop_assert_eq!(batches.iter().sum::<u32>(), total);
        for (batch, share) in batches.iter().zip(shares) {
            prop_assert!((share.min..=share.max).contains(batch));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn batches_keep_their_bounds_and_sum_to_the_total(shares in shares(), at in 0.0f64..=1.0) {
            let total = feasible(&shares, at);
            let batches = apportion(total, &shares).unwrap();
            check_sum_and_bounds(&batches, total, &shares)?;
            let real = targets(total, &shares).unwrap();
            prop_assert!((real.iter().sum::<f64>() - f64::from(total)).abs() < 1e-6 * f64::from(total));
            for (batch, real) in batches.iter().zip(&real) {
                prop_assert!((f64::from(*batch) - real).abs() < 1.0 + 1e-6, "{} is not next to {}", batch, real);
            }
        }

        #[test]
        fn steps_change_neither_the_sum_nor_the_bounds(
            shares in shares(),
            steps in prop::collection::vec(prop::sample::select(vec![1u32, 8, 16, 64]), 20),
            at in 0.0f64..=1.0,
        ) {
            let shares: Vec<Share> = shares.into_iter().zip(steps).map(|(share, step)| Share { step, ..share }).collect();
            let total = feasible(&shares, at);
            let batches = apportion(total, &shares).unwrap();
            check_sum_and_bounds(&batches, total, &shares)?;
        }

        #[test]
        fn faster_agents_get_no_less_and_the_unit_of_time_does_not_matter(
            rates in prop::collection::vec(0.1f64..100.0, 2..10),
            total in 200u32..2000,
        ) {
            let shares = by_rate(&rates, 1, 2000);
            let batches = apportion(total, &shares).unwrap();
            for (a, b) in rates.iter().zip(&batches) {
                for (c, d) in rates.iter().zip(&batches) {
                    prop_assert!(a <= c || b >= d || b + 1 == *d && (a - c).abs() < 1e-9);
                }
            }
            let scaled: Vec<f64> = rates.iter().map(|rate| rate * 4096.0).collect();
            prop_assert_eq!(apportion(total, &by_rate(&scaled, 1, 2000)).unwrap(), batches);
        }
    }
}
