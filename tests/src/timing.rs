//! How long repeated work takes.

use std::time::{Duration, Instant};

use crate::usage::ForeignLoad;

/// Fewest steps that are timed, however long they take.
const STEPS_MIN: usize = 3;

/// Steps before the first that is timed: they allocate what later ones use again.
const WARM_UP_STEPS: usize = 2;

/// What timed steps took.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Median of a step, in milliseconds.
    pub median_ms: f64,
    /// How many were timed.
    pub steps: usize,
    /// Cores that other processes used meanwhile. `None` where the system does not tell.
    pub foreign_cores: Option<f64>,
}

/// Times `step` for about `length`, after a fifth of that without a clock.
///
/// # Errors
/// The first that a step returns.
pub fn time_steps<E>(length: Duration, mut step: impl FnMut() -> Result<(), E>) -> Result<Timing, E> {
    let start = Instant::now();
    let mut warm_up_steps = 0;
    // A second step would tell little more where the first already takes as long as everything should.
    while warm_up_steps == 0
        || start.elapsed() < length / 5
        || (warm_up_steps < WARM_UP_STEPS && start.elapsed() < length)
    {
        step()?;
        warm_up_steps += 1;
    }
    let mut times_ms = Vec::new();
    let load = ForeignLoad::start();
    let start = Instant::now();
    while times_ms.len() < STEPS_MIN || start.elapsed() < length {
        let start = Instant::now();
        step()?;
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let foreign_cores = load.cores();
    Ok(Timing { steps: times_ms.len(), median_ms: median(times_ms), foreign_cores })
}

/// The median of at least one value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
