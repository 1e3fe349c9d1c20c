//! The largest magnitude among many values, in one fast pass that also finds non-finite ones.

/// Largest |value|; infinite or not a number if any value is. Compares bit patterns, whose order without the sign is that of
/// the magnitudes, with NaN on top; integers vectorise where a float maximum would not.
pub(crate) fn largest(values: impl Iterator<Item = f32>) -> f32 {
    let bits = values.fold(0i32, |largest, value| largest.max((value.to_bits() & 0x7FFF_FFFF) as i32));
    f32::from_bits(bits as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_ignore_the_sign_and_nan_and_infinity_win() {
        let of = |values: &[f32]| largest(values.iter().copied());
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[-0.0, 1.0, -3.5, 2.0]), 3.5);
        assert_eq!(of(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
        assert!(of(&[1.0, -f32::NAN, f32::INFINITY]).is_nan());
    }
}
