//! Figures that compare rows with each other.

use super::outcome::Outcome;

/// The policy that all others are compared with.
pub(super) const UNIFORM: &str = "uniform";
/// The level at which all agents are alike.
const ALIKE: u32 = 1;

/// Least loss of accuracy that can be recovered: below it, what uniform batches lose is chance.
const LOSS_MIN: f64 = 0.005;

/// Adds to each row what it is beside others of the same case, model, mode and fleet:
///
/// - `ratio_to_uniform`: time per epoch of uniform batches over this row's;
/// - `target_ratio_to_uniform`: the same with the time to the target accuracy;
/// - `accuracy_lost`: accuracy of uniform batches at HL1 less this row's;
/// - `accuracy_gained`: this row's accuracy less that of uniform batches at its level;
/// - `recovered`: the share of what uniform batches lose against HL1 that this row does not lose, where they lose at
///   least half a point;
/// - `ratio_to_hl1`: time per epoch of this row over that of uniform batches at HL1.
pub(crate) fn compare(outcomes: &mut [Outcome]) {
    let rows = outcomes.to_vec();
    for outcome in outcomes {
        let beside = |policy: &str, hl: u32, name: &str| {
            let key = &outcome.key;
            let row = rows.iter().find(|row| {
                row.key.case == key.case
                    && row.key.model == key.model
                    && row.key.mode == key.mode
                    && row.key.agents == key.agents
                    && row.key.hl == hl
                    && row.key.policy == policy
            });
            row.and_then(|row| row.figure(name))
        };
        let own = |name: &str| outcome.figure(name);
        let hl = outcome.key.hl;
        let over = |above: Option<f64>, below: Option<f64>| Some(above? / below.filter(|&below| below > 0.0)?);
        let accuracy_hl1 = beside(UNIFORM, ALIKE, "accuracy");
        let lost = |accuracy: Option<f64>| Some(accuracy_hl1? - accuracy?);
        let uniform_lost = lost(beside(UNIFORM, hl, "accuracy")).filter(|&lost| hl != ALIKE && lost >= LOSS_MIN);
        let compared = [
            ("ratio_to_uniform", over(beside(UNIFORM, hl, "epoch_s"), own("epoch_s"))),
            ("target_ratio_to_uniform", over(beside(UNIFORM, hl, "time_to_target_s"), own("time_to_target_s"))),
            ("accuracy_lost", lost(own("accuracy"))),
            ("accuracy_gained", own("accuracy").and_then(|own| Some(own - beside(UNIFORM, hl, "accuracy")?))),
            ("recovered", uniform_lost.and_then(|uniform| Some(1.0 - lost(own("accuracy"))? / uniform))),
            ("ratio_to_hl1", over(own("epoch_s"), beside(UNIFORM, ALIKE, "epoch_s"))),
        ];
        for (name, value) in compared {
            if let Some(value) = value {
                outcome.figures.insert(name.to_owned(), value);
            }
        }
    }
}

/// A straight line through points by least squares: intercept and slope. None for fewer than two different places.
pub(crate) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    let together: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    (points.len() > 1 && spread > 0.0).then(|| {
        let slope = together / spread;
        (y_mean - slope * x_mean, slope)
    })
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;

    fn close(found: Option<f64>, expected: f64) {
        assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{found:?}, expected {expected}");
    }

    #[test]
    fn rows_are_compared_with_uniform_at_their_level_and_with_hl1() {
        let mut rows = [
            outcome(1, "uniform", &[("epoch_s", 1.0), ("accuracy", 0.90)]),
            outcome(8, "uniform", &[("epoch_s", 3.0), ("accuracy", 0.80), ("time_to_target_s", 9.0)]),
            outcome(8, "deadline", &[("epoch_s", 1.02), ("accuracy", 0.89), ("time_to_target_s", 3.0)]),
        ];
        compare(&mut rows);
        close(rows[2].figure("ratio_to_uniform"), 3.0 / 1.02);
        close(rows[2].figure("target_ratio_to_uniform"), 3.0);
        close(rows[2].figure("recovered"), 0.9);
        close(rows[2].figure("accuracy_gained"), 0.09);
        close(rows[1].figure("recovered"), 0.0);
        close(rows[1].figure("ratio_to_hl1"), 3.0);
        close(rows[0].figure("ratio_to_uniform"), 1.0);
        assert_eq!(rows[0].figure("recovered"), None);
    }

    #[test]
    fn what_was_not_lost_cannot_be_recovered() {
        let mut rows = [
            outcome(1, "uniform", &[("accuracy", 0.90)]),
            outcome(8, "uniform", &[("accuracy", 0.899)]),
            outcome(8, "deadline", &[("accuracy", 0.91)]),
        ];
        compare(&mut rows);
        assert_eq!(rows[2].figure("recovered"), None);
        close(rows[2].figure("accuracy_lost"), -0.01);
    }

    #[test]
    fn rows_of_another_case_are_no_comparison() {
        let mut rows = [outcome(8, "uniform", &[("epoch_s", 3.0)]), outcome(8, "deadline", &[("epoch_s", 1.0)])];
        rows[0].key.case = "other".to_owned();
        compare(&mut rows);
        assert_eq!(rows[1].figure("ratio_to_uniform"), None);
    }

    #[test]
    fn a_line_goes_through_its_points() {
        let (intercept, slope) = line(&[(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]).unwrap();
        close(Some(intercept), 1.0);
        close(Some(slope), 2.0);
        assert_eq!(line(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
