//! One agent's step time as a function of its batch: t = o + b/X, learned as it trains.
//!
//! Weighted least squares over one mean per batch size seen, with a prior. Forgetting is by batch size: the mean at the
//! present one follows the last [`LEVEL_SAMPLES_MAX`] steps, and older ones lose weight with each change. So a long
//! stay at one batch size does not wash out what others have taught about o and X.

use omnilearn_wire::message::CalibrationPoint;

/// Steps over which a mean reaches back.
const LEVEL_SAMPLES_MAX: f64 = 32.0;
/// Batch sizes remembered.
const LEVELS_MAX: usize = 6;
/// How many steps the slope from calibration counts for.
const SLOPE_PRIOR_STEPS: f64 = 4.0;
/// How many steps the guess that o is 0 counts for, without calibration. It decides where batches hardly differ.
const OFFSET_PRIOR_STEPS: f64 = 0.25;
/// What is left of the weight of earlier batch sizes after a change.
const LEVEL_DECAY: f64 = 0.7;
/// Steps in a row that must be off, in the same direction, for a change point; and by how much, at least.
const CHANGE_STEPS: usize = 3;
const CHANGE_RATIO: f64 = 1.25;
/// How long these steps must have taken together, in seconds: longer than the 100 ms period in which CPU quotas are handed
/// out, so that a burst within one period, which many short steps see, is no change.
const CHANGE_SPAN_S: f64 = 0.15;
/// Where steps have deviated by less than this before, and there were enough to know, nothing comes in bursts: so many steps in a
/// row are enough.
const EVEN_DEVIATION: f64 = 0.1;
const EVEN_KNOWN_STEPS: u32 = 16;
const EVEN_STEPS: usize = 5;
/// Where steps scatter, they must be off by this many times their usual deviation.
const CHANGE_DEVIATIONS: f64 = 3.0;
/// Part of a new deviation in the usual one.
const DEVIATION_GAIN: f64 = 0.1;
/// A single step counts for at most this many times what was expected, so that one hiccup does not move a mean.
const OUTLIER_RATIO: f64 = 1.5;
/// Steps after which a fit can tell a change from its own uncertainty.
const ESTABLISHED_STEPS: u32 = 5;

#[derive(Clone, Copy, Debug)]
struct Level {
    batch: f64,
    mean_s: f64,
    steps: f64,
}

/// o and 1/X of one agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// o, time that does not grow with the batch, in seconds.
    pub(crate) offset_s: f64,
    /// 1/X, seconds per sample; over 0.
    pub(crate) slope_s: f64,
}

impl Line {
    pub(crate) fn at(self, batch: f64) -> f64 {
        self.offset_s + self.slope_s * batch
    }
}

/// What is known of one agent's speed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fit {
    /// Line through the calibration points, which have no communication in them.
    calibration: Option<Line>,
    levels: Vec<Level>, // the present one last
    steps: u32,         // since the last change point
    deviation: f64,     // usual |ratio - 1| to what was expected
    /// Steps were even before the last one that was off.
    is_even: bool,
    /// The last steps, while they are off in the same direction; not counted yet.
    off: Vec<Off>,
}

/// A step whose time is far from what was expected.
#[derive(Clone, Copy, Debug)]
struct Off {
    batch: f64,
    seconds: f64,
    /// To what was expected.
    ratio: f64,
}

impl Fit {
    pub(crate) fn new(calibration: &[CalibrationPoint]) -> Fit {
        Fit { calibration: calibration_line(calibration), ..Fit::default() }
    }

    /// Steps seen since the last change point.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// Takes in the time of one step. Returns whether the agent's speed has just been found to have changed.
    pub(crate) fn observe(&mut self, batch: u32, seconds: f64) -> bool {
        let batch = f64::from(batch);
        self.steps = self.steps.saturating_add(1);
        let Some(line) = self.line().filter(|_| self.steps > ESTABLISHED_STEPS) else {
            self.count(batch, seconds);
            return false;
        };
        let step = Off { batch, seconds, ratio: seconds / line.at(batch) };
        let limit = CHANGE_RATIO.max(1.0 + CHANGE_DEVIATIONS * self.deviation);
        if self.off.is_empty() {
            self.is_even = self.deviation < EVEN_DEVIATION && self.steps > EVEN_KNOWN_STEPS;
        }
        self.deviation += DEVIATION_GAIN * ((step.ratio - 1.0).abs().min(OUTLIER_RATIO - 1.0) - self.deviation);
        let is_off = step.ratio > limit || step.ratio < 1.0 / limit;
        if !is_off || self.off.last().is_some_and(|last| (last.ratio > 1.0) != (step.ratio > 1.0)) {
            self.count_hiccups();
        }
        if !is_off {
            self.count(batch, seconds);
            return false;
        }
        self.off.push(step);
        let span_s: f64 = self.off.iter().map(|step| step.seconds).sum();
        let is_long = span_s >= CHANGE_SPAN_S || (self.is_even && self.off.len() >= EVEN_STEPS);
        if self.off.len() < CHANGE_STEPS || !is_long {
            return false;
        }
        if self.bend() {
            return false;
        }
        self.restart(line);
        true
    }

    /// Steps that are off at a batch size without a mean say as much of the line as of the speed. Where one line goes through them
    /// and through the batch sizes before, the speed is as it was, and what was expected was wrong: because of calibration points at far
    /// smaller batches, say. To start over then would forget just the sizes that tell o from 1/X, and keep the wrong slope.
    fn bend(&mut self) -> bool {
        let is_new = |step: &Off| self.levels.iter().all(|level| level.batch != step.batch);
        if !self.off.iter().all(is_new) {
            return false;
        }
        let mut bent = Fit { calibration: None, deviation: 0.0, ..self.clone() };
        for step in std::mem::take(&mut bent.off) {
            bent.count(step.batch, step.seconds);
        }
        let Some(line) = bent.line() else { return false };
        let is_near = |level: &Level| {
            let ratio = level.mean_s / line.at(level.batch);
            (1.0 / CHANGE_RATIO..=CHANGE_RATIO).contains(&ratio)
        };
        let fits = bent.levels.len() > 1 && bent.levels.iter().all(is_near);
        if fits {
            *self = bent;
        }
        fits
    }

    /// Steps that were off, and turned out to be no change: each counts, within limits.
    fn count_hiccups(&mut self) {
        for Off { batch, seconds, ratio } in std::mem::take(&mut self.off) {
            self.count(batch, seconds / ratio * ratio.clamp(1.0 / OUTLIER_RATIO, OUTLIER_RATIO));
        }
    }

    /// Starts over from the steps that were off. Both parts of the line are taken to be stretched alike, as by a CPU
    /// quota.
    fn restart(&mut self, line: Line) {
        let off = std::mem::take(&mut self.off);
        let mut ratios: Vec<f64> = off.iter().map(|step| step.ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let stretch = ratios[ratios.len() / 2];
        self.calibration = Some(Line { offset_s: line.offset_s * stretch, slope_s: line.slope_s * stretch });
        self.levels.clear();
        self.deviation = 0.0;
        self.steps = off.len() as u32;
        for step in off {
            self.count(step.batch, step.seconds);
        }
    }

    fn count(&mut self, batch: f64, seconds: f64) {
        match self.levels.last_mut() {
            Some(level) if level.batch == batch => {
                level.steps = (level.steps + 1.0).min(LEVEL_SAMPLES_MAX);
                level.mean_s += (seconds - level.mean_s) / level.steps;
            }
            _ => {
                self.levels.iter_mut().for_each(|level| level.steps *= LEVEL_DECAY);
                self.levels.retain(|level| level.batch != batch && level.steps >= 0.5);
                if self.levels.len() == LEVELS_MAX {
                    self.levels.remove(0);
                }
                self.levels.push(Level { batch, mean_s: seconds, steps: 1.0 });
            }
        }
    }

    /// Relative standard error of what is expected at the present batch.
    pub(crate) fn uncertainty(&self) -> f64 {
        const DEVIATION_TO_STANDARD: f64 = 1.25; // of a mean absolute deviation, for normal noise
        let steps = self.levels.last().map_or(1.0, |level| level.steps);
        // A mean that follows the last n steps exponentially is as good as one of 2n - 1.
        let steps = if steps < LEVEL_SAMPLES_MAX { steps } else { 2.0 * LEVEL_SAMPLES_MAX - 1.0 };
        DEVIATION_TO_STANDARD * self.deviation / steps.sqrt()
    }

    /// The line, from steps if there were any, else from calibration.
    pub(crate) fn line(&self) -> Option<Line> {
        let Some(present) = self.levels.last() else { return self.calibration };
        // Minimises Σ n_i·(t_i − o − s·b_i)² + n_s·(s − s0)²·b² with calibration, + n_o·o² without, b the present
        // batch.
        let (mut n, mut nb, mut nbb, mut nt, mut nbt) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &Level { batch, mean_s, steps } in &self.levels {
            n += steps;
            nb += steps * batch;
            nbb += steps * batch * batch;
            nt += steps * mean_s;
            nbt += steps * batch * mean_s;
        }
        let (offset_prior, slope_prior, slope) = match self.calibration {
            Some(line) => (0.0, SLOPE_PRIOR_STEPS * present.batch * present.batch, line.slope_s),
            None => (OFFSET_PRIOR_STEPS, 0.0, 0.0),
        };
        let (a, b, c) = (n + offset_prior, nb, nbb + slope_prior);
        let right = nbt + slope_prior * slope;
        let determinant = a * c - b * b;
        let through_origin = nbt / nbb;
        if determinant <= f64::EPSILON * a * c {
            return Some(Line { offset_s: 0.0, slope_s: through_origin });
        }
        let line = Line { offset_s: (nt * c - b * right) / determinant, slope_s: (a * right - b * nt) / determinant };
        let flattest = 0.05 * through_origin;
        Some(if line.offset_s < 0.0 {
            Line { offset_s: 0.0, slope_s: through_origin }
        } else if line.slope_s < flattest {
            Line { offset_s: (nt - flattest * nb) / n, slope_s: flattest }
        } else {
            line
        })
    }
}

/// Least squares through calibration points, o cut to be at least 0. With one batch size, through the origin.
pub(crate) fn calibration_line(points: &[CalibrationPoint]) -> Option<Line> {
    let (mut n, mut nb, mut nbb, mut nt, mut nbt) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for point in points {
        let (batch, seconds) = (f64::from(point.samples), point.step_s);
        n += 1.0;
        nb += batch;
        nbb += batch * batch;
        nt += seconds;
        nbt += batch * seconds;
    }
    if n == 0.0 {
        return None;
    }
    let determinant = n * nbb - nb * nb;
    let through_origin = Line { offset_s: 0.0, slope_s: nbt / nbb };
    if determinant <= 1e-9 * n * nbb {
        return Some(through_origin);
    }
    let line = Line { offset_s: (nt * nbb - nb * nbt) / determinant, slope_s: (n * nbt - nb * nt) / determinant };
    Some(if line.offset_s < 0.0 || line.slope_s < 0.05 * through_origin.slope_s { through_origin } else { line })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(fit: &mut Fit, batch: u32, seconds: f64, times: u32) {
        for _ in 0..times {
            fit.observe(batch, seconds);
        }
    }

    fn close(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance * expected.abs(), "{found} is not {expected}");
    }

    #[test]
    fn one_batch_size_without_calibration_goes_through_the_origin() {
        let mut fit = Fit::new(&[]);
        observe(&mut fit, 32, 0.5, 3);
        assert_eq!(fit.line().unwrap(), Line { offset_s: 0.0, slope_s: 0.5 / 32.0 });
    }

    #[test]
    fn calibration_gives_the_slope_and_training_the_offset() {
        let points = [8, 32].map(|samples| CalibrationPoint { samples, step_s: 0.01 + 0.002 * f64::from(samples) });
        let mut fit = Fit::new(&points);
        observe(&mut fit, 64, 0.05 + 0.002 * 64.0, 5); // 0.04 of communication
        let line = fit.line().unwrap();
        close(line.slope_s, 0.002, 1e-9);
        close(line.offset_s, 0.05, 1e-9);
    }

    #[test]
    fn two_batch_sizes_teach_offset_and_slope() {
        let mut fit = Fit::new(&[]);
        observe(&mut fit, 32, 0.1 + 0.01 * 32.0, 20);
        observe(&mut fit, 64, 0.1 + 0.01 * 64.0, 20);
        let line = fit.line().unwrap();
        close(line.at(64.0), 0.74, 0.03);
        close(line.slope_s, 0.01, 0.1);
    }

    #[test]
    fn a_halved_quota_is_found_in_three_steps_and_stretches_the_whole_line() {
        let points = [8, 32].map(|samples| CalibrationPoint { samples, step_s: 0.002 * f64::from(samples) });
        let mut fit = Fit::new(&points);
        observe(&mut fit, 32, 0.02 + 0.064, 10);
        assert!(!fit.observe(32, 0.168) && !fit.observe(32, 0.168) && fit.observe(32, 0.168));
        close(fit.line().unwrap().at(32.0), 0.168, 1e-9);
        close(fit.line().unwrap().slope_s, 0.004, 1e-9);
        assert_eq!(fit.steps(), 3);
    }

    #[test]
    fn short_steps_that_were_even_need_few_to_tell_a_change_and_uneven_ones_more_than_a_period_of_quotas() {
        let mut even = Fit::new(&[]);
        observe(&mut even, 32, 0.004, 30);
        let found = (1..).find(|_| even.observe(32, 0.008)).unwrap();
        assert_eq!(found, EVEN_STEPS);
        close(even.line().unwrap().at(32.0), 0.008, 1e-9);

        let mut uneven = Fit::new(&[]);
        for step in 0..60 {
            uneven.observe(32, if step % 5 == 0 { 0.012 } else { 0.004 });
        }
        let expected_s = uneven.line().unwrap().at(32.0);
        let found = (1..).find(|_| uneven.observe(32, 3.0 * expected_s)).unwrap();
        assert!(f64::from(found) * 3.0 * expected_s >= CHANGE_SPAN_S, "{found} steps of {expected_s} s");
    }

    #[test]
    fn a_single_hiccup_moves_little_and_is_no_change() {
        let mut fit = Fit::new(&[]);
        observe(&mut fit, 32, 0.1, 20);
        assert!(!fit.observe(32, 5.0));
        close(fit.line().unwrap().at(32.0), 0.1, 0.03);
        assert!(!fit.observe(32, 0.1) && !fit.observe(32, 0.02) && !fit.observe(32, 0.5) && !fit.observe(32, 0.5));
    }
}
