//! Compose files: a hub and agents as containers, each agent with the CPU quota and the memory of what it stands for.
//!
//! The text is what both `docker-compose` 1.29 and `docker compose` 2 accept: no `version`, which the new one calls
//! obsolete, and no `name`, which the old one does not know.

use std::fmt::Write as _;

use crate::heterogeneity::{FLEET_OF_32, HeterogeneityLevel, share};
use crate::profile::Profile;

/// Total of the agents' quotas in the files that are checked in, in cores: nine tenths of a machine of two, so that the hub
/// has some, too.
pub const CORES_DEFAULT: f64 = 1.8;

/// The smallest quota that the engine takes, in cores.
const CORES_MIN: f64 = 0.01;

/// Memory of an agent that stands for no device in particular, in bytes: enough for a LeNet on Fashion-MNIST several times over.
const MEMORY_BYTES: u64 = 512 << 20;

/// The label by which tools find an agent's container, and their order: the place of its service in the file.
pub const PLACE_LABEL: &str = "omnilearn.place";

/// The service of the hub.
pub const HUB_SERVICE: &str = "hub";

/// The service that hands in the job, once.
pub const SUBMIT_SERVICE: &str = "submit";

/// User and group of everything in a container, by number: an image from scratch knows no names.
const USER: &str = "10001:10001";

/// Agents that are alike: one service.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name of the service.
    pub service: String,
    /// What they stand for, in words.
    pub about: String,
    /// How many.
    pub agents: u32,
    /// Speed of one, in any unit: the cores are split in these ratios.
    pub weight: f64,
    /// Memory of one, in bytes.
    pub memory_bytes: u64,
}

/// A hub and its agents.
#[derive(Clone, Debug, PartialEq)]
pub struct ComposeFleet {
    /// Name of the file, without `.yml`.
    pub name: String,
    /// In words.
    pub title: String,
    /// The agents; never none.
    pub groups: Vec<Group>,
    /// Total of their quotas, in cores.
    pub cores: f64,
    /// The job file that is handed in, relative to the compose file.
    pub job: &'static str,
    /// Arguments of `cargo xtask fleet compose` that make this file.
    pub arguments: String,
}

/// Why there is no compose file.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ComposeError {
    /// Nobody to train.
    #[error("a fleet needs an agent; name one with --hl, --ratio or --profile")]
    NoAgents,
    /// The total is impossible.
    #[error("{cores} cores for all agents are impossible")]
    Cores {
        /// The total.
        cores: f64,
    },
    /// A quota below what the engine takes.
    #[error("`{service}` would get {quota:.4} cores, and {CORES_MIN} is the least: give more --cores, or fewer agents")]
    Quota {
        /// The service.
        service: String,
        /// Its quota.
        quota: f64,
    },
}

impl ComposeFleet {
    /// Four agents in the papers' ratios.
    pub fn of_level(level: HeterogeneityLevel, cores: f64) -> ComposeFleet {
        let mut ratios: Vec<(u32, u32)> = Vec::new();
        for ratio in level.ratios(4) {
            match ratios.iter_mut().find(|(known, _)| *known == ratio) {
                Some((_, agents)) => *agents += 1,
                None => ratios.push((ratio, 1)),
            }
        }
        ComposeFleet {
            name: level.to_string().to_lowercase(),
            title: match level {
                HeterogeneityLevel::Hl1 => format!("{level}: four agents, all alike"),
                _ => format!(
                    "{level}: four agents, the strongest with {} times the cores of the weakest",
                    level.number()
                ),
            },
            job: "./jobs/lenet.toml",
            ..ComposeFleet::of_ratios(&ratios, cores, format!("--hl {}", level.number()))
        }
    }

    /// The papers' 32 agents.
    pub fn of_32(cores: f64) -> ComposeFleet {
        ComposeFleet {
            name: "fleet32".to_owned(),
            title: "32 agents with 2 to 32 cores of 168".to_owned(),
            job: "./jobs/lenet-32.toml",
            // One of those that the command writes when it is told nothing.
            ..ComposeFleet::of_ratios(&FLEET_OF_32, cores, String::new())
        }
    }

    /// Agents with shares of the cores, as `(share of one agent, how many have it)`. The service of the first is `agent`, so
    /// that `--scale agent=8` works.
    pub fn of_ratios(ratios: &[(u32, u32)], cores: f64, arguments: String) -> ComposeFleet {
        let total: u32 = ratios.iter().map(|(ratio, agents)| ratio * agents).sum();
        let group = |(index, &(ratio, agents)): (usize, &(u32, u32))| Group {
            service: if index == 0 { "agent".to_owned() } else { format!("agent-{ratio}-cores") },
            about: format!("{ratio} of {total} cores each"),
            agents,
            weight: f64::from(ratio),
            memory_bytes: MEMORY_BYTES,
        };
        let groups: Vec<Group> = ratios.iter().enumerate().map(group).filter(|group| group.agents > 0).collect();
        ComposeFleet {
            name: "fleet".to_owned(),
            title: format!("{} agents", groups.iter().map(|group| group.agents).sum::<u32>()),
            groups,
            cores,
            job: "./jobs/lenet.toml",
            arguments,
        }
    }

    /// Agents that stand for devices, as `(profile, how many)`. Quotas follow what a device can do for ever.
    pub fn of_profiles(profiles: &[(Profile, u32)], cores: f64) -> ComposeFleet {
        let group = |(profile, agents): &(Profile, u32)| Group {
            service: profile.name.clone(),
            about: profile.title.clone(),
            agents: *agents,
            weight: profile.sustained_speed(),
            memory_bytes: profile.memory_bytes,
        };
        let groups: Vec<Group> = profiles.iter().map(group).filter(|group| group.agents > 0).collect();
        let speed: f64 = groups.iter().map(|group| f64::from(group.agents) * group.weight).sum();
        let arguments: Vec<String> =
            groups.iter().map(|group| format!("--profile {}={}", group.service, group.agents)).collect();
        ComposeFleet {
            name: "fleet".to_owned(),
            title: format!(
                "{} devices; a core here does the work of {:.2} reference cores",
                agents_of(&groups),
                speed / cores
            ),
            groups,
            cores,
            job: "./jobs/lenet.toml",
            arguments: arguments.join(" "),
        }
    }

    /// The fleets whose files are checked in.
    pub fn checked_in() -> Vec<ComposeFleet> {
        use HeterogeneityLevel::{Hl1, Hl2, Hl4, Hl8};
        let levels = [Hl1, Hl2, Hl4, Hl8].map(|level| ComposeFleet::of_level(level, CORES_DEFAULT));
        levels.into_iter().chain([ComposeFleet::of_32(CORES_DEFAULT)]).collect()
    }

    /// The quota of one agent of each group, in cores; together they are the fleet's total.
    pub fn quotas(&self) -> Vec<f64> {
        let each: Vec<f64> = self.groups.iter().flat_map(|group| vec![group.weight; group.agents as usize]).collect();
        let quotas = share(&each, self.cores);
        let firsts = self.groups.iter().scan(0, |next, group| {
            let first = *next;
            *next += group.agents as usize;
            Some(first)
        });
        firsts.map(|first| quotas[first]).collect()
    }

    /// The compose file's text.
    ///
    /// # Errors
    /// [`ComposeError`]
    pub fn to_yaml(&self) -> Result<String, ComposeError> {
        if self.groups.is_empty() {
            return Err(ComposeError::NoAgents);
        }
        if !(self.cores.is_finite() && self.cores > 0.0) {
            return Err(ComposeError::Cores { cores: self.cores });
        }
        let mut agents = String::new();
        for (place, (group, quota)) in self.groups.iter().zip(self.quotas()).enumerate() {
            if quota < CORES_MIN {
                return Err(ComposeError::Quota { service: group.service.clone(), quota });
            }
            // Writing to a String cannot fail.
            let _ = write!(
                agents,
                "\n  {service}: # {about}\n    <<: *agent\n    labels: {{{PLACE_LABEL}: \"{place}\"}}\n    deploy: {{replicas: \
                 {count}, resources: {{limits: {{cpus: \"{cpus}\", memory: {memory}M}}}}}}\n",
                service = group.service,
                about = group.about,
                count = group.agents,
                cpus = decimal(quota),
                memory = group.memory_bytes >> 20,
            );
        }
        let Self { name, title, job, cores, arguments, .. } = self;
        let file = format!("docker compose -f devices/compose/{name}.yml");
        let steps = [
            ("cargo xtask fleet images".to_owned(), "once: images and secrets"),
            (format!("{file} up"), "trains; `submit` shows progress and ends with the job"),
            (format!("{file} down -v"), "ends it and forgets its state"),
        ];
        let width = steps.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
        let steps: String = steps.iter().map(|(command, about)| format!("#   {command:width$}  # {about}\n")).collect();
        Ok(TEMPLATE
            .replace("@TITLE@", title)
            .replace("@STEPS@", &steps)
            .replace("@CORES@", &decimal(*cores))
            .replace("@COMMAND@", format!("cargo xtask fleet compose {arguments}").trim_end())
            .replace("@JOB@", job)
            .replace("@USER@", USER)
            .replace("@AGENTS@", &agents))
    }
}

fn agents_of(groups: &[Group]) -> u32 {
    groups.iter().map(|group| group.agents).sum()
}

/// Four digits after the point, without the zeros at the end: 10 µs of the kernel's period.
fn decimal(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const TEMPLATE: &str = r#"# @TITLE@.
#
@STEPS@#
# Made by `@COMMAND@`; change it there and not here.
# The agents have @CORES@ cores together. For another machine, add `--cores N --out FILE`.
# OMNILEARN_DATA names the folder with data sets, OMNILEARN_JOB a job file, OMNILEARN_SECRETS the folder with secrets.

x-all: &all
  networks: [fleet]
  user: "@USER@"
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]

x-agent: &agent
  <<: *all
  image: omnilearn-agent
  build: {context: ../.., dockerfile: devices/images/Containerfile, target: agent}
  command: [run, --hub, "ws://hub:7700", --insecure, --token-file, /run/secrets/token, --trust, "@/run/secrets/hub_public_key",
    --data, /data, --cache, /cache, --health-file, /tmp/health]
  secrets: [token, hub_public_key]
  volumes: ["${OMNILEARN_DATA:-/usr/share/datasets}:/data:ro", "cache:/cache"]
  restart: unless-stopped
  healthcheck: {test: [CMD, /usr/bin/omnilearn-agent, health, /tmp/health], interval: 60s, timeout: 30s, retries: 3, start_period: 120s}

services:
  hub:
    <<: *all
    image: omnilearn-hub
    build: {context: ../.., dockerfile: devices/images/Containerfile, target: hub}
    command: [serve, --listen, "0.0.0.0:7700", --insecure, --token-file, /run/secrets/token, --key-file, /run/secrets/hub_key,
      --state, /state]
    secrets: [token, hub_key]
    volumes: ["state:/state"]
    restart: unless-stopped
    healthcheck: {test: [CMD, /usr/bin/omnilearn-hub, health], interval: 5s, timeout: 5s, retries: 6}
    deploy: {resources: {limits: {memory: 1024M}}}

  submit: # hands in the job and shows its progress
    <<: *all
    image: omnilearn-hub
    command: [submit, /job.toml, --follow, --hub, "http://hub:7700", --token-file, /run/secrets/token]
    secrets: [token]
    volumes: ["${OMNILEARN_JOB:-@JOB@}:/job.toml:ro"]
    depends_on: {hub: {condition: service_healthy}}
    restart: "no"
    deploy: {resources: {limits: {memory: 256M}}}
@AGENTS@
networks:
  fleet: {internal: true} # no way out: what the agents need comes from the hub

volumes:
  state: {} # the hub's jobs, records and weights
  cache: {} # unpacked data sets and compiled kernels, for all agents

secrets:
  token: {file: "${OMNILEARN_SECRETS:-./secrets}/token"}
  hub_key: {file: "${OMNILEARN_SECRETS:-./secrets}/hub.key"}
  hub_public_key: {file: "${OMNILEARN_SECRETS:-./secrets}/hub.pub"}
"#;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_files_that_are_checked_in_are_what_the_generator_writes() {
        for fleet in ComposeFleet::checked_in() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("compose").join(&fleet.name).with_extension("yml");
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == fleet.to_yaml().unwrap(), "{}: run `cargo xtask fleet compose`", path.display());
            let job = path.parent().unwrap().join(fleet.job);
            assert!(job.is_file(), "{}", job.display());
        }
    }

    #[test]
    fn quotas_are_the_papers_ratios_scaled_to_the_total() {
        let hl8 = ComposeFleet::of_level(HeterogeneityLevel::Hl8, 1.8);
        let services: Vec<(&str, u32)> =
            hl8.groups.iter().map(|group| (group.service.as_str(), group.agents)).collect();
        assert_eq!(services, [("agent", 2), ("agent-4-cores", 1), ("agent-32-cores", 1)]);
        for (quota, expected) in hl8.quotas().iter().zip([0.225, 0.15, 1.2]) {
            assert!((quota - expected).abs() < 1e-12, "{:?}", hl8.quotas());
        }
        let yaml = hl8.to_yaml().unwrap();
        assert!(yaml.contains(r#"{replicas: 2, resources: {limits: {cpus: "0.225", memory: 512M}}}"#), "{yaml}");
        for fleet in ComposeFleet::checked_in() {
            let total: f64 =
                fleet.groups.iter().zip(fleet.quotas()).map(|(group, quota)| f64::from(group.agents) * quota).sum();
            assert!((total - 1.8).abs() < 1e-9, "{}: {total}", fleet.name);
        }
    }

    #[test]
    fn devices_get_cores_by_what_they_can_do_for_ever_and_their_own_memory() {
        let profile = |name| Profile::find(name).unwrap();
        let fleet = ComposeFleet::of_profiles(&[(profile("raspberry-pi-4"), 10), (profile("cloud-burstable"), 1)], 4.0);
        let quotas = fleet.quotas();
        let expected = (4.0 * 0.189) / (0.4 * 0.703);
        assert!((quotas[0] / quotas[1] - expected).abs() < 1e-9, "{quotas:?}");
        let yaml = fleet.to_yaml().unwrap();
        assert!(yaml.contains("\n  raspberry-pi-4: #") && yaml.contains("memory: 4096M"), "{yaml}");
        assert!(yaml.contains("--profile raspberry-pi-4=10 --profile cloud-burstable=1"), "{yaml}");
    }

    #[test]
    fn every_placeholder_is_filled() {
        for fleet in ComposeFleet::checked_in() {
            let yaml = fleet.to_yaml().unwrap();
            assert_eq!(yaml.matches('@').count(), 1, "only the file of trusted keys begins with it: {yaml}");
        }
    }

    #[test]
    fn what_the_engine_would_refuse_is_refused_here() {
        let fleet = |cores| ComposeFleet::of_32(cores).to_yaml();
        assert!(matches!(fleet(0.5), Err(ComposeError::Quota { ref service, .. }) if service == "agent"));
        assert_eq!(fleet(0.0), Err(ComposeError::Cores { cores: 0.0 }));
        assert_eq!(ComposeFleet::of_profiles(&[], 1.0).to_yaml(), Err(ComposeError::NoAgents));
    }
}
