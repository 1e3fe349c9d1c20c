//! How many threads share an operator's work.

use std::cell::OnceCell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// Most threads that operators use. Relaxed: it may take effect an operator later.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Gives the calling thread a pool in which operators share their work, itself one of its `threads`: one thread means no
/// hand-over at all. The pool lives as long as the thread. A thread that has one keeps it.
///
/// # Errors
/// If the system refuses a thread.
pub fn enter_pool(threads: NonZeroUsize) -> Result<(), rayon::ThreadPoolBuildError> {
    thread_local! {
        static POOL: OnceCell<rayon::ThreadPool> = const { OnceCell::new() };
    }
    POOL.with(|pool| {
        if pool.get().is_none() {
            let named = |index| format!("olrn-worker-{index}");
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads.get()).thread_name(named);
            let built = builder.use_current_thread().build()?;
            pool.set(built).expect("was empty above");
        }
        Ok(())
    })
}

/// Uses no more than this many threads of the pool from now on. For a quota that changes while the process runs: the pool
/// is as large as the machine, and threads without work sleep.
pub fn set_threads(threads: NonZeroUsize) {
    LIMIT.store(threads.get(), Ordering::Relaxed);
}

/// Threads that share an operator's work: those of the pool, and no more than [`set_threads`] allows.
pub fn threads() -> usize {
    rayon::current_num_threads().min(LIMIT.load(Ordering::Relaxed)).max(1)
}

/// Work below which a part is not worth handing to another thread, in multiplications or elements read from memory.
const PART_MIN: usize = 96 << 10;

/// Splits `count` items, which together take about `work` operations, evenly over the threads: (first, number), none empty.
pub(crate) fn parts(count: usize, work: usize) -> Vec<(usize, usize)> {
    let parts = threads().min(work / PART_MIN).clamp(1, count.max(1));
    let bound = |part: usize| part * count / parts;
    (0..parts).map(|part| (bound(part), bound(part + 1) - bound(part))).filter(|part| part.1 > 0).collect()
}

/// Cuts `values` into the given parts of items with `size` elements each: (first item, its elements).
pub(crate) fn split<'a, T>(values: &'a mut [T], size: usize, parts: &[(usize, usize)]) -> Vec<(usize, &'a mut [T])> {
    let mut rest = values;
    let mut split = Vec::with_capacity(parts.len());
    for &(first, count) in parts {
        let (part, tail) = rest.split_at_mut(count * size);
        split.push((first, part));
        rest = tail;
    }
    split
}

/// Calls `work` with each item, on the pool's threads where there is more than one.
pub(crate) fn for_each<T: Send>(items: Vec<T>, work: impl Fn(T) + Send + Sync) {
    if items.len() == 1 {
        items.into_iter().for_each(work);
    } else {
        items.into_par_iter().with_max_len(1).for_each(work);
    }
}

/// Like [`for_each`], with what each call returned, in order.
pub(crate) fn map<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Send + Sync) -> Vec<R> {
    if items.len() == 1 {
        items.into_iter().map(work).collect()
    } else {
        items.into_par_iter().with_max_len(1).map(work).collect()
    }
}
