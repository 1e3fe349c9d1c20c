//! A backend in plain loops, with the operations that our kernels use.

use std::rc::Rc;

use omnilearn_wire::sampling::SplitMix64;

use crate::backend::{
    BatchNorm, Binary, Conv2dOptions, DType, OpError, OpResult, Pool2dOptions, Reduction, Scalar, TensorBackend, Unary,
};

#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    values: Rc<[f32]>,
    shape: Rc<[usize]>,
    dtype: DType,
}

impl Tensor {
    pub(crate) fn f32(values: Vec<f32>, shape: &[usize]) -> Tensor {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        Tensor { values: values.into(), shape: shape.into(), dtype: DType::F32 }
    }

    pub(crate) fn i32(values: Vec<i32>, shape: &[usize]) -> Tensor {
        Tensor { dtype: DType::I32, ..Tensor::f32(values.into_iter().map(|value| value as f32).collect(), shape) }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    fn map(&self, f: impl Fn(f32) -> f32) -> Tensor {
        Tensor::f32(self.values.iter().map(|&value| f(value)).collect(), &self.shape)
    }

    /// Channel of each element of `[batch, channels, ..]`.
    fn channel(&self, index: usize) -> usize {
        index / self.shape[2..].iter().product::<usize>() % self.shape[1]
    }
}

#[derive(Default)]
pub(crate) struct Scalars {
    pub(crate) panics: bool,
}

fn misuse(operation: &'static str, a: &Tensor, b: &Tensor, reason: &str) -> OpError {
    OpError { operation, operands: format!("f32 {:?} and f32 {:?}", a.shape, b.shape), reason: reason.to_owned() }
}

fn unused<T>() -> OpResult<T> {
    unimplemented!("no kernel of ours uses this operation")
}

fn normalise(x: &Tensor, statistics: &BatchNorm<'_, Tensor>, mean: &[f32], var: &[f32]) -> Tensor {
    let values = x.values.iter().enumerate().map(|(index, &value)| {
        let channel = x.channel(index);
        (value - mean[channel]) / (var[channel] + statistics.epsilon).sqrt() * statistics.gamma.values[channel]
            + statistics.beta.values[channel]
    });
    Tensor::f32(values.collect(), &x.shape)
}

impl TensorBackend for Scalars {
    type Tensor = Tensor;

    fn shape(&self, x: &Tensor) -> Vec<usize> {
        x.shape.to_vec()
    }

    fn dtype(&self, x: &Tensor) -> DType {
        x.dtype
    }

    fn from_f32(&mut self, values: Vec<f32>, shape: &[usize]) -> OpResult<Tensor> {
        Ok(Tensor::f32(values, shape))
    }

    fn from_i32(&mut self, values: Vec<i32>, shape: &[usize]) -> OpResult<Tensor> {
        Ok(Tensor::i32(values, shape))
    }

    fn full(&mut self, value: f32, shape: &[usize]) -> OpResult<Tensor> {
        Ok(Tensor::f32(vec![value; shape.iter().product()], shape))
    }

    fn unary(&mut self, op: Unary, x: &Tensor) -> OpResult<Tensor> {
        assert_eq!(op, Unary::Relu);
        Ok(x.map(|value| value.max(0.0)))
    }

    fn binary(&mut self, op: Binary, a: &Tensor, b: &Tensor) -> OpResult<Tensor> {
        assert_eq!((op, &a.shape), (Binary::Add, &b.shape));
        Ok(Tensor::f32(a.values.iter().zip(&*b.values).map(|(a, b)| a + b).collect(), &a.shape))
    }

    fn scalar(&mut self, _op: Scalar, _x: &Tensor) -> OpResult<Tensor> {
        unused()
    }

    fn matmul(&mut self, _a: &Tensor, _b: &Tensor) -> OpResult<Tensor> {
        unused()
    }

    fn linear(&mut self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> OpResult<Tensor> {
        let (&[batch, inner], &[outputs, inputs]) = (&*x.shape, &*weight.shape) else {
            return Err(misuse("linear", x, weight, "rank is not 2"));
        };
        if inner != inputs {
            return Err(misuse("linear", x, weight, "inner dimensions differ"));
        }
        let value = |sample: usize, output: usize| {
            let products = (0..inputs).map(|i| x.values[sample * inputs + i] * weight.values[output * inputs + i]);
            products.sum::<f32>() + bias.map_or(0.0, |bias| bias.values[output])
        };
        Ok(Tensor::f32(
            (0..batch * outputs).map(|index| value(index / outputs, index % outputs)).collect(),
            &[batch, outputs],
        ))
    }

    fn conv2d(
        &mut self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: Conv2dOptions,
    ) -> OpResult<Tensor> {
        assert!(!self.panics, "asked to");
        let (&[batch, inputs, height, width], &[outputs, _, tall, wide]) = (&*x.shape, &*weight.shape) else {
            panic!()
        };
        let ([stride, _], [padding, _]) = (options.stride, options.padding);
        let (rows, columns) = ((height + 2 * padding - tall) / stride + 1, (width + 2 * padding - wide) / stride + 1);
        let mut values = Vec::new();
        for (sample, output) in (0..batch).flat_map(|sample| (0..outputs).map(move |output| (sample, output))) {
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let mut sum = bias.map_or(0.0, |bias| bias.values[output]);
                for tap in 0..inputs * tall * wide {
                    let (input, y, z) =
                        (tap / (tall * wide), row * stride + tap / wide % tall, column * stride + tap % wide);
                    if (padding..height + padding).contains(&y) && (padding..width + padding).contains(&z) {
                        let pixel = ((sample * inputs + input) * height + y - padding) * width + z - padding;
                        sum += x.values[pixel] * weight.values[output * inputs * tall * wide + tap];
                    }
                }
                values.push(sum);
            }
        }
        Ok(Tensor::f32(values, &[batch, outputs, rows, columns]))
    }

    fn max_pool2d(&mut self, x: &Tensor, options: Pool2dOptions) -> OpResult<Tensor> {
        assert_eq!(options, Pool2dOptions { kernel: [2, 2], stride: [2, 2], padding: [0, 0] });
        let &[batch, channels, height, width] = &*x.shape else { panic!() };
        let (rows, columns) = (height / 2, width / 2);
        let value = |index: usize| {
            let (plane, row, column) = (index / (rows * columns), index / columns % rows, index % columns);
            let corner = (plane * height + row * 2) * width + column * 2;
            [0, 1, width, width + 1].iter().map(|offset| x.values[corner + offset]).fold(f32::MIN, f32::max)
        };
        Ok(Tensor::f32((0..batch * channels * rows * columns).map(value).collect(), &[batch, channels, rows, columns]))
    }

    fn avg_pool2d(&mut self, _x: &Tensor, _options: Pool2dOptions) -> OpResult<Tensor> {
        unused()
    }

    fn global_avg_pool2d(&mut self, x: &Tensor) -> OpResult<Tensor> {
        let area = x.shape[2] * x.shape[3];
        Ok(Tensor::f32(
            x.values.chunks(area).map(|plane| plane.iter().sum::<f32>() / area as f32).collect(),
            &x.shape[..2],
        ))
    }

    fn batch_norm_train(
        &mut self,
        x: &Tensor,
        statistics: BatchNorm<'_, Tensor>,
        momentum: f32,
    ) -> OpResult<[Tensor; 3]> {
        let channels = x.shape[1];
        let count = (x.values.len() / channels) as f32;
        let (mut mean, mut var) = (vec![0.0; channels], vec![0.0; channels]);
        x.values.iter().enumerate().for_each(|(index, value)| mean[x.channel(index)] += value / count);
        x.values
            .iter()
            .enumerate()
            .for_each(|(index, value)| var[x.channel(index)] += (value - mean[x.channel(index)]).powi(2) / count);
        let move_to = |running: &Tensor, batch: &[f32], scale: f32| {
            let values =
                running.values.iter().zip(batch).map(|(old, new)| (1.0 - momentum) * old + momentum * scale * new);
            Tensor::f32(values.collect(), &[channels])
        };
        let running_mean = move_to(statistics.running_mean, &mean, 1.0);
        let running_var = move_to(statistics.running_var, &var, count / (count - 1.0));
        Ok([normalise(x, &statistics, &mean, &var), running_mean, running_var])
    }

    fn batch_norm_eval(&mut self, x: &Tensor, statistics: BatchNorm<'_, Tensor>) -> OpResult<Tensor> {
        Ok(normalise(x, &statistics, &statistics.running_mean.values, &statistics.running_var.values))
    }

    fn layer_norm(&mut self, _x: &Tensor, _gamma: &Tensor, _beta: &Tensor, _epsilon: f32) -> OpResult<Tensor> {
        unused()
    }

    fn embedding(&mut self, _table: &Tensor, _indices: &Tensor) -> OpResult<Tensor> {
        unused()
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> OpResult<Tensor> {
        Ok(Tensor { shape: shape.into(), ..x.clone() })
    }

    fn permute(&mut self, _x: &Tensor, _axes: &[usize]) -> OpResult<Tensor> {
        unused()
    }

    fn narrow(&mut self, _x: &Tensor, _dim: usize, _start: usize, _length: usize) -> OpResult<Tensor> {
        unused()
    }

    fn concat(&mut self, _tensors: &[Tensor], _dim: usize) -> OpResult<Tensor> {
        unused()
    }

    fn reduce(&mut self, reduction: Reduction, x: &Tensor, dims: &[usize]) -> OpResult<Tensor> {
        assert_eq!((reduction, dims), (Reduction::Sum, &[][..]));
        Ok(Tensor::f32(vec![x.values.iter().sum()], &[1]))
    }

    fn max(&mut self, _x: &Tensor, _dim: usize) -> OpResult<Tensor> {
        unused()
    }

    fn argmax(&mut self, x: &Tensor, dim: usize) -> OpResult<Tensor> {
        assert_eq!((dim, x.shape.len()), (1, 2));
        let largest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i32;
        Ok(Tensor::i32(x.values.chunks(x.shape[1]).map(largest).collect(), &[x.shape[0], 1]))
    }

    fn softmax(&mut self, _x: &Tensor, _dim: usize) -> OpResult<Tensor> {
        unused()
    }

    fn log_softmax(&mut self, _x: &Tensor, _dim: usize) -> OpResult<Tensor> {
        unused()
    }

    fn cross_entropy(&mut self, logits: &Tensor, targets: &Tensor) -> OpResult<Tensor> {
        let losses = logits.values.chunks(logits.shape[1]).zip(&*targets.values);
        let sum: f32 =
            losses.map(|(row, &target)| row.iter().map(|x| x.exp()).sum::<f32>().ln() - row[target as usize]).sum();
        Ok(Tensor::f32(vec![sum / logits.shape[0] as f32], &[1]))
    }

    fn gather(&mut self, _x: &Tensor, _dim: usize, _index: &Tensor) -> OpResult<Tensor> {
        unused()
    }

    fn one_hot(&mut self, _x: &Tensor, _classes: usize) -> OpResult<Tensor> {
        unused()
    }

    fn equal(&mut self, a: &Tensor, b: &Tensor) -> OpResult<Tensor> {
        assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape));
        Ok(Tensor::f32(a.values.iter().zip(&*b.values).map(|(a, b)| f32::from(u8::from(a == b))).collect(), &a.shape))
    }

    fn to_f32(&mut self, _x: &Tensor) -> OpResult<Tensor> {
        unused()
    }

    fn dropout(&mut self, x: &Tensor, probability: f32, seed: u64) -> OpResult<Tensor> {
        let mut generator = SplitMix64::new(seed);
        let scale = 1.0 / (1.0 - probability);
        let values = x
            .values
            .iter()
            .map(|value| if generator.below(1000) as f32 / 1000.0 < probability { 0.0 } else { value * scale });
        Ok(Tensor::f32(values.collect(), &x.shape))
    }

    fn detach(&mut self, x: &Tensor) -> OpResult<Tensor> {
        Ok(x.clone())
    }
}
