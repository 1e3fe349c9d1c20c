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
