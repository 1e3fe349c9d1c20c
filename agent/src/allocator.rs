//! The policy of the C library's allocator.

/// Keeps freed memory for the next step instead of giving it back to the operating system.
///
/// A training step allocates and frees the same large buffers each time. By default glibc maps each anew, and every page
/// faults again: a large part of a step. Call once, at the start of `main`; does nothing where the C library is another.
#[expect(unsafe_code, reason = "the C library has no safe interface for this")]
pub fn keep_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt takes two integers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
    }
}
