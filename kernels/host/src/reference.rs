//! Every operation as its definition says, element after element in `f64`: slow, plain, and what other backends are checked
//! against.

use std::rc::Rc;

use crate::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpError, OpResult, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
    dropout_mask,
};

/// An array on the host. Integers are kept as `f64`, too, which holds every `i32`.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    values: Rc<[f64]>,
    shape: Rc<[usize]>,
    dtype: DType,
}

impl Array {
    /// An `f32` tensor's values in row-major order. Their number is the product of `shape`.
    pub fn floats(values: Vec<f64>, shape: &[usize]) -> Array {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "as many values as the shape says");
        Array { values: values.into(), shape: shape.into(), dtype: DType::F32 }
    }

    /// An `i32` tensor's.
    pub fn ints(values: Vec<i32>, shape: &[usize]) -> Array {
        let floats = Array::floats(values.into_iter().map(f64::from).collect(), shape);
        Array { dtype: DType::I32, ..floats }
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements in row-major order.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    fn map(&self, f: impl Fn(f64) -> f64) -> Array {
        Array { values: self.values.iter().map(|&value| f(value)).collect(), ..self.clone() }
    }

    /// The element at these indices; of a dimension of 1, and of missing leading ones, the only element.
    fn broadcast_at(&self, indices: &[usize]) -> f64 {
        let indices = &indices[indices.len() - self.shape.len()..];
        let place = |at: usize, (&index, &size): (&usize, &usize)| at * size + if size == 1 { 0 } else { index };
        self.values[indices.iter().zip(&*self.shape).fold(0, place)]
    }

    fn at(&self, indices: &[usize]) -> f64 {
        self.values[indices.iter().zip(&*self.shape).fold(0, |at, (&index, &size)| at * size + index)]
    }

    /// An element of a matrix in the last two dimensions, leading dimensions broadcast.
    fn broadcast_matrix_at(&self, leading: &[usize], row: usize, column: usize) -> f64 {
        let own = self.shape.len() - 2;
        let leading = leading[leading.len() - own..].iter().zip(&*self.shape);
        let matrix = leading.fold(0, |at, (&index, &size)| at * size + if size == 1 { 0 } else { index });
        let (rows, columns) = (self.shape[own], self.shape[own + 1]);
        self.values[(matrix * rows + row) * columns + column]
    }
}

/// Calls `element` with the indices of each element, in row-major order.
fn for_each_index(shape: &[usize], mut element: impl FnMut(&[usize])) {
    let mut indices = vec![0; shape.len()];
    for _ in 0..shape.iter().product::<usize>() {
        element(&indices);
        for dim in (0..shape.len()).rev() {
            indices[dim] += 1;
            if indices[dim] < shape[dim] {
                break;
            }
            indices[dim] = 0;
        }
    }
}

/// A tensor whose elements are made from their indices.
fn tabulate(shape: &[usize], mut element: impl FnMut(&[usize]) -> f64) -> Array {
    let mut values = Vec::with_capacity(shape.iter().product());
    for_each_index(shape, |indices| values.push(element(indices)));
    Array::floats(values, shape)
}

/// The backend. Operands that do not fit are an error; their values are taken as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

fn misuse<T>(operation: &'static str, operands: &[&Array], reason: &str) -> OpResult<T> {
    let name = |array: &&Array| match array.dtype {
        DType::F32 => format!("f32 {:?}", array.shape),
        DType::I32 => format!("i32 {:?}", array.shape),
    };
    let operands = operands.iter().map(name).collect::<Vec<_>>().join(" and ");
    Err(OpError { operation, operands, reason: reason.to_owned() })
}

/// The shape that both stretch to.
fn broadcast(operation: &'static str, a: &Array, b: &Array) -> OpResult<Vec<usize>> {
    let rank = a.shape.len().max(b.shape.len());
    let size = |array: &Array, dim: usize| match (dim + array.shape.len()).checked_sub(rank) {
        Some(dim) => array.shape[dim],
        None => 1,
    };
    (0..rank)
        .map(|dim| match (size(a, dim), size(b, dim)) {
            (a, b) if a == b => Ok(a),
            (1, size) | (size, 1) => Ok(size),
            _ => misuse(operation, &[a, b], "shapes do not broadcast"),
        })
        .collect()
}

/// Output pixels of a window along one dimension.
fn windows(size: usize, kernel: usize, stride: usize, padding: usize, dilation: usize) -> Option<usize> {
    let span = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
    Some((size + 2 * padding).checked_sub(span)?.checked_div(stride)? + 1)
}

/// A tap's pixel, if it is not padding.
fn pixel(position: usize, stride: usize, tap: usize, dilation: usize, padding: usize, size: usize) -> Option<usize> {
    (position * stride + tap * dilation).checked_sub(padding).filter(|&pixel| pixel < size)
}

/// Channel of each element of `[batch, channels, ..]`.
fn channel(indices: &[usize]) -> usize {
    indices[1]
}

fn normalised(x: &Array, statistics: &BatchNorm<'_, Array>, mean: &[f64], variance: &[f64]) -> Array {
    let epsilon = f64::from(statistics.epsilon);
    tabulate(&x.shape, |indices| {
        let channel = channel(indices);
        let hat = (x.at(indices) - mean[channel]) / (variance[channel] + epsilon).sqrt();
        hat * statistics.gamma.values[channel] + statistics.beta.values[channel]
    })
}

fn check_norm(operation: &'static str, x: &Array, statistics: &BatchNorm<'_, Array>) -> OpResult<usize> {
    let &([_, channels] | [_, channels, _, _]) = &*x.shape else {
        return misuse(operation, &[x], "rank is not 2 or 4");
    };
    for operand in [statistics.gamma, statistics.beta, statistics.running_mean, statistics.running_var] {
        if *operand.shape != [channels] {
            return misuse(operation, &[x, operand], "there is not one element a channel");
        }
    }
    Ok(channels)
}

/// Abramowitz and Stegun's series for small arguments and the continued fraction for large ones, both to machine precision.
fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let value = if magnitude < 3.0 {
        // 2/sqrt(pi) exp(-x²) sum_n 2^n x^(2n+1) / (1 3 5 .. (2n+1))
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..200 {
            term *= 2.0 * magnitude * magnitude / f64::from(2 * n + 1);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-magnitude * magnitude).exp() * sum
    } else {
        let mut fraction = 0.0;
        for n in (1..200).rev() {
            fraction = f64::from(n) / 2.0 / (magnitude + fraction);
        }
        1.0 - (-magnitude * magnitude).exp() / std::f64::consts::PI.sqrt() / (magnitude + fraction)
    };
    value.copysign(x)
}

impl Reference {
    /// Elements of each window that are not padding.
    fn pool(
        operation: &'static str,
        x: &Array,
        options: Pool2dOptions,
        mut combine: impl FnMut(&[f64]) -> f64,
    ) -> OpResult<Array> {
        let &[batch, channels, height, width] = &*x.shape else {
            return misuse(operation, &[x], "rank is not 4");
        };
        let Pool2dOptions { kernel, stride, padding } = options;
        let sizes = [height, width];
        let out = |dim: usize| windows(sizes[dim], kernel[dim], stride[dim], padding[dim], 1);
        let (Some(rows), Some(columns)) = (out(0), out(1)) else {
            return misuse(operation, &[x], "the window does not fit");
        };
        let mut window = Vec::new();
        Ok(tabulate(&[batch, channels, rows, columns], |indices| {
            window.clear();
            for tap in 0..kernel[0] * kernel[1] {
                let row = pixel(indices[2], stride[0], tap / kernel[1], 1, padding[0], height);
                let column = pixel(indices[3], stride[1], tap % kernel[1], 1, padding[1], width);
                if let (Some(row), Some(column)) = (row, column) {
                    window.push(x.at(&[indices[0], indices[1], row, column]));
                }
            }
            combine(&window)
        }))
    }

    /// Calls `row` with the elements along a dimension and writes what it makes of them in their place.
    fn along(
        operation: &'static str,
        x: &Array,
        dim: usize,
        size: usize,
        row: impl Fn(&[f64]) -> Vec<f64>,
    ) -> OpResult<Array> {
        let Some(&length) = x.shape.get(dim) else { return misuse(operation, &[x], "there is no such dimension") };
        let inner: usize = x.shape[dim + 1..].iter().product();
        let outer: usize = x.shape[..dim].iter().product();
        let mut values = vec![0.0; outer * size * inner];
        for (outer, inner_index) in (0..outer).flat_map(|outer| (0..inner).map(move |inner| (outer, inner))) {
            let elements: Vec<f64> =
                (0..length).map(|index| x.values[(outer * length + index) * inner + inner_index]).collect();
            for (index, value) in row(&elements).into_iter().enumerate() {
                values[(outer * size + index) * inner + inner_index] = value;
            }
        }
        let mut shape = x.shape.to_vec();
        shape[dim] = size;
        Ok(Array::floats(values, &shape))
    }
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|value| (value - largest).exp()).sum();
    row.iter().map(|value| value - largest - sum.ln()).collect()
}

impl TensorBackend for Reference {
    type Tensor = Array;

    fn shape(&self, x: &Array) -> Vec<usize> {
        x.shape.to_vec()
    }

    fn dtype(&self, x: &Array) -> DType {
        x.dtype
    }

    fn from_f32(&mut self, values: Vec<f32>, shape: &[usize]) -> OpResult<Array> {
        Ok(Array::floats(values.into_iter().map(f64::from).collect(), shape))
    }

    fn from_i32(&mut self, values: Vec<i32>, shape: &[usize]) -> OpResult<Array> {
        Ok(Array::ints(values, shape))
    }

    fn full(&mut self, value: f32, shape: &[usize]) -> OpResult<Array> {
        Ok(tabulate(shape, |_| value.into()))
    }

    fn unary(&mut self, op: Unary, x: &Array) -> OpResult<Array> {
        Ok(x.map(|x| match op {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Exp => x.exp(),
            Unary::Log => x.ln(),
            Unary::Sqrt => x.sqrt(),
            Unary::Relu => x.max(0.0),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Tanh => x.tanh(),
            Unary::Gelu => x * 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        }))
    }

    fn binary(&mut self, op: Binary, a: &Array, b: &Array) -> OpResult<Array> {
        let shape = broadcast("binary operation", a, b)?;
        Ok(tabulate(&shape, |indices| {
            let (a, b) = (a.broadcast_at(indices), b.broadcast_at(indices));
            match op {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
            }
        }))
    }

    fn scalar(&mut self, op: Scalar, x: &Array) -> OpResult<Array> {
        Ok(x.map(|x| match op {
            Scalar::Add(value) => x + f64::from(value),
            Scalar::Mul(value) => x * f64::from(value),
            Scalar::Pow(exponent) => x.powf(exponent.into()),
            Scalar::Clamp(low, high) => x.max(low.into()).min(high.into()),
        }))
    }

    fn matmul(&mut self, a: &Array, b: &Array) -> OpResult<Array> {
        let ([a_leading @ .., m, k], [b_leading @ .., inner, n]) = (&*a.shape, &*b.shape) else {
            return misuse("matmul", &[a, b], "rank is below 2");
        };
        if k != inner {
            return misuse("matmul", &[a, b], "inner dimensions differ");
        }
        let leading = |sizes: &[usize]| Array::floats(vec![0.0; sizes.iter().product::<usize>().max(1)], sizes);
        let mut shape = broadcast("matmul", &leading(a_leading), &leading(b_leading))?;
        shape.extend([*m, *n]);
        Ok(tabulate(&shape, |indices| {
            let (leading, place) = indices.split_at(indices.len() - 2);
            let element = |array: &Array, row: usize, column: usize| array.broadcast_matrix_at(leading, row, column);
            (0..*k).map(|inner| element(a, place[0], inner) * element(b, inner, place[1])).sum()
        }))
    }

    fn linear(&mut self, x: &Array, weight: &Array, bias: Option<&Array>) -> OpResult<Array> {
        let (&[batch, inner], &[outputs, inputs]) = (&*x.shape, &*weight.shape) else {
            return misuse("linear", &[x, weight], "rank is not 2");
        };
        if inner != inputs {
            return misuse("linear", &[x, weight], "inner dimensions differ");
        }
        if let Some(bias) = bias.filter(|bias| *bias.shape != [outputs]) {
            return misuse("linear", &[weight, bias], "there is not one bias an output");
        }
        Ok(tabulate(&[batch, outputs], |indices| {
            let products = (0..inputs).map(|input| x.at(&[indices[0], input]) * weight.at(&[indices[1], input]));
            products.sum::<f64>() + bias.map_or(0.0, |bias| bias.values[indices[1]])
        }))
    }

    fn conv2d(&mut self, x: &Array, weight: &Array, bias: Option<&Array>, options: Conv2dOptions) -> OpResult<Array> {
        let (&[batch, inputs, height, width], &[outputs, group_inputs, tall, wide]) = (&*x.shape, &*weight.shape)
        else {
            return misuse("conv2d", &[x, weight], "rank is not 4");
        };
        let Conv2dOptions { stride, padding, dilation, groups } = options;
        if groups == 0 || inputs != group_inputs * groups || !outputs.is_multiple_of(groups) {
            return misuse("conv2d", &[x, weight], "channels and groups do not fit");
        }
        if let Some(bias) = bias.filter(|bias| *bias.shape != [outputs]) {
            return misuse("conv2d", &[weight, bias], "there is not one bias an output");
        }
        let (Some(rows), Some(columns)) = (
            windows(height, tall, stride[0], padding[0], dilation[0]),
            windows(width, wide, stride[1], padding[1], dilation[1]),
        ) else {
            return misuse("conv2d", &[x, weight], "the filter does not fit");
        };
        Ok(tabulate(&[batch, outputs, rows, columns], |indices| {
            let &[sample, output, row, column] = indices else { unreachable!("rank 4") };
            let first_input = output / (outputs / groups) * group_inputs;
            let mut sum = bias.map_or(0.0, |bias| bias.values[output]);
            for (y, z) in (0..tall).flat_map(|y| (0..wide).map(move |z| (y, z))) {
                let (Some(row), Some(column)) = (
                    pixel(row, stride[0], y, dilation[0], padding[0], height),
                    pixel(column, stride[1], z, dilation[1], padding[1], width),
                ) else {
                    continue;
                };
                for input in 0..group_inputs {
                    sum += x.at(&[sample, first_input + input, row, column]) * weight.at(&[output, input, y, z]);
                }
            }
            sum
        }))
    }

    fn max_pool2d(&mut self, x: &Array, options: Pool2dOptions) -> OpResult<Array> {
        Reference::pool("max-pool2d", x, options, |window| window.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    fn avg_pool2d(&mut self, x: &Array, options: Pool2dOptions) -> OpResult<Array> {
        Reference::pool("avg-pool2d", x, options, |window| window.iter().sum::<f64>() / window.len() as f64)
    }

    fn global_avg_pool2d(&mut self, x: &Array) -> OpResult<Array> {
        let &[batch, channels, height, width] = &*x.shape else {
            return misuse("global-avg-pool2d", &[x], "rank is not 4");
        };
        let mean = |plane: &[f64]| plane.iter().sum::<f64>() / plane.len() as f64;
        Ok(Array::floats(x.values.chunks(height * width).map(mean).collect(), &[batch, channels]))
    }

    fn batch_norm_train(&mut self, x: &Array, statistics: BatchNorm<'_, Array>, momentum: f32) -> OpResult<[Array; 3]> {
        let channels = check_norm("batch-norm-train", x, &statistics)?;
        let count = (x.values.len() / channels) as f64;
        let (mut mean, mut variance) = (vec![0.0; channels], vec![0.0; channels]);
        for_each_index(&x.shape, |indices| mean[channel(indices)] += x.at(indices) / count);
        for_each_index(&x.shape, |indices| {
            let channel = channel(indices);
            variance[channel] += (x.at(indices) - mean[channel]).powi(2) / count;
        });
        let momentum = f64::from(momentum);
        let moved = |running: &Array, batch: &[f64], scale: f64| {
            let pairs = running.values.iter().zip(batch);
            Array::floats(
                pairs.map(|(old, new)| (1.0 - momentum) * old + momentum * scale * new).collect(),
                &[channels],
            )
        };
        let running_mean = moved(statistics.running_mean, &mean, 1.0);
        let running_var = moved(statistics.running_var, &variance, count / (count - 1.0).max(1.0));
        Ok([normalised(x, &statistics, &mean, &variance), running_mean, running_var])
    }

    fn batch_norm_eval(&mut self, x: &Array, statistics: BatchNorm<'_, Array>) -> OpResult<Array> {
        check_norm("batch-norm-eval", x, &statistics)?;
        Ok(normalised(x, &statistics, &statistics.running_mean.values, &statistics.running_var.values))
    }

    fn layer_norm(&mut self, x: &Array, gamma: &Array, beta: &Array, epsilon: f32) -> OpResult<Array> {
        let Some(&features) =
            x.shape.last().filter(|&&features| gamma.shape.iter().eq([&features]) && beta.shape.iter().eq([&features]))
        else {
            return misuse("layer-norm", &[x, gamma, beta], "there is not one scale and shift a feature");
        };
        Reference::along("layer-norm", x, x.shape.len() - 1, features, |row| {
            let mean = row.iter().sum::<f64>() / features as f64;
            let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / features as f64;
            let deviation = (variance + f64::from(epsilon)).sqrt();
            let parameters = gamma.values.iter().zip(&*beta.values);
            row.iter().zip(parameters).map(|(value, (gamma, beta))| (value - mean) / deviation * gamma + beta).collect()
        })
    }

    fn embedding(&mut self, table: &Array, indices: &Array) -> OpResult<Array> {
        let &[rows, features] = &*table.shape else { return misuse("embedding", &[table, indices], "rank is not 2") };
        if indices.values.iter().any(|&index| index < 0.0 || index >= rows as f64) {
            return misuse("embedding", &[table, indices], "an index is out of range");
        }
        let row = |&index: &f64| table.values[index as usize * features..][..features].iter().copied();
        let shape: Vec<usize> = indices.shape.iter().copied().chain([features]).collect();
        Ok(Array::floats(indices.values.iter().flat_map(row).collect(), &shape))
    }

    fn reshape(&mut self, x: &Array, shape: &[usize]) -> OpResult<Array> {
        if shape.iter().product::<usize>() != x.values.len() {
            return misuse("reshape", &[x], "the size differs");
        }
        Ok(Array { shape: shape.into(), ..x.clone() })
    }

    fn permute(&mut self, x: &Array, axes: &[usize]) -> OpResult<Array> {
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.shape.len()) {
            return misuse("permute", &[x], "the axes are no permutation");
        }
        let shape: Vec<usize> = axes.iter().map(|&axis| x.shape[axis]).collect();
        let mut source = vec![0; axes.len()];
        let permuted = tabulate(&shape, |indices| {
            axes.iter().zip(indices).for_each(|(&axis, &index)| source[axis] = index);
            x.at(&source)
        });
        Ok(Array { dtype: x.dtype, ..permuted })
    }

    fn narrow(&mut self, x: &Array, dim: usize, start: usize, length: usize) -> OpResult<Array> {
        let end = start.saturating_add(length);
        if length == 0 || x.shape.get(dim).is_none_or(|&size| end > size) {
            return misuse("narrow", &[x], "the range is outside");
        }
        let narrowed = Reference::along("narrow", x, dim, length, |row| row[start..end].to_vec())?;
        Ok(Array { dtype: x.dtype, ..narrowed })
    }

    fn concat(&mut self, tensors: &[Array], dim: usize) -> OpResult<Array> {
        let Some(first) = tensors.first().filter(|first| dim < first.shape.len()) else {
            return misuse("concat", &tensors.iter().collect::<Vec<_>>(), "there is no tensor or no such dimension");
        };
        let mut shape = first.shape.to_vec();
        shape[dim] = tensors.iter().map(|tensor| tensor.shape.get(dim).copied().unwrap_or(0)).sum();
        let fits = |tensor: &Array| {
            tensor.dtype == first.dtype
                && tensor.shape.len() == shape.len()
                && (0..shape.len()).all(|other| other == dim || tensor.shape[other] == shape[other])
        };
        if !tensors.iter().all(fits) {
            return misuse("concat", &tensors.iter().collect::<Vec<_>>(), "shapes differ in another dimension");
        }
        let joined = tabulate(&shape, |indices| {
            let mut indices = indices.to_vec();
            let mut rest = tensors.iter();
            loop {
                let tensor = rest.next().expect("the sizes add up");
                if indices[dim] < tensor.shape[dim] {
                    return tensor.at(&indices);
                }
                indices[dim] -= tensor.shape[dim];
            }
        });
        Ok(Array { dtype: first.dtype, ..joined })
    }

    fn reduce(&mut self, reduction: Reduction, x: &Array, dims: &[usize]) -> OpResult<Array> {
        let finish = |sum: f64, count: usize| match reduction {
            Reduction::Sum => sum,
            Reduction::Mean => sum / count as f64,
        };
        if dims.is_empty() {
            return Ok(Array::floats(vec![finish(x.values.iter().sum(), x.values.len())], &[1]));
        }
        let mut out = x.clone();
        for &dim in dims {
            out = Reference::along("sum", &out, dim, 1, |row| vec![row.iter().sum()])?;
        }
        let count = dims.iter().map(|&dim| x.shape[dim]).product();
        Ok(out.map(|sum| finish(sum, count)))
    }

    fn max(&mut self, x: &Array, dim: usize) -> OpResult<Array> {
        Reference::along("max", x, dim, 1, |row| vec![row.iter().copied().fold(f64::NEG_INFINITY, f64::max)])
    }

    fn argmax(&mut self, x: &Array, dim: usize) -> OpResult<Array> {
        let first_largest = |row: &[f64]| {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            vec![row.iter().position(|&value| value == largest).unwrap_or(0) as f64]
        };
        let largest = Reference::along("argmax", x, dim, 1, first_largest)?;
        Ok(Array { dtype: DType::I32, ..largest })
    }

    fn softmax(&mut self, x: &Array, dim: usize) -> OpResult<Array> {
        let size = x.shape.get(dim).copied().unwrap_or(0);
        Reference::along("softmax", x, dim, size, |row| log_softmax(row).into_iter().map(f64::exp).collect())
    }

    fn log_softmax(&mut self, x: &Array, dim: usize) -> OpResult<Array> {
        let size = x.shape.get(dim).copied().unwrap_or(0);
        Reference::along("log-softmax", x, dim, size, log_softmax)
    }

    fn cross_entropy(&mut self, logits: &Array, targets: &Array) -> OpResult<Array> {
        let &[batch, classes] = &*logits.shape else {
            return misuse("cross-entropy", &[logits, targets], "rank is not 2");
        };
        let fits = |&target: &f64| target >= 0.0 && target < classes as f64;
        if *targets.shape != [batch] || !targets.values.iter().all(fits) {
            return misuse("cross-entropy", &[logits, targets], "targets do not fit");
        }
        let rows = logits.values.chunks(classes).zip(&*targets.values);
        let sum: f64 = rows.map(|(row, &target)| -log_softmax(row)[target as usize]).sum();
        Ok(Array::floats(vec![sum / batch as f64], &[1]))
    }

    fn gather(&mut self, x: &Array, dim: usize, index: &Array) -> OpResult<Array> {
        let size = x.shape.get(dim).copied().unwrap_or(0);
        let fits = index.shape.len() == x.shape.len()
            && index.values.iter().all(|&index| index >= 0.0 && index < size as f64)
            && (0..x.shape.len()).all(|other| other == dim || index.shape[other] <= x.shape[other]);
        if !fits {
            return misuse("gather", &[x, index], "the index does not fit");
        }
        let gathered = tabulate(&index.shape, |indices| {
            let mut source = indices.to_vec();
            source[dim] = index.at(indices) as usize;
            x.at(&source)
        });
        Ok(Array { dtype: x.dtype, ..gathered })
    }

    fn one_hot(&mut self, x: &Array, classes: usize) -> OpResult<Array> {
        let shape: Vec<usize> = x.shape.iter().copied().chain([classes]).collect();
        Ok(tabulate(&shape, |indices| {
            let (&class, place) = indices.split_last().expect("the rank is at least 1");
            f64::from(u8::from(x.at(place) == class as f64))
        }))
    }

    fn equal(&mut self, a: &Array, b: &Array) -> OpResult<Array> {
        let shape = broadcast("equal", a, b)?;
        Ok(tabulate(&shape, |indices| f64::from(u8::from(a.broadcast_at(indices) == b.broadcast_at(indices)))))
    }

    fn to_f32(&mut self, x: &Array) -> OpResult<Array> {
        Ok(Array { dtype: DType::F32, ..x.clone() })
    }

    fn dropout(&mut self, x: &Array, probability: f32, seed: u64) -> OpResult<Array> {
        if !(0.0..1.0).contains(&probability) {
            return misuse("dropout", &[x], "the probability is not in 0 to below 1");
        }
        let mask = dropout_mask(probability, seed, x.values.len());
        let values = x.values.iter().zip(mask).map(|(value, scale)| value * f64::from(scale));
        Ok(Array::floats(values.collect(), &x.shape))
    }

    fn detach(&mut self, x: &Array) -> OpResult<Array> {
        Ok(x.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_function_has_known_values() {
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_7),
        ] {
            assert!((erf(x) - expected).abs() < 1e-14, "{x}: {}", erf(x));
            assert!((erf(-x) + expected).abs() < 1e-14);
        }
    }

    #[test]
    fn broadcasting_stretches_leading_and_single_dimensions() {
        let a = Array::floats(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
        let row = Array::floats(vec![10.0, 20.0, 30.0], &[3]);
        let column = Array::floats(vec![100.0, 200.0], &[2, 1]);
        let sum = Reference.binary(Binary::Add, &a, &row).unwrap();
        let sum = Reference.binary(Binary::Add, &sum, &column).unwrap();
        assert_eq!(sum.values(), [111.0, 122.0, 133.0, 214.0, 225.0, 236.0]);
        let batch = Array::floats((0..8).map(f64::from).collect(), &[2, 2, 2]);
        let swap = Array::floats(vec![0.0, 1.0, 1.0, 0.0], &[2, 2]);
        let swapped = Reference.matmul(&batch, &swap).unwrap();
        assert_eq!(swapped.values(), [1.0, 0.0, 3.0, 2.0, 5.0, 4.0, 7.0, 6.0]);
        assert!(Reference.matmul(&batch, &row).is_err());
    }
}
