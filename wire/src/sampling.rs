//! The order of an epoch's samples, which hub and agents derive alike, so that an assignment names positions and not samples.

/// Generator with 64 bits of state (SplitMix64, Steele, Lea and Flood 2014). Small, fast, the same on every machine; its
/// output is part of the protocol, which is why it is written out here and not taken from a crate that may change it.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator with this seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`, by multiplication; the bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// Mixes numbers into a seed, so that streams for different purposes and indices do not overlap.
pub fn derive_seed(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(seed, |seed, &part| SplitMix64::new(seed ^ part.rotate_left(32)).next_u64())
}

/// The permutation of `0..samples` in which an epoch visits the training set: Fisher and Yates' shuffle from the last
/// position down, seeded by the job and the epoch.
pub fn permutation(seed: u64, epoch: u32, samples: u32) -> Vec<u32> {
    let mut generator = SplitMix64::new(derive_seed(seed, &[u64::from(epoch)]));
    let mut order: Vec<u32> = (0..samples).collect();
    for position in (1..order.len()).rev() {
        let other = generator.below(position as u64 + 1) as usize;
        order.swap(position, other);
    }
    order
}

/// Seed of what is drawn for one sample in one epoch, so that whoever computes it, and however often, sees the same.
pub fn augment_seed(seed: u64, epoch: u32, sample: u32) -> u64 {
    const PURPOSE: u64 = 0x6175_676D; // apart from the streams of other purposes
    derive_seed(seed, &[PURPOSE, u64::from(epoch), u64::from(sample)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn generator_gives_the_published_values() {
        let first = |seed| {
            let mut generator = SplitMix64::new(seed);
            [
                generator.next_u64(),
                generator.next_u64(),
                generator.next_u64(),
                generator.next_u64(),
                generator.next_u64(),
            ]
        };
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(first(1_234_567), expected);
        assert_eq!(first(0)[..3], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn permutation_is_part_of_the_protocol() {
        assert_eq!(permutation(7, 0, 10), [6, 1, 8, 3, 0, 2, 9, 4, 5, 7]);
        assert_eq!(permutation(7, 1, 60_000)[..8], [50_683, 12_313, 35_096, 21_422, 12_727, 35_408, 1_044, 50_093]);
        assert_eq!(derive_seed(7, &[1, 2, 3]), 11_675_939_577_560_269_752);
        assert_eq!(augment_seed(7, 2, 3), derive_seed(7, &[0x6175_676D, 2, 3]));
    }

    #[test]
    fn epochs_seeds_and_parts_differ() {
        let orders: std::collections::HashSet<Vec<u32>> =
            (0..4).flat_map(|seed| (0..4).map(move |epoch| permutation(seed, epoch, 100))).collect();
        assert_eq!(orders.len(), 16);
        assert_ne!(derive_seed(1, &[2, 3]), derive_seed(1, &[3, 2]));
        assert_ne!(derive_seed(1, &[2]), derive_seed(2, &[1]));
    }

    proptest! {
        #[test]
        fn permutation_has_every_sample_once(seed: u64, epoch: u32, samples in 0u32..2000) {
            let mut order = permutation(seed, epoch, samples);
            order.sort_unstable();
            prop_assert_eq!(order, (0..samples).collect::<Vec<u32>>());
        }

        #[test]
        fn below_is_below(seed: u64, bound in 1u64..) {
            prop_assert!(SplitMix64::new(seed).below(bound) < bound);
        }
    }

    #[test]
    fn every_position_gets_every_sample_about_as_often() {
        let mut counts = [[0u32; 5]; 5];
        for seed in 0..5000 {
            for (position, &sample) in permutation(seed, 0, 5).iter().enumerate() {
                counts[position][sample as usize] += 1;
            }
        }
        // 1000 expected with a standard deviation of 28.
        assert!(counts.iter().flatten().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }
}
