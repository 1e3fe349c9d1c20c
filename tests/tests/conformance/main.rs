//! Every operation of `wit/kernel.wit`, on every backend that this build has, against the reference.

use omnilearn_agent::engine::{Engine, Operators};
use omnilearn_tests::conformance::{CPU_TOLERANCE, check, operations};

/// Their names in the interface; one test for each, on the CPU.
macro_rules! conformance {
    ($($name:ident = $operation:literal),* $(,)?) => {
        /// All of them.
        const OPERATIONS: &[&str] = &[$($operation),*];

        $(
            #[test]
            fn $name() {
                for operators in [Operators::Own, Operators::Burn] {
                    let checked = check(&Engine::cpu(operators), CPU_TOLERANCE, $operation);
                    checked.unwrap_or_else(|error| panic!("{operators:?}: {error}"));
                }
            }
        )*
    };
}

#[test]
fn no_operation_of_the_interface_is_left_out() {
    let wit = std::fs::read_to_string(omnilearn_tests::workspace().join("wit/kernel.wit")).unwrap();
    let mut named = OPERATIONS.to_vec();
    let mut expected = operations(&wit);
    named.sort_unstable();
    expected.sort_unstable();
    assert_eq!(named, expected);
}

/// In one process, since a device takes seconds to start.
#[cfg(feature = "gpu")]
#[test]
fn every_operation_on_a_gpu() {
    use omnilearn_agent::device::{DeviceChoice, select};
    use omnilearn_tests::conformance::GPU_TOLERANCE;

    let engine = match select(DeviceChoice::GpuAt(0)) {
        Ok(selected) => selected.engine,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let wrong: Vec<String> =
        OPERATIONS.iter().filter_map(|operation| check(&engine, GPU_TOLERANCE, operation).err()).collect();
    assert!(wrong.is_empty(), "{}: {wrong:#?}", engine.description());
}

conformance! {
    from_f32 = "from-f32",
    from_i32 = "from-i32",
    full = "full",
    shape = "shape",
    dtype = "dtype",
    add = "add",
    sub = "sub",
    mul = "mul",
    div = "div",
    add_scalar = "add-scalar",
    mul_scalar = "mul-scalar",
    pow_scalar = "pow-scalar",
    clamp = "clamp",
    neg = "neg",
    abs = "abs",
    exp = "exp",
    log = "log",
    sqrt = "sqrt",
    relu = "relu",
    sigmoid = "sigmoid",
    tanh = "tanh",
    gelu = "gelu",
    matmul = "matmul",
    linear = "linear",
    conv2d = "conv2d",
    max_pool2d = "max-pool2d",
    avg_pool2d = "avg-pool2d",
    global_avg_pool2d = "global-avg-pool2d",
    batch_norm_train = "batch-norm-train",
    batch_norm_eval = "batch-norm-eval",
    layer_norm = "layer-norm",
    embedding = "embedding",
    reshape = "reshape",
    permute = "permute",
    narrow = "narrow",
    concat = "concat",
    sum = "sum",
    mean = "mean",
    max = "max",
    argmax = "argmax",
    softmax = "softmax",
    log_softmax = "log-softmax",
    cross_entropy = "cross-entropy",
    gather = "gather",
    one_hot = "one-hot",
    equal = "equal",
    to_f32 = "to-f32",
    dropout = "dropout",
    detach = "detach",
}
