//! How the global batch is split over agents: a `Policy` says how fast each is, [`apportion`](mod@apportion) makes
//! whole batches of it, and the `Batcher` remembers the split and changes it when agents come and go or the policy
//! proposes better.

use std::collections::BTreeMap;
use std::fmt::Debug;

use omnilearn_wire::AgentId;
use omnilearn_wire::message::CalibrationPoint;

use crate::config::{Batching, Controller};
use apportion::{Infeasible, Share};

pub mod apportion;
mod deadline;
mod epoch;
mod fit;
mod proportional;
mod static_;
mod uniform;

/// Steps without warm-up that each agent must have made at its present batch before a controller moves it.
const SETTLE_STEPS: u32 = 8;

/// Times that a step may take; what agents report outside is ignored.
const SECONDS: std::ops::Range<f64> = 1e-9..1e9;

/// How fast an agent is taken to be: a batch of b takes `offset + b / rate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speed {
    pub(crate) offset: f64,
    pub(crate) rate: f64,
}

impl Speed {
    pub(crate) const EQUAL: Speed = Speed { offset: 0.0, rate: 1.0 };
}

/// What an agent says of itself before it trains.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rating {
    pub(crate) calibration: Vec<CalibrationPoint>,
    /// CPU quota in cores, or else cores.
    pub(crate) cores: f64,
    /// The share that the job gives the agent by name.
    pub(crate) share: Option<f64>,
}

/// An agent's place in the present split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) agent: AgentId,
    pub(crate) batch: u32,
    /// The real batch that `batch` was rounded from.
    pub(crate) target: f64,
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// What the batch should be a multiple of, over 0.
    pub(crate) step: u32,
}

/// A better split.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) targets: Vec<f64>,
    pub(crate) reason: String,
}

/// A way to split the global batch. A new one is a new file.
pub(crate) trait Policy: Debug + Send {
    /// An agent is new, or starts afresh.
    fn join(&mut self, agent: AgentId, rating: Rating);
    /// An agent is gone for good.
    fn leave(&mut self, agent: AgentId);
    /// An agent made a step, not a warm-up, of so many samples.
    fn observe(&mut self, _agent: AgentId, _batch: u32, _seconds: f64) {}
    /// Whether it needs to see more steps of an agent before it can tell whether batches should change.
    fn lacks_steps(&self, _agent: AgentId) -> bool {
        false
    }
    /// Speeds of these agents relative to each other, for a split from scratch.
    fn speeds(&self, agents: &[AgentId]) -> Vec<Speed>;
    /// Rates of these agents relative to each other, as far as they are known, for work that is not training.
    fn rates(&self, agents: &[AgentId]) -> Vec<f64> {
        self.speeds(agents).into_iter().map(|speed| speed.rate).collect()
    }
    /// Whether the present split should be another. Called often.
    fn propose(&mut self, _total: u32, _present: &[Place]) -> Option<Proposal> {
        None
    }
    /// The batches have changed to these.
    fn changed(&mut self, _before: &[Place], _now: &[Place]) {}
}

/// The split of the global batch.
#[derive(Debug)]
pub(crate) struct Batcher {
    policy: Box<dyn Policy>,
    global_batch: u32,
    bounds: (u32, u32),
    batch_max: BTreeMap<AgentId, u32>,
    /// What an agent's batches should be multiples of, where that is not 1.
    batch_step: BTreeMap<AgentId, u32>,
    /// By agent.
    present: Vec<Place>,
    active: Vec<AgentId>,
    outdated: Option<String>,
    effective: u32,
    infeasible: Option<Infeasible>,
}

impl Batcher {
    pub(crate) fn new(batching: Batching, global_batch: u32, bounds: (u32, u32)) -> Batcher {
        let policy: Box<dyn Policy> = match batching {
            Batching::Uniform => Box::new(uniform::Uniform::default()),
            Batching::Static => Box::new(static_::Static::default()),
            Batching::Dynamic { controller: Controller::Proportional, dead_band, gain, start } => {
                Box::new(proportional::Proportional::new(dead_band, gain, start))
            }
            Batching::Dynamic { controller: Controller::Deadline, dead_band, gain, start } => {
                Box::new(deadline::Deadline::new(dead_band, gain, start))
            }
            Batching::Dynamic { controller: Controller::Epoch { samples }, dead_band, gain, start } => {
                Box::new(epoch::Epoch::new(samples, dead_band, gain, start))
            }
        };
        Batcher {
            policy,
            global_batch,
            bounds,
            batch_max: BTreeMap::new(),
            batch_step: BTreeMap::new(),
            present: Vec::new(),
            active: Vec::new(),
            outdated: None,
            effective: global_batch,
            infeasible: None,
        }
    }

    /// An agent that can take batches of `batch_max` samples, best in multiples of `batch_step`, over 0.
    pub(crate) fn join(&mut self, agent: AgentId, mut rating: Rating, batch_max: Option<u32>, batch_step: u32) {
        rating.calibration.retain(|point| point.samples > 0 && SECONDS.contains(&point.step_s));
        rating.cores = if rating.cores.is_finite() { rating.cores.max(0.0) } else { 0.0 };
        self.policy.join(agent, rating);
        self.batch_max.insert(agent, batch_max.unwrap_or(u32::MAX));
        self.batch_step.insert(agent, batch_step.max(1));
        self.outdated = Some(format!("agent {agent} joined"));
    }

    pub(crate) fn leave(&mut self, agent: AgentId) {
        self.policy.leave(agent);
        self.batch_max.remove(&agent);
        self.batch_step.remove(&agent);
    }

    /// Lowers the largest batch of an agent. Returns whether it can still work.
    pub(crate) fn limit(&mut self, agent: AgentId, batch_max: u32) -> bool {
        let limit = self.batch_max.entry(agent).or_insert(u32::MAX);
        *limit = batch_max.min(*limit);
        self.outdated = Some(format!("agent {agent} has memory for {limit} samples"));
        *limit >= self.bounds.0
    }

    pub(crate) fn batch_max(&self, agent: AgentId) -> Option<u32> {
        self.batch_max.get(&agent).copied().filter(|&max| max != u32::MAX)
    }

    pub(crate) fn observe(&mut self, agent: AgentId, batch: u32, seconds: f64) {
        if SECONDS.contains(&seconds) && batch > 0 {
            self.policy.observe(agent, batch, seconds);
        }
    }

    /// Whether steps of an agent are wanted for their times.
    pub(crate) fn lacks_steps(&self, agent: AgentId) -> bool {
        self.policy.lacks_steps(agent)
    }

    /// The local batch of an agent; 0 if it has none.
    pub(crate) fn batch(&self, agent: AgentId) -> u32 {
        place_of(&self.present, agent).map_or(0, |place| place.batch)
    }

    pub(crate) fn batches(&self) -> Vec<(AgentId, u32)> {
        self.present.iter().map(|place| (place.agent, place.batch)).collect()
    }

    /// Σ b_k that is really assigned.
    pub(crate) fn effective_global_batch(&self) -> u32 {
        self.effective
    }

    /// Why that is not the configured one, or why not every agent has work.
    pub(crate) fn infeasible(&self) -> Option<Infeasible> {
        self.infeasible
    }

    /// In proportion to what work that is not training is shared out over these agents.
    pub(crate) fn rates(&self, agents: &[AgentId]) -> Vec<f64> {
        self.policy.rates(agents)
    }

    /// Agents that sit on a bound and would be given less, or more, without it.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = (AgentId, u32, bool)> {
        let pinned = |place: &Place| {
            let at_min = place.batch == place.min && place.target <= f64::from(place.min) && place.min != place.max;
            let at_max = place.batch == place.max && place.target >= f64::from(place.max) && place.min != place.max;
            (at_min || at_max).then_some((place.agent, place.batch, at_min))
        };
        let several = self.present.len() > 1;
        self.present.iter().filter_map(pinned).filter(move |_| several)
    }

    /// Whether what agents can take has changed since the split.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.is_some()
    }

    /// How many agents have a batch.
    pub(crate) fn agents(&self) -> usize {
        self.present.len()
    }

    /// Brings the split up to date for these agents. Returns why, if it changed.
    pub(crate) fn update(&mut self, active: Vec<AgentId>) -> Option<String> {
        let gone = first_without(&self.active, &active).map(|agent| format!("agent {agent} left"));
        let new = first_without(&active, &self.active).map(|agent| format!("agent {agent} joined"));
        let outdated = self.outdated.take();
        if let Some(reason) = gone.or(new).or(outdated.filter(|_| !active.is_empty())) {
            self.active = active;
            let before = std::mem::take(&mut self.present);
            self.present = self.split_anew();
            return self.settle(before).then_some(reason);
        }
        let proposal = self.policy.propose(self.effective, &self.present)?;
        let shares: Vec<Share> = self.present.iter().map(|place| share(place, Speed::EQUAL)).collect();
        let batches = apportion::round(self.effective, &proposal.targets, &shares);
        let before = self.present.clone();
        for ((place, &target), batch) in self.present.iter_mut().zip(&proposal.targets).zip(batches) {
            (place.target, place.batch) = (target, batch);
        }
        self.settle(before).then_some(proposal.reason)
    }

    /// Whether batches really changed; tells the policy if so.
    fn settle(&mut self, before: Vec<Place>) -> bool {
        let batches = |places: &[Place]| places.iter().map(|place| (place.agent, place.batch)).collect::<Vec<_>>();
        let changed = batches(&before) != batches(&self.present);
        if changed {
            self.policy.changed(&before, &self.present);
        }
        changed
    }

    fn split_anew(&mut self) -> Vec<Place> {
        let (min, job_max) = self.bounds;
        let max = |agent: &AgentId| self.batch_max.get(agent).map_or(job_max, |&max| max.min(job_max));
        let mut agents: Vec<AgentId> = self.active.iter().copied().filter(|agent| max(agent) >= min).collect();
        self.effective = self.global_batch;
        self.infeasible = None;
        let speeds = self.policy.speeds(&agents);
        let places = |agents: &[AgentId]| -> Vec<Place> {
            let place = |&agent: &AgentId| {
                let step = self.batch_step.get(&agent).copied().unwrap_or(1);
                Place { agent, batch: 0, target: 0.0, min, max: max(&agent), step }
            };
            agents.iter().map(place).collect()
        };
        let shares = |places: &[Place], speeds: &[Speed]| -> Vec<Share> {
            places.iter().zip(speeds).map(|(place, &speed)| share(place, speed)).collect()
        };
        let mut places_now = places(&agents);
        let mut shares_now = shares(&places_now, &speeds);
        match apportion::targets(self.effective, &shares_now) {
            Ok(_) => {}
            Err(error @ Infeasible::Minimum { total, .. }) => {
                // More agents than smallest batches: the fastest work.
                self.infeasible = Some(error);
                let mut order: Vec<(AgentId, Speed)> = agents.iter().copied().zip(speeds).collect();
                order.sort_by(|a, b| b.1.rate.total_cmp(&a.1.rate).then(a.0.cmp(&b.0)));
                order.truncate((total / min) as usize);
                order.sort_by_key(|&(agent, _)| agent);
                agents = order.iter().map(|&(agent, _)| agent).collect();
                let speeds: Vec<Speed> = order.iter().map(|&(_, speed)| speed).collect();
                places_now = places(&agents);
                shares_now = shares(&places_now, &speeds);
                // Whoever is left may now be too few for the whole batch, where memory is short.
                let room = places_now.iter().map(|place| u64::from(place.max)).sum::<u64>();
                self.effective = u64::from(total).min(room) as u32;
            }
            Err(error @ Infeasible::Maximum { sum, .. }) => {
                self.infeasible = Some(error);
                self.effective = sum as u32; // below the global batch
            }
            Err(Infeasible::NoAgents { .. }) => return Vec::new(),
        }
        let Ok(targets) = apportion::targets(self.effective, &shares_now) else { return Vec::new() };
        let batches = apportion::round(self.effective, &targets, &shares_now);
        for ((place, target), batch) in places_now.iter_mut().zip(targets).zip(batches) {
            (place.target, place.batch) = (target, batch);
        }
        places_now
    }
}

/// The first of these agents that is not one of the others; both in order.
fn first_without(these: &[AgentId], others: &[AgentId]) -> Option<AgentId> {
    let is_new = |agent: &AgentId| others.binary_search(agent).is_err();
    if these == others { None } else { these.iter().copied().find(is_new) }
}

/// An agent's place among these, which are in the order of agents.
pub(crate) fn place_of(places: &[Place], agent: AgentId) -> Option<&Place> {
    places.binary_search_by_key(&agent, |place| place.agent).ok().map(|index| &places[index])
}

pub(crate) fn share(place: &Place, speed: Speed) -> Share {
    Share { offset: speed.offset, rate: speed.rate, min: place.min, max: place.max, step: place.step }
}

/// Largest relative distance between two sets of real batches.
pub(crate) fn largest_change(present: &[Place], targets: &[f64]) -> f64 {
    present.iter().zip(targets).map(|(place, target)| (target - place.target).abs() / place.target).fold(0.0, f64::max)
}

/// A part `gain` of the way from the present real batches to the targets.
pub(crate) fn approach(present: &[Place], targets: &[f64], gain: f64) -> Vec<f64> {
    present.iter().zip(targets).map(|(place, target)| place.target + gain * (target - place.target)).collect()
}

#[cfg(test)]
mod tests;
