//! Numbers that no two processes share.

/// 64 random bits.
///
/// # Panics
/// If the operating system has no random numbers to give, as no system that runs this does.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the operating system gives random numbers")
}
