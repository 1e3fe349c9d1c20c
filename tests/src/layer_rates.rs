//! How much of the machine each convolution of a model uses: floating-point operations per second of its three passes, beside
//! those of a matrix product.

use std::time::{Duration, Instant};

use omnilearn_agent::engine::{Engine, Tensor};
use omnilearn_kernel_host::backend::{Binary, OpResult, TensorBackend};

use crate::native::{Convolution, options};
use crate::timing::median;

/// Fewest repeats of a measurement after the one that warms up.
const REPEATS_MIN: usize = 5;

/// Rows and columns of the matrices whose product is the yardstick.
const PRODUCT_SIZE: usize = 1024;

/// Rates of one convolution, in 10⁹ operations per second, counted as if computed directly. `None` where a pass took less than
/// its measurement resolves.
#[derive(Clone, Copy, Debug)]
pub struct LayerRates {
    /// Output from input and weight.
    pub forward: Option<f64>,
    /// Gradient of the weight.
    pub weight_gradient: Option<f64>,
    /// Gradient of the input.
    pub input_gradient: Option<f64>,
}

/// Values with some variety and no denormals.
fn constant(engine: &Engine, shape: &[usize]) -> Tensor {
    let values = (0..shape.iter().product()).map(|index: usize| (index % 61) as f32 / 61.0 - 0.45).collect();
    engine.floats(values, shape)
}

/// Has a result computed that the engine may have put off, in whatever layout it chooses.
fn compute(result: &Tensor) {
    drop(result.detached());
}

/// Medians in seconds of several pieces of work, each done once in every round, so that a slow moment of the machine falls on
/// all.
fn medians_s<const N: usize>(length: Duration, mut works: [&mut dyn FnMut() -> OpResult<()>; N]) -> OpResult<[f64; N]> {
    let mut times = [const { Vec::new() }; N];
    for work in &mut works {
        work()?;
    }
    let start = Instant::now();
    while times[0].len() < REPEATS_MIN || start.elapsed() < length {
        for (work, times) in works.iter_mut().zip(&mut times) {
            let start = Instant::now();
            work()?;
            times.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(times.map(median))
}

/// The better of `matmul` and `linear` on square matrices, in 10⁹ operations per second.
///
/// # Errors
/// Never on a sound engine.
pub fn product_rate(engine: &Engine, length: Duration) -> OpResult<f64> {
    let (mut engine, mut other) = (engine.clone(), engine.clone());
    let shape = [PRODUCT_SIZE; 2];
    let (a, b) = (constant(&engine, &shape), constant(&engine, &shape));
    let times = medians_s(
        length,
        [&mut || engine.matmul(&a, &b).map(|product| compute(&product)), &mut || {
            other.linear(&a, &b, None).map(|product| compute(&product))
        }],
    )?;
    let flop = 2.0 * (PRODUCT_SIZE as f64).powi(3);
    Ok(flop / times[0].min(times[1]) * 1e-9)
}

/// Measures the passes of one convolution amid others, whose outputs lie as the engine likes them.
///
/// A gradient's time is that of forward and backward with one leaf, less what else that consists of: the forward pass, a
/// pooling, which spreads a gradient over the output without another layout, and the way of a leaf into the input's layout.
///
/// # Errors
/// If the geometry is impossible.
pub fn layer_rates(engine: &Engine, convolution: &Convolution, batch: usize, length: Duration) -> OpResult<LayerRates> {
    let Convolution { inputs, outputs, size, kernel, .. } = *convolution;
    let plain_x = constant(engine, &[batch, inputs, size, size]);
    let weight = constant(engine, &[outputs, inputs, kernel, kernel]);
    let convolve = |x: &Tensor, weight: &Tensor| engine.clone().conv2d(x, weight, None, convolution.options());
    // What another convolution before this one would hand on.
    let one_by_one = constant(engine, &[inputs, inputs, 1, 1]);
    let x = engine.clone().conv2d(&plain_x, &one_by_one, None, options(1, 0))?.detached();
    let enter = |leaf: &Tensor| engine.clone().binary(Binary::Add, &x, leaf);
    let y = convolve(&x, &weight)?;
    let plain_y = engine.floats(y.to_vec(), y.shape());
    // The gradient of the sum of all means, since backward passes begin with ones.
    let backward = |leaf: &Tensor, y: &Tensor| {
        let means = engine.clone().global_avg_pool2d(y)?; // [batch, channels]
        drop(engine.backward(&means).take(leaf).expect("the means depend on the leaf"));
        Ok(())
    };
    let [forward, with_weight, with_input, pooled_y, entered_x, pooled_x] = medians_s(
        length,
        [
            &mut || convolve(&x, &weight).map(|y| compute(&y)),
            &mut || {
                let leaf = engine.leaf(&weight);
                backward(&leaf, &convolve(&x, &leaf)?)
            },
            &mut || {
                let leaf = engine.leaf(&plain_x);
                backward(&leaf, &convolve(&enter(&leaf)?, &weight)?)
            },
            &mut || {
                let leaf = engine.leaf(&plain_y);
                backward(&leaf, &leaf)
            },
            &mut || {
                let leaf = engine.leaf(&plain_x);
                backward(&leaf, &enter(&leaf)?)
            },
            &mut || {
                let leaf = engine.leaf(&plain_x);
                backward(&leaf, &leaf)
            },
        ],
    )?;
    let rate = |seconds: f64| (seconds > 0.0).then(|| convolution.flop(batch) / seconds * 1e-9);
    Ok(LayerRates {
        forward: rate(forward),
        weight_gradient: rate(with_weight - forward - pooled_y),
        input_gradient: rate(with_input - forward - pooled_y - (entered_x - pooled_x)),
    })
}
