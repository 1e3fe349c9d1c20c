//! Times training steps of models written directly on the engine, without a kernel.
//!
//! `cargo run -p omnilearn-agent --example step_time -- [lenet|mlp|resnet] [BATCH] [THREADS] [own|burn]`

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use omnilearn_agent::engine::{Engine, Operators, Tensor};
use omnilearn_kernel_host::backend::{BatchNorm, Binary, Conv2dOptions, OpResult, Pool2dOptions, TensorBackend, Unary};
use omnilearn_wire::Codec;
use omnilearn_wire::sampling::SplitMix64;

fn main() {
    omnilearn_agent::allocator::keep_memory();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| arguments.get(index).cloned().unwrap_or_else(|| default.to_owned());
    let model = argument(0, "lenet");
    let batch: usize = argument(1, "64").parse().expect("a batch size");
    let threads: NonZeroUsize = argument(2, "1").parse().expect("a number of threads");
    let operators = if argument(3, "own") == "burn" { Operators::Burn } else { Operators::Own };
    omnilearn_agent::engine::enter_pool(threads).expect("the system has threads");

    let mut engine = Engine::cpu(operators);
    let (shape, forward, parameters): (&[usize], Forward, Vec<Vec<usize>>) = match model.as_str() {
        "mlp" => (&[784], mlp, mlp_shapes()),
        "resnet" => (&[1, 28, 28], resnet, resnet_shapes()),
        _ => (&[1, 28, 28], lenet, lenet_shapes()),
    };
    let mut generator = SplitMix64::new(1);
    let mut uniform = |bound: f32| ((generator.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * bound;
    let parameters: Vec<Tensor> = parameters
        .iter()
        .map(|shape| {
            let fan_in: usize = if shape.len() == 1 {
                1
            } else {
                shape.iter().product::<usize>() / shape.iter().max().expect("a rank")
            };
            let bound = 1.0 / (fan_in as f32).sqrt();
            let values =
                (0..shape.iter().product()).map(|_| if shape.len() == 1 { 1.0 } else { uniform(bound) }).collect();
            engine.floats(values, shape)
        })
        .collect();
    let mut batch_shape = vec![batch];
    batch_shape.extend(shape);
    let mut times = Vec::new();
    let mut loss = f32::NAN;
    let mut stream = Vec::new();
    let started = Instant::now();
    while times.len() < 5 || started.elapsed() < Duration::from_secs(4) {
        let input: Vec<f32> = (0..batch_shape.iter().product()).map(|_| uniform(1.7)).collect();
        let start = Instant::now();
        let targets = (0..batch as i32).map(|index| index % 10).collect();
        let (x, targets) = (engine.floats(input, &batch_shape), engine.ints(targets, &[batch]));
        let leaves: Vec<Tensor> = parameters.iter().map(|parameter| engine.leaf(parameter)).collect();
        let logits = forward(&mut engine, &leaves, x).expect("the model is right");
        let loss_tensor = engine.cross_entropy(&logits, &targets).expect("the model is right");
        let mut gradients = engine.backward(&loss_tensor);
        stream.clear();
        for leaf in &leaves {
            let gradient = gradients.take(leaf).expect("every parameter is used");
            gradient.with_floats(|values| Codec::F32.encode_into(values, &mut stream));
        }
        loss = loss_tensor.to_vec()[0];
        times.push(start.elapsed());
    }
    times.sort();
    let ms = |index: usize| times[index].as_secs_f64() * 1e3;
    let resident = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = resident.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("unknown").trim().to_owned();
    println!(
        "{model} batch {batch}, {threads} threads, {operators:?}: median {:.3} ms, 5 % {:.3}, 95 % {:.3}, {} steps, peak memory {resident}, loss {loss}",
        ms(times.len() / 2),
        ms(times.len() / 20),
        ms(times.len() * 19 / 20),
        times.len()
    );
}

type Forward = fn(&mut Engine, &[Tensor], Tensor) -> OpResult<Tensor>;

fn mlp_shapes() -> Vec<Vec<usize>> {
    vec![vec![784, 256], vec![256], vec![256, 10], vec![10]]
}

fn mlp(engine: &mut Engine, parameters: &[Tensor], x: Tensor) -> OpResult<Tensor> {
    let hidden = engine.linear(&x, &parameters[0], Some(&parameters[1]))?;
    let hidden = engine.unary(Unary::Relu, &hidden)?;
    engine.linear(&hidden, &parameters[2], Some(&parameters[3]))
}

fn lenet_shapes() -> Vec<Vec<usize>> {
    let shapes: [&[usize]; 10] =
        [&[6, 1, 5, 5], &[6], &[16, 6, 5, 5], &[16], &[400, 120], &[120], &[120, 84], &[84], &[84, 10], &[10]];
    shapes.map(<[usize]>::to_vec).to_vec()
}

fn options(stride: usize, padding: usize) -> Conv2dOptions {
    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 }
}

fn lenet(engine: &mut Engine, parameters: &[Tensor], x: Tensor) -> OpResult<Tensor> {
    let pool = Pool2dOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] };
    let mut x = x;
    for (layer, padding) in [(0, 2), (1, 0)] {
        x = engine.conv2d(&x, &parameters[2 * layer], Some(&parameters[2 * layer + 1]), options(1, padding))?;
        x = engine.unary(Unary::Relu, &x)?;
        x = engine.max_pool2d(&x, pool)?;
    }
    x = engine.reshape(&x, &[x.shape()[0], 400])?;
    for layer in 2..5 {
        x = engine.linear(&x, &parameters[2 * layer], Some(&parameters[2 * layer + 1]))?;
        if layer < 4 {
            x = engine.unary(Unary::Relu, &x)?;
        }
    }
    Ok(x)
}

/// (channels in, channels out, stride) of each block.
const BLOCKS: [(usize, usize, usize); 8] =
    [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)];

fn resnet_shapes() -> Vec<Vec<usize>> {
    let norm = |channels: usize| [vec![channels], vec![channels]];
    let mut shapes = vec![vec![64, 1, 3, 3]];
    shapes.extend(norm(64));
    for (inputs, outputs, stride) in BLOCKS {
        shapes.push(vec![outputs, inputs, 3, 3]);
        shapes.extend(norm(outputs));
        shapes.push(vec![outputs, outputs, 3, 3]);
        shapes.extend(norm(outputs));
        if stride != 1 {
            shapes.push(vec![outputs, inputs, 1, 1]);
            shapes.extend(norm(outputs));
        }
    }
    shapes.extend([vec![512, 10], vec![10]]);
    shapes
}

fn resnet(engine: &mut Engine, parameters: &[Tensor], x: Tensor) -> OpResult<Tensor> {
    let mut next = parameters.iter();
    let mut take = || next.next().expect("as many parameters as shapes");
    let mut conv_norm = |engine: &mut Engine, x: &Tensor, stride: usize, padding: usize| -> OpResult<Tensor> {
        let x = engine.conv2d(x, take(), None, options(stride, padding))?;
        let (gamma, beta) = (take(), take());
        let zeros = engine.full(0.0, gamma.shape())?;
        let statistics = BatchNorm { gamma, beta, running_mean: &zeros, running_var: &zeros, epsilon: 1e-5 };
        let [out, _, _] = engine.batch_norm_train(&x, statistics, 0.1)?;
        Ok(out)
    };
    let mut x = conv_norm(engine, &x, 1, 1)?;
    x = engine.unary(Unary::Relu, &x)?;
    for (_, _, stride) in BLOCKS {
        let mut y = conv_norm(engine, &x, stride, 1)?;
        y = engine.unary(Unary::Relu, &y)?;
        y = conv_norm(engine, &y, 1, 1)?;
        let shortcut = if stride == 1 { x } else { conv_norm(engine, &x, stride, 0)? };
        x = engine.binary(Binary::Add, &y, &shortcut)?;
        x = engine.unary(Unary::Relu, &x)?;
    }
    x = engine.global_avg_pool2d(&x)?;
    let [.., weight, bias] = parameters else { unreachable!("the shapes end with a linear layer") };
    engine.linear(&x, weight, Some(bias))
}
