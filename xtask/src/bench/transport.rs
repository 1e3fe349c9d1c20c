//! `cargo xtask bench transport`: what a broker in the way costs.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::median;
use crate::demo::{Kit, Mode, Model, Policy, Run, RunRecords, Transport, TransportArguments};
use crate::fleet::mosquitto::Mosquitto;
use crate::fleet::ratios::HeterogeneityLevel;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

/// The comparison of transports.
#[derive(Args, Debug)]
pub(crate) struct BenchTransportArguments {
    /// What is trained
    #[arg(long, value_enum, default_value = "lenet")]
    model: Model,
    /// Number of agents
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    agents: u32,
    /// Passes over the training set in each run
    #[arg(long, default_value_t = 1)]
    epochs: u32,
    /// Rounds of runs; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Channels of the first stage of the ResNet
    #[arg(long, default_value_t = 8)]
    width: u32,
    /// Samples behind one step, over all agents
    #[arg(long, default_value_t = 256)]
    global_batch: u32,
    /// Folder with the data set's files
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
}

/// One line of the comparison: medians over the repeats.
#[derive(Debug, Serialize)]
struct Line {
    transport: &'static str,
    broker: &'static str,
    steps_per_s: f64,
    steps_per_s_min: f64,
    steps_per_s_max: f64,
    /// Steps per second over those of WebSockets.
    ratio_to_websocket: f64,
}

/// Runs the comparison and prints it.
///
/// # Errors
/// When something does not build or a run fails.
pub(crate) fn run(workspace: &Workspace, arguments: &BenchTransportArguments) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    let mut kit = Kit::prepare(workspace, arguments.data.as_deref(), None, &interrupt)?;
    let folder = tempfile::Builder::new().prefix("omnilearn-bench-").tempdir().context("making a folder for logs")?;
    let mosquitto = Mosquitto::start(folder.path(), &interrupt)?;
    if mosquitto.is_none() {
        eprintln!("note: mosquitto is not installed, so only the hub's own broker is measured");
    }
    let mut cases = vec![(Transport::Websocket, "none", None), (Transport::Mqtt, "the hub's", None)];
    cases.extend(mosquitto.as_ref().map(|broker| (Transport::Mqtt, "mosquitto", Some(broker.url()))));
    let mut rates = vec![Vec::new(); cases.len()];
    // One of each, then again, so that a slow minute of the machine falls on all of them.
    for repeat in 1..=arguments.repeats {
        for ((transport, broker, url), rates) in cases.iter().zip(&mut rates) {
            eprintln!("repeat {repeat} of {}: {}, broker: {broker}", arguments.repeats, transport.name());
            kit = kit.over(TransportArguments { transport: *transport, broker: url.clone() });
            let mut fleet =
                kit.start_fleet(HeterogeneityLevel::Hl1, arguments.agents as usize, folder.path(), &interrupt)?;
            let records = fleet.train(&arguments.run(), None, &interrupt)?;
            rates.push(RunRecords::steps_per_s(&records).context("a run left no figures")?);
            fleet.stop();
        }
    }
    let lines = lines(&cases.iter().map(|(transport, broker, _)| (*transport, *broker)).collect::<Vec<_>>(), rates)?;
    match arguments.json {
        true => println!("{}", serde_json::to_string(&lines).context("writing JSON")?),
        false => print!("{}", table(arguments, &lines)),
    }
    Ok(())
}

impl BenchTransportArguments {
    fn run(&self) -> Run {
        Run {
            mode: Mode::Bsp,
            agents: self.agents as usize,
            model: self.model,
            policy: Policy::Uniform,
            epochs: self.epochs,
            width: self.width,
            global_batch: self.global_batch,
            seed: 1,
        }
    }
}

fn lines(cases: &[(Transport, &'static str)], mut rates: Vec<Vec<f64>>) -> anyhow::Result<Vec<Line>> {
    rates.iter_mut().for_each(|rates| rates.sort_unstable_by(f64::total_cmp));
    let Some(websocket) = rates.first().map(|rates| median(rates)) else { bail!("nothing was measured") };
    let line = |(&(transport, broker), rates): (&(Transport, &'static str), &Vec<f64>)| Line {
        transport: transport.name(),
        broker,
        steps_per_s: median(rates),
        steps_per_s_min: rates[0],
        steps_per_s_max: rates[rates.len() - 1],
        ratio_to_websocket: median(rates) / websocket,
    };
    Ok(cases.iter().zip(&rates).map(line).collect())
}

fn table(arguments: &BenchTransportArguments, lines: &[Line]) -> String {
    let mut table = format!(
        "{}, {} agents, global batch {}, medians of {} interleaved repeats\n\ntransport  broker      steps/s (min to max)      of WebSocket's\n",
        arguments.model.describe(arguments.width),
        arguments.agents,
        arguments.global_batch,
        arguments.repeats
    );
    for line in lines {
        table.push_str(&format!(
            "{:<10} {:<10} {:7.1} ({:.1} to {:.1})  {:15.2}\n",
            line.transport,
            line.broker,
            line.steps_per_s,
            line.steps_per_s_min,
            line.steps_per_s_max,
            line.ratio_to_websocket
        ));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_case_is_what_others_are_compared_with() {
        let cases = [(Transport::Websocket, "none"), (Transport::Mqtt, "mosquitto")];
        let lines = lines(&cases, vec![vec![10.0, 30.0, 20.0], vec![16.0, 15.0, 14.0]]).unwrap();
        assert_eq!((lines[0].ratio_to_websocket, lines[1].ratio_to_websocket), (1.0, 0.75));
        assert_eq!((lines[1].steps_per_s_min, lines[1].steps_per_s_max), (14.0, 16.0));
    }
}
