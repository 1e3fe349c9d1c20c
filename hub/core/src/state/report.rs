//! A job at a glance.

use super::State;
use crate::Now;
use crate::batching::apportion::Infeasible;
use crate::status::{Phase, Status, Waiting};

impl State {
    /// The status, but for what the rule of synchronisation waits for.
    pub(crate) fn status(&self, now: Now, rule_waits: Option<Waiting>) -> Status {
        let mut agents: Vec<_> = self.members.status(now).collect();
        for agent in &mut agents {
            agent.local_batch = self.batcher.batch(agent.agent);
            agent.batch_max = self.batcher.batch_max(agent.agent);
        }
        let waiting = self.waiting(now, rule_waits);
        let phase = match (&self.finished, &self.evaluation) {
            (Some(reason), _) => Phase::Finished(reason.clone()),
            (None, Some(_)) => Phase::Evaluating,
            (None, None) if waiting.iter().any(|waiting| matches!(waiting, Waiting::Agents { .. })) => Phase::Waiting,
            (None, None) => Phase::Training,
        };
        let steps = || agents.iter().filter(|agent| agent.local_batch > 0).filter_map(|agent| agent.step_s);
        let (fastest, slowest) = (steps().fold(f64::INFINITY, f64::min), steps().fold(0.0, f64::max));
        let last = self.last_evaluation.as_ref();
        Status {
            phase,
            waiting,
            version: self.model.version,
            epoch: self.cursor.epoch_progress(),
            loss: self.loss,
            test_loss: last.map(|record| record.loss),
            accuracy: last.and_then(|record| record.accuracy),
            samples_per_s: self.samples_per_s(),
            learning_rate: self.learning_rate(),
            global_batch: self.batcher.effective_global_batch(),
            max_over_min_step: (steps().count() > 1 && fastest > 0.0).then(|| slowest / fastest),
            wall_s: now.as_secs_f64(),
            training_s: self.clock.seconds(now),
            remarks: self.remarks(),
            counters: self.counters,
            agents,
        }
    }

    fn samples_per_s(&self) -> Option<f64> {
        let ((from_s, from), (to_s, to)) = (self.throughput.front()?, self.throughput.back()?);
        (to_s > from_s).then(|| (to - from) as f64 / (to_s - from_s))
    }

    fn waiting(&self, now: Now, rule_waits: Option<Waiting>) -> Vec<Waiting> {
        let mut waiting = Vec::new();
        if self.is_over() {
            return waiting;
        }
        if let Some(evaluation) = &self.evaluation {
            let agents = evaluation.running().map(|(agent, _)| self.members.name(agent)).collect();
            waiting.push(Waiting::Evaluation { agents, samples: evaluation.samples_missing() });
        }
        if !self.may_start(now) {
            let needed = self.agents_needed(now);
            let until = (needed > self.config.agents_min).then_some(self.config.wait_timeout);
            waiting.push(Waiting::Agents { ready: self.members.available_count(now) as u32, needed, until });
        }
        waiting.extend(rule_waits);
        waiting
    }

    /// What keeps the split from being balanced.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        match self.batcher.infeasible() {
            Some(error @ Infeasible::Maximum { .. }) => remarks.push(format!(
                "{error}: the global batch is {}, and the learning rate is scaled with it",
                self.batcher.effective_global_batch()
            )),
            Some(error @ Infeasible::Minimum { .. }) => {
                remarks.push(format!("{error}: only the fastest {} agents work", self.batcher.batches().len()));
            }
            Some(Infeasible::NoAgents { .. }) | None => {}
        }
        for (agent, batch, at_min) in self.batcher.pinned() {
            let (_, name) = self.members.name(agent);
            let (bound, wish) = if at_min { ("minimum", "less") } else { ("maximum", "more") };
            remarks
                .push(format!("agent {name} is on its {bound} batch of {batch}; a balanced step would give it {wish}"));
        }
        remarks
    }
}
