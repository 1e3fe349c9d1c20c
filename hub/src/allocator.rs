//! The policy of the C library's allocator.

/// Gives large freed buffers back to the operating system at once, and keeps the number of heaps small.
///
/// A hub holds three models and passes much more through in pieces of up to 1 MiB; what the allocator would keep of those in
/// the heap of each thread comes on top. Call once, at the start of `main`; does nothing where the C library is another.
pub fn return_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the C library has no safe interface for this")]
    // SAFETY: mallopt takes two integers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 512 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Gives freed memory back that lies between used memory: compiling a kernel leaves much of it.
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the C library has no safe interface for this")]
    // SAFETY: malloc_trim takes an integer and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
