//! One suite for every backend: each operation of the tensor interface against [`Reference`], its value and its gradient.
//!
//! Operands are random, of small shapes. The gradient of a random projection of the result is compared with central
//! differences of the reference, which computes in `f64`.

mod cases;
mod operation;

use omnilearn_agent::engine::{Engine, Tensor};
use omnilearn_kernel_host::backend::DType;
use omnilearn_kernel_host::reference::{Array, Reference};
use omnilearn_wire::sampling::SplitMix64;

pub use self::cases::{Case, Operand, cases};
pub use self::operation::Operation;

/// Largest error of a value or gradient on the CPU, as a share of the largest one: sums of up to some dozens of products in `f32`.
pub const CPU_TOLERANCE: f64 = 5e-5;

/// The same on a GPU, whose elementary functions are approximations: what agents are admitted with.
pub const GPU_TOLERANCE: f64 = 1e-3;

/// Most elements of an operand whose gradient is checked, spread evenly: each costs two passes of the reference.
const GRADIENT_ELEMENTS_MAX: usize = 60;

/// Step of the central differences: their error is about its square.
const STEP: f64 = 1e-5;

/// Names of all operations in the text of `wit/kernel.wit`: the functions of the resource `tensor`.
pub fn operations(wit: &str) -> Vec<String> {
    let resource = wit.split_once("resource tensor {").map_or("", |(_, rest)| rest);
    let resource = resource.split_once("\n    }\n").map_or(resource, |(resource, _)| resource);
    let name = |line: &str| {
        let (name, rest) = line.trim().split_once(": ")?;
        (rest.starts_with("func(") || rest.starts_with("static func(")).then(|| name.to_owned())
    };
    resource.lines().filter_map(name).collect()
}

/// Checks every case of an operation on an engine.
///
/// # Errors
/// The case, and what differs by how much.
pub fn check(engine: &Engine, tolerance: f64, name: &str) -> Result<(), String> {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.operation.name() == name).collect();
    if cases.is_empty() {
        return Err(format!("the suite has no case of `{name}`"));
    }
    cases.iter().try_for_each(|case| check_case(engine, tolerance, case).map_err(|error| format!("{case:?}: {error}")))
}

/// A case's operands as every backend gets them.
struct Values {
    operands: Vec<Vec<f32>>,
    /// The seed of the projections.
    seed: u64,
}

impl Values {
    fn of(case: &Case) -> Values {
        let mut generator = SplitMix64::new(case.seed);
        let operands = case.operands.iter().map(|operand| operand.values(&mut generator)).collect();
        Values { operands, seed: generator.next_u64() }
    }

    fn references(&self, case: &Case) -> Vec<Array> {
        let array = |(operand, values): (&Operand, &Vec<f32>)| match operand.dtype() {
            DType::F32 => Array::floats(values.iter().copied().map(f64::from).collect(), operand.shape()),
            DType::I32 => Array::ints(values.iter().map(|&value| value as i32).collect(), operand.shape()),
        };
        case.operands.iter().zip(&self.operands).map(array).collect()
    }

    /// Weights with which the elements of each result are summed.
    fn projection(&self, result: usize, elements: usize) -> Vec<f32> {
        let mut generator = SplitMix64::new(self.seed ^ result as u64);
        (0..elements).map(|_| uniform(&mut generator)).collect()
    }

    /// The sum over all results, each weighted by its projection.
    fn projected(&self, results: &[Array]) -> f64 {
        let one = |(index, result): (usize, &Array)| -> f64 {
            let weights = self.projection(index, result.values().len());
            result.values().iter().zip(weights).map(|(value, weight)| value * f64::from(weight)).sum()
        };
        results.iter().enumerate().map(one).sum()
    }
}

/// A number in -1 to below 1.
fn uniform(generator: &mut SplitMix64) -> f32 {
    (generator.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

fn check_case(engine: &Engine, tolerance: f64, case: &Case) -> Result<(), String> {
    let values = Values::of(case);
    let references = values.references(case);
    let expected = case.operation.apply(&mut Reference, &references).map_err(|error| error.to_string())?;

    let mut engine = engine.clone();
    let operands: Vec<Tensor> = case
        .operands
        .iter()
        .zip(&values.operands)
        .map(|(operand, values)| match operand.dtype() {
            DType::F32 => engine.leaf(&engine.floats(values.clone(), operand.shape())),
            DType::I32 => engine.ints(values.iter().map(|&value| value as i32).collect(), operand.shape()),
        })
        .collect();
    let results = case.operation.apply(&mut engine, &operands).map_err(|error| error.to_string())?;
    if results.len() != expected.len() {
        return Err(format!("{} results instead of {}", results.len(), expected.len()));
    }
    for (index, (result, expected)) in results.iter().zip(&expected).enumerate() {
        if result.shape() != expected.shape() {
            return Err(format!("result {index} has shape {:?} instead of {:?}", result.shape(), expected.shape()));
        }
        compare(&format!("result {index}"), tolerance, &floats(result), expected.values())?;
    }
    let differentiable = case.operation.results_with_gradient();
    if differentiable == 0 || operands[0].dtype() == DType::I32 {
        return Ok(());
    }

    let loss = project(&mut engine, &values, &results[..differentiable]).map_err(|error| error.to_string())?;
    let mut gradients = engine.backward(&loss);
    for (index, operand) in operands.iter().enumerate().filter(|(_, operand)| operand.dtype() == DType::F32) {
        let found = gradients.take(operand).map_or(vec![0.0; operand.elements()], |gradient| floats(&gradient));
        if case.operation.is_constant(index) {
            continue;
        }
        let stride = found.len().div_ceil(GRADIENT_ELEMENTS_MAX);
        let found: Vec<f64> = found.into_iter().step_by(stride).collect();
        let expected = differences(case, &values, &references, index, stride);
        compare(&format!("gradient of operand {index}, every {stride}th"), tolerance, &found, &expected)?;
    }
    Ok(())
}

/// All elements, as `f64`.
fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F32 => tensor.with_floats(|values| values.iter().copied().map(f64::from).collect()),
        DType::I32 => tensor.with_ints(|values| values.iter().copied().map(f64::from).collect()),
    }
}

/// [`Values::projected`], by the engine.
fn project(
    engine: &mut Engine,
    values: &Values,
    results: &[Tensor],
) -> omnilearn_kernel_host::backend::OpResult<Tensor> {
    use omnilearn_kernel_host::backend::{Binary, Reduction, TensorBackend};

    let mut total = engine.full(0.0, &[1])?;
    for (index, result) in results.iter().enumerate() {
        let weights = engine.from_f32(values.projection(index, result.elements()), result.shape())?;
        let weighted = engine.binary(Binary::Mul, result, &weights)?;
        let sum = engine.reduce(Reduction::Sum, &weighted, &[])?;
        total = engine.binary(Binary::Add, &total, &sum)?;
    }
    Ok(total)
}

/// The gradient of every `stride`th element of one operand by central differences of the reference.
fn differences(case: &Case, values: &Values, references: &[Array], operand: usize, stride: usize) -> Vec<f64> {
    let moved = |element: usize, step: f64| {
        let mut operands = references.to_vec();
        let mut elements = references[operand].values().to_vec();
        elements[element] += step;
        operands[operand] = Array::floats(elements, references[operand].shape());
        let results = case.operation.apply(&mut Reference, &operands).expect("it has been computed before");
        values.projected(&results[..case.operation.results_with_gradient()])
    };
    let elements = references[operand].values().len();
    (0..elements).step_by(stride).map(|element| (moved(element, STEP) - moved(element, -STEP)) / (2.0 * STEP)).collect()
}

fn compare(what: &str, tolerance: f64, found: &[f64], expected: &[f64]) -> Result<(), String> {
    let scale = expected.iter().fold(1e-3f64, |scale, value| scale.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        // Not-a-number is an error, too.
        if error.is_nan() || error > tolerance * scale {
            return Err(format!("{what}, element {index}: {found} instead of {expected}"));
        }
    }
    Ok(())
}
