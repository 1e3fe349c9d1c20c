//! What is computed: every operation with operands of several shapes.

use omnilearn_kernel_host::backend::{Binary, Conv2dOptions, DType, Pool2dOptions, Reduction, Scalar, Unary};
use omnilearn_wire::sampling::SplitMix64;

use super::{Operation, uniform};

/// A random operand.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    shape: Vec<usize>,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// In -1 to 1, but not within 0.05 of zero, where absolute values and activations have a kink.
    Signed,
    /// In 0.5 to 1.5.
    Positive,
    /// Each a different multiple of 0.1, in random order, so that the largest is the largest by far.
    Distinct,
    /// `i32` in `0..bound`.
    Index(usize),
}

impl Operand {
    /// Dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        if matches!(self.kind, Kind::Index(_)) { DType::I32 } else { DType::F32 }
    }

    pub(super) fn values(&self, generator: &mut SplitMix64) -> Vec<f32> {
        let elements = self.shape.iter().product();
        if self.kind == Kind::Distinct {
            let mut values: Vec<f32> =
                (0..elements).map(|index| (index as f32 - elements as f32 / 2.0) * 0.1).collect();
            for index in (1..elements).rev() {
                values.swap(index, generator.below(index as u64 + 1) as usize);
            }
            return values;
        }
        let mut value = || match self.kind {
            Kind::Signed => {
                let value = uniform(generator);
                value.signum() * (0.05 + 0.95 * value.abs())
            }
            Kind::Index(bound) => generator.below(bound as u64) as f32,
            Kind::Positive | Kind::Distinct => 1.0 + 0.5 * uniform(generator),
        };
        (0..elements).map(|_| value()).collect()
    }
}

/// An operation with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What is computed.
    pub operation: Operation,
    /// On what.
    pub operands: Vec<Operand>,
    pub(super) seed: u64,
}

fn signed(shape: &[usize]) -> Operand {
    Operand { shape: shape.to_vec(), kind: Kind::Signed }
}

fn positive(shape: &[usize]) -> Operand {
    Operand { shape: shape.to_vec(), kind: Kind::Positive }
}

fn distinct(shape: &[usize]) -> Operand {
    Operand { shape: shape.to_vec(), kind: Kind::Distinct }
}

fn index(shape: &[usize], bound: usize) -> Operand {
    Operand { shape: shape.to_vec(), kind: Kind::Index(bound) }
}

/// The whole suite.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |operation: Operation, operands: &[Operand]| {
        let seed = cases.len() as u64;
        cases.push(Case { operation, operands: operands.to_vec(), seed });
    };
    elementwise(&mut case);
    products(&mut case);
    images(&mut case);
    sequences(&mut case);
    shapes(&mut case);
    rows(&mut case);
    cases
}

type Add<'a> = &'a mut dyn FnMut(Operation, &[Operand]);

fn elementwise(case: Add<'_>) {
    let some = signed(&[2, 3]);
    for operation in [Operation::FromF32, Operation::FromI32, Operation::Full(-2.5, vec![2, 1, 3])] {
        case(operation, std::slice::from_ref(&some));
    }
    case(Operation::Shape, &[signed(&[2, 1, 3, 4])]);
    case(Operation::DType, &[signed(&[2]), index(&[2], 5)]);
    for op in [Unary::Neg, Unary::Abs, Unary::Exp, Unary::Relu, Unary::Sigmoid, Unary::Tanh, Unary::Gelu] {
        for shape in [&[7][..], &[2, 3, 4], &[2, 2, 2, 3, 2]] {
            case(Operation::Unary(op), &[signed(shape)]);
        }
    }
    for op in [Unary::Log, Unary::Sqrt] {
        case(Operation::Unary(op), &[positive(&[3, 5])]);
    }
    for op in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div] {
        for (a, b) in [
            (&[2, 3][..], &[2, 3][..]),
            (&[2, 3], &[3]),
            (&[2, 1, 3], &[4, 1]),
            (&[2, 3, 4, 5], &[1, 3, 1, 1]),
            (&[1], &[2, 2, 1, 2, 2]),
        ] {
            case(Operation::Binary(op), &[signed(a), positive(b)]);
        }
    }
    for op in [Scalar::Add(0.75), Scalar::Mul(-1.5), Scalar::Pow(2.0), Scalar::Pow(-0.5), Scalar::Clamp(0.6, 1.2)] {
        case(Operation::Scalar(op), &[positive(&[4, 5])]);
    }
    case(Operation::Equal, &[index(&[3, 4], 2), index(&[4], 2)]);
    case(Operation::Equal, &[signed(&[5]), signed(&[5])]);
    case(Operation::ToF32, &[index(&[3, 2], 1000)]);
    case(Operation::ToF32, &[signed(&[3, 2])]);
    case(Operation::Dropout { probability: 0.4, seed: 7 }, &[signed(&[6, 5])]);
    case(Operation::Dropout { probability: 0.0, seed: 7 }, &[signed(&[4])]);
    case(Operation::Detach, &[signed(&[4])]);
}

fn products(case: Add<'_>) {
    for (a, b) in [
        (&[3, 4][..], &[4, 5][..]),
        (&[2, 3, 4], &[2, 4, 2]),
        (&[2, 1, 3, 4], &[1, 3, 4, 2]),
        (&[2, 3, 2], &[2, 3]),
        (&[17, 19], &[19, 18]),
    ] {
        case(Operation::Matmul, &[signed(a), signed(b)]);
    }
    for (batch, inputs, outputs) in [(1, 1, 1), (3, 5, 4), (2, 33, 18), (17, 20, 3), (20, 7, 33)] {
        let (x, weight, bias) = (signed(&[batch, inputs]), signed(&[outputs, inputs]), signed(&[outputs]));
        case(Operation::Linear, &[x.clone(), weight.clone(), bias]);
        case(Operation::Linear, &[x, weight]);
    }
}

fn images(case: Add<'_>) {
    let conv =
        |stride, padding, dilation, groups| Operation::Conv2d(Conv2dOptions { stride, padding, dilation, groups });
    let convolutions: [(Operation, &[usize], &[usize]); 9] = [
        (conv([1, 1], [0, 0], [1, 1], 1), &[2, 3, 5, 6], &[4, 3, 3, 2]),
        (conv([2, 1], [1, 2], [1, 1], 1), &[2, 2, 6, 5], &[3, 2, 3, 3]),
        (conv([1, 2], [2, 1], [2, 1], 1), &[1, 2, 7, 6], &[2, 2, 3, 3]),
        (conv([1, 1], [1, 1], [1, 1], 2), &[2, 4, 4, 4], &[6, 2, 3, 3]),
        (conv([1, 1], [1, 1], [1, 1], 4), &[2, 4, 4, 4], &[4, 1, 3, 3]),
        (conv([1, 1], [0, 0], [1, 1], 1), &[2, 5, 3, 3], &[4, 5, 1, 1]),
        (conv([2, 2], [0, 0], [1, 1], 1), &[2, 5, 4, 4], &[4, 5, 1, 1]),
        // Wide enough for channels last and for Winograd's algorithm.
        (conv([1, 1], [1, 1], [1, 1], 1), &[2, 16, 8, 8], &[32, 16, 3, 3]),
        (conv([1, 1], [1, 1], [1, 1], 32), &[2, 32, 8, 8], &[32, 1, 3, 3]),
    ];
    for (operation, x, weight) in convolutions {
        let (x, weight, bias) = (signed(x), signed(weight), signed(&[weight[0]]));
        case(operation.clone(), &[x.clone(), weight.clone(), bias]);
        case(operation, &[x, weight]);
    }
    for (kernel, stride, padding) in [([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 2], [1, 1]), ([3, 3], [2, 2], [1, 1])] {
        let options = Pool2dOptions { kernel, stride, padding };
        case(Operation::MaxPool2d(options), &[distinct(&[2, 2, 5, 6])]);
        case(Operation::AvgPool2d(options), &[signed(&[2, 2, 5, 6])]);
    }
    case(Operation::GlobalAvgPool2d, &[signed(&[2, 3, 4, 5])]);
    for x in [&[5, 3][..], &[2, 3, 4, 3]] {
        let per_channel = || signed(&[3]);
        let operands = [signed(x), per_channel(), per_channel(), per_channel(), positive(&[3])];
        case(Operation::BatchNormTrain { momentum: 0.1, epsilon: 1e-3 }, &operands);
        case(Operation::BatchNormEval { epsilon: 1e-3 }, &operands);
    }
}

fn sequences(case: Add<'_>) {
    for x in [&[6][..], &[3, 5], &[2, 3, 4]] {
        let features = x[x.len() - 1];
        let operands = [signed(x), signed(&[features]), signed(&[features])];
        case(Operation::LayerNorm { epsilon: 1e-3 }, &operands);
    }
    for indices in [&[4][..], &[2, 3]] {
        case(Operation::Embedding, &[signed(&[5, 3]), index(indices, 5)]);
    }
}

fn shapes(case: Add<'_>) {
    for x in [signed(&[2, 3, 4]), index(&[2, 3, 4], 9)] {
        // What has no gradient of its own is checked by value only.
        let mut either = |operation: Operation| case(operation, std::slice::from_ref(&x));
        either(Operation::Reshape(vec![4, 6]));
        either(Operation::Reshape(vec![1, 24, 1]));
        either(Operation::Permute(vec![2, 0, 1]));
        either(Operation::Narrow { dim: 1, start: 1, length: 2 });
    }
    case(Operation::Permute(vec![0, 3, 1, 2]), &[signed(&[2, 3, 2, 4])]);
    case(Operation::Narrow { dim: 0, start: 0, length: 1 }, &[signed(&[3, 2])]);
    case(Operation::Concat(1), &[signed(&[2, 1, 3]), signed(&[2, 4, 3]), signed(&[2, 2, 3])]);
    case(Operation::Concat(0), &[index(&[2], 5), index(&[3], 5)]);
    case(Operation::Gather(1), &[signed(&[3, 5]), index(&[3, 2], 5)]);
    case(Operation::Gather(0), &[signed(&[4, 5]), index(&[6, 3], 4)]);
    case(Operation::Gather(1), &[index(&[2, 4], 9), index(&[2, 2], 4)]);
    case(Operation::OneHot(5), &[index(&[2, 3], 5)]);
}

fn rows(case: Add<'_>) {
    for reduction in [Reduction::Sum, Reduction::Mean] {
        for dims in [&[][..], &[0], &[1], &[2], &[0, 2]] {
            case(Operation::Reduce(reduction, dims.to_vec()), &[signed(&[2, 3, 4])]);
        }
    }
    for dim in 0..3 {
        case(Operation::Max(dim), &[distinct(&[2, 3, 4])]);
        case(Operation::Argmax(dim), &[distinct(&[2, 3, 4])]);
        case(Operation::Softmax(dim), &[signed(&[2, 3, 4])]);
        case(Operation::LogSoftmax(dim), &[signed(&[2, 3, 4])]);
    }
    for (batch, classes) in [(1, 2), (5, 7)] {
        case(Operation::CrossEntropy, &[signed(&[batch, classes]), index(&[batch], classes)]);
    }
}
