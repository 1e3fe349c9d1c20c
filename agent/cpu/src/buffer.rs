//! Storage for tensors, used again.
//!
//! A training step needs the same buffers as the step before. They are kept here instead of being given back to the C
//! library: no page faults, no zeroing of what is overwritten anyway. Buffers begin at a cache line, as vectors want, and
//! large ones lie on huge pages where the system has them.
#![expect(unsafe_code, reason = "aligned storage that is handed on without being cleared")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a cache line, and of the longest vector.
const LINE: usize = 64;

/// Buffers of at least this many bytes begin at a huge page and ask for huge pages.
#[cfg(target_os = "linux")]
const HUGE_FROM: usize = 4 << 20;

/// A buffer may be larger than asked for by this part of it.
const FIT: usize = 1;

/// This part of the most bytes that were ever in use may be kept beyond them, for sizes that are not needed at the same time.
const SPARE: usize = 4;

/// `f32` storage that goes back to a pool when it is dropped. New buffers hold arbitrary numbers.
pub struct Buffer {
    memory: Memory,
    len: usize,
}

impl Buffer {
    /// For `len` elements, whatever numbers they hold: for results that are written in full.
    pub fn new(len: usize) -> Buffer {
        Buffer { memory: pool().take(capacity(len)), len }
    }

    /// Zeros.
    pub fn zeroed(len: usize) -> Buffer {
        let mut buffer = Buffer::new(len);
        buffer.fill(0.0);
        buffer
    }

    /// A copy.
    pub fn copied(values: &[f32]) -> Buffer {
        let mut buffer = Buffer::new(values.len());
        buffer.copy_from_slice(values);
        buffer
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::copied(self)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} elements", self.len)
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the memory has at least `len` elements, was zeroed when it was allocated, and is borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let nothing = Memory { start: NonNull::dangling(), bytes: 0 };
        pool().give_back(std::mem::replace(&mut self.memory, nothing));
    }
}

/// Gives memory that no buffer uses back to the C library.
pub fn release_unused() {
    let mut pool = pool();
    pool.make_room(0);
    pool.peak = pool.live;
}

/// Bytes to allocate for `len` elements: rounded, so that batches of nearly the same size use the same buffers.
fn capacity(len: usize) -> usize {
    let bytes = (len * size_of::<f32>()).max(LINE);
    bytes.next_multiple_of((bytes.next_power_of_two() / 64).max(LINE))
}

/// An allocation. Zero bytes means none.
struct Memory {
    start: NonNull<f32>,
    bytes: usize,
}

// SAFETY: the memory is owned, like that of a `Vec<f32>`.
unsafe impl Send for Memory {}
// SAFETY: shared access only reads.
unsafe impl Sync for Memory {}

impl Memory {
    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, LINE).expect("a buffer is smaller than the address space")
    }

    fn new(bytes: usize) -> Memory {
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_FROM {
            return Memory {
                start: huge::map(bytes).unwrap_or_else(|| handle_alloc_error(Memory::layout(bytes))),
                bytes,
            };
        }
        let layout = Memory::layout(bytes);
        // SAFETY: `capacity` is never zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start.cast()) else { handle_alloc_error(layout) };
        Memory { start, bytes }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        #[cfg(target_os = "linux")]
        if self.bytes >= HUGE_FROM {
            return huge::unmap(self.start, self.bytes);
        }
        // SAFETY: allocated by `new` with the same layout.
        unsafe { dealloc(self.start.as_ptr().cast(), Memory::layout(self.bytes)) };
    }
}

/// Large buffers come from the system itself, at the beginning of a huge page.
#[cfg(target_os = "linux")]
mod huge {
    use std::ptr::{self, NonNull};

    /// Bytes of a huge page.
    const PAGE: usize = 2 << 20;

    /// Zeroed memory, on huge pages where the system has them.
    pub(super) fn map(bytes: usize) -> Option<NonNull<f32>> {
        let reserved = bytes.next_multiple_of(PAGE) + PAGE;
        // SAFETY: a new anonymous mapping; what is not needed of it is given back, and nothing else lies in it.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapped = libc::mmap(ptr::null_mut(), reserved, protection, flags, -1, 0);
            if mapped == libc::MAP_FAILED {
                return None;
            }
            let before = mapped.align_offset(PAGE);
            let start = mapped.byte_add(before);
            let after = reserved - before - bytes.next_multiple_of(PAGE);
            if before > 0 {
                libc::munmap(mapped, before);
            }
            if after > 0 {
                libc::munmap(start.byte_add(bytes.next_multiple_of(PAGE)), after);
            }
            // A system without huge pages refuses, and that is all right. The last page stays small where it is not full.
            libc::madvise(start, bytes / PAGE * PAGE, libc::MADV_HUGEPAGE);
            NonNull::new(start.cast())
        }
    }

    /// Gives it back.
    pub(super) fn unmap(start: NonNull<f32>, bytes: usize) {
        // SAFETY: mapped by `map` with this length, and its owner is being dropped.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes.next_multiple_of(PAGE)) };
    }
}

/// Memory that is not in use, by size, the one that was used last at the end.
struct Pool {
    unused: BTreeMap<usize, VecDeque<(u64, Memory)>>,
    unused_bytes: usize,
    /// Bytes of buffers that are in use.
    live: usize,
    /// Most bytes that were in use at once: the pool keeps little more than that, with what is in use.
    peak: usize,
    /// Counts what was given back.
    clock: u64,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { unused: BTreeMap::new(), unused_bytes: 0, live: 0, peak: 0, clock: 0 });

fn pool() -> MutexGuard<'static, Pool> {
    // A panic while the pool is locked leaves at worst less memory in it.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn take(&mut self, bytes: usize) -> Memory {
        let fits = self.unused.range_mut(bytes..=bytes + bytes / FIT).find(|(_, queue)| !queue.is_empty());
        let found = fits.and_then(|(_, queue)| queue.pop_back());
        let size = found.as_ref().map_or(bytes, |(_, memory)| memory.bytes);
        self.live += size;
        self.peak = self.peak.max(self.live);
        match found {
            Some((_, memory)) => {
                self.unused_bytes -= size;
                memory
            }
            None => {
                self.make_room(self.peak + self.peak / SPARE - self.live);
                Memory::new(bytes)
            }
        }
    }

    fn give_back(&mut self, memory: Memory) {
        self.live -= memory.bytes;
        self.unused_bytes += memory.bytes;
        self.clock += 1;
        self.unused.entry(memory.bytes).or_default().push_back((self.clock, memory));
    }

    /// Frees what has not been used for longest until no more than this is kept.
    fn make_room(&mut self, keep: usize) {
        while self.unused_bytes > keep {
            let age = |queue: &VecDeque<(u64, Memory)>| queue.front().map_or(u64::MAX, |(returned, _)| *returned);
            let Some((&bytes, _)) = self.unused.iter().min_by_key(|(_, queue)| age(queue)) else { return };
            let queue = self.unused.get_mut(&bytes);
            if queue.and_then(VecDeque::pop_front).is_some() {
                self.unused_bytes -= bytes;
            }
            self.unused.retain(|_, queue| !queue.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_was_dropped_is_used_again_and_begins_at_a_cache_line() {
        let length = 123_457; // a size that no other test uses
        let first = Buffer::copied(&vec![1.5; length]);
        let address = first.as_ptr();
        assert_eq!(address as usize % LINE, 0);
        drop(first);
        let second = Buffer::new(length);
        assert_eq!(second.as_ptr(), address);
        assert_eq!(Buffer::zeroed(length).iter().sum::<f32>(), 0.0);
    }

    #[test]
    fn the_pool_keeps_little_more_than_was_once_in_use() {
        let mut pool = Pool { unused: BTreeMap::new(), unused_bytes: 0, live: 0, peak: 0, clock: 0 };
        for len in [100, 5_000, 3_000, 7_000, 100_000, 200, 90_000] {
            let memory = pool.take(capacity(len));
            pool.give_back(memory);
            assert!(pool.live + pool.unused_bytes <= pool.peak + pool.peak / SPARE, "{len}");
        }
        assert_eq!(pool.peak, capacity(100_000));
        pool.make_room(0);
        assert_eq!((pool.live, pool.unused_bytes, pool.unused.len()), (0, 0, 0));
    }
}
