//! What a round costs the hub's core, over fleets of several sizes, without gradients: in BSP, or in ASP as many updates as there are
//! agents.

use std::collections::BTreeMap;
use std::time::Duration;

use omnilearn_hub_core::JobConfig;
use omnilearn_hub_core::config::{
    Batching, Controller, DEAD_BAND_DEFAULT, EvaluateConfig, EvaluateEvery, Mode, Start, StopConfig,
};
use omnilearn_hub_core::optimizer::OptimizerConfig;
use omnilearn_hub_core::schedule::ScheduleConfig;
use omnilearn_wire::{Codec, JobId};
use serde::Serialize;

use crate::fleet::{AgentSpec, Fleet};
use crate::gradients::NoGradients;
use crate::job::Job;
use crate::simulation::{SimulationError, Unwatched, simulate};

/// Mean local batch.
const BATCH: u32 = 16;

/// One size of fleet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Agents.
    pub agents: u32,
    /// Rounds.
    pub rounds: u64,
    /// CPU time of the core for each round, in milliseconds.
    pub core_cpu_ms_per_round: f64,
    /// The same for 1,000 agents.
    pub core_cpu_ms_per_1000_agents_and_round: f64,
    /// Real time of the simulation, in seconds.
    pub wall_s: f64,
}

/// How the cost grows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scale {
    /// Each size, in the order given.
    pub sizes: Vec<Size>,
    /// Slope of the line through the sizes (least squares): milliseconds of CPU for each further 1,000 agents and round.
    pub slope_ms_per_1000_agents: Option<f64>,
    /// Exponent p of cost ~ agents^p (least squares on logarithms): 1 is linear.
    pub exponent: Option<f64>,
}

/// A BSP job over so many agents, as a job file with `mode = "bsp"` would give it, on a training set that is large enough.
pub fn job(agents: u32, rounds: u64, policy: &str, batching: Batching) -> Job {
    let global_batch = BATCH * agents;
    let config = JobConfig {
        job: JobId(1),
        name: format!("{agents}-agents"),
        seed: 1,
        train_samples: global_batch.saturating_mul(10),
        test_samples: 0,
        parts: Vec::new(),
        codec: Codec::F32,
        mode: Mode::Bsp,
        global_batch,
        batching,
        shares: BTreeMap::new(),
        batch_bounds: (1, global_batch),
        optimizer: OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        schedule: ScheduleConfig::constant(0.05),
        clip_norm: None,
        agents_min: 1,
        round_deadline: Duration::from_secs(120),
        evaluate: EvaluateConfig { every: EvaluateEvery::Epochs(1), batch: 250 },
        metrics: Vec::new(),
        stop: StopConfig { steps: Some(rounds), ..StopConfig::default() },
        wait_for_agents: agents,
        wait_timeout: Duration::from_secs(60),
    };
    Job { config, stream_bytes: 1_000_000, calibration_batches: Vec::new(), mode: "bsp".into(), policy: policy.into() }
}

/// The dynamic policy with its defaults.
pub fn dynamic() -> Batching {
    Batching::Dynamic {
        controller: Controller::Deadline,
        dead_band: DEAD_BAND_DEFAULT,
        gain: 1.0,
        start: Start::Uniform,
    }
}

/// A fleet in the ratio 6:6:4:32 with 5 % of noise.
pub fn fleet(agents: u32) -> Fleet {
    let speeds = [60.0, 60.0, 40.0, 320.0];
    let agent =
        |(number, speed): (u32, f64)| AgentSpec { noise: 0.05, ..AgentSpec::new(format!("agent-{number}"), speed) };
    let agents = (1..=agents).zip(speeds.into_iter().cycle()).map(agent).collect();
    Fleet { seed: 1, hub_downlink_bytes_per_s: None, hub_uplink_bytes_per_s: None, agents }
}

/// Measures each size and calls `done` after it.
///
/// # Errors
/// [`SimulationError`].
pub fn scale(mode: Mode, agents: &[u32], rounds: u64, mut done: impl FnMut(&Size)) -> Result<Scale, SimulationError> {
    let mut sizes = Vec::new();
    for &agents in agents {
        let (fleet, mut job) = (fleet(agents), job(agents, rounds, "dynamic", dynamic()));
        job.config.mode = mode;
        if mode != Mode::Bsp {
            job.config.stop.steps = Some(rounds * u64::from(agents)); // of one update each
        }
        let outcome = simulate(&fleet, &job, &mut NoGradients::default(), &mut Unwatched)?;
        let core_cpu_ms_per_round = outcome.core_cpu_s * 1e3 / rounds as f64;
        let size = Size {
            agents,
            rounds,
            core_cpu_ms_per_round,
            core_cpu_ms_per_1000_agents_and_round: core_cpu_ms_per_round / f64::from(agents) * 1e3,
            wall_s: outcome.wall_s,
        };
        done(&size);
        sizes.push(size);
    }
    let points = |transform: fn(f64) -> f64| -> Vec<(f64, f64)> {
        let point = |size: &Size| (transform(f64::from(size.agents) / 1e3), transform(size.core_cpu_ms_per_round));
        sizes.iter().map(point).collect()
    };
    let (slope_ms_per_1000_agents, exponent) = (slope(&points(|value| value)), slope(&points(f64::ln)));
    Ok(Scale { sizes, slope_ms_per_1000_agents, exponent })
}

/// Slope of the line through points by least squares; none for fewer than two places.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let (mean_x, mean_y) =
        points.iter().fold((0.0, 0.0), |(x_sum, y_sum), (x, y)| (x_sum + x / count, y_sum + y / count));
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let joint: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    (spread > 0.0 && joint.is_finite()).then(|| joint / spread)
}

impl Scale {
    /// The lines after the table's own.
    pub fn footer(&self) -> String {
        let (Some(slope), Some(exponent)) = (self.slope_ms_per_1000_agents, self.exponent) else {
            return "give two sizes or more for a slope, such as --agents 1000,10000\n".to_owned();
        };
        format!(
            "slope: {slope:.2} ms of CPU for each further 1,000 agents and round; cost grows as agents^{exponent:.2} (1 is linear)\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_the_line_and_the_exponent_that_of_the_power() {
        assert_eq!(slope(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]), Some(2.0));
        let square: Vec<(f64, f64)> = [1.0f64, 3.0, 10.0].map(|x| (x.ln(), (4.0 * x * x).ln())).to_vec();
        assert!((slope(&square).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(slope(&[(1.0, 5.0)]), None);
    }

    #[test]
    fn a_round_does_not_cost_the_square_of_its_agents() {
        // Thirty-two times the agents: an agent may cost a few times as much, for caches, but not thirty times.
        for mode in [Mode::Bsp, Mode::Asp { staleness_max: None, damping: false }, Mode::Ssp { lead_max: 3 }] {
            let scale = scale(mode, &[200, 6400], 5, |_| ()).unwrap();
            let [small, large] = [0, 1].map(|size| scale.sizes[size].core_cpu_ms_per_1000_agents_and_round);
            assert!(large < 10.0 * small, "{mode:?}: {scale:?}");
        }
    }

    #[test]
    fn a_small_fleet_is_measured_at_each_size() {
        let mut seen = Vec::new();
        let scale = scale(Mode::Bsp, &[8, 16], 20, |size| seen.push(size.agents)).unwrap();
        assert_eq!(seen, [8, 16]);
        assert!(scale.sizes.iter().all(|size| size.rounds == 20 && size.core_cpu_ms_per_round > 0.0), "{scale:?}");
    }
}
