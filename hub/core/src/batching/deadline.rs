//! One finish time for all: t_k(b) = o_k + b/X_k is fitted per agent, and b_k = (T − o_k)·X_k with T such that Σb_k = B.
//!
//! Source: OmniLearn's closed loop, with its model of time extended by what does not grow with the batch (launches,
//! transfer), which lets one adjustment from equal batches reach the balance.

use omnilearn_wire::AgentId;

use super::fit::{Fit, Line};
use super::static_::Static;
use super::{Place, Policy, Proposal, Rating, SETTLE_STEPS, Speed, apportion, approach, largest_change, share};
use crate::agents::AgentMap;
use crate::config::Start;

/// Steps after which an agent whose speed has changed is moved, without waiting for the others' fresh steps.
const CHANGED_SETTLE_STEPS: u32 = 5;
/// Up to so many if others seem to change, too: what changes several agents should move batches once.
const DOUBT_STEPS: u32 = 8;
/// Steps after which batches move that are so far from balance that even a coarse look saves this part of the step.
const EARLY_STEPS: u32 = 4;
const EARLY_SAVING: f64 = 0.25;
/// Each adjustment corrects less than the one before, so it looks at twice as many steps, up to this many.
const SETTLE_STEPS_MAX: u32 = 16;
/// A change must be larger than the dead-band, and change an agent's time by more than this many standard errors of it.
const DEVIATIONS: f64 = 3.5;
/// A change must be predicted to shorten the step by this part of the dead-band, or to bring the slowest and the fastest
/// agent closer by the dead-band.
const SAVING_PER_DEAD_BAND: f64 = 0.25;

#[derive(Debug)]
pub(super) struct Deadline {
    dead_band: f64,
    gain: f64,
    start: Start,
    ratings: Static,
    agents: AgentMap<Observed>,
    /// Fresh steps that the next adjustment needs of each agent.
    settle_steps: u32,
}

#[derive(Debug)]
struct Observed {
    fit: Fit,
    /// Steps since the batches last changed.
    fresh: u32,
    /// Found to have changed its speed since then.
    changed: bool,
}

impl Deadline {
    pub(super) fn new(dead_band: f64, gain: f64, start: Start) -> Deadline {
        Deadline {
            dead_band,
            gain,
            start,
            ratings: Static::default(),
            agents: AgentMap::default(),
            settle_steps: SETTLE_STEPS,
        }
    }

    fn line(&self, agent: AgentId) -> Option<Line> {
        self.agents.get(agent)?.fit.line()
    }

    /// The part of the step that a change must save by now; none while too little is known of any.
    fn least_saving(&self, present: &[Place]) -> Option<f64> {
        let observed = |place: &Place| self.agents.get(place.agent);
        let changed = present.iter().filter_map(observed).filter(|observed| observed.changed);
        let Some(since) = changed.map(|observed| observed.fit.steps()).min() else {
            let fresh = present.iter().map(|place| observed(place).map_or(0, |it| it.fresh)).min().unwrap_or(0);
            return match fresh {
                fresh if fresh >= self.settle_steps => Some(0.0),
                fresh if fresh >= EARLY_STEPS => Some(EARLY_SAVING),
                _ => None,
            };
        };
        let known =
            present.iter().all(|place| observed(place).is_some_and(|it| it.fit.steps() >= CHANGED_SETTLE_STEPS));
        let doubt = present.iter().filter_map(observed).any(|observed| observed.fit.is_in_doubt());
        (known && (!doubt || since >= DOUBT_STEPS)).then_some(0.0)
    }

    /// Whether any agent's time would change by more than what is known of it may be off.
    fn is_significant(&self, present: &[Place], targets: &[f64]) -> bool {
        present.iter().zip(targets).any(|(place, &target)| {
            let Some(Observed { fit, .. }) = self.agents.get(place.agent) else { return false };
            let change = fit.line().map_or(0.0, |line| (line.at(target) / line.at(place.target) - 1.0).abs());
            change > DEVIATIONS * fit.uncertainty()
        })
    }

    /// Batches that end together, if they are worth a change.
    fn improvement(&self, total: u32, present: &[Place], least_saving: f64) -> Option<Proposal> {
        let has_changed = |agent: &AgentId| self.agents.get(*agent).is_some_and(|observed| observed.changed);
        let changed: Vec<AgentId> = present.iter().map(|place| place.agent).filter(has_changed).collect();
        // What changes several agents at once is not to move samples to those where it is noticed last.
        let line = |place: &Place| {
            let fit = &self.agents.get(place.agent)?.fit;
            if changed.is_empty() { fit.line() } else { fit.suspected() }
        };
        let lines: Vec<Line> = present.iter().map(line).collect::<Option<_>>()?;
        let shares: Vec<_> = present.iter().zip(&lines).map(|(place, line)| share(place, line.speed())).collect();
        let targets = approach(present, &apportion::targets(total, &shares).ok()?, self.gain);
        if largest_change(present, &targets) <= self.dead_band || !self.is_significant(present, &targets) {
            return None;
        }
        let times = |batches: &mut dyn Iterator<Item = u32>| {
            let times = lines.iter().zip(batches).map(|(line, batch)| line.at(f64::from(batch)));
            times.fold((f64::INFINITY, 0.0f64), |(fastest, slowest), time| (fastest.min(time), slowest.max(time)))
        };
        let (fastest_now_s, now_s) = times(&mut present.iter().map(|place| place.batch));
        let (fastest_then_s, then_s) = times(&mut apportion::round(total, &targets, &shares).into_iter());
        let saving = 1.0 - then_s / now_s;
        let evened = now_s / fastest_now_s - then_s / fastest_then_s;
        if saving < least_saving || (saving <= SAVING_PER_DEAD_BAND * self.dead_band && evened <= self.dead_band) {
            return None;
        }
        let names = changed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let cause = if changed.is_empty() { String::new() } else { format!("agent {names} changed speed: ") };
        let reason = format!("{cause}step of the slowest from {:.1} to {:.1} ms", now_s * 1e3, then_s * 1e3);
        Some(Proposal { targets, reason })
    }
}

impl Policy for Deadline {
    fn join(&mut self, agent: AgentId, rating: Rating) {
        let fit = Fit::new(&rating.calibration);
        self.agents.insert(agent, Observed { fit, fresh: 0, changed: false });
        self.ratings.join(agent, rating);
    }

    fn leave(&mut self, agent: AgentId) {
        self.agents.remove(agent);
        self.ratings.leave(agent);
    }

    fn observe(&mut self, agent: AgentId, batch: u32, seconds: f64) {
        if let Some(observed) = self.agents.get_mut(agent) {
            observed.fresh = observed.fresh.saturating_add(1);
            observed.changed |= observed.fit.observe(batch, seconds);
        }
    }

    fn lacks_steps(&self, agent: AgentId) -> bool {
        self.agents.get(agent).is_some_and(|observed| observed.fresh < self.settle_steps)
    }

    fn speeds(&self, agents: &[AgentId]) -> Vec<Speed> {
        let trained =
            agents.iter().any(|&agent| self.agents.get(agent).is_some_and(|observed| observed.fit.steps() > 0));
        if !trained {
            let rated = self.ratings.rated(agents).filter(|_| self.start == Start::Static);
            return rated.unwrap_or_else(|| vec![Speed::EQUAL; agents.len()]);
        }
        let known: Vec<Speed> = agents.iter().filter_map(|&agent| self.line(agent).map(Line::speed)).collect();
        // An agent of which nothing is known is taken to be like the mean of the others.
        let count = known.len() as f64;
        let mean = Speed {
            offset: known.iter().map(|speed| speed.offset).sum::<f64>() / count,
            rate: known.iter().map(|speed| speed.rate).sum::<f64>() / count,
        };
        agents.iter().map(|&agent| self.line(agent).map_or(mean, Line::speed)).collect()
    }

    fn propose(&mut self, total: u32, present: &[Place]) -> Option<Proposal> {
        let proposal = self.improvement(total, present, self.least_saving(present)?);
        if proposal.is_none() {
            // What has changed is no reason to move anything.
            self.agents.values_mut().for_each(|observed| observed.changed = false);
        }
        proposal
    }

    fn changed(&mut self, before: &[Place], now: &[Place]) {
        let agents = |places: &[Place]| places.iter().map(|place| place.agent).collect::<Vec<_>>();
        let upset = self.agents.values().any(|observed| observed.changed) || agents(before) != agents(now);
        self.settle_steps = if upset { SETTLE_STEPS } else { (self.settle_steps * 2).min(SETTLE_STEPS_MAX) };
        for observed in self.agents.values_mut() {
            observed.fresh = 0;
            observed.changed = false;
        }
    }
}
