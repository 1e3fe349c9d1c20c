//! CPU time of this thread.

/// CPU time of the calling thread so far, in seconds; none where the system does not tell.
pub(crate) fn thread_cpu_s() -> Option<f64> {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = schedule.split(' ').next()?.parse().ok()?;
    Some(nanoseconds as f64 * 1e-9)
}
