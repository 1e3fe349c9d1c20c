//! One agent's step time as a function of its batch: t = o + b/X, learned as it trains.
//!
//! A Kalman filter whose state is the line, (o, 1/X). What drifts is the agent's speed, which stretches both parts alike, as a CPU
//! quota or a throttled clock does; how o and 1/X relate stays, so a long stay at one batch size does not wash out what others have
//! taught. A change of speed is found by a cumulative sum of what steps are off (Page, "Continuous inspection schemes", Biometrika 1954).

use omnilearn_wire::message::CalibrationPoint;

use super::Speed;

/// Relative deviation of a step before any are known; the least that changes are measured by; and the least that a step is known to.
const DEVIATION_FIRST: f64 = 0.1;
const DEVIATION_MIN: f64 = 0.08;
const STEP_DEVIATION_MIN: f64 = 1e-3;
/// Part of a new deviation in the usual one, and the largest one that counts, in usual ones: a change of speed is no noise.
const DEVIATION_GAIN: f64 = 0.04;
const DEVIATION_CLIP: f64 = 2.0;
/// Mean absolute deviations in a standard deviation, for normal noise.
const ABSOLUTE_PER_STANDARD: f64 = 0.8;
/// About how many steps the speed is a mean over.
const WINDOW_STEPS: f64 = 64.0;
/// A calibration that is off by more than this factor says nothing of training.
const CALIBRATION_RATIO: f64 = 2.0;
/// How far the speed may be from what calibration says, and o in relation to it: a part of the first step's time. Without calibration
/// the line goes through the origin.
const FIRST_SCALE_SPREAD: f64 = 0.5;
const FIRST_SHAPE_SPREAD: f64 = 0.15;
/// How far o and 1/X together may be from their relation before, after a change of speed.
const CHANGED_SHAPE_SPREAD: f64 = 0.1;
/// A step counts for at most so many standard deviations of what was expected, so that one hiccup does not move a mean.
const OUTLIER: f64 = 3.0;
/// Standard deviations of each step that the cumulative sum leaves out, and the sum that is a change.
const SLACK: f64 = 1.0;
const ALARM: f64 = 5.0;
/// The sum from which a change may be coming: more than one hiccup gives.
const DOUBT: f64 = OUTLIER - SLACK;
/// Steps that a change takes at least.
const CHANGE_STEPS: u32 = 3;
/// How long these steps must have taken together, in seconds: longer than the 100 ms period in which CPU quotas are handed
/// out, so that a burst within one period, which many short steps see, is no change.
const CHANGE_SPAN_S: f64 = 0.15;
/// Where steps have deviated by less than this before, and there were enough to know, nothing comes in bursts: so many steps in a
/// row are enough.
const EVEN_DEVIATION: f64 = 0.1;
const EVEN_KNOWN_STEPS: u32 = 16;
const EVEN_STEPS: u32 = 5;
/// Largest part of a step's time that an adjustment takes for overhead. Where it is more, the next ones go the rest of the way.
const OFFSET_SHARE_MAX: f64 = 0.3;
/// Least part of a step's time that grows with the batch.
const SLOPE_SHARE_MIN: f64 = 0.05;

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

    pub(crate) fn speed(self) -> Speed {
        Speed { offset: self.offset_s, rate: 1.0 / self.slope_s }
    }
}

/// A line that is known within limits: its covariance.
#[derive(Clone, Copy, Debug)]
struct Belief {
    line: Line,
    offset_variance: f64,
    covariance: f64,
    slope_variance: f64,
}

impl Belief {
    /// A line, known exactly.
    fn certain(line: Line) -> Belief {
        Belief { line, offset_variance: 0.0, covariance: 0.0, slope_variance: 0.0 }
    }

    /// What a first step adds to calibration.
    fn first(calibration: Option<Line>, batch: f64, seconds: f64) -> Belief {
        let is_near = |line: &Line| (1.0 / CALIBRATION_RATIO..=CALIBRATION_RATIO).contains(&(seconds / line.at(batch)));
        let origin = Line { offset_s: 0.0, slope_s: seconds / batch };
        let mut belief = Belief::certain(calibration.filter(is_near).unwrap_or(origin));
        belief.spread_scale(FIRST_SCALE_SPREAD);
        belief.spread_shape(batch, FIRST_SHAPE_SPREAD);
        belief
    }

    /// All times so many times as long.
    fn stretched(self, factor: f64) -> Belief {
        let Line { offset_s, slope_s } = self.line;
        let squared = factor * factor;
        Belief {
            line: Line { offset_s: offset_s * factor, slope_s: slope_s * factor },
            offset_variance: self.offset_variance * squared,
            covariance: self.covariance * squared,
            slope_variance: self.slope_variance * squared,
        }
    }

    /// The line may be as far off as this, in this direction.
    fn spread(&mut self, offset_s: f64, slope_s: f64) {
        self.offset_variance += offset_s * offset_s;
        self.covariance += offset_s * slope_s;
        self.slope_variance += slope_s * slope_s;
    }

    /// Both parts may be larger or smaller by this part.
    fn spread_scale(&mut self, part: f64) {
        self.spread(part * self.line.offset_s, part * self.line.slope_s);
    }

    /// So large a part of the time at a batch may belong to o, or to the samples.
    fn spread_shape(&mut self, batch: f64, part: f64) {
        let seconds = part * self.line.at(batch);
        self.spread(seconds, -seconds / batch);
    }

    /// Variance of the time at a batch.
    fn variance(&self, batch: f64) -> f64 {
        (self.offset_variance + batch * (2.0 * self.covariance + batch * self.slope_variance)).max(0.0)
    }

    /// The line with as little overhead as may well be, through the same time at a batch. What is not known of o must not move a batch
    /// far: an agent that only seems to be all overhead would get next to nothing.
    fn cautious(&self, batch: f64) -> Line {
        let variance = self.variance(batch);
        let joint = self.offset_variance + batch * self.covariance;
        let explained = if variance > 0.0 { joint * joint / variance } else { 0.0 };
        let unknown_s = (self.offset_variance - explained).max(0.0).sqrt();
        let offset_s = (self.line.offset_s - unknown_s).clamp(0.0, OFFSET_SHARE_MAX * self.line.at(batch));
        Line { offset_s, slope_s: (self.line.at(batch) - offset_s) / batch }
    }

    /// Takes in a time at a batch, itself known to within a standard deviation. It counts as at most [`OUTLIER`] standard deviations off.
    fn learn(&mut self, batch: f64, seconds: f64, deviation_s: f64) {
        let variance = self.variance(batch) + deviation_s * deviation_s;
        let limit = OUTLIER * variance.sqrt();
        let off = (seconds - self.line.at(batch)).clamp(-limit, limit);
        let offset = self.offset_variance + batch * self.covariance;
        let slope = self.covariance + batch * self.slope_variance;
        self.line.offset_s += offset / variance * off;
        self.line.slope_s += slope / variance * off;
        self.offset_variance -= offset * offset / variance;
        self.covariance -= offset * slope / variance;
        self.slope_variance -= slope * slope / variance;
        self.keep_possible(batch);
    }

    /// No step takes less than no time without samples, and samples take time.
    fn keep_possible(&mut self, batch: f64) {
        let at = self.line.at(batch);
        let share = (self.line.slope_s * batch / at).clamp(SLOPE_SHARE_MIN, 1.0);
        self.line = Line { offset_s: (1.0 - share) * at, slope_s: share * at / batch };
    }
}

/// Steps in a row that are off in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    score: f64,
    steps: u32,
    seconds: f64,
    /// Steps were even before.
    is_even: bool,
}

impl Run {
    /// A step that is so many standard deviations off in this direction.
    fn count(&mut self, off: f64, seconds: f64, is_even: bool) {
        let score = self.score + off - SLACK;
        let is_even = if self.steps == 0 { is_even } else { self.is_even };
        *self = match score > 0.0 {
            true => Run { score, steps: self.steps + 1, seconds: self.seconds + seconds, is_even },
            false => Run::default(),
        };
    }

    fn is_change(&self) -> bool {
        let is_long = self.seconds >= CHANGE_SPAN_S || (self.is_even && self.steps >= EVEN_STEPS);
        self.score > ALARM && self.steps >= CHANGE_STEPS && is_long
    }
}

/// What is known of one agent's speed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    belief: Option<Belief>,
    /// Relative standard deviation of a step from what was expected.
    deviation: f64,
    /// Steps seen since the last change of speed.
    steps: u32,
    /// That of the last step.
    batch: f64,
    slower: Run,
    faster: Run,
}

impl Fit {
    pub(crate) fn new(calibration: &[CalibrationPoint]) -> Fit {
        let belief = calibration_line(calibration).map(Belief::certain);
        Fit { belief, deviation: DEVIATION_FIRST, ..Fit::default() }
    }

    /// Steps seen since the last change point.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// The line to go by, from steps if there were any, else from calibration.
    pub(crate) fn line(&self) -> Option<Line> {
        let belief = self.belief?;
        Some(if self.steps == 0 { belief.line } else { belief.cautious(self.batch) })
    }

    /// The same where steps that may be the beginning of a change are taken for one.
    pub(crate) fn suspected(&self) -> Option<Line> {
        let Some(run) = self.doubtful() else { return self.line() };
        let belief = self.belief?;
        Some(belief.stretched(run.seconds / f64::from(run.steps) / belief.line.at(self.batch)).cautious(self.batch))
    }

    /// Relative standard error of what is expected at the present batch.
    pub(crate) fn uncertainty(&self) -> f64 {
        let Some(belief) = self.belief.filter(|_| self.steps > 0) else { return 0.0 };
        belief.variance(self.batch).sqrt() / belief.line.at(self.batch)
    }

    /// Whether the last steps were off, but not yet enough for a change.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubtful().is_some()
    }

    fn doubtful(&self) -> Option<Run> {
        [self.slower, self.faster].into_iter().find(|run| run.score > DOUBT)
    }

    /// Takes in the time of one step. Returns whether the agent's speed has just been found to have changed.
    pub(crate) fn observe(&mut self, batch: u32, seconds: f64) -> bool {
        let batch = f64::from(batch);
        self.steps = self.steps.saturating_add(1);
        if self.batch != batch {
            self.batch = batch;
            (self.slower, self.faster) = (Run::default(), Run::default());
        }
        let mut belief = match self.belief {
            Some(belief) if self.steps > 1 => belief,
            calibration => Belief::first(calibration.map(|belief| belief.line), batch, seconds),
        };
        belief.spread_scale(self.deviation / WINDOW_STEPS);
        let expected_s = belief.line.at(batch);
        let deviation = self.deviation.max(DEVIATION_MIN);
        let standard = (belief.variance(batch) + (deviation * expected_s).powi(2)).sqrt();
        let off = ((seconds - expected_s) / standard).clamp(-OUTLIER, OUTLIER);
        belief.learn(batch, seconds, self.deviation.max(STEP_DEVIATION_MIN) * expected_s);
        self.belief = Some(belief);
        let is_even = self.deviation < EVEN_DEVIATION && self.steps > EVEN_KNOWN_STEPS;
        self.slower.count(off, seconds, is_even);
        self.faster.count(-off, seconds, is_even);
        self.deviate((seconds / expected_s - 1.0).abs() / ABSOLUTE_PER_STANDARD);
        let Some(run) = [self.slower, self.faster].into_iter().find(Run::is_change) else { return false };
        (self.slower, self.faster) = (Run::default(), Run::default());
        self.restart(belief, run);
        true
    }

    fn deviate(&mut self, deviation: f64) {
        let largest = DEVIATION_CLIP * self.deviation.max(DEVIATION_MIN);
        self.deviation += DEVIATION_GAIN * (deviation.min(largest) - self.deviation);
    }

    /// Starts over from the steps that were off. Both parts of the line are taken to be stretched alike, as by a CPU quota.
    fn restart(&mut self, belief: Belief, run: Run) {
        let steps = f64::from(run.steps);
        let mut belief = belief.stretched(run.seconds / steps / belief.line.at(self.batch));
        belief.spread_scale(self.deviation / steps.sqrt());
        belief.spread_shape(self.batch, CHANGED_SHAPE_SPREAD);
        self.belief = Some(belief);
        self.steps = run.steps;
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
    Some(if line.offset_s < 0.0 || line.slope_s < SLOPE_SHARE_MIN * through_origin.slope_s {
        through_origin
    } else {
        line
    })
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
    fn calibration_gives_the_overhead_and_training_the_speed_unless_they_have_nothing_in_common() {
        let points = [8, 32].map(|samples| CalibrationPoint { samples, step_s: 0.1 + 0.002 * f64::from(samples) });
        let mut fit = Fit::new(&points);
        close(fit.line().unwrap().offset_s, 0.1, 1e-6);
        observe(&mut fit, 64, 1.2 * 0.228, 5);
        let belief = fit.belief.unwrap().line;
        close(belief.at(64.0), 1.2 * 0.228, 0.01);
        close(belief.offset_s, 1.2 * 0.1, 0.05);

        let mut fit = Fit::new(&points);
        observe(&mut fit, 64, 3.0 * 0.228, 5);
        close(fit.line().unwrap().slope_s, 3.0 * 0.228 / 64.0, 0.01);
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
