//! As many samples as a time allows: passes over pieces of the assignment until the time is over.

use std::time::Instant;

use omnilearn_wire::message::Failure;

use super::pass::{Computed, Together, pass_seed};
use super::samples::Drawn;
use super::{Trainer, failed};
use crate::session::ComputeError;

/// The first piece of a job, before anything is known of the agent's speed.
const FIRST_PIECE: usize = 4;
/// So many pieces fill the time, or up to twice as many: with fewer, more of it is left over at the end; with more, passes cost
/// more than samples.
const PIECES: f64 = 8.0;
/// What is left of the time is not used for a piece smaller than this part of the usual.
const SMALLEST_PART: usize = 4;

impl Trainer {
    /// The mean gradient over the first of these samples, and how many these are; at least one.
    pub(super) fn timed(&mut self, samples: &[Drawn], compute_s: f32, seed: u64) -> Result<Computed, ComputeError> {
        let time_s = f64::from(compute_s);
        if !(time_s.is_finite() && time_s > 0.0) {
            return Err(failed(Failure::Data, format!("a computing time of {compute_s} s is none")));
        }
        let start = Instant::now();
        let mut point = self.point();
        let mut together = Together::default();
        for pass in 0.. {
            let (elapsed_s, done) = (start.elapsed().as_secs_f64(), together.samples());
            let sample_s = if done == 0 { self.sample_s } else { Some(elapsed_s / done as f64) };
            let size = piece(time_s, elapsed_s, sample_s, done).min(samples.len() - done);
            if size == 0 {
                break;
            }
            let computed = self.pass(&point, &samples[done..done + size], pass_seed(seed, pass))?;
            point.buffers.clone_from(&computed.gradient.buffers);
            together.add(computed);
        }
        self.sample_s = Some(start.elapsed().as_secs_f64() / together.samples().max(1) as f64);
        let computed = together.finish(&self.engine, &point.parameters);
        computed.ok_or_else(|| failed(Failure::Data, "there are no samples to compute".to_owned()))
    }
}

/// Samples of the next piece; 0 when the time is over. Sizes are powers of two, so that there are few of them, and devices that
/// compile for each get to know them soon.
fn piece(time_s: f64, elapsed_s: f64, sample_s: Option<f64>, done: usize) -> usize {
    let Some(sample_s) = sample_s.map(|sample_s| sample_s.max(1e-9)) else { return FIRST_PIECE };
    let power_of_two = |samples: f64| 1usize << (samples.max(1.0) as usize).min(1 << 30).ilog2();
    let usual = power_of_two(time_s / PIECES / sample_s);
    let fits = (time_s - elapsed_s) / sample_s;
    let size = usual.min(power_of_two(fits));
    let is_over = fits < 1.0 || size * SMALLEST_PART < usual;
    if is_over && done > 0 { 0 } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples done and time taken by an agent that takes `offset_s + n·sample_s` for a piece of n.
    fn simulate(time_s: f64, offset_s: f64, sample_s: f64, known: Option<f64>) -> (usize, f64, Vec<usize>) {
        let (mut done, mut elapsed_s, mut sizes) = (0, 0.0, Vec::new());
        loop {
            let known = if done == 0 { known } else { Some(elapsed_s / done as f64) };
            match piece(time_s, elapsed_s, known, done) {
                0 => return (done, elapsed_s, sizes),
                size => {
                    done += size;
                    elapsed_s += offset_s + size as f64 * sample_s;
                    sizes.push(size);
                }
            }
        }
    }

    #[test]
    fn pieces_grow_until_a_handful_fills_the_time() {
        let (done, elapsed_s, sizes) = simulate(1.0, 0.001, 0.001, None);
        assert_eq!(sizes[0], FIRST_PIECE);
        assert!(sizes.len() <= 20 && sizes.iter().all(|size| size.is_power_of_two()), "{sizes:?}");
        assert!(elapsed_s <= 1.0 && elapsed_s > 0.9 && done > 850, "{done} in {elapsed_s} s by {sizes:?}");
        let (again, elapsed_s, sizes) = simulate(1.0, 0.001, 0.001, Some(elapsed_s / done as f64));
        assert!(sizes.len() <= 17 && elapsed_s <= 1.0 && again > 850, "{again} in {elapsed_s} s by {sizes:?}");
    }

    #[test]
    fn one_piece_is_computed_even_if_it_takes_longer_than_the_time() {
        assert_eq!(simulate(0.1, 0.0, 1.0, Some(1.0)), (1, 1.0, vec![1]));
        assert_eq!(simulate(0.1, 0.0, 1.0, None).2, [FIRST_PIECE]);
    }
}
