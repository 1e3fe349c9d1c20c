//! Steps of SGD on the agent: from the hub's parameters, to push what they change; or from parameters of its own, to push what an
//! elastic force draws the hub's towards them.

use omnilearn_cpu::Buffer;
use omnilearn_wire::message::{Failure, LocalSteps};

use super::pass::{Computed, Point, Together, pass_seed};
use super::samples::Drawn;
use super::{Trainer, failed};
use crate::engine::{Engine, Tensor};
use crate::session::ComputeError;

/// Parameters that an agent keeps from one assignment to the next.
pub(super) struct Own {
    parameters: Vec<Tensor>,
    momentum: Momentum,
}

/// m, as long as the parameters; nothing where there is none.
#[derive(Default)]
struct Momentum(Vec<Buffer>);

impl Trainer {
    /// Makes local steps. The gradient is what moves the hub's parameters, with learning rate 1, to where they are to be.
    pub(super) fn local(&mut self, samples: &[Drawn], local: LocalSteps, seed: u64) -> Result<Computed, ComputeError> {
        check(local)?;
        let Point { parameters: hub, buffers } = self.point();
        // After an error the agent starts at the hub's again, whatever it was that went wrong with its own.
        let own = self.own.take().filter(|_| local.elastic.is_some());
        let Own { parameters, mut momentum } =
            own.unwrap_or_else(|| Own { parameters: hub.clone(), momentum: Momentum::default() });
        let mut point = Point { parameters, buffers };
        let mut together = Together::default();
        for (pass, batch) in batches(samples, local.steps).enumerate() {
            let mut computed = self.pass(&point, batch, pass_seed(seed, pass))?;
            let gradients = std::mem::take(&mut computed.gradient.gradients);
            momentum.descend(&self.engine, &mut point.parameters, &gradients, local);
            point.buffers.clone_from(&computed.gradient.buffers);
            together.add(computed);
        }
        let computed = together.finish(&self.engine, &hub);
        let mut computed =
            computed.ok_or_else(|| failed(Failure::Data, "there are no samples to compute".to_owned()))?;
        let changes: Vec<Buffer> =
            hub.iter().zip(&point.parameters).map(|(hub, own)| pull(hub, own, local.elastic.unwrap_or(1.0))).collect();
        if local.elastic.is_some() {
            let moved = |(own, change): (&Tensor, &Buffer)| {
                own.with_floats(|own| {
                    let mut moved = Buffer::new(own.len());
                    let values = moved.iter_mut().zip(own).zip(change.iter());
                    values.for_each(|((moved, own), change)| *moved = own + change);
                    moved
                })
            };
            let parameters =
                point.parameters.iter().zip(&changes).map(|pair| stored(&self.engine, moved(pair), pair.0));
            self.own = Some(Own { parameters: parameters.collect(), momentum });
        }
        let gradients = changes.into_iter().zip(&hub).map(|(change, hub)| Some(stored(&self.engine, change, hub)));
        computed.gradient.gradients = gradients.collect();
        Ok(computed)
    }
}

/// What the hub asks for comes from outside.
fn check(local: LocalSteps) -> Result<(), ComputeError> {
    let LocalSteps { steps, learning_rate, momentum, elastic } = local;
    let sound = steps > 0
        && learning_rate.is_finite()
        && learning_rate > 0.0
        && (0.0..1.0).contains(&momentum)
        && elastic.is_none_or(|alpha| alpha > 0.0 && alpha < 1.0);
    if sound { Ok(()) } else { Err(failed(Failure::Data, format!("these local steps make no sense: {local:?}"))) }
}

/// Cuts samples, in order, into so many batches whose sizes differ by one at most; into fewer where there are fewer samples.
fn batches<T>(samples: &[T], steps: u32) -> impl Iterator<Item = &[T]> {
    let steps = (steps as usize).min(samples.len());
    let (size, larger) = (samples.len().checked_div(steps).unwrap_or(0), samples.len().checked_rem(steps).unwrap_or(0));
    let end = move |step: usize| step * size + step.min(larger);
    (0..steps).map(move |step| &samples[end(step)..end(step + 1)])
}

/// s·(x̃ − x), with x̃ the hub's.
fn pull(hub: &Tensor, own: &Tensor, part: f32) -> Buffer {
    hub.with_floats(|hub| {
        own.with_floats(|own| {
            let mut change = Buffer::new(hub.len());
            let values = change.iter_mut().zip(hub).zip(own);
            values.for_each(|((change, hub), own)| *change = part * (hub - own));
            change
        })
    })
}

fn stored(engine: &Engine, values: Buffer, like: &Tensor) -> Tensor {
    engine.stored(values, like.shape())
}

impl Momentum {
    /// m ← μm + g, x ← x − ηm; a parameter without a gradient has g = 0.
    fn descend(
        &mut self,
        engine: &Engine,
        parameters: &mut [Tensor],
        gradients: &[Option<Tensor>],
        LocalSteps { learning_rate, momentum, .. }: LocalSteps,
    ) {
        if momentum > 0.0 && self.0.is_empty() {
            self.0 = parameters.iter().map(|parameter| Buffer::zeroed(parameter.elements())).collect();
        }
        for (index, (parameter, gradient)) in parameters.iter_mut().zip(gradients).enumerate() {
            if let Some(velocity) = self.0.get_mut(index) {
                velocity.iter_mut().for_each(|velocity| *velocity *= momentum);
                if let Some(gradient) = gradient {
                    let add = |(velocity, gradient): (&mut f32, &f32)| *velocity += gradient;
                    gradient.with_floats(|gradient| velocity.iter_mut().zip(gradient).for_each(add));
                }
                *parameter = stepped(engine, parameter, velocity, learning_rate);
            } else if let Some(gradient) = gradient {
                *parameter = gradient.with_floats(|gradient| stepped(engine, parameter, gradient, learning_rate));
            }
        }
    }
}

/// x − η·direction.
fn stepped(engine: &Engine, parameter: &Tensor, direction: &[f32], learning_rate: f32) -> Tensor {
    let values = parameter.with_floats(|values| {
        let mut stepped = Buffer::new(values.len());
        let elements = stepped.iter_mut().zip(values).zip(direction);
        elements.for_each(|((stepped, value), direction)| *stepped = value - learning_rate * direction);
        stepped
    });
    stored(engine, values, parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_nearly_equal_and_in_order() {
        let samples: Vec<u32> = (0..11).collect();
        let sizes = |steps| batches(&samples, steps).map(<[u32]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(4), [3, 3, 3, 2]);
        assert_eq!(sizes(1), [11]);
        assert_eq!(sizes(50), [1; 11]);
        assert_eq!(batches(&samples, 4).flatten().copied().collect::<Vec<_>>(), samples);
        assert_eq!(batches::<u32>(&[], 4).count(), 0);
    }

    #[test]
    fn what_the_agent_loses_the_hub_gains() {
        let engine = Engine::default();
        let (hub, own) = (engine.floats(vec![1.0, 2.0], &[2]), engine.floats(vec![3.0, -2.0], &[2]));
        let change = pull(&hub, &own, 0.25);
        assert_eq!(&*change, [-0.5, 1.0]); // the hub subtracts it, the agent adds it
        let (ahead, behind) = (pull(&hub, &own, 0.25), pull(&own, &hub, 0.25));
        assert!(ahead.iter().zip(behind.iter()).all(|(ahead, behind)| *ahead == -behind), "the force is symmetric");
    }

    #[test]
    fn steps_are_those_of_sgd_with_momentum() {
        let engine = Engine::default();
        let local = LocalSteps { steps: 2, learning_rate: 0.5, momentum: 0.5, elastic: None };
        let mut parameters = vec![engine.floats(vec![1.0], &[1]), engine.floats(vec![7.0], &[1])];
        let gradients = [Some(engine.floats(vec![2.0], &[1])), None];
        let mut momentum = Momentum::default();
        momentum.descend(&engine, &mut parameters, &gradients, local);
        momentum.descend(&engine, &mut parameters, &gradients, local);
        assert_eq!(parameters[0].to_vec(), [1.0 - 0.5 * 2.0 - 0.5 * 3.0]);
        assert_eq!(parameters[1].to_vec(), [7.0]);
    }

    #[test]
    fn steps_that_make_no_sense_are_refused() {
        let local = LocalSteps { steps: 1, learning_rate: 0.1, momentum: 0.0, elastic: Some(0.5) };
        assert!(check(local).is_ok());
        for bad in [
            LocalSteps { steps: 0, ..local },
            LocalSteps { learning_rate: f32::NAN, ..local },
            LocalSteps { momentum: 1.0, ..local },
            LocalSteps { elastic: Some(1.5), ..local },
        ] {
            assert_eq!(check(bad).unwrap_err().failure, Failure::Data, "{bad:?}");
        }
    }
}
