//! Training steps of one model in one process: prints one line of JSON. With `--layers`, the rates of the model's convolutions
//! instead.
//!
//! `cargo xtask bench cpu` runs it beside other programs that do the same.

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use omnilearn_agent::engine::{Engine, Operators, enter_pool};
use omnilearn_tests::layer_rates::{LayerRates, layer_rates, product_rate};
use omnilearn_tests::native::Model;
use omnilearn_tests::timing::time_steps;
use omnilearn_tests::train_step::TrainStep;
use omnilearn_tests::usage::peak_resident_bytes;
use serde_json::{Value, json};

/// Times training steps: input copy, forward, mean cross entropy, backward, all gradients read out.
#[derive(Debug, Parser)]
#[command(max_term_width = 110)]
struct Arguments {
    /// mlp, lenet, alexnet, vgg11 or resnet18
    #[arg(long, value_parser = parse_model)]
    model: Model,
    /// Samples of a step
    #[arg(long)]
    batch: NonZeroUsize,
    /// Threads that compute
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    /// Who computes: `own` or `burn`
    #[arg(long, default_value = "own", value_parser = parse_operators)]
    operators: Operators,
    /// About how long to time steps, or each convolution, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Measure each kind of convolution by itself
    #[arg(long)]
    layers: bool,
}

fn parse_model(name: &str) -> Result<Model, String> {
    let known = || Model::ALL.map(Model::name).join(", ");
    Model::ALL.into_iter().find(|model| model.name() == name).ok_or_else(|| format!("known are {}", known()))
}

fn parse_operators(name: &str) -> Result<Operators, String> {
    match name {
        "own" => Ok(Operators::Own),
        "burn" => Ok(Operators::Burn),
        _ => Err("known are own and burn".to_owned()),
    }
}

fn main() -> anyhow::Result<()> {
    // Whoever compares programs sets one policy for all in the environment; by hand, it is an agent's.
    if std::env::var_os("MALLOC_MMAP_THRESHOLD_").is_none() {
        omnilearn_agent::allocator::keep_memory();
    }
    let arguments = Arguments::parse();
    let length = Duration::try_from_secs_f64(arguments.seconds).context("--seconds")?;
    enter_pool(arguments.threads).context("starting threads")?;
    let engine = Engine::cpu(arguments.operators);
    let record = if arguments.layers { layers(&arguments, &engine, length) } else { steps(&arguments, engine, length) };
    println!("{}", record?);
    Ok(())
}

fn steps(arguments: &Arguments, engine: Engine, length: Duration) -> anyhow::Result<Value> {
    let mut step = TrainStep::new(engine, arguments.model, arguments.batch.get(), 1);
    let mut loss = f32::NAN;
    let timing = time_steps(length, || {
        loss = step.run()?;
        anyhow::Ok(())
    })?;
    ensure!(loss.is_finite(), "the loss is {loss}");
    Ok(json!({
        "step_ms": timing.median_ms,
        "steps": timing.steps,
        "peak_bytes": peak_resident_bytes(),
        "foreign_cores": timing.foreign_cores,
        "parameters": step.gradients().len(),
        "loss": loss,
    }))
}

fn layers(arguments: &Arguments, engine: &Engine, length: Duration) -> anyhow::Result<Value> {
    let convolutions = arguments.model.convolutions();
    ensure!(!convolutions.is_empty(), "no list of convolutions for {}", arguments.model.name());
    let batch = arguments.batch.get();
    let product_gflops = product_rate(engine, length)?;
    let mut layers = Vec::new();
    for (index, convolution) in convolutions.iter().enumerate() {
        eprintln!("convolution {} of {}", index + 1, convolutions.len());
        let LayerRates { forward, weight_gradient, input_gradient } = layer_rates(engine, convolution, batch, length)?;
        layers.push(json!({
            "inputs": convolution.inputs,
            "outputs": convolution.outputs,
            "size": convolution.size,
            "kernel": convolution.kernel,
            "stride": convolution.stride,
            "forward_gflops": forward,
            "weight_gradient_gflops": weight_gradient,
            "input_gradient_gflops": input_gradient,
        }));
    }
    // Once more, so that the yardstick is not the slow moment of a machine that others use, too.
    let product_gflops = product_gflops.max(product_rate(engine, length)?);
    Ok(json!({ "product_gflops": product_gflops, "layers": layers }))
}
