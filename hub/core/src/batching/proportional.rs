//! The paper's controller: b_k ← b_k − X_k·(μ_k − t̄), which is b_k·t̄/μ_k, with a normaliser so that the sum stays B.
//!
//! μ_k is an exponentially weighted mean of the step time since the last change, t̄ the mean of μ over agents, X_k = b_k/μ_k.
//!
//! Guard: where raising a batch lowered an agent's throughput, the batch before is its largest for a while. Memory and
//! caches make such knees; the bound is forgotten after [`GUARD_STEPS`], so that a passing disturbance does not stay for ever.
//!
//! Source: "Taming Resource Heterogeneity in Distributed ML Training with Dynamic Batching" (ACSOS 2020). Its rule does not
//! keep Σb; scaling all candidates alike does, and cannot make a batch negative.

use omnilearn_wire::AgentId;

use super::static_::Static;
use super::{
    Place, Policy, Proposal, Rating, SETTLE_STEPS, Speed, apportion, approach, largest_change, place_of, share,
};
use crate::agents::AgentMap;
use crate::config::Start;

/// Part of a new step in the mean.
const SMOOTHING: f64 = 0.2;
/// A raised batch must not lower throughput below this part of what it was.
const GUARD_RATIO: f64 = 0.95;
/// Steps for which a guard holds.
const GUARD_STEPS: u32 = 400;

#[derive(Debug)]
pub(super) struct Proportional {
    dead_band: f64,
    gain: f64,
    start: Start,
    ratings: Static,
    agents: AgentMap<Window>,
}

#[derive(Debug, Default)]
struct Window {
    mean_s: f64,
    steps: u32,
    /// Throughput of the last settled window, whatever its batch.
    throughput: Option<f64>,
    /// Batch before the last change and the throughput there, if that change raised it.
    raised_from: Option<(u32, f64)>,
    guard: Option<Guard>,
}

#[derive(Clone, Copy, Debug)]
struct Guard {
    batch_max: u32,
    steps_left: u32,
}

impl Proportional {
    pub(super) fn new(dead_band: f64, gain: f64, start: Start) -> Proportional {
        Proportional { dead_band, gain, start, ratings: Static::default(), agents: AgentMap::default() }
    }

    /// Sets guards for those whose throughput fell when their batch was raised.
    fn guard(&mut self, present: &[Place]) -> Option<AgentId> {
        let mut guarded = None;
        for place in present {
            let Some(window) = self.agents.get_mut(place.agent) else { continue };
            let throughput = f64::from(place.batch) / window.mean_s;
            window.throughput = Some(throughput);
            if let Some((batch_max, before)) = window.raised_from.take()
                && throughput < GUARD_RATIO * before
            {
                window.guard = Some(Guard { batch_max, steps_left: GUARD_STEPS });
                guarded = guarded.or(Some(place.agent));
            }
        }
        guarded
    }
}

impl Policy for Proportional {
    fn join(&mut self, agent: AgentId, rating: Rating) {
        self.agents.insert(agent, Window::default());
        self.ratings.join(agent, rating);
    }

    fn leave(&mut self, agent: AgentId) {
        self.agents.remove(agent);
        self.ratings.leave(agent);
    }

    fn observe(&mut self, agent: AgentId, _batch: u32, seconds: f64) {
        let Some(window) = self.agents.get_mut(agent) else { return };
        window.steps = window.steps.saturating_add(1);
        // The plain mean until that many steps are in, so that the first one does not weigh most.
        window.mean_s += SMOOTHING.max(1.0 / f64::from(window.steps)) * (seconds - window.mean_s);
        if let Some(guard) = &mut window.guard {
            guard.steps_left -= 1;
            window.guard = window.guard.filter(|guard| guard.steps_left > 0);
        }
    }

    fn lacks_steps(&self, agent: AgentId) -> bool {
        self.agents.get(agent).is_some_and(|window| window.steps < SETTLE_STEPS)
    }

    fn speeds(&self, agents: &[AgentId]) -> Vec<Speed> {
        let throughput = |agent: AgentId| self.agents.get(agent).and_then(|window| window.throughput);
        self.ratings.by_throughput(agents, self.start, throughput)
    }

    fn propose(&mut self, total: u32, present: &[Place]) -> Option<Proposal> {
        let settled = |place: &Place| self.agents.get(place.agent).is_some_and(|window| window.steps >= SETTLE_STEPS);
        if !present.iter().all(settled) {
            return None;
        }
        let guarded = self.guard(present);
        let windows: Vec<&Window> = present.iter().filter_map(|place| self.agents.get(place.agent)).collect();
        let mean_s = windows.iter().map(|window| window.mean_s).sum::<f64>() / windows.len() as f64;
        let shares = |guards: bool| -> Vec<_> {
            let shares = present.iter().zip(&windows).map(|(place, window)| {
                let candidate = f64::from(place.batch) * mean_s / window.mean_s;
                let mut share = share(place, Speed { offset: 0.0, rate: candidate });
                if let Some(guard) = window.guard.filter(|_| guards) {
                    share.max = guard.batch_max.clamp(share.min, share.max);
                }
                share
            });
            shares.collect()
        };
        // Where the guards leave no room for the whole batch, they yield.
        let targets =
            apportion::targets(total, &shares(true)).or_else(|_| apportion::targets(total, &shares(false))).ok()?;
        let targets = if guarded.is_some() { targets } else { approach(present, &targets, self.gain) };
        if guarded.is_none() && largest_change(present, &targets) <= self.dead_band {
            return None;
        }
        let (slowest, fastest) = windows.iter().fold((0.0f64, f64::INFINITY), |(slowest, fastest), window| {
            (slowest.max(window.mean_s), fastest.min(window.mean_s))
        });
        let reason = match guarded {
            Some(agent) => format!("agent {agent} was slower with a larger batch"),
            None => format!("steps from {:.1} to {:.1} ms", fastest * 1e3, slowest * 1e3),
        };
        Some(Proposal { targets, reason })
    }

    fn changed(&mut self, before: &[Place], now: &[Place]) {
        for window in self.agents.values_mut() {
            (window.mean_s, window.steps, window.raised_from) = (0.0, 0, None);
        }
        for place in now {
            if let (Some(earlier), Some(window)) = (place_of(before, place.agent), self.agents.get_mut(place.agent))
                && place.batch > earlier.batch
                && earlier.batch > 0
            {
                window.raised_from = window.throughput.map(|throughput| (earlier.batch, throughput));
            }
        }
    }
}
