//! How long a step takes here, found before the first assignment.

use std::time::{Duration, Instant};

use omnilearn_wire::message::{CalibrationPoint, Failure, StepTimings};

use super::{Trainer, guarded};
use crate::machine::{Probe, process_cpu_time};
use crate::session::ComputeError;

/// Timed steps of each batch size, at most.
const STEPS_MAX: usize = 5;
/// After this much time a batch size has been timed enough.
const TIME_MAX: Duration = Duration::from_millis(500);

/// What [`Trainer::calibrate`] found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Calibration {
    /// Sizes that could be timed.
    pub(super) points: Vec<CalibrationPoint>,
    /// The largest size that fitted memory, where a larger one did not.
    pub(super) batch_max: Option<u32>,
}

impl Trainer {
    /// Times steps of these sizes on the first training samples. The parameters stay as they are.
    ///
    /// # Errors
    /// A step that fails for another reason than memory.
    pub(super) fn calibrate(
        &mut self,
        batches: &[u32],
        probe: &Probe,
        quota_cores: Option<f32>,
    ) -> Result<Calibration, ComputeError> {
        let mut calibration = Calibration::default();
        let samples_max = self.dataset.train().len();
        for (index, &batch) in batches.iter().enumerate() {
            let batch = batch.clamp(1, samples_max as u32);
            // The very first step also fills caches and pools.
            let warm_ups = if index == 0 { 2 } else { 1 };
            match guarded("a trial step", || self.time_steps(batch, warm_ups, probe, quota_cores)) {
                Ok(step_s) => calibration.points.push(CalibrationPoint { samples: batch, step_s }),
                Err(ComputeError { failure: Failure::Memory, .. }) if index > 0 => {
                    calibration.batch_max = calibration.points.last().map(|point| point.samples);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(calibration)
    }

    /// Median sustained time of a step.
    fn time_steps(
        &mut self,
        batch: u32,
        warm_ups: usize,
        probe: &Probe,
        quota_cores: Option<f32>,
    ) -> Result<f64, ComputeError> {
        let samples: Vec<u32> = (0..batch).collect();
        let started = Instant::now();
        let mut times = Vec::new();
        for step in 0..warm_ups + STEPS_MAX {
            let (cpu, throttled, start) = (process_cpu_time(), probe.throttled(), Instant::now());
            let (inputs, targets) = self.load(self.dataset.train(), &samples)?;
            let gradient = self.differentiate(inputs, targets, 0)?;
            let mut bytes = 0;
            self.encode(&gradient, &mut |chunk| {
                bytes += chunk.len();
                std::ops::ControlFlow::Continue(())
            })?;
            let timings = StepTimings {
                compute_s: start.elapsed().as_secs_f32(),
                cpu_s: process_cpu_time().saturating_sub(cpu).as_secs_f32(),
                throttled_s: probe.throttled().saturating_sub(throttled).as_secs_f32(),
                quota_cores,
                ..StepTimings::default()
            };
            if step >= warm_ups {
                times.push(timings.sustained_s());
            }
            if !times.is_empty() && started.elapsed() > TIME_MAX {
                break;
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}
