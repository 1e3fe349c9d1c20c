//! The learning rate over steps.

use crate::config::ConfigError;

/// Learning rate as a function of the step, counted from 0.
///
/// During the first `warm_up_steps` w it is multiplied by (step + 1) / w; the shape's own course starts at step 0.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleConfig {
    /// η0, before warm-up and shape.
    pub learning_rate: f64,
    /// Steps of linear warm-up; 0 for none.
    pub warm_up_steps: u64,
    /// What follows.
    pub shape: ScheduleShape,
}

/// Course of the learning rate.
#[derive(Clone, Debug, PartialEq)]
pub enum ScheduleShape {
    /// η0.
    Constant,
    /// η0·factorⁿ, n = milestones at or before the step.
    Step {
        /// Steps at which the rate changes, ascending.
        milestones: Vec<u64>,
        /// What it is multiplied by at each.
        factor: f64,
    },
    /// floor + (η0 − floor)·(1 + cos(π·step/total))/2, and the floor from `total_steps` on.
    Cosine {
        /// Steps until the floor.
        total_steps: u64,
        /// The lowest rate.
        floor: f64,
    },
}

impl ScheduleConfig {
    /// The same rate at each step.
    pub fn constant(learning_rate: f64) -> ScheduleConfig {
        ScheduleConfig { learning_rate, warm_up_steps: 0, shape: ScheduleShape::Constant }
    }

    /// Learning rate of the step that follows `step` earlier ones.
    pub fn learning_rate(&self, step: u64) -> f64 {
        let rate = match &self.shape {
            ScheduleShape::Constant => self.learning_rate,
            ScheduleShape::Step { milestones, factor } => {
                let passed = milestones.iter().filter(|&&milestone| milestone <= step).count();
                self.learning_rate * factor.powi(passed as i32)
            }
            ScheduleShape::Cosine { total_steps, floor } => {
                let progress = (step as f64 / *total_steps as f64).min(1.0);
                floor + (self.learning_rate - floor) * (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0
            }
        };
        if step < self.warm_up_steps { rate * (step + 1) as f64 / self.warm_up_steps as f64 } else { rate }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let error = |field, value: String, expected| Err(ConfigError::Value { field, value, expected });
        if !(self.learning_rate.is_finite() && self.learning_rate > 0.0) {
            return error("learning_rate", self.learning_rate.to_string(), "over 0");
        }
        match &self.shape {
            ScheduleShape::Constant => Ok(()),
            ScheduleShape::Step { milestones, .. } if !milestones.is_sorted() => {
                error("milestones", format!("{milestones:?}"), "ascending")
            }
            ScheduleShape::Step { factor, .. } if !(factor.is_finite() && *factor > 0.0) => {
                error("factor", factor.to_string(), "over 0")
            }
            ScheduleShape::Step { .. } => Ok(()),
            ScheduleShape::Cosine { total_steps: 0, .. } => error("total_steps", "0".to_owned(), "at least 1"),
            ScheduleShape::Cosine { floor, .. } if !(*floor >= 0.0 && *floor <= self.learning_rate) => {
                error("floor", floor.to_string(), "from 0 to the learning rate")
            }
            ScheduleShape::Cosine { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn warm_up_rises_linearly_to_the_full_rate() {
        let schedule = ScheduleConfig { learning_rate: 0.4, warm_up_steps: 4, shape: ScheduleShape::Constant };
        for (step, expected) in [(0, 0.1), (1, 0.2), (3, 0.4), (4, 0.4), (1000, 0.4)] {
            close(schedule.learning_rate(step), expected);
        }
    }

    #[test]
    fn steps_multiply_at_each_milestone() {
        let shape = ScheduleShape::Step { milestones: vec![10, 20], factor: 0.1 };
        let schedule = ScheduleConfig { learning_rate: 1.0, warm_up_steps: 0, shape };
        for (step, expected) in [(9, 1.0), (10, 0.1), (19, 0.1), (20, 0.01)] {
            close(schedule.learning_rate(step), expected);
        }
    }

    #[test]
    fn cosine_falls_to_its_floor_and_stays() {
        let shape = ScheduleShape::Cosine { total_steps: 100, floor: 0.2 };
        let schedule = ScheduleConfig { learning_rate: 1.0, warm_up_steps: 0, shape };
        for (step, expected) in [(0, 1.0), (50, 0.6), (100, 0.2), (500, 0.2)] {
            close(schedule.learning_rate(step), expected);
        }
    }
}
