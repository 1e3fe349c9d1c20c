//! Real processes under CPU quotas beside the virtual fleet's prediction for them.

use std::collections::BTreeMap;
use std::path::Path;

use super::calibrate::{self, steady_s};
use super::catalogue::{Speed, lay_over};
use super::csv::Csv;
use super::library::Library;
use super::outcome::{Outcome, RowKey};
use super::plan::{self, PlannedRow};
use super::side_by_side::{self, Measured};
use super::simulate::{Simulator, Task};
use super::write::Run;
use super::{ExperimentArguments, Rows};
use crate::bench::median_of;
use crate::demo::{Fleet, Job, Kit, RunRecords, table};
use crate::interrupt::Interrupt;

/// A row's run and what its agents were measured to be like just before it.
struct Repeat {
    records: RunRecords,
    agents: Measured,
}

/// Runs every row for real, as often as it has seeds, and each time once more virtually with agents that are as fast as each was
/// measured to be under its quota, beside the others, just before.
///
/// # Errors
/// When something does not build or a process fails, and after an interrupt.
pub(crate) fn run(run: &Run<'_>, arguments: &ExperimentArguments, interrupt: &Interrupt) -> anyhow::Result<Rows> {
    let kit = Kit::prepare(run.workspace, arguments.data.as_deref(), None, interrupt)?;
    let state = run.library.map(Library::state);
    let kit = kit.with_library(state);
    let program = super::simulator(run.workspace, arguments)?;
    let simulator = Simulator { workspace: run.workspace, program, data: None, state, resume: false };
    let planned = plan::rows(run.definition, run.catalogue)?;
    let mut rows = Rows::default();
    // Policies of one place come one after another, on one fleet, in turns.
    for place in planned.chunk_by(|left, right| left.place() == right.place()) {
        let Some(first) = place.first() else { continue };
        let quotas = quotas(first.cores(), first.case.cores_total.unwrap_or(kit.quota_total()));
        let component = run.workspace.component(&first.model.kernel);
        let logs = run.out.join("logs");
        let mut fleet = kit.start_fleet_with(quotas, &logs, interrupt)?;
        let real = measured(run, &mut fleet, place, &component, interrupt)?;
        fleet.stop();
        for (row, repeats) in place.iter().zip(&real) {
            let predicted = |(repeat, &seed): (&Repeat, &u64)| {
                predicted(&simulator, row, (&repeat.agents, seed), &component, run.out, interrupt)
            };
            let virtually = repeats.iter().zip(&row.case.seeds).map(predicted).collect::<anyhow::Result<Vec<_>>>()?;
            let runs: Vec<&RunRecords> = repeats.iter().map(|repeat| &repeat.records).collect();
            rows.outcomes.extend(outcomes(row, &runs, &virtually, kit.spec().train_samples));
        }
    }
    Ok(rows)
}

/// `total · cores / Σ cores`.
fn quotas(cores: &[f64], total: f64) -> Vec<f64> {
    let sum: f64 = cores.iter().sum();
    cores.iter().map(|cores| total * cores / sum).collect()
}

/// Each row's runs. Rows take turns, so that a slow minute of the machine falls on all of them, and agents are measured anew
/// before each run, so that it falls on what is predicted, too.
fn measured(
    run: &Run<'_>,
    fleet: &mut Fleet<'_>,
    rows: &[PlannedRow<'_>],
    component: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Vec<Repeat>>> {
    let mut repeats: Vec<Vec<Repeat>> = rows.iter().map(|_| Vec::new()).collect();
    let count = rows.first().map_or(0, |row| row.case.seeds.len());
    for repeat in 0..count {
        for (row, repeats) in rows.iter().zip(&mut repeats) {
            let seed = row.case.seeds[repeat];
            eprintln!("{}, repeat {} of {count}: measuring agents", row.key.slug(), repeat + 1);
            let agents = side_by_side::measure(fleet, row, (component, seed), interrupt)?;
            for (quota, speed) in fleet.quotas().iter().zip(&agents.speeds) {
                let overhead_ms = speed.overhead_s * 1000.0;
                eprintln!("{quota:.3} cores: {:.0} samples/s, {overhead_ms:.2} ms a step", speed.samples_per_s);
            }
            eprintln!("the hub answers after {:.2} ms", agents.turn_around_s * 1000.0);
            let job = Job { name: "throttled", text: row.job_file(component, seed)?, epochs: 1 };
            let folder = run.out.join("rows").join(row.key.slug()).join(format!("seed-{seed}"));
            repeats.push(Repeat { records: fleet.run(&job, Some(&folder), interrupt)?, agents });
        }
    }
    Ok(repeats)
}

/// The figures of the same row on the virtual fleet, with its steady time of a step as `step_s`, or why there are none.
fn predicted(
    simulator: &Simulator<'_>,
    row: &PlannedRow<'_>,
    (agents, seed): (&Measured, u64),
    component: &Path,
    out: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Result<BTreeMap<String, f64>, String>> {
    // An answer takes two ways.
    let latency = table([("latency_s", (agents.turn_around_s / 2.0).into())]);
    let agent = |(index, &speed): (usize, &Speed)| {
        let mut agent = plan::agent(index, speed, row.case.noise, Vec::new());
        lay_over(&mut agent, &latency);
        agent.into()
    };
    let fleet = plan::fleet(seed, agents.speeds.iter().enumerate().map(agent).collect())?;
    let folder = out.join("virtual").join(row.key.slug()).join(format!("seed-{seed}"));
    let task = Task { fleet: &fleet, job: &row.job_file(component, seed)?, gradients: "none", oracle: false };
    let figures = simulator.simulate(&folder, &task, interrupt)?;
    let Ok(mut figures) = figures else { return Ok(figures) };
    let rounds = Csv::read(&folder.join("rounds.csv"))?.numbers(["version", "training_s"])?;
    let times: Vec<(u64, f64)> = rounds.into_iter().map(|[version, time]| (version as u64, time)).collect();
    if let Some(step_s) = steady_s(&times) {
        figures.insert("step_s".to_owned(), step_s);
    }
    Ok(Ok(figures))
}

/// A row's two outcomes, real and virtual: the middle of its runs and of what was predicted for each, and of the ratios of the two.
fn outcomes(
    row: &PlannedRow<'_>,
    runs: &[&RunRecords],
    virtually: &[Result<BTreeMap<String, f64>, String>],
    train_samples: u32,
) -> [Outcome; 2] {
    let key = |suffix: &str| RowKey { case: format!("{}, {suffix}", row.key.case), ..row.key.clone() };
    // Over the whole training set, whether or not the run went through it, and without the first steps.
    let epoch_s = |records: &RunRecords, step_s: Option<f64>| {
        let versions = records.steps.iter().map(|step| step.version).max()?;
        Some(step_s? * f64::from(train_samples) * versions as f64 / records.samples() as f64)
    };
    let of_runs = |figure: &dyn Fn(&RunRecords) -> Option<f64>| runs.iter().map(|run| figure(run)).collect::<Vec<_>>();
    let predicted = |name: &str| {
        let figure = |figures: &Result<BTreeMap<String, f64>, String>| figures.as_ref().ok()?.get(name).copied();
        virtually.iter().map(figure).collect::<Vec<_>>()
    };
    let epochs_s = of_runs(&|records| epoch_s(records, calibrate::step_s(records)));
    let steps_s = runs.iter().zip(predicted("step_s"));
    let predicted_s: Vec<Option<f64>> = steps_s.map(|(records, step_s)| epoch_s(records, step_s)).collect();
    let ratios = epochs_s.iter().zip(&predicted_s).map(|(real, predicted)| Some((*real)? / (*predicted)?)).collect();
    let real = [
        ("quota_epoch_s", of_runs(&|records| epoch_s(records, quota_step_s(records)))),
        ("idle_share", of_runs(&RunRecords::idle_share)),
        ("accuracy", of_runs(&RunRecords::accuracy)),
        ("epoch_s", epochs_s),
        ("predicted_epoch_s", predicted_s.clone()),
        ("real_over_virtual", ratios),
    ];
    let kept = ["idle_share", "mean_staleness", "ratio_to_limit"].map(|name| (name, predicted(name)));
    let virtual_fleet = kept.into_iter().chain([("epoch_s", predicted_s)]);
    let skipped = virtually.iter().find_map(|figures| figures.as_ref().err().cloned());
    [
        Outcome { key: key("real processes"), figures: middles(real), skipped: None },
        Outcome { key: key("virtual fleet"), figures: middles(virtual_fleet), skipped },
    ]
}

/// The median of each figure that there is.
fn middles<'a>(figures: impl IntoIterator<Item = (&'a str, Vec<Option<f64>>)>) -> BTreeMap<String, f64> {
    let middle =
        |(name, values): (&str, Vec<Option<f64>>)| Some((name.to_owned(), median_of(values.into_iter().flatten())?));
    figures.into_iter().filter_map(middle).collect()
}

/// The least time that a step can have taken in the mean, whatever the hub did: that of the agent whose CPU time took longest under its
/// quota.
fn quota_step_s(records: &RunRecords) -> Option<f64> {
    let step_s = |(agent, quota): (usize, &f64)| Some(side_by_side::step_cost(records, agent)?.1 / quota);
    records.quotas.iter().enumerate().filter_map(step_s).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::super::ratios;
    use super::super::tests::{catalogue, definition};
    use super::*;
    use crate::demo::canned_records;

    #[test]
    fn quotas_share_the_total_as_cores_do() {
        let quotas = quotas(&[6.0, 6.0, 4.0, 32.0], 1.8);
        assert!((quotas[2] - 0.15).abs() < 1e-12 && (quotas.iter().sum::<f64>() - 1.8).abs() < 1e-12, "{quotas:?}");
    }

    #[test]
    fn a_real_row_stands_beside_its_prediction() {
        let (definition, catalogue) = (definition(), catalogue());
        let planned = plan::rows(&definition, &catalogue).unwrap();
        // Ten rounds of 32 samples and 0.1 s each, in an epoch of 160.
        let virtually = Ok(BTreeMap::from([("step_s".to_owned(), 0.08), ("idle_share".to_owned(), 0.1)]));
        let mut pair = outcomes(&planned[0], &[&canned_records()], &[virtually], 160);
        ratios::compare(&mut pair);
        let [real, virtual_fleet] = pair;
        assert_eq!(real.key.case, "plain, real processes");
        assert!((real.figure("epoch_s").unwrap() - 0.5).abs() < 1e-9, "{real:?}");
        assert!((real.figure("predicted_epoch_s").unwrap() - 0.4).abs() < 1e-9);
        assert!((real.figure("real_over_virtual").unwrap() - 1.25).abs() < 1e-9);
        // Five steps; 0.08 s of CPU time take the first agent 0.36 s.
        assert!((real.figure("quota_epoch_s").unwrap() - 5.0 * 0.08 / 0.225).abs() < 1e-9);
        assert_eq!(virtual_fleet.figure("idle_share"), Some(0.1));
        assert!((virtual_fleet.figure("epoch_s").unwrap() - 0.4).abs() < 1e-9);
    }

    #[test]
    fn without_a_prediction_the_real_row_stays() {
        let (definition, catalogue) = (definition(), catalogue());
        let planned = plan::rows(&definition, &catalogue).unwrap();
        let [real, virtual_fleet] =
            outcomes(&planned[0], &[&canned_records()], &[Err("error: no such key".to_owned())], 160);
        assert!(real.figure("epoch_s").is_some() && real.figure("real_over_virtual").is_none());
        assert_eq!(virtual_fleet.skipped.as_deref(), Some("error: no such key"));
    }
}
