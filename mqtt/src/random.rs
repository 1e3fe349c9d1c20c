//! Numbers that no two processes share.

use std::time::Duration;

/// 64 random bits.
///
/// # Panics
/// If the operating system has no random numbers to give, as no system that runs this does.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the operating system gives random numbers")
}

/// A wait drawn evenly from those up to `longest`, for what many hear of in one instant.
pub(crate) fn up_to(longest: Duration) -> Duration {
    longest.mul_f64(random() as f64 / u64::MAX as f64)
}
