//! Whether a device computes what the CPU computes: a GPU's driver may be wrong without saying so.

use omnilearn_kernel_host::{Kernel, Limits};
use omnilearn_wire::message::JobOffer;
use tracing::info;

use super::{JobFiles, Trainer, guarded};
use crate::engine::{Engine, Operators};

/// Samples that both compute.
const SAMPLES: u32 = 8;

/// Largest difference of the loss, and of the gradient as a whole, relative to the CPU's.
const DIFFERENCE_MAX: f64 = 1e-3;

/// Computes one forward and backward pass of a job's kernel, from its first parameters, on the device and on the CPU.
///
/// # Errors
/// What differs by how much, or what failed; the device must not take part then.
pub(super) fn check(
    offer: &JobOffer,
    kernel: &Kernel,
    files: &JobFiles,
    device: Engine,
    limits: Limits,
) -> Result<(), String> {
    let name = device.description().to_owned();
    let on = |engine: Engine| first_gradient(offer, kernel, files, engine, limits);
    let (cpu_loss, cpu) = on(Engine::cpu(Operators::Own))?;
    let (loss, gradient) = on(device).map_err(|error| format!("{name}: {error}"))?;
    let loss_difference = (loss - cpu_loss).abs() / cpu_loss.abs().max(f64::MIN_POSITIVE);
    let gradient_difference = difference(&gradient, &cpu);
    info!(device = name, loss_difference, gradient_difference, "compared with the CPU");
    for (what, found) in [("loss", loss_difference), ("gradient", gradient_difference)] {
        if found.is_nan() || found > DIFFERENCE_MAX {
            return Err(format!(
                "{name} computes wrongly: its {what} differs from the CPU's by {found:.1e} of it, {DIFFERENCE_MAX:.0e} \
                 allowed; update its driver, or use --device cpu"
            ));
        }
    }
    Ok(())
}

/// Loss and gradient of the first samples.
fn first_gradient(
    offer: &JobOffer,
    kernel: &Kernel,
    files: &JobFiles,
    engine: Engine,
    limits: Limits,
) -> Result<(f64, Vec<f32>), String> {
    let mut trainer = Trainer::new(offer, kernel, files.clone(), engine, limits)?;
    let count = SAMPLES.min(u32::try_from(trainer.dataset.train().len()).unwrap_or(u32::MAX));
    let samples: Vec<u32> = (0..count).collect();
    let computed = guarded("a trial step", || {
        let (inputs, targets) = trainer.load(trainer.dataset.train(), &samples)?;
        let computed = trainer.differentiate(inputs, targets, offer.seed)?;
        let mut gradient = Vec::new();
        for tensor in computed.gradients.iter().flatten() {
            tensor.with_floats(|values| gradient.extend_from_slice(values));
        }
        Ok((computed.loss.into(), gradient))
    });
    computed.map_err(|error| format!("a trial step failed: {}", error.message))
}

/// `|a - b| / |b|`
fn difference(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::NAN;
    }
    let square = |value: f64| value * value;
    let distance: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let length: f64 = b.iter().map(|&b| square(b.into())).sum();
    (distance / length.max(f64::MIN_POSITIVE)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_to_the_whole_gradient() {
        assert_eq!(difference(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert!((difference(&[3.0, 4.005], &[3.0, 4.0]) - 1e-3).abs() < 1e-6);
        assert!(difference(&[1.0], &[1.0, 2.0]).is_nan());
    }
}
