//! What an agent sees of its machine, for a person or a program.

use std::fmt;

use omnilearn_wire::dataset::CATALOGUE;
use omnilearn_wire::message::Machine;
use serde_json::{Value, json};

use crate::config::AgentConfig;
use crate::dataset::Dataset;
use crate::device::{Adapter, DeviceChoice};
use crate::session::{ComputeFactory, writable};
use crate::trainer::TrainerFactory;

/// A machine as an agent with this configuration would use it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    name: String,
    machine: Machine,
    adapters: Vec<Adapter>,
    /// Why the device that was asked for cannot be had, if it cannot.
    device_problem: Option<String>,
    cache: String,
    /// Why the cache folder is of no use, if it is not.
    cache_problem: Option<String>,
    /// Each data set, and why it cannot be used, if it cannot.
    datasets: Vec<(&'static str, Option<String>)>,
}

impl Report {
    /// Looks at the machine and opens every data set that is there.
    pub fn of(config: &AgentConfig) -> Report {
        let problem = |name| Dataset::open(name, &config.data, &config.cache).err().map(|error| error.to_string());
        let (factory, device_problem) = match TrainerFactory::new(config) {
            Ok(factory) => (Ok(factory), None),
            Err(error) => {
                let cpu = AgentConfig { device: DeviceChoice::Cpu, ..config.clone() };
                (TrainerFactory::new(&cpu), Some(error.to_string()))
            }
        };
        let factory = factory.expect("the CPU is always there");
        Report {
            name: config.name.clone(),
            machine: factory.machine(),
            adapters: factory.adapters().to_vec(),
            device_problem,
            cache: config.cache.display().to_string(),
            cache_problem: writable(&config.cache).err().map(|error| format!("{error}: {}", error.cause)),
            datasets: CATALOGUE.iter().map(|dataset| (dataset.name, problem(dataset.name))).collect(),
        }
    }

    /// The same as one JSON object.
    pub fn json(&self) -> Value {
        let datasets = self.datasets.iter().map(|(name, problem)| json!({ "name": name, "problem": problem }));
        let adapters =
            self.adapters.iter().map(|adapter| json!({ "name": adapter.name, "rejected": adapter.rejected }));
        json!({
            "name": self.name,
            "machine": self.machine,
            "device_problem": self.device_problem,
            "adapters": adapters.collect::<Vec<_>>(),
            "cache": { "folder": self.cache, "problem": self.cache_problem },
            "datasets": datasets.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { architecture, os, cores, quota_cores, threads, memory_bytes, compute_device, agent_version } =
            &self.machine;
        let quota = quota_cores.map_or("none".to_owned(), |quota_cores| format!("{quota_cores:.2} cores"));
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(formatter, "{name:<16}{value}");
        line("name", &self.name)?;
        line("agent", &format_args!("{agent_version} on {architecture} {os}"))?;
        line("cores", cores)?;
        line("CPU quota", &quota)?;
        line("compute threads", threads)?;
        line("compute device", self.device_problem.as_ref().unwrap_or(compute_device))?;
        for (number, adapter) in self.adapters.iter().enumerate() {
            line("adapter", &format_args!("gpu:{number} is {adapter}"))?;
        }
        line("memory", &format_args!("{} MiB", memory_bytes >> 20))?;
        line("cache", &format_args!("{} ({})", self.cache, self.cache_problem.as_deref().unwrap_or("writable")))?;
        for (name, problem) in &self.datasets {
            line("data set", &format_args!("{name}: {}", problem.as_deref().unwrap_or("ready")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_what_is_missing_and_what_to_do() {
        let folder = tempfile::TempDir::new().unwrap();
        let mut config = AgentConfig::new(crate::config::HubAddress::nowhere());
        config.cache = folder.path().to_owned();
        config.threads = std::num::NonZeroUsize::new(3);
        let report = Report::of(&config);
        let text = report.to_string();
        assert!(text.contains("compute threads 3\n") && text.contains("writable"), "{text}");
        assert_eq!(report.json()["machine"]["threads"], 3);
        for (index, dataset) in CATALOGUE.iter().enumerate() {
            assert!(text.contains(dataset.name), "{text}");
            assert_eq!(report.json()["datasets"][index]["name"], dataset.name);
        }
    }
}
