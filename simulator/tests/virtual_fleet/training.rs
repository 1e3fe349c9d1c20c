//! Real gradients under virtual time.

use std::path::{Path, PathBuf};

use omnilearn_datasets::Library;
use omnilearn_hub::offline::OfflineJob;
use omnilearn_hub_core::Record;
use omnilearn_simulator::gradients::{Machine, RealGradients};
use omnilearn_simulator::{Fleet, Job, Outcome, Summary, simulate};

use crate::fixtures::{Records, fleet};

pub(crate) fn component(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../kernels/target/components/{name}.wasm"));
    if !path.exists() {
        println!("skipped: {} is not built (`cargo xtask kernels`)", path.display());
        return None;
    }
    Some(path)
}

fn run(fleet: &Fleet, component: &Path, mode: &str, more: &str) -> Option<(Summary, Outcome, Records)> {
    run_of(fleet, component, "", mode, more)
}

/// With keys of the kernel, such as what is frozen.
fn run_of(
    fleet: &Fleet,
    component: &Path,
    kernel: &str,
    mode: &str,
    more: &str,
) -> Option<(Summary, Outcome, Records)> {
    let text = format!(
        "dataset = \"fashion-mnist\"\nseed = 5\nkernel.path = {:?}\n{kernel}\n[training]\nmode = \"{mode}\"\nglobal_batch = 64\n[optimizer]\n\
         learning_rate = 0.01\nmomentum = 0.0\n[evaluate]\nevery_steps = 1000\n[fleet]\nwait_for_agents = {}\n{more}",
        component.display().to_string(),
        fleet.agents.len(),
    );
    train(fleet, &text)
}

fn plan(text: &str) -> OfflineJob {
    OfflineJob::plan(text, Path::new(""), &Library::at(Path::new(""))).unwrap_or_else(|error| panic!("{error}"))
}

/// Trains a job file's text.
fn train(fleet: &Fleet, text: &str) -> Option<(Summary, Outcome, Records)> {
    let offline = plan(text);
    let job = Job::new(&offline);
    let mut gradients = match RealGradients::new(&offline, Machine::default(), fleet.agents.len()) {
        Ok(gradients) => gradients,
        Err(error) if error.to_string().contains("is in none of") => {
            println!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut records = Records::default();
    let outcome = simulate(fleet, &job, &mut gradients, &mut records).unwrap_or_else(|error| panic!("{error}"));
    Some((Summary::new(&job, fleet, &outcome, true), outcome, records))
}

fn losses(records: &Records) -> Vec<f64> {
    let loss = |record: &Record| match record {
        Record::Round(round) => Some(round.loss),
        _ => None,
    };
    records.0.iter().filter_map(loss).collect()
}

#[test]
fn bsp_over_unequal_batches_follows_the_loss_of_one_agent_with_their_union() {
    let Some(lenet) = component("lenet") else { return };
    let more = "[batching]\npolicy = \"static\"\n[stop]\nsteps = 60\n";
    let Some((several, outcome, records)) = run(&fleet(&[70.0, 160.0, 410.0]), &lenet, "bsp", more) else { return };
    let Some((one, other_outcome, other_records)) = run(&fleet(&[640.0]), &lenet, "bsp", more) else { return };
    let batches: Vec<u32> = records.steps().take(3).map(|step| step.samples).collect();
    assert_eq!(batches, [7, 16, 41]);
    for (step, (loss, other)) in losses(&records).into_iter().zip(losses(&other_records)).enumerate() {
        assert!((loss - other).abs() < 1e-4 * other, "step {step}: {loss} and {other}");
    }
    let flat = |outcome: &Outcome| -> Vec<f32> {
        outcome.parameters.parameters.iter().flat_map(|block| block.iter().copied()).collect()
    };
    let distance = |a: &[f32], b: &[f32]| {
        let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let difference = squares(&mut a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)));
        difference / squares(&mut b.iter().map(|&b| f64::from(b)))
    };
    let distance = distance(&flat(&outcome), &flat(&other_outcome));
    println!("relative difference of the parameters after 60 steps: {distance:.2e}");
    assert!(distance < 1e-4, "{distance:e}");
    // 640 samples per second in both cases, all agents done at once.
    assert!((several.training_s / one.training_s - 1.0).abs() < 0.01, "{} {}", several.training_s, one.training_s);
    assert!(several.loss.is_some() && several.accuracy.is_some());
}

#[test]
fn equal_seeds_give_equal_parameters_also_in_asp() {
    let Some(lenet) = component("lenet") else { return };
    let mut fleet = fleet(&[60.0, 60.0, 40.0, 320.0]);
    fleet.agents.iter_mut().for_each(|agent| agent.noise = 0.1);
    for mode in ["bsp", "asp"] {
        let more = "[stop]\nsteps = 40\n";
        let Some((_, outcome, records)) = run(&fleet, &lenet, mode, more) else { return };
        let Some((_, again, records_again)) = run(&fleet, &lenet, mode, more) else { return };
        assert_eq!(outcome.parameters, again.parameters);
        assert_eq!(records.0, records_again.0);
    }
}

#[test]
fn frozen_parameters_are_no_part_of_a_stream_and_the_others_learn() {
    let Some(lenet) = component("lenet") else { return };
    let more = "[stop]\nsteps = 30\n";
    let frozen = "kernel.frozen = [\"conv*\"]";
    let fleet = fleet(&[70.0, 160.0, 410.0]);
    let Some((_, whole, _)) = run(&fleet, &lenet, "bsp", more) else { return };
    let Some((_, outcome, records)) = run_of(&fleet, &lenet, frozen, "bsp", more) else { return };
    let elements = |outcome: &Outcome| outcome.parameters.parameters.iter().map(|block| block.len()).sum::<usize>();
    let convolutions = 6 * 25 + 6 + 16 * 6 * 25 + 16;
    assert_eq!(elements(&whole) - elements(&outcome), convolutions);
    let losses = losses(&records);
    assert!(losses[29] < losses[0], "{losses:?}");
}

/// Agents make local steps, and the hub takes over what they give.
fn elastic(lenet: &Path) -> String {
    format!(
        "dataset = \"fashion-mnist\"\nkernel.path = {:?}\n[training]\nmode = \"elastic_averaging\"\nglobal_batch = 64\n\
         [elastic_averaging]\nlocal_steps = 4\nlearning_rate = 0.05\n[optimizer]\nlearning_rate = 1.0\nmomentum = 0.0\n\
         [stop]\nsteps = 80\n",
        lenet.display().to_string()
    )
}

#[test]
fn under_elastic_averaging_each_agent_keeps_parameters_of_its_own() {
    let Some(lenet) = component("lenet") else { return };
    let fleet = fleet(&[60.0, 120.0]);
    let Some((summary, outcome, records)) = train(&fleet, &elastic(&lenet)) else { return };
    let Some((_, again, _)) = train(&fleet, &elastic(&lenet)) else { return };
    assert_eq!(outcome.parameters, again.parameters);
    for agent in [0, 1] {
        let steps = records.steps().filter(|step| step.agent.0 == agent);
        let losses: Vec<f64> = steps.map(|step| f64::from(step.loss)).collect();
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let quarter = losses.len() / 4;
        let (first, last) = (mean(&losses[..quarter]), mean(&losses[losses.len() - quarter..]));
        assert!(last < 0.8 * first, "agent {agent}: {losses:?}");
    }
    assert!(summary.accuracy.is_some_and(|accuracy| accuracy > 0.3), "{summary:?}");
}

#[test]
fn a_fleet_that_needs_more_trainers_than_fit_is_told_so() {
    let Some(lenet) = component("lenet") else { return };
    let offline = plan(&elastic(&lenet));
    let Err(error) = RealGradients::new(&offline, Machine::default(), 500) else { panic!("500 trainers were made") };
    assert!(error.to_string().contains("each of 500 agents keeps parameters"), "{error}");
}
