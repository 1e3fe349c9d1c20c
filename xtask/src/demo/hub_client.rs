//! The demo's view of its hub: the HTTP interface under `/api/v1`, as far as it is needed here.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::records::{EvaluationRecord, RunRecords, StepRecord};

/// Longest wait for an answer: the hub is on this machine, but the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One hub.
#[derive(Clone, Debug)]
pub(crate) struct HubClient {
    address: String,
    authorization: Option<String>,
    http: ureq::Agent,
}

impl HubClient {
    /// The hub at `http://HOST:PORT`.
    pub(crate) fn new(address: String) -> Self {
        // A proxy for the world outside has no business between two processes of one machine.
        let config =
            ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).proxy(None).http_status_as_error(false);
        Self { address, authorization: None, http: config.build().into() }
    }

    /// The same hub, which wants this token.
    pub(crate) fn with_token(self, token: &str) -> Self {
        Self { authorization: Some(format!("Bearer {}", token.trim())), ..self }
    }

    /// Its address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Whether it answers.
    pub(crate) fn is_up(&self) -> bool {
        self.http.get(format!("{}/healthz", self.address)).call().is_ok_and(|response| response.status().is_success())
    }

    /// The public key with which it signs kernels.
    ///
    /// # Errors
    /// When the hub does not answer.
    pub(crate) fn key(&self) -> anyhow::Result<String> {
        #[derive(Deserialize)]
        struct Health {
            key: String,
        }
        Ok(self.read::<Health>(&format!("{}/healthz", self.address))?.key)
    }

    /// Agents that are connected.
    ///
    /// # Errors
    /// When the hub does not answer.
    pub(crate) fn connected_agents(&self) -> anyhow::Result<usize> {
        #[derive(Deserialize)]
        struct Agent {
            connected: bool,
        }
        Ok(self.get::<Vec<Agent>>("agents")?.iter().filter(|agent| agent.connected).count())
    }

    /// Bytes received from and sent to all agents on their connections.
    ///
    /// # Errors
    /// When the hub does not answer.
    pub(crate) fn agent_bytes(&self) -> anyhow::Result<(u64, u64)> {
        #[derive(Deserialize)]
        struct Agent {
            received_bytes: u64,
            sent_bytes: u64,
        }
        let agents = self.get::<Vec<Agent>>("agents")?;
        Ok(agents.iter().fold((0, 0), |(up, down), agent| (up + agent.received_bytes, down + agent.sent_bytes)))
    }

    /// A job.
    ///
    /// # Errors
    /// When the hub does not answer or does not know it.
    pub(crate) fn job(&self, job: u64) -> anyhow::Result<Job> {
        self.get(&format!("jobs/{job}"))
    }

    /// Everything that a job recorded.
    ///
    /// # Errors
    /// When the hub does not answer.
    pub(crate) fn records(&self, job: u64) -> anyhow::Result<Records> {
        let mut all = Records::default();
        loop {
            let page: Records = self.get(&format!("jobs/{job}/steps?since={}", all.next))?;
            let (more, next) = (page.more, page.next);
            all.steps.extend(page.steps);
            all.rounds.extend(page.rounds);
            all.evaluations.extend(page.evaluations);
            if !more {
                return Ok(all);
            }
            if next <= all.next {
                bail!("the hub's records do not go on after {next}");
            }
            all.next = next;
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.read(&format!("{}/api/v1/{path}", self.address))
    }

    fn read<T: DeserializeOwned>(&self, address: &str) -> anyhow::Result<T> {
        let mut request = self.http.get(address);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let mut response = request.call().with_context(|| format!("asking {address}"))?;
        if !response.status().is_success() {
            let body = response.body_mut().read_to_string().unwrap_or_default();
            bail!("{address} answered {}: {body}", response.status());
        }
        // A page of records is far below this, and no hub of ours sends more.
        let body = response.body_mut().with_config().limit(256 << 20);
        body.read_json().with_context(|| format!("reading the answer of {address}"))
    }
}

/// A job, as far as the demo looks at it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Job {
    /// `queued`, `running`, `done`, `stopped`, `failed` or `interrupted`.
    pub(crate) state: String,
    /// Why.
    #[serde(default)]
    pub(crate) message: String,
    /// How it does.
    pub(crate) progress: Option<JobStatus>,
}

impl Job {
    /// Whether it came to its planned end.
    pub(crate) fn is_done(&self) -> bool {
        self.state == "done"
    }
}

/// How a job does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct JobStatus {
    /// What it waits for, in words.
    pub(crate) waiting: Vec<String>,
    /// Optimizer steps so far.
    pub(crate) version: u64,
    /// Epochs of accepted samples so far.
    pub(crate) epoch: f64,
    /// Mean loss of the last step.
    pub(crate) loss: Option<f64>,
    /// Accuracy of the last evaluation.
    pub(crate) accuracy: Option<f64>,
    /// Throughput of late.
    pub(crate) samples_per_s: Option<f64>,
    /// Time since the start without evaluation, in seconds.
    pub(crate) training_s: f64,
    /// Agents that take part.
    pub(crate) agents: Vec<AgentStatus>,
    /// Agents that do not, and why.
    pub(crate) declined: HashMap<String, String>,
    /// Counts since the start, such as of `stragglers`.
    pub(crate) counters: HashMap<String, u64>,
}

/// How an agent does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct AgentStatus {
    /// Its number.
    pub(crate) agent: u32,
    /// Its name.
    pub(crate) name: String,
    /// Local batch.
    pub(crate) local_batch: u32,
    /// Sustained time of a step, smoothed, in seconds.
    pub(crate) step_s: Option<f64>,
    /// Accepted updates.
    pub(crate) updates: u64,
    /// Mean staleness of its updates, in steps.
    pub(crate) staleness_mean: Option<f64>,
}

impl AgentStatus {
    /// A line for a terminal.
    pub(crate) fn describe(&self, idle_share: Option<f64>) -> String {
        let time = self.step_s.map_or_else(|| "    -".to_owned(), |time| format!("{:5.1}", time * 1000.0));
        let idle = idle_share.map_or_else(|| "  -".to_owned(), |idle| format!("{:3.0}", idle * 100.0));
        let mut line = format!("{:<10} batch {:>4}   compute {time} ms   idle {idle} %", self.name, self.local_batch);
        if let Some(staleness) = self.staleness_mean.filter(|&staleness| staleness > 0.0) {
            line.push_str(&format!("   staleness {staleness:.1}"));
        }
        line
    }

    /// The same in a few characters.
    pub(crate) fn describe_short(&self, idle_share: Option<f64>) -> String {
        let time = self.step_s.map_or_else(|| "-".to_owned(), |time| format!("{:.0} ms", time * 1000.0));
        let idle = idle_share.map_or_else(|| "-".to_owned(), |idle| format!("{:.0} % idle", idle * 100.0));
        format!("{} b={} {time} {idle}", self.name, self.local_batch)
    }
}

/// Records of a job in the order in which they were made.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Records {
    steps: Vec<StepRow>,
    rounds: Vec<RoundRow>,
    evaluations: Vec<EvaluationRow>,
    next: u64,
    more: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct StepRow {
    version: u64,
    agent: u32,
    samples: u32,
    staleness: u64,
    // Times may be missing; then they say as little as those of a warm-up.
    #[serde(default)]
    wait_s: f64,
    #[serde(default)]
    sustained_s: f64,
    #[serde(default)]
    cpu_s: f64,
    #[serde(default = "yes")]
    warm_up: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Deserialize)]
struct RoundRow {
    version: u64,
    training_s: f64,
    epoch: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct EvaluationRow {
    version: u64,
    training_s: f64,
    loss: f64,
    accuracy: Option<f64>,
}

impl Records {
    /// What table and plots need. `agents` are the hub's numbers and names in the order of `quotas`.
    ///
    /// # Errors
    /// When an update has no version or comes from an agent that is not ours.
    pub(crate) fn into_run(
        self,
        agents: &[(u32, String)],
        quotas: &[f64],
        train_samples: u32,
    ) -> anyhow::Result<RunRecords> {
        let rounds: HashMap<u64, &RoundRow> = self.rounds.iter().map(|round| (round.version, round)).collect();
        let places: HashMap<u32, usize> =
            agents.iter().enumerate().map(|(place, (agent, _))| (*agent, place)).collect();
        let mut steps = Vec::with_capacity(self.steps.len());
        for row in &self.steps {
            let round = rounds.get(&row.version).with_context(|| format!("no record of version {}", row.version))?;
            let agent = *places.get(&row.agent).with_context(|| format!("an update of unknown agent {}", row.agent))?;
            steps.push(StepRecord {
                agent,
                at_s: round.training_s,
                version: row.version,
                // Epochs after the step; the last step of an epoch still belongs to it.
                epoch: (round.epoch.ceil() as u32).saturating_sub(1),
                batch: row.samples,
                staleness: row.staleness,
                wait_s: row.wait_s,
                sustained_s: row.sustained_s,
                cpu_s: row.cpu_s,
                warm_up: row.warm_up,
            });
        }
        steps.sort_by_key(|step| (step.version, step.agent));
        let evaluation = |row: &EvaluationRow| {
            let accuracy = row.accuracy?;
            Some(EvaluationRecord { at_s: row.training_s, version: row.version, loss: row.loss, accuracy })
        };
        Ok(RunRecords {
            agents: agents.iter().map(|(_, name)| name.clone()).collect(),
            quotas: quotas.to_vec(),
            train_samples,
            steps,
            evaluations: self.evaluations.iter().filter_map(evaluation).collect(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn status() -> JobStatus {
        let text = r#"{"phase": "training", "waiting": ["waiting for updates of agent-3"], "version": 292, "epoch": 1.25,
            "loss": 0.5117, "accuracy": 0.841, "samples_per_s": 9100.4, "training_s": 12.0, "declined": {}, "agents": [
            {"agent": 3, "name": "agent-1", "state": "training", "local_batch": 32, "step_s": 0.0281, "updates": 292,
             "staleness_mean": 0.0}]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn an_agent_is_described_by_batch_compute_time_and_idle_share() {
        let agent = &status().agents[0];
        assert_eq!(agent.describe(Some(0.04)), "agent-1    batch   32   compute  28.1 ms   idle   4 %");
        assert_eq!(agent.describe_short(Some(0.04)), "agent-1 b=32 28 ms 4 % idle");
        assert!(AgentStatus { staleness_mean: Some(2.96), ..agent.clone() }.describe(None).ends_with("staleness 3.0"));
    }

    fn page() -> Records {
        let text = r#"{"steps": [
            {"id": 1, "version": 1, "agent": 7, "samples": 40, "staleness": 0, "sustained_s": 0.2, "warm_up": true},
            {"id": 2, "version": 1, "agent": 5, "samples": 60, "staleness": 0, "sustained_s": 0.1, "warm_up": false},
            {"id": 4, "version": 2, "agent": 5, "samples": 100, "staleness": 1, "sustained_s": 0.1, "warm_up": false}],
            "rounds": [{"id": 3, "version": 1, "training_s": 0.25, "epoch": 1.0}, {"id": 5, "version": 2, "training_s": 0.5, "epoch": 2.0}],
            "evaluations": [{"id": 6, "version": 2, "training_s": 0.5, "loss": 0.3, "accuracy": 0.9}],
            "batches": [], "next": 7, "more": false}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn updates_get_the_training_time_and_the_epoch_of_their_version() {
        let agents = [(5, "agent-1".to_owned()), (7, "agent-2".to_owned())];
        let run = page().into_run(&agents, &[0.5, 0.5], 100).unwrap();
        let found: Vec<_> = run.steps.iter().map(|step| (step.agent, step.at_s, step.epoch, step.batch)).collect();
        assert_eq!(found, [(0, 0.25, 0, 60), (1, 0.25, 0, 40), (0, 0.5, 1, 100)]);
        assert_eq!(run.evaluations[0].accuracy, 0.9);
        assert_eq!(run.epoch_s(), Some(0.25));
    }

    #[test]
    fn an_update_of_a_stranger_is_an_error() {
        let agents = [(5, "agent-1".to_owned())];
        assert!(page().into_run(&agents, &[1.0], 100).unwrap_err().to_string().contains("unknown agent 7"));
    }
}
