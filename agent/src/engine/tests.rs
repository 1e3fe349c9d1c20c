use omnilearn_kernel_host::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpError, OpResult, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
};
use omnilearn_wire::sampling::SplitMix64;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut generator = SplitMix64::new(seed);
    (0..count).map(|_| (generator.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0).collect()
}

fn uniform(engine: &Engine, shape: &[usize], seed: u64) -> Tensor {
    engine.floats(random(shape.iter().product(), seed), shape)
}

fn conv(stride: usize, padding: usize) -> Conv2dOptions {
    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 }
}

/// Every operator that has a version of our own, in one loss.
fn network(engine: &mut Engine, leaves: &[Tensor], x: &Tensor, targets: &Tensor) -> OpResult<Tensor> {
    let statistics = BatchNorm {
        gamma: &leaves[2],
        beta: &leaves[3],
        running_mean: &leaves[3],
        running_var: &leaves[2],
        epsilon: 1e-5,
    };
    let x = engine.conv2d(x, &leaves[0], Some(&leaves[1]), conv(1, 1))?;
    let [x, _, _] = engine.batch_norm_train(&x, statistics, 0.1)?;
    let x = engine.unary(Unary::Relu, &x)?;
    let x = engine.max_pool2d(&x, Pool2dOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] })?;
    let x = engine.conv2d(&x, &leaves[4], None, conv(2, 1))?;
    let x = engine.max_pool2d(&x, Pool2dOptions { kernel: [3; 2], stride: [1; 2], padding: [1; 2] })?;
    let x = engine.reshape(&x, &[x.shape()[0], 5 * 9])?;
    let x = engine.linear(&x, &leaves[5], Some(&leaves[6]))?;
    engine.cross_entropy(&x, targets)
}

/// A network whose images lie with their channels last, with everything that may be computed at once or in another layout:
/// activations, a result that is used with and without its activation, sums of both layouts, a permutation.
fn wide_network(engine: &mut Engine, leaves: &[Tensor], x: &Tensor, targets: &Tensor) -> OpResult<Tensor> {
    let statistics = BatchNorm {
        gamma: &leaves[2],
        beta: &leaves[3],
        running_mean: &leaves[3].detached(),
        running_var: &leaves[2].detached(),
        epsilon: 1e-3,
    };
    let window = Pool2dOptions { kernel: [2; 2], stride: [2; 2], padding: [0; 2] };
    let y = engine.conv2d(x, &leaves[0], Some(&leaves[1]), conv(1, 1))?;
    let [y, _, _] = engine.batch_norm_train(&y, statistics, 0.1)?;
    let activated = engine.unary(Unary::Relu, &y)?;
    let x = engine.conv2d(&activated, &leaves[4], None, conv(1, 1))?;
    let x = engine.unary(Unary::Relu, &x)?;
    let x = engine.binary(Binary::Add, &x, &y)?;
    let x = engine.unary(Unary::Relu, &x)?;
    let x = engine.scalar(Scalar::Mul(0.5), &x)?;
    let turned = engine.permute(&x, &[0, 1, 3, 2])?;
    let x = engine.binary(Binary::Add, &x, &turned)?;
    let x = engine.max_pool2d(&x, window)?;
    let statistics = BatchNorm {
        gamma: &leaves[2],
        beta: &leaves[3],
        running_mean: &engine.full(0.1, &[32])?,
        running_var: &engine.full(2.0, &[32])?,
        epsilon: 1e-3,
    };
    let x = engine.batch_norm_eval(&x, statistics)?;
    let depthwise = Conv2dOptions { groups: 32, ..conv(1, 1) };
    let x = engine.conv2d(&x, &leaves[5], None, depthwise)?;
    let pooled = engine.avg_pool2d(&x, window)?;
    let flat = engine.reshape(&pooled, &[x.shape()[0], 32 * 4])?;
    let wide = engine.linear(&flat, &leaves[6], Some(&leaves[7]))?;
    let wide = engine.unary(Unary::Relu, &wide)?;
    let mean = engine.global_avg_pool2d(&x)?;
    let x = engine.binary(Binary::Add, &wide, &mean)?;
    let x = engine.layer_norm(&x, &leaves[2], &leaves[3], 1e-3)?;
    let rows = engine.embedding(&leaves[8], targets)?;
    let x = engine.binary(Binary::Add, &x, &rows)?;
    let x = engine.linear(&x, &leaves[9], None)?;
    engine.cross_entropy(&x, targets)
}

type Network = fn(&mut Engine, &[Tensor], &Tensor, &Tensor) -> OpResult<Tensor>;

/// Loss and gradients of a network whose parameters have these shapes, for a batch of 6.
fn differentiated(operators: Operators, network: Network, shapes: &[&[usize]], x: &[usize]) -> (f32, Vec<Vec<f32>>) {
    let mut engine = Engine::cpu(operators);
    let parameters: Vec<Tensor> =
        shapes.iter().enumerate().map(|(seed, shape)| uniform(&engine, shape, seed as u64)).collect();
    let leaves: Vec<Tensor> = parameters.iter().map(|parameter| engine.leaf(parameter)).collect();
    let x = uniform(&engine, x, 99);
    let targets = engine.ints(vec![0, 1, 2, 2, 1, 0], &[6]);
    let loss = network(&mut engine, &leaves, &x, &targets).unwrap();
    let mut gradients = engine.backward(&loss);
    let gradients: Vec<Vec<f32>> = leaves.iter().map(|leaf| gradients.take(leaf).unwrap().to_vec()).collect();
    (loss.to_vec()[0], gradients)
}

#[test]
fn our_operators_agree_with_those_of_burn() {
    let narrow: [&[usize]; 7] = [&[4, 2, 3, 3], &[4], &[4], &[4], &[5, 4, 3, 3], &[3, 45], &[3]];
    let wide: [&[usize]; 10] =
        [&[32, 16, 3, 3], &[32], &[32], &[32], &[32, 32, 3, 3], &[32, 1, 3, 3], &[32, 128], &[32], &[3, 32], &[3, 32]];
    for (network, shapes, x) in
        [(network as Network, &narrow[..], [6, 2, 12, 12]), (wide_network as Network, &wide[..], [6, 16, 8, 8])]
    {
        let own = differentiated(Operators::Own, network, shapes, &x);
        let burn = differentiated(Operators::Burn, network, shapes, &x);
        assert!((own.0 - burn.0).abs() < 1e-5, "{} {}", own.0, burn.0);
        for (index, (own, burn)) in own.1.iter().zip(&burn.1).enumerate() {
            let scale = burn.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
            // The convolution's bias before a batch norm has a gradient of zero but for rounding.
            let tolerance = if index == 1 { 1e-5 } else { 1e-4 * scale };
            for (own, burn) in own.iter().zip(burn) {
                assert!((own - burn).abs() <= tolerance, "{} parameters, {index}: {own} {burn}", shapes.len());
            }
        }
    }
}

#[test]
fn a_result_is_the_same_with_and_without_its_activation() {
    let mut engine = Engine::default();
    let (x, weight) = (uniform(&engine, &[3, 16, 6, 6], 1), uniform(&engine, &[32, 16, 3, 3], 2));
    let y = engine.conv2d(&x, &weight, None, conv(1, 1)).unwrap();
    let activated = engine.unary(Unary::Relu, &y).unwrap().to_vec();
    let expected: Vec<f32> = y.to_vec().iter().map(|value| value.max(0.0)).collect();
    assert_eq!(activated, expected);
    // Once somebody has seen it, it is not computed again.
    assert_eq!(engine.unary(Unary::Relu, &y).unwrap().to_vec(), expected);
}

#[test]
fn steps_repeat_to_the_last_bit() {
    let mut engine = Engine::default();
    let mut step = || {
        let weight = engine.leaf(&uniform(&engine, &[16, 3, 3, 3], 1));
        let x = uniform(&engine, &[5, 3, 9, 9], 2);
        let y = engine.conv2d(&x, &weight, None, conv(1, 1)).unwrap();
        let loss = engine.reduce(Reduction::Mean, &engine.clone().binary(Binary::Mul, &y, &y).unwrap(), &[]).unwrap();
        let mut gradients = engine.backward(&loss);
        (loss.to_vec(), gradients.take(&weight).unwrap().to_vec())
    };
    assert_eq!(step(), step());
}

#[test]
fn leaf_that_the_loss_does_not_depend_on_has_no_gradient() {
    let mut engine = Engine::default();
    let (used, unused) = (engine.leaf(&engine.floats(vec![3.0], &[1])), engine.leaf(&engine.floats(vec![4.0], &[1])));
    let loss = engine.binary(Binary::Mul, &used, &used).unwrap();
    let mut gradients = engine.backward(&loss);
    assert_eq!(gradients.take(&used).unwrap().to_vec(), [6.0]);
    assert!(gradients.take(&unused).is_none());
    let constant = engine.full(1.0, &[1]).unwrap();
    assert!(engine.backward(&constant).take(&used).is_none());
}

#[test]
fn detached_values_carry_no_gradient() {
    let mut engine = Engine::default();
    let x = engine.leaf(&engine.floats(vec![2.0, 3.0], &[2]));
    let cut = engine.detach(&x).unwrap();
    let product = engine.binary(Binary::Mul, &x, &cut).unwrap();
    let loss = engine.reduce(Reduction::Sum, &product, &[]).unwrap();
    assert_eq!(engine.backward(&loss).take(&x).unwrap().to_vec(), [2.0, 3.0]);
}

#[test]
fn running_variance_is_unbiased_and_output_is_not() {
    let mut engine = Engine::default();
    let x = engine.floats(vec![1.0, 3.0], &[2, 1]);
    let (one, zero) = (engine.floats(vec![1.0], &[1]), engine.floats(vec![0.0], &[1]));
    let statistics = || BatchNorm { gamma: &one, beta: &zero, running_mean: &zero, running_var: &one, epsilon: 0.0 };
    let [out, mean, variance] = engine.batch_norm_train(&x, statistics(), 0.5).unwrap();
    assert_eq!(out.to_vec(), [-1.0, 1.0]);
    assert_eq!(mean.to_vec(), [1.0]); // half of 0, half of 2
    assert_eq!(variance.to_vec(), [1.5]); // half of 1, half of 2
    assert_eq!(engine.batch_norm_eval(&x, statistics()).unwrap().to_vec(), [1.0, 3.0]);
}

#[test]
fn dropout_of_a_seed_is_the_same_everywhere() {
    let mut engine = Engine::default();
    let ones = engine.full(1.0, &[10_000]).unwrap();
    let first = engine.dropout(&ones, 0.25, 7).unwrap().to_vec();
    assert_eq!(engine.dropout(&ones, 0.25, 7).unwrap().to_vec(), first);
    assert_ne!(engine.dropout(&ones, 0.25, 8).unwrap().to_vec(), first);
    let kept = first.iter().filter(|&&value| value != 0.0).count();
    assert!((7300..7700).contains(&kept), "{kept}");
    assert!(first.iter().all(|&value| value == 0.0 || value == 1.0 / 0.75));
    // Part of the contract: the draws that other devices make, too.
    let zeros: Vec<usize> = (0..24).filter(|&index| first[index] == 0.0).collect();
    assert_eq!(zeros, dropout_zeros_by_definition(7, 0.25, 24));
    assert_eq!(engine.dropout(&ones, 0.0, 7).unwrap().to_vec(), [1.0; 10_000]);
}

fn dropout_zeros_by_definition(seed: u64, probability: f64, count: usize) -> Vec<usize> {
    let mut generator = SplitMix64::new(seed);
    (0..count).filter(|_| ((generator.next_u64() >> 40) as f64) / 16_777_216.0 < probability).collect()
}

#[test]
fn shapes_and_indices() {
    let mut engine = Engine::default();
    let x = engine.floats((0..6).map(|value| value as f32).collect(), &[2, 3]);
    let transposed = engine.permute(&x, &[1, 0]).unwrap();
    assert_eq!(transposed.to_vec(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(engine.narrow(&transposed, 0, 1, 2).unwrap().to_vec(), [1.0, 4.0, 2.0, 5.0]);
    assert_eq!(engine.reshape(&transposed, &[6]).unwrap().to_vec(), transposed.to_vec());
    assert_eq!(engine.concat(&[x.clone(), x.clone()], 1).unwrap().shape(), [2, 6]);
    assert_eq!(engine.reduce(Reduction::Sum, &x, &[0]).unwrap().to_vec(), [3.0, 5.0, 7.0]);
    assert_eq!(engine.reduce(Reduction::Mean, &x, &[0, 1]).unwrap().shape(), [1, 1]);
    assert_eq!(engine.reduce(Reduction::Mean, &x, &[]).unwrap().to_vec(), [2.5]);
    assert_eq!(engine.max(&x, 1).unwrap().to_vec(), [2.0, 5.0]);
    let argmax = engine.argmax(&x, 1).unwrap();
    assert_eq!((argmax.shape(), argmax.dtype()), (&[2, 1][..], DType::I32));
    argmax.with_ints(|values| assert_eq!(values, [2, 2]));
    let index = engine.ints(vec![2, 0], &[1, 2]);
    assert_eq!(engine.gather(&x, 1, &index).unwrap().to_vec(), [2.0, 0.0]);
    let classes = engine.ints(vec![1, -1, 5], &[3]);
    assert_eq!(engine.one_hot(&classes, 2).unwrap().to_vec(), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    let row = engine.ints(vec![1, -1, 7], &[1, 3]);
    assert_eq!(engine.equal(&classes, &row).unwrap().to_vec(), [1.0, 1.0, 0.0]);
    assert_eq!(engine.to_f32(&classes).unwrap().to_vec(), [1.0, -1.0, 5.0]);
    assert_eq!(
        engine.global_avg_pool2d(&engine.floats(vec![1.0, 3.0, 5.0, 7.0], &[1, 2, 1, 2])).unwrap().to_vec(),
        [2.0, 6.0]
    );
}

#[test]
fn gradients_of_broadcast_operands_have_their_shapes() {
    let mut engine = Engine::default();
    let (a, b) = (engine.leaf(&uniform(&engine, &[2, 3, 4], 1)), engine.leaf(&uniform(&engine, &[4], 2)));
    for op in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div] {
        let y = engine.binary(op, &a, &b).unwrap();
        let loss = engine.reduce(Reduction::Sum, &y, &[]).unwrap();
        let mut gradients = engine.backward(&loss);
        assert_eq!(gradients.take(&a).unwrap().shape(), [2, 3, 4]);
        assert_eq!(gradients.take(&b).unwrap().shape(), [4]);
    }
}

#[test]
fn average_pooling_does_not_count_padding() {
    let mut engine = Engine::default();
    let x = engine.full(2.0, &[1, 1, 3, 3]).unwrap();
    let options = Pool2dOptions { kernel: [3; 2], stride: [2; 2], padding: [1; 2] };
    assert_eq!(engine.avg_pool2d(&x, options).unwrap().to_vec(), [2.0; 4]);
}

#[test]
fn activations_have_their_values() {
    let mut engine = Engine::default();
    let x = engine.floats(vec![-1.0, 0.5], &[2]);
    let expected: [(Unary, [f32; 2]); 5] = [
        (Unary::Relu, [0.0, 0.5]),
        (Unary::Sigmoid, [0.268_941_4, 0.622_459_4]),
        (Unary::Tanh, [-0.761_594_2, 0.462_117_2]),
        (Unary::Gelu, [-0.158_655_3, 0.345_731_2]),
        (Unary::Abs, [1.0, 0.5]),
    ];
    for (op, expected) in expected {
        let found = engine.unary(op, &x).unwrap().to_vec();
        assert!(
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 2e-6),
            "{op:?}: {found:?}"
        );
    }
    assert_eq!(engine.scalar(Scalar::Clamp(-0.5, 0.25), &x).unwrap().to_vec(), [-0.5, 0.25]);
    let rows = engine.floats(vec![0.0, 1000.0, 0.0, 0.0], &[2, 2]);
    assert_eq!(engine.softmax(&rows, 1).unwrap().to_vec(), [0.0, 1.0, 0.5, 0.5]);
    assert_eq!(engine.log_softmax(&rows, 1).unwrap().to_vec()[..2], [-1000.0, 0.0]);
}

#[test]
fn misuse_is_an_error_that_names_operation_and_shapes() {
    let mut engine = Engine::default().with_elements_max(1 << 20);
    let image = uniform(&engine, &[64, 1, 28, 28], 1);
    let matrix = uniform(&engine, &[10, 10], 2);
    let ints = engine.ints(vec![0, 11], &[2]);
    let error = engine.conv2d(&image, &matrix, None, conv(1, 0)).unwrap_err();
    assert_eq!(error.to_string(), "`conv2d` cannot take f32 [64, 1, 28, 28] and f32 [10, 10]: the weight needs rank 4");
    let check = |result: OpResult<Tensor>, operation: &str, reason: &str| {
        let OpError { operation: found, reason: text, .. } = result.unwrap_err();
        assert_eq!(found, operation);
        assert!(text.contains(reason), "{operation}: {text}");
    };
    check(engine.matmul(&image, &matrix), "matmul", "inner sizes 28 and 10");
    check(engine.binary(Binary::Add, &image, &matrix), "add", "28 and 10 do not broadcast");
    check(engine.binary(Binary::Add, &matrix, &ints), "add", "must be f32");
    check(engine.unary(Unary::Exp, &ints), "exp", "must be f32");
    check(engine.linear(&matrix, &image, None), "linear", "rank 2");
    check(engine.reshape(&matrix, &[7, 15]), "reshape", "105 elements");
    check(engine.reshape(&matrix, &[1; 7]), "reshape", "rank");
    check(engine.permute(&matrix, &[0, 0]), "permute", "permutation");
    check(engine.narrow(&matrix, 1, 4, 7), "narrow", "not in 0..10");
    check(engine.narrow(&matrix, 1, usize::MAX, 2), "narrow", "not in");
    check(engine.concat(&[], 0), "concat", "at least one");
    check(engine.concat(&[matrix.clone(), ints.clone()], 0), "concat", "differ");
    check(engine.full(0.0, &[1 << 20, 1 << 20, 1 << 20, 1 << 20]), "full", "larger than allowed");
    check(engine.full(0.0, &[3, 0]), "full", "no elements");
    check(engine.full(0.0, &[]), "full", "rank");
    check(engine.from_f32(vec![0.0; 5], &[2, 3]), "from-f32", "5 values");
    check(engine.one_hot(&ints, 1 << 30), "one-hot", "larger than allowed");
    check(engine.one_hot(&ints, 0), "one-hot", "no elements");
    let two_rows = engine.narrow(&matrix, 0, 0, 2).unwrap();
    check(engine.cross_entropy(&two_rows, &ints), "cross-entropy", "target 11 is not in 0..10");
    let index = engine.reshape(&ints, &[2, 1]).unwrap();
    check(engine.gather(&matrix, 1, &index), "gather", "index 11 is not in 0..10");
    check(engine.dropout(&matrix, 1.0, 0), "dropout", "probability 1");
    check(engine.dropout(&matrix, f32::NAN, 0), "dropout", "probability");
    check(engine.scalar(Scalar::Clamp(1.0, 0.0), &matrix), "clamp", "order");
    check(engine.conv2d(&image, &image, None, conv(0, 0)), "conv2d", "does not fit");
    check(engine.conv2d(&image, &image, None, conv(1, usize::MAX / 2)), "conv2d", "does not fit");
    let huge = Conv2dOptions { padding: [100_000; 2], ..conv(1, 0) };
    check(engine.conv2d(&image, &image, None, huge), "conv2d", "larger than allowed");
    let pool = |kernel, padding| Pool2dOptions { kernel: [kernel; 2], stride: [1; 2], padding: [padding; 2] };
    check(engine.max_pool2d(&image, pool(29, 0)), "max-pool2d", "does not fit");
    check(engine.max_pool2d(&image, pool(2, 2)), "max-pool2d", "padding");
    check(engine.avg_pool2d(&matrix, pool(2, 0)), "avg-pool2d", "rank 4");
    let statistics = BatchNorm { gamma: &ints, beta: &ints, running_mean: &ints, running_var: &ints, epsilon: 0.0 };
    check(engine.batch_norm_eval(&matrix, statistics), "batch-norm-eval", "f32");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// A kernel may call anything with anything.
    #[test]
    fn no_call_panics(
        shapes in proptest::collection::vec(proptest::collection::vec(1usize..5, 1..6), 3),
        numbers in proptest::array::uniform6(0usize..6),
        integer in any::<bool>(),
        operation in 0usize..24,
    ) {
        let mut engine = Engine::default().with_elements_max(1 << 16);
        let a = engine.leaf(&uniform(&engine, &shapes[0], 1));
        let b = if integer {
            let count: usize = shapes[1].iter().product();
            engine.ints((0..count as i32).map(|value| value % 6 - 1).collect(), &shapes[1])
        } else {
            engine.leaf(&uniform(&engine, &shapes[1], 2))
        };
        let c = uniform(&engine, &shapes[2], 3);
        let [n0, n1, n2, n3, n4, n5] = numbers;
        let pool = Pool2dOptions { kernel: [n0, n1], stride: [n2, n3], padding: [n4, n5] };
        let convolution = Conv2dOptions { stride: [n0, n1], padding: [n2, n3], dilation: [n4, n4], groups: n5 };
        let statistics = BatchNorm { gamma: &b, beta: &c, running_mean: &b, running_var: &c, epsilon: 1e-5 };
        let result = match operation {
            0 => engine.binary(Binary::Div, &a, &b),
            1 => engine.matmul(&a, &b),
            2 => engine.linear(&a, &b, Some(&c)),
            3 => engine.conv2d(&a, &b, Some(&c), convolution),
            4 => engine.conv2d(&a, &b, None, convolution),
            5 => engine.max_pool2d(&a, pool),
            6 => engine.avg_pool2d(&a, pool),
            7 => engine.global_avg_pool2d(&a),
            8 => engine.batch_norm_train(&a, statistics, 0.1).map(|[out, _, _]| out),
            9 => engine.batch_norm_eval(&a, statistics),
            10 => engine.reshape(&a, &numbers[..n0]),
            11 => engine.permute(&a, &numbers[..n0]),
            12 => engine.narrow(&a, n0, n1, n2),
            13 => engine.concat(&[a.clone(), b.clone(), c.clone()], n0),
            14 => engine.reduce(Reduction::Mean, &a, &[n0.min(n1)]),
            15 => engine.max(&a, n0),
            16 => engine.argmax(&a, n0),
            17 => engine.softmax(&a, n0),
            18 => engine.log_softmax(&a, n0),
            19 => engine.cross_entropy(&a, &b),
            20 => engine.gather(&a, n0, &b),
            21 => engine.one_hot(&b, n0),
            22 => engine.equal(&a, &b),
            _ => engine.dropout(&a, n0 as f32 / 4.0, 1),
        };
        if let Ok(out) = result && out.dtype() == DType::F32 {
            let loss = engine.reduce(Reduction::Sum, &out, &[]).unwrap();
            engine.backward(&loss).take(&a);
        }
    }
}
