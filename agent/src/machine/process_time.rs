//! CPU time of this process.

use std::time::Duration;

/// CPU time of all threads of this process so far, in nanosecond resolution. Zero where the system does not tell.
#[expect(unsafe_code, reason = "the standard library has no CPU clock")]
pub fn process_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, exclusively borrowed timespec for the length of the call, which writes nothing else.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    match (result, u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (0, Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::ZERO,
    }
}
