//! Fleets and jobs.

use omnilearn_hub_core::config::{Batching, Mode, StopConfig};
use omnilearn_hub_core::{JobConfig, Record};
use omnilearn_simulator::fleet::AgentSpec;
use omnilearn_simulator::gradients::NoGradients;
use omnilearn_simulator::{Fleet, Job, Observer, Outcome, Summary, scale, simulate};

/// Cores of the paper's four agents at heterogeneity level 1, 2, 4 and 8.
pub(crate) const LEVELS: [[f64; 4]; 4] =
    [[12.0; 4], [12.0, 12.0, 8.0, 16.0], [9.0, 9.0, 6.0, 24.0], [6.0, 6.0, 4.0, 32.0]];

/// Agents a, b, c and so on of these speeds in samples per second.
pub(crate) fn fleet(speeds: &[f64]) -> Fleet {
    let agents = ('a'..='z').zip(speeds).map(|(name, &speed)| AgentSpec::new(name, speed)).collect();
    Fleet { seed: 1, hub_downlink_bytes_per_s: None, hub_uplink_bytes_per_s: None, agents }
}

/// With ten samples per second for each core.
pub(crate) fn by_cores(cores: &[f64]) -> Fleet {
    fleet(&cores.iter().map(|cores| cores * 10.0).collect::<Vec<_>>())
}

/// BSP over all agents of a fleet, with a global batch of 256 and the training set of Fashion-MNIST, for so many epochs.
pub(crate) fn job(fleet: &Fleet, batching: Batching, epochs: u32) -> Job {
    let mut job = scale::job(fleet.agents.len() as u32, 1, "", batching);
    let config = &mut job.config;
    (config.global_batch, config.batch_bounds, config.train_samples) = (256, (1, 256), 60_000);
    config.stop = StopConfig { epochs: Some(epochs), ..StopConfig::default() };
    job
}

pub(crate) fn asp(fleet: &Fleet, batching: Batching, epochs: u32) -> Job {
    let mut job = job(fleet, batching, epochs);
    job.config.mode = Mode::Asp { staleness_max: None, damping: false };
    job.mode = "asp".to_owned();
    job
}

/// Keeps every record.
#[derive(Debug, Default)]
pub(crate) struct Records(pub(crate) Vec<Record>);

impl Observer for Records {
    fn record(&mut self, record: &Record) -> std::io::Result<()> {
        self.0.push(record.clone());
        Ok(())
    }
}

impl Records {
    pub(crate) fn steps(&self) -> impl Iterator<Item = &omnilearn_hub_core::record::StepRecord> {
        self.0.iter().filter_map(|record| match record {
            Record::Step(step) => Some(step),
            _ => None,
        })
    }

    /// Every position of each complete epoch is in exactly one accepted update.
    pub(crate) fn assert_covered(&self, config: &JobConfig, epochs: u32) {
        let mut counts = vec![vec![0u32; config.train_samples as usize]; epochs as usize];
        for span in self.steps().flat_map(|step| &step.spans) {
            if let Some(epoch) = counts.get_mut(span.epoch as usize) {
                epoch[span.start as usize..span.end as usize].iter_mut().for_each(|count| *count += 1);
            }
        }
        for (epoch, counts) in counts.iter().enumerate() {
            let wrong = counts.iter().position(|&count| count != 1);
            assert_eq!(
                wrong,
                None,
                "of epoch {epoch}, where the count is {:?}",
                wrong.map(|position| counts[position])
            );
        }
    }
}

pub(crate) fn run(fleet: &Fleet, job: &Job) -> (Summary, Outcome, Records) {
    let mut records = Records::default();
    let outcome = simulate(fleet, job, &mut NoGradients::default(), &mut records);
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    (Summary::new(job, fleet, &outcome, false), outcome, records)
}
