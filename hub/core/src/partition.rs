//! How many samples of each class each part of the training set gets. What takes real arithmetic happens here, once, so that hub and
//! agents need whole numbers only to agree ([`omnilearn_wire::partition`]).

use omnilearn_wire::limits::PARTITION_TABLE_MAX;
use omnilearn_wire::partition::Partition;
use omnilearn_wire::sampling::{SplitMix64, derive_seed};

/// Purpose of the draw, apart from others.
const DRAW: u64 = 0x6472_6177;

/// How a training set is to be divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Division {
    /// Equal parts at random.
    Even,
    /// For each class, its shares of the parts are drawn from a symmetric Dirichlet distribution.
    ///
    /// Source: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution" (2019).
    Dirichlet {
        /// Concentration, over zero: the smaller, the less even.
        alpha: f64,
    },
    /// Each part has this many classes, and each class is divided evenly between the parts that have it.
    ///
    /// Source: McMahan et al., "Communication-efficient learning of deep networks" (2017), with two labels for each agent.
    Labels {
        /// Classes in each part.
        labels_per_part: u32,
    },
    /// Whole groups.
    Groups,
}

/// Why a training set cannot be divided so.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum DivisionError {
    /// Fewer samples than parts, or no parts.
    #[error("{samples} samples cannot be divided into {parts} parts")]
    Parts {
        /// Number of parts.
        parts: u32,
        /// Number of samples.
        samples: u32,
    },
    /// A concentration that nothing can be drawn with.
    #[error("alpha is {alpha}, must be over 0 and finite")]
    Alpha {
        /// What was given.
        alpha: f64,
    },
    /// Classes that no part would have, or more than there are.
    #[error(
        "{parts} parts with {labels_per_part} classes each cannot hold {classes} classes: labels_per_agent must be from 1 to {classes}, and \
         parts times labels_per_agent at least {classes}"
    )]
    Labels {
        /// Number of parts.
        parts: u32,
        /// Classes in each.
        labels_per_part: u32,
        /// Classes that have samples.
        classes: usize,
    },
    /// A table that no message can carry.
    #[error("{classes} classes and {parts} parts are too many, their product may be {PARTITION_TABLE_MAX}")]
    Table {
        /// Number of classes.
        classes: usize,
        /// Number of parts.
        parts: u32,
    },
}

/// Divides a training set whose classes have these sizes; they are looked at only where the division is by class.
///
/// # Errors
/// [`DivisionError`] if that cannot be done.
pub fn divide(
    division: Division,
    parts: u32,
    samples: u32,
    class_sizes: &[u32],
    seed: u64,
) -> Result<Partition, DivisionError> {
    if parts == 0 || parts > samples {
        return Err(DivisionError::Parts { parts, samples });
    }
    let classes = class_sizes.len();
    if classes.saturating_mul(parts as usize) > PARTITION_TABLE_MAX {
        return Err(DivisionError::Table { classes, parts });
    }
    let counts = match division {
        Division::Even => return Ok(Partition::Even { parts }),
        Division::Groups => return Ok(Partition::Groups { parts }),
        Division::Dirichlet { alpha } => dirichlet(alpha, parts as usize, class_sizes, seed)?,
        Division::Labels { labels_per_part } => labels(labels_per_part, parts, class_sizes, seed)?,
    };
    Ok(Partition::Classes { parts, counts })
}

fn dirichlet(alpha: f64, parts: usize, class_sizes: &[u32], seed: u64) -> Result<Vec<u32>, DivisionError> {
    if !(alpha.is_finite() && alpha > 0.0) {
        return Err(DivisionError::Alpha { alpha });
    }
    let mut counts = Vec::with_capacity(class_sizes.len() * parts);
    for (class, &size) in (0..).zip(class_sizes) {
        let mut random = Random(SplitMix64::new(derive_seed(seed, &[DRAW, class])));
        // In logarithms, since a small alpha gives numbers that are too small otherwise.
        let logs: Vec<f64> = (0..parts).map(|_| random.log_gamma(alpha)).collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logs.iter().map(|log| (log - most).exp()).collect();
        counts.extend(apportion(size, &weights));
    }
    fill_empty(&mut counts, parts);
    Ok(counts)
}

/// Whole numbers with this sum in proportion to weights, by largest remainder.
fn apportion(sum: u32, weights: &[f64]) -> Vec<u32> {
    let total: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| f64::from(sum) * weight / total).collect();
    let mut counts: Vec<u32> = exact.iter().map(|exact| exact.floor() as u32).collect();
    let missing = sum.saturating_sub(counts.iter().sum());
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    order.iter().cycle().take(missing as usize).for_each(|&part| counts[part] += 1);
    counts
}

/// Gives each part without samples one of the part that has most, of its most frequent class.
fn fill_empty(counts: &mut [u32], parts: usize) {
    let size = |counts: &[u32], part: usize| {
        counts.iter().skip(part).step_by(parts).map(|&count| u64::from(count)).sum::<u64>()
    };
    for empty in 0..parts {
        if size(counts, empty) > 0 {
            continue;
        }
        let Some(largest) = (0..parts).max_by_key(|&part| size(counts, part)) else { return };
        let classes = counts.len() / parts;
        let Some(class) = (0..classes).max_by_key(|class| counts[class * parts + largest]) else { return };
        counts[class * parts + largest] -= 1;
        counts[class * parts + empty] += 1;
    }
}

fn labels(labels_per_part: u32, parts: u32, class_sizes: &[u32], seed: u64) -> Result<Vec<u32>, DivisionError> {
    let mut present: Vec<usize> = (0..class_sizes.len()).filter(|&class| class_sizes[class] > 0).collect();
    let classes = present.len();
    let slots = u64::from(parts) * u64::from(labels_per_part);
    if labels_per_part == 0 || labels_per_part as usize > classes || slots < classes as u64 {
        return Err(DivisionError::Labels { parts, labels_per_part, classes });
    }
    let order = omnilearn_wire::sampling::permutation(derive_seed(seed, &[DRAW]), 0, classes as u32);
    present = order.into_iter().map(|index| present[index as usize]).collect();
    // Round and round through the classes: each part's are different, and no class is in two parts more than another.
    let (parts, labels_per_part) = (parts as usize, labels_per_part as usize);
    let mut holders = vec![Vec::new(); class_sizes.len()];
    for slot in 0..parts * labels_per_part {
        holders[present[slot % classes]].push(slot / labels_per_part);
    }
    let mut counts = vec![0; class_sizes.len() * parts];
    for (class, holders) in holders.into_iter().enumerate() {
        for (index, &part) in holders.iter().enumerate() {
            let border = |index: usize| (u64::from(class_sizes[class]) * index as u64 / holders.len() as u64) as u32;
            counts[class * parts + part] = border(index + 1) - border(index);
        }
    }
    Ok(counts)
}

/// Random numbers of the distributions needed here.
struct Random(SplitMix64);

impl Random {
    /// In `(0, 1)`.
    fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Logarithm of a gamma variate of this shape, by Marsaglia and Tsang (2000).
    fn log_gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.log_gamma(shape + 1.0) + self.uniform().ln() / shape;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let normal = self.normal();
            let cube = (1.0 + c * normal).powi(3);
            if cube > 0.0 && self.uniform().ln() < 0.5 * normal * normal + d - d * cube + d * cube.ln() {
                return (d * cube).ln();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(division: Division, parts: u32, class_sizes: &[u32], seed: u64) -> Vec<u32> {
        match divide(division, parts, class_sizes.iter().sum(), class_sizes, seed).unwrap() {
            Partition::Classes { counts, .. } => counts,
            other => panic!("{other:?}"),
        }
    }

    fn sums(counts: &[u32], parts: usize) -> Vec<u32> {
        counts.chunks(parts).map(|row| row.iter().sum()).collect()
    }

    #[test]
    fn gamma_variates_have_their_mean_and_variance() {
        let mut random = Random(SplitMix64::new(1));
        for shape in [0.3, 1.0, 4.5] {
            let draws: Vec<f64> = (0..20_000).map(|_| random.log_gamma(shape).exp()).collect();
            let mean = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 20_000.0;
            // Both are `shape`; the deviation of their estimates is below 0.05 of it here.
            assert!(
                (mean / shape - 1.0).abs() < 0.1 && (variance / shape - 1.0).abs() < 0.2,
                "{shape}: {mean} {variance}"
            );
        }
    }

    #[test]
    fn dirichlet_keeps_every_sample_and_is_less_even_for_small_alpha() {
        let sizes = [1000, 10, 500, 1];
        let spread = |alpha: f64| {
            let counts = counts(Division::Dirichlet { alpha }, 5, &sizes, 3);
            assert_eq!(sums(&counts, 5), sizes);
            let first = &counts[..5];
            first.iter().max().unwrap() - first.iter().min().unwrap()
        };
        assert!(spread(0.05) > 600 && spread(1000.0) < 100, "{} {}", spread(0.05), spread(1000.0));
        for seed in 0..50 {
            let counts = counts(Division::Dirichlet { alpha: 0.01 }, 8, &[20, 20], seed);
            let empty = (0..8).filter(|&part| counts[part] + counts[8 + part] == 0).count();
            assert_eq!((empty, sums(&counts, 8)), (0, vec![20, 20]), "no part is empty");
        }
    }

    #[test]
    fn parts_have_as_many_labels_as_asked_and_every_class_has_a_part() {
        let counts = counts(Division::Labels { labels_per_part: 2 }, 5, &[100; 10], 1);
        assert_eq!(sums(&counts, 5), [100; 10]);
        for part in 0..5 {
            assert_eq!((0..10).filter(|class| counts[class * 5 + part] > 0).count(), 2);
        }
        let divided = |parts, labels_per_part, sizes: &[u32]| {
            divide(Division::Labels { labels_per_part }, parts, sizes.iter().sum(), sizes, 1)
        };
        assert!(matches!(divided(4, 2, &[100; 10]), Err(DivisionError::Labels { .. })));
        assert!(matches!(divided(4, 11, &[100; 10]), Err(DivisionError::Labels { .. })));
        assert!(divided(5, 2, &[100, 0, 100]).is_ok(), "a class without samples needs no part");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(matches!(divide(Division::Even, 0, 5, &[], 1), Err(DivisionError::Parts { .. })));
        assert!(matches!(divide(Division::Groups, 6, 5, &[], 1), Err(DivisionError::Parts { .. })));
        let nan = Division::Dirichlet { alpha: f64::NAN };
        assert!(matches!(divide(nan, 2, 5, &[5], 1), Err(DivisionError::Alpha { .. })));
        let wide = Division::Dirichlet { alpha: 1.0 };
        assert!(matches!(divide(wide, 100, 200_000, &[200; 1000], 1), Err(DivisionError::Table { .. })));
    }
}
