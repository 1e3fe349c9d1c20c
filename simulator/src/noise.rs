//! Random factors of step times, drawn anew for each piece of work from where it belongs, never from what was drawn before.

use omnilearn_wire::sampling::{SplitMix64, derive_seed};

/// A number in (0, 1), in steps of 2⁻⁵³.
fn unit(generator: &mut SplitMix64) -> f64 {
    ((generator.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// A lognormal factor with mean 1: exp(σz − σ²/2), z normal (Box and Muller). Exactly 1 for σ = 0.
///
/// - `parts` say what the draw is for, such as agent and assignment: equal parts under one seed give equal factors.
pub(crate) fn factor(sigma: f64, seed: u64, parts: &[u64]) -> f64 {
    if sigma == 0.0 {
        return 1.0;
    }
    let mut generator = SplitMix64::new(derive_seed(seed, parts));
    let radius = (-2.0 * unit(&mut generator).ln()).sqrt();
    let angle = std::f64::consts::TAU * unit(&mut generator);
    (sigma * radius * angle.cos() - sigma * sigma / 2.0).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_lognormal_with_mean_1() {
        for sigma in [0.05, 0.2, 0.5] {
            let draws: Vec<f64> = (0..200_000).map(|index| factor(sigma, 3, &[7, index])).collect();
            let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / draws.len() as f64;
            let found = mean(&mut draws.iter().copied());
            assert!((found - 1.0).abs() < 5.0 * sigma / (draws.len() as f64).sqrt() * 1.2, "mean {found} at {sigma}");
            let log_mean = mean(&mut draws.iter().map(|draw| draw.ln()));
            let log_variance = mean(&mut draws.iter().map(|draw| (draw.ln() - log_mean).powi(2)));
            assert!((log_variance.sqrt() / sigma - 1.0).abs() < 0.02, "deviation {} at {sigma}", log_variance.sqrt());
            assert!((log_mean + sigma * sigma / 2.0).abs() < 0.02 * sigma, "{log_mean}");
        }
    }

    #[test]
    fn no_noise_is_exactly_1_and_equal_parts_give_equal_factors() {
        assert_eq!(factor(0.0, 1, &[1, 2]), 1.0);
        assert_eq!(factor(0.1, 1, &[1, 2]).to_bits(), factor(0.1, 1, &[1, 2]).to_bits());
        assert_ne!(factor(0.1, 1, &[1, 2]), factor(0.1, 1, &[2, 1]));
        assert_ne!(factor(0.1, 1, &[1, 2]), factor(0.1, 2, &[1, 2]));
    }
}
