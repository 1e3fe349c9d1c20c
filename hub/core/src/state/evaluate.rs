//! The course of an evaluation: when it begins, who gets which part, and what its end makes due.

use omnilearn_wire::message::Evaluate;
use omnilearn_wire::{AgentId, AssignmentId};

use super::State;
use crate::Now;
use crate::action::{Action, Level, StopReason};
use crate::evaluation::{Evaluation, Totals};
use crate::membership::Work;
use crate::push::PushError;
use crate::record::{EvaluationRecord, Record};

impl State {
    /// Between two rounds: evaluates if that is due. Returns whether the next round must wait, or the job is over.
    pub(crate) fn evaluate_behind_barrier(&mut self, now: Now) -> bool {
        self.evaluate(now, true)
    }

    /// While others train: agents without work get their part first. Returns whether there is no more training.
    pub(crate) fn evaluate_in_passing(&mut self, now: Now) -> bool {
        self.evaluate(now, false)
    }

    fn evaluate(&mut self, now: Now, barrier: bool) -> bool {
        if let Some(totals) = self.evaluation.as_ref().and_then(Evaluation::totals) {
            self.finish_evaluation(now, totals);
        }
        if self.evaluation.is_none() {
            let due = std::mem::take(&mut self.evaluation_due) || self.ending.is_some();
            if self.config.test_samples > 0 && due && self.evaluated != Some(self.model.version) {
                self.begin_evaluation(now);
            } else if let Some(reason) = self.ending.take() {
                self.finish(reason);
                return true;
            }
        }
        let waits = self.evaluation.is_some() && (barrier || self.ending.is_some());
        self.give_out_parts(now);
        let pace = match &self.evaluation {
            _ if !self.started || waits => 0.0,
            None => 1.0,
            Some(evaluation) => 1.0 - evaluation.running_share(),
        };
        self.clock.set_pace(now, pace);
        waits
    }

    fn begin_evaluation(&mut self, now: Now) {
        let at = (self.cursor.epoch_progress(), self.clock.seconds(now));
        let mut evaluation = Evaluation::new(self.model.clone(), self.config.test_samples, at, now);
        let agents: Vec<AgentId> = self.members.available(now);
        evaluation.plan(&agents, &self.batcher.rates(&agents));
        self.evaluation = Some(evaluation);
    }

    fn give_out_parts(&mut self, now: Now) {
        let Some(evaluation) = &mut self.evaluation else { return };
        let overdue = evaluation.overdue_at(self.config.round_deadline).is_some_and(|overdue| overdue <= now);
        if evaluation.is_given_out() && !overdue {
            return; // as after most events; a look at every agent each time would cost the square of the agents
        }
        let available = self.members.available(now);
        evaluation.release(|agent| available.binary_search(&agent).is_ok());
        let idle = self.members.idle(now);
        if overdue && !idle.is_empty() {
            for (agent, id) in evaluation.running().collect::<Vec<_>>() {
                evaluation.lost(agent);
                self.members.set_work(agent, Work::Idle);
                self.members.missed(agent, now, self.config.round_deadline);
                self.counters.stragglers += 1;
                self.out.push(Action::Cancel { agent, assignment: id });
                let (agent, name) = self.members.name(agent);
                let fields = vec![("agent", agent.to_string()), ("name", name)];
                self.out.notice(Level::Warn, "an agent's part of the evaluation is given to others", fields);
            }
        }
        for agent in idle {
            let Some(part) = evaluation.next(agent) else { continue };
            let id = self.ledger.next_id();
            let version = evaluation.snapshot.version;
            let has_parameters = self.members.begin(agent, Work::Evaluate, version);
            let parameters = (!has_parameters).then(|| evaluation.snapshot.clone());
            evaluation.issued(id, agent, part, now);
            let work = Evaluate {
                job: self.config.job,
                assignment: id,
                version,
                start: part.start,
                end: part.end,
                batch: self.config.evaluate.batch,
            };
            self.out.push(Action::Evaluate { agent, work, parameters });
        }
    }

    fn finish_evaluation(&mut self, now: Now, totals: Totals) {
        let Some(evaluation) = self.evaluation.take() else { return };
        let samples = f64::from(totals.samples);
        let mean = |index: usize| totals.metrics.get(index).map(|sum| sum / samples);
        let accuracy = self.config.correct_metric().and_then(mean);
        let record = EvaluationRecord {
            version: evaluation.snapshot.version,
            epoch: evaluation.epoch,
            training_s: evaluation.training_s,
            wall_s: now.as_secs_f64(),
            samples: totals.samples,
            loss: totals.loss / samples,
            accuracy,
            metrics: self.config.metrics.iter().cloned().zip((0..).map_while(mean)).collect(),
        };
        self.evaluated = Some(record.version);
        let target = self.config.stop.target_accuracy;
        if let (Some(accuracy), Some(target)) = (accuracy, target)
            && accuracy >= target
        {
            self.ending = Some(StopReason::TargetAccuracy { accuracy, target });
            self.evaluated = Some(self.model.version); // ASP has moved on a little; that is not evaluated again
        }
        self.last_evaluation = Some(record.clone());
        self.out.push(Action::Record(Record::Evaluation(record)));
    }

    /// Takes an agent's result. Returns whether it was its own and complete.
    pub(crate) fn evaluated(
        &mut self,
        (agent, id): (AgentId, AssignmentId),
        samples: u32,
        sums: (f64, Vec<f64>),
        now: Now,
    ) -> bool {
        let Some(evaluation) = &mut self.evaluation else { return false };
        evaluation.result((agent, id), samples, sums, self.config.metrics.len(), now)
    }

    /// Whether an agent is at a part of the evaluation under way.
    pub(crate) fn is_evaluating(&self, agent: AgentId, id: AssignmentId) -> bool {
        self.evaluation.as_ref().is_some_and(|evaluation| evaluation.is_running(agent, id))
    }

    /// An agent will not evaluate what it has.
    pub(crate) fn evaluation_lost(&mut self, agent: AgentId) {
        if let Some(evaluation) = &mut self.evaluation {
            evaluation.lost(agent);
        }
    }

    /// When the evaluation needs a look.
    pub(crate) fn evaluation_deadline(&self) -> Option<Now> {
        let evaluation = self.evaluation.as_ref()?;
        let nobody = self.ending.is_some().then(|| evaluation.idle_since()).flatten();
        let nobody = nobody.map(|since| since + self.config.round_deadline);
        evaluation.overdue_at(self.config.round_deadline).into_iter().chain(nobody).min()
    }

    /// The last evaluation is not waited for where nobody is left to do it.
    pub(crate) fn end_without_agents(&mut self, now: Now) {
        let idle_since = self.evaluation.as_ref().and_then(Evaluation::idle_since);
        let nobody = idle_since.is_some_and(|since| now >= since + self.config.round_deadline);
        if nobody && let Some(reason) = self.ending.take() {
            self.out.notice(Level::Warn, "nobody is left for the last evaluation", Vec::new());
            self.finish(reason);
        }
    }

    /// Ends the job.
    pub(crate) fn finish(&mut self, reason: StopReason) {
        if let Some(evaluation) = self.evaluation.take() {
            for (agent, id) in evaluation.running() {
                self.members.set_work(agent, Work::Idle);
                self.out.push(Action::Cancel { agent, assignment: id });
            }
        }
        for agent in self.ledger.all_open().map(|assignment| assignment.agent).collect::<Vec<_>>() {
            self.give_up(agent, PushError::JobOver);
        }
        self.finished = Some(reason.clone());
        self.out.push(Action::Finished(reason));
    }
}
