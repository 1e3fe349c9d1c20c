//! How fast this machine is with a model: `overhead_s + b / samples_per_s`, measured through a real hub and agent.

use std::path::Path;

use anyhow::{Context, bail};
use toml::Table;

use super::catalogue::{Catalogue, ModelSpec, Speed, lay_over};
use super::definition::Definition;
use super::library::Library;
use crate::bench::median_of;
use crate::demo::{Job, Kit, RunRecords, table};
use crate::interrupt::Interrupt;

/// About how long each of the two batch sizes is measured. Many periods of a CPU quota, which throttles in bursts.
const MEASURE_S: f64 = 4.0;

/// Bounds of the number of steps that this makes.
const STEPS: (f64, f64) = (20.0, 2000.0);

/// The part of a run's steps that is left out at its beginning.
const WARM_UP_SHARE: f64 = 0.2;

/// Global batch of a job that does not say.
const GLOBAL_BATCH_DEFAULT: i64 = 256;

/// Measures the models of the definitions on one core each and puts the speeds into the catalogue.
///
/// # Errors
/// When something does not build or a process fails, and after an interrupt.
pub(crate) fn measure(
    kit: &Kit,
    library: Option<&Library>,
    definitions: &[Definition],
    catalogue: &mut Catalogue,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let used = |name: &str| {
        definitions
            .iter()
            .flat_map(|definition| &definition.cases)
            .any(|case| case.models.iter().any(|used| used == name))
    };
    let logs = tempfile::Builder::new().prefix("omnilearn-speed-").tempdir().context("making a folder for logs")?;
    for (name, model) in catalogue.models.iter_mut().filter(|(name, _)| used(name)) {
        let has_data = model.dataset == kit.spec().name || library.is_some_and(|library| library.has(&model.dataset));
        if !has_data {
            eprintln!("{name}: not measured, its data set {} is not here", model.dataset);
            continue;
        }
        eprintln!("measuring {name} on one core");
        let component = kit.component(&model.kernel);
        let measured = speed(kit, &component, model, logs.path(), interrupt)?;
        model.speed = Some(measured);
        let Speed { samples_per_s, overhead_s } = measured;
        // As the catalogue has it, so that it can be copied there.
        eprintln!("[models.{name}]\nspeed = {{ samples_per_s = {samples_per_s:.0}, overhead_s = {overhead_s:.5} }}");
    }
    "measured before this run (`--calibrate`): CPU time of an agent's steps at two batch sizes, on one core, with a hub."
        .clone_into(&mut catalogue.speeds_from);
    Ok(())
}

/// The speed of an agent on one core, from runs at two batch sizes: CPU time, which is the same whatever else the machine does.
///
/// # Errors
/// When a process fails, or a larger batch took no longer.
fn speed(kit: &Kit, component: &Path, model: &ModelSpec, logs: &Path, interrupt: &Interrupt) -> anyhow::Result<Speed> {
    let batches = batches(&model.job);
    let mut fleet = kit.start_fleet_with(vec![1.0], logs, interrupt)?;
    let mut times = [0.0; 2];
    for (time, batch) in times.iter_mut().zip(batches) {
        let expected_s = model.speed.map(|speed| speed.overhead_s + batch as f64 / speed.samples_per_s);
        let text = toml::to_string(&job(component, model, batch, steps(expected_s))?).context("writing a job file")?;
        let records = fleet.run(&Job { name: "speed", text, epochs: 1 }, None, interrupt)?;
        *time = cpu_s(&records).context("a run without steps")?;
    }
    fleet.stop();
    fit(batches.map(|batch| batch as f64), times)
}

/// The global batch of a job with these keys.
pub(super) fn global_batch(job: &Table) -> i64 {
    let global_batch = job.get("training").and_then(|training| training.get("global_batch"));
    global_batch.and_then(toml::Value::as_integer).unwrap_or(GLOBAL_BATCH_DEFAULT)
}

/// Two local batches that speed is told from, for a job with these keys.
fn batches(job: &Table) -> [i64; 2] {
    let global_batch = global_batch(job);
    [(global_batch / 16).max(1), (global_batch / 2).max(2)]
}

/// How many steps a measurement takes. Nobody knows before how long a step takes: as many as fit, or few if nobody has measured the
/// model.
pub(super) fn steps(expected_s: Option<f64>) -> i64 {
    expected_s.map_or(STEPS.0, |expected_s| (MEASURE_S / expected_s).clamp(STEPS.0, STEPS.1)) as i64
}

/// Makes a job one over so many samples a step and so many steps, whatever its own end is.
pub(super) fn cut_to_size(job: &mut Table, global_batch: i64, steps: i64) {
    job.remove("stop");
    lay_over(
        job,
        &table([
            ("training", table([("global_batch", global_batch.into())]).into()),
            ("evaluate", table([("every_steps", steps.into())]).into()),
            ("stop", table([("steps", steps.into())]).into()),
        ]),
    );
}

/// A job over so many samples a step and so many steps, and no more than that.
fn job(component: &Path, model: &ModelSpec, batch: i64, steps: i64) -> anyhow::Result<Table> {
    let component = component.to_str().context("the workspace's path is not UTF-8")?;
    let mut job: Table =
        table([("dataset", model.dataset.as_str().into()), ("kernel", table([("path", component.into())]).into())]);
    lay_over(&mut job, &model.job);
    cut_to_size(&mut job, batch, steps);
    let batching = table([("policy", "uniform".into()), ("calibration_batches", Vec::<i64>::new().into())]);
    lay_over(&mut job, &table([("name", "speed".into()), ("batching", batching.into())]));
    Ok(job)
}

/// Mean time from one version to the next in seconds, with everything that happens in between, the beginning left out.
pub(crate) fn step_s(records: &RunRecords) -> Option<f64> {
    let mut times: Vec<(u64, f64)> = records.steps.iter().map(|step| (step.version, step.at_s)).collect();
    times.sort_by_key(|(version, _)| *version);
    steady_s(&times)
}

/// Median of the CPU time of an agent's steps, in seconds.
fn cpu_s(records: &RunRecords) -> Option<f64> {
    median_of(records.steps.iter().filter(|step| !step.warm_up).map(|step| step.cpu_s))
}

/// Mean time from one version to the next, from versions in order and their times.
pub(crate) fn steady_s(times: &[(u64, f64)]) -> Option<f64> {
    let first = times.get((times.len() as f64 * WARM_UP_SHARE) as usize)?;
    let last = times.last()?;
    (last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0) as f64)
}

/// The line through two times, or, where it would leave less than nothing for the overhead, through the larger and no time for no samples.
pub(super) fn fit([small, large]: [f64; 2], [small_s, large_s]: [f64; 2]) -> anyhow::Result<Speed> {
    let per_sample = (large_s - small_s) / (large - small);
    if per_sample.is_nan() || per_sample <= 0.0 {
        bail!(
            "{large} samples took {large_s:.4} s and {small} took {small_s:.4} s: the machine is too busy to be measured"
        );
    }
    let overhead_s = small_s - small * per_sample;
    Ok(if overhead_s > 0.0 {
        Speed { samples_per_s: 1.0 / per_sample, overhead_s }
    } else {
        Speed { samples_per_s: large / large_s, overhead_s: 0.0 }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::catalogue;
    use super::*;

    #[test]
    fn two_times_give_throughput_and_overhead() {
        let speed = fit([16.0, 128.0], [0.012, 0.068]).unwrap();
        assert!((speed.samples_per_s - 2000.0).abs() < 1e-6 && (speed.overhead_s - 0.004).abs() < 1e-9, "{speed:?}");
        assert_eq!(fit([16.0, 128.0], [0.001, 0.064]).unwrap(), Speed { samples_per_s: 2000.0, overhead_s: 0.0 });
        assert!(fit([16.0, 128.0], [0.02, 0.01]).unwrap_err().to_string().contains("too busy"));
    }

    #[test]
    fn the_beginning_of_a_run_is_left_out() {
        let times: Vec<(u64, f64)> =
            (1..=10).map(|step: u32| (step.into(), if step < 3 { 9.0 } else { 9.0 + f64::from(step) })).collect();
        assert_eq!(steady_s(&times), Some(1.0));
        assert_eq!(steady_s(&[]), None);
    }

    #[test]
    fn a_measuring_job_keeps_the_model_and_sets_batch_and_length() {
        let job = job(Path::new("lenet.wasm"), &catalogue().models["lenet"], 16, 50).unwrap();
        assert_eq!(job["training"]["global_batch"].as_integer(), Some(16));
        assert_eq!(job["stop"]["steps"].as_integer(), Some(50));
        assert_eq!(job["optimizer"]["learning_rate"].as_float(), Some(0.04));
    }
}
