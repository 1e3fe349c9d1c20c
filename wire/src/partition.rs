//! Which samples of a training set belong together, where agents do not share all of it. Hub and agents derive it alike, with whole
//! numbers only: what takes real arithmetic is computed once, on the hub, and travels as a table.
//!
//! The order of an epoch is then the order of part 0, that of part 1, and so on, so that a position says which part it is in.

use serde::{Deserialize, Serialize};

use crate::bounded::List;
use crate::limits::{PARTITION_TABLE_MAX, PARTS_MAX};
use crate::sampling::{derive_seed, permutation};

/// Purposes of streams, apart from each other and from other purposes.
const DEAL: u64 = 0x6465_616C;
const ORDER: u64 = 0x6F72_6465;

/// How a training set is divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Partition {
    /// Not at all: every agent may be given any sample.
    #[default]
    Shared,
    /// Into equal parts, drawn at random.
    Even {
        /// Number of parts.
        parts: u32,
    },
    /// By class.
    Classes {
        /// Number of parts.
        parts: u32,
        /// Samples of each class in each part, `[classes, parts]`.
        #[serde(with = "List::<PARTITION_TABLE_MAX>")]
        counts: Vec<u32>,
    },
    /// By group: each is in one part as a whole, the largest dealt first, each to the smallest part.
    Groups {
        /// Number of parts.
        parts: u32,
    },
}

/// Why a training set cannot be divided so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// Too few or too many parts.
    #[error("{parts} parts of {samples} samples: there must be 1 to {PARTS_MAX} parts with a sample in each")]
    Parts {
        /// Number of parts.
        parts: u32,
        /// Number of samples.
        samples: u32,
    },
    /// A table of another size, or other samples than it says.
    #[error(
        "the partition's table does not fit the data set: class {class} has {found} samples, in the table {expected}"
    )]
    Table {
        /// Which class.
        class: usize,
        /// In the data set.
        found: u64,
        /// In the table.
        expected: u64,
    },
    /// A part without samples.
    #[error("part {part} of {parts} would have no sample: there are too few classes or groups for so many parts")]
    Empty {
        /// Which part.
        part: usize,
        /// Number of parts.
        parts: u32,
    },
}

impl Partition {
    /// Number of parts; none where samples are shared.
    pub fn parts(&self) -> Option<u32> {
        match *self {
            Partition::Shared => None,
            Partition::Even { parts } | Partition::Classes { parts, .. } | Partition::Groups { parts } => Some(parts),
        }
    }

    /// Whether the class or the group of each sample must be known.
    pub fn needs_strata(&self) -> bool {
        matches!(self, Partition::Classes { .. } | Partition::Groups { .. })
    }

    /// The samples of each part. `strata` has each sample's class and group, and is looked at only if that is
    /// [needed](Partition::needs_strata).
    ///
    /// # Errors
    /// [`PartitionError`] if the parts cannot be made.
    pub fn members(&self, seed: u64, samples: u32, strata: &[(u32, u32)]) -> Result<Vec<Vec<u32>>, PartitionError> {
        let Some(parts) = self.parts() else { return Ok(vec![(0..samples).collect()]) };
        if parts == 0 || parts > PARTS_MAX.min(samples) {
            return Err(PartitionError::Parts { parts, samples });
        }
        let members = match self {
            Partition::Shared | Partition::Even { .. } => even(seed, parts, samples),
            Partition::Classes { counts, .. } => by_class(seed, parts as usize, counts, strata)?,
            Partition::Groups { .. } => by_group(seed, parts as usize, strata),
        };
        match members.iter().position(Vec::is_empty) {
            Some(part) => Err(PartitionError::Empty { part, parts }),
            None => Ok(members),
        }
    }
}

fn even(seed: u64, parts: u32, samples: u32) -> Vec<Vec<u32>> {
    let order = permutation(derive_seed(seed, &[DEAL]), 0, samples);
    let border = |part: u32| (u64::from(samples) * u64::from(part) / u64::from(parts)) as usize;
    (0..parts).map(|part| order[border(part)..border(part + 1)].to_vec()).collect()
}

/// Samples by their class or group, in the order of their numbers.
fn collect(numbers: impl Iterator<Item = u32>) -> Vec<Vec<u32>> {
    let mut lists: Vec<Vec<u32>> = Vec::new();
    for (sample, number) in (0..).zip(numbers) {
        if lists.len() <= number as usize {
            lists.resize_with(number as usize + 1, Vec::new);
        }
        lists[number as usize].push(sample);
    }
    lists
}

fn by_class(seed: u64, parts: usize, counts: &[u32], strata: &[(u32, u32)]) -> Result<Vec<Vec<u32>>, PartitionError> {
    let mut classes = collect(strata.iter().map(|&(class, _)| class));
    let rows = counts.chunks(parts);
    classes.resize_with(classes.len().max(rows.len()), Vec::new);
    let mut members = vec![Vec::new(); parts];
    for (class, list) in classes.into_iter().enumerate() {
        let row = counts.chunks(parts).nth(class).unwrap_or_default();
        let (found, expected) = (list.len() as u64, row.iter().map(|&count| u64::from(count)).sum());
        if found != expected {
            return Err(PartitionError::Table { class, found, expected });
        }
        let order = permutation(derive_seed(seed, &[DEAL, class as u64]), 0, list.len() as u32);
        let mut dealt = order.into_iter().map(|index| list[index as usize]);
        for (part, &count) in members.iter_mut().zip(row) {
            part.extend(dealt.by_ref().take(count as usize));
        }
    }
    Ok(members)
}

fn by_group(seed: u64, parts: usize, strata: &[(u32, u32)]) -> Vec<Vec<u32>> {
    let mut groups = collect(strata.iter().map(|&(_, group)| group));
    // Those of one size are dealt in an order of the seed's, so that no part gets those of the smallest numbers.
    let order = permutation(derive_seed(seed, &[DEAL]), 0, groups.len() as u32);
    let mut order: Vec<usize> = order.into_iter().map(|group| group as usize).collect();
    order.sort_by_key(|&group| std::cmp::Reverse(groups[group].len()));
    let mut smallest: std::collections::BTreeSet<(usize, usize)> = (0..parts).map(|part| (0, part)).collect();
    let mut members = vec![Vec::new(); parts];
    for group in order {
        let Some((size, part)) = smallest.pop_first() else { break };
        smallest.insert((size + groups[group].len(), part));
        members[part].append(&mut groups[group]);
    }
    members
}

/// The order in which an epoch visits parts with these members: each part's own order, one after the other.
pub fn order(seed: u64, epoch: u32, members: &[Vec<u32>]) -> Vec<u32> {
    let part_order = |(part, members): (usize, &Vec<u32>)| {
        let order = permutation(derive_seed(seed, &[ORDER, part as u64]), epoch, members.len() as u32);
        order.into_iter().map(|index| members[index as usize]).collect::<Vec<u32>>()
    };
    members.iter().enumerate().flat_map(part_order).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ten classes in turn, and a group for each three samples.
    fn strata(samples: u32) -> Vec<(u32, u32)> {
        (0..samples).map(|sample| (sample % 10, sample / 3)).collect()
    }

    fn sorted(members: &[Vec<u32>]) -> Vec<u32> {
        let mut all = members.concat();
        all.sort_unstable();
        all
    }

    #[test]
    fn partitions_are_part_of_the_protocol() {
        let even = Partition::Even { parts: 2 }.members(7, 8, &[]).unwrap();
        assert_eq!(even, Partition::Even { parts: 2 }.members(7, 8, &[]).unwrap());
        assert_ne!(even, Partition::Even { parts: 2 }.members(8, 8, &[]).unwrap());
        assert_ne!(order(7, 0, &even), order(7, 1, &even));
        assert_eq!(sorted(&[order(7, 0, &even)[..4].to_vec()]), sorted(&even[..1]), "positions 0 to 3 are part 0's");
    }

    #[test]
    fn classes_are_dealt_as_the_table_says() {
        let partition = Partition::Classes { parts: 2, counts: vec![10, 0, 3, 7] };
        let strata: Vec<(u32, u32)> = (0..20).map(|sample| (sample % 2, 0)).collect();
        let members = partition.members(1, 20, &strata).unwrap();
        let classes = |part: usize| members[part].iter().filter(|&&sample| sample % 2 == 1).count();
        assert_eq!((members[0].len(), classes(0), members[1].len(), classes(1)), (13, 3, 7, 7));
        for counts in [vec![10, 0], vec![10, 0, 3, 8], vec![10, 0, 3, 7, 1, 0]] {
            let partition = Partition::Classes { parts: 2, counts };
            assert!(matches!(partition.members(1, 20, &strata), Err(PartitionError::Table { .. })));
        }
        let partition = Partition::Classes { parts: 2, counts: vec![10, 0, 10, 0] };
        assert_eq!(partition.members(1, 20, &strata), Err(PartitionError::Empty { part: 1, parts: 2 }));
    }

    #[test]
    fn groups_stay_whole_and_parts_nearly_equal() {
        let members = Partition::Groups { parts: 3 }.members(5, 100, &strata(100)).unwrap();
        for part in &members {
            assert!((31..=36).contains(&part.len()), "{}", part.len());
            assert!(
                part.iter()
                    .all(|sample| (sample / 3 * 3..(sample / 3 * 3 + 3).min(100)).all(|other| part.contains(&other)))
            );
        }
        assert!(matches!(
            Partition::Groups { parts: 35 }.members(5, 100, &strata(100)),
            Err(PartitionError::Empty { .. })
        ));
        assert!(matches!(Partition::Even { parts: 0 }.members(5, 100, &[]), Err(PartitionError::Parts { .. })));
        assert!(matches!(Partition::Even { parts: 9 }.members(5, 8, &[]), Err(PartitionError::Parts { .. })));
    }

    proptest! {
        #[test]
        fn every_sample_is_in_one_part_and_at_one_position(seed: u64, samples in 40u32..200, parts in 1u32..9, epoch: u32) {
            for partition in [Partition::Shared, Partition::Even { parts }, Partition::Groups { parts }] {
                let members = partition.members(seed, samples, &strata(samples)).unwrap();
                prop_assert_eq!(sorted(&members), (0..samples).collect::<Vec<u32>>());
                let mut order = order(seed, epoch, &members);
                order.sort_unstable();
                prop_assert_eq!(order, (0..samples).collect::<Vec<u32>>());
            }
        }
    }
}
