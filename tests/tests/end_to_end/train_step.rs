//! The bodies of the benchmarks `train-step` and `train-step --layers`, on little work.

use std::time::Duration;

use omnilearn_agent::engine::{Engine, Operators};
use omnilearn_tests::layer_rates::{layer_rates, product_rate};
use omnilearn_tests::native::{Convolution, Model};
use omnilearn_tests::timing::{median, time_steps};
use omnilearn_tests::train_step::TrainStep;

#[test]
fn every_model_has_the_same_gradients_on_our_operators_and_on_burns() {
    let parameters = [203_530, 61_706, 23_272_266, 9_225_610, 11_173_962];
    for (model, parameters) in Model::ALL.into_iter().zip(parameters) {
        let [own, burn] = [Operators::Own, Operators::Burn].map(|operators| {
            let mut step = TrainStep::new(Engine::cpu(operators), model, 2, 1);
            let loss = step.run().unwrap();
            assert!(loss.is_finite(), "{}: {loss}", model.name());
            step.gradients().to_vec()
        });
        assert_eq!((own.len(), burn.len()), (parameters, parameters), "{}", model.name());
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
        let difference = norm(&mut own.iter().zip(&burn).map(|(own, burn)| own - burn));
        let relative = (difference / norm(&mut burn.iter().copied())).sqrt();
        // Sums in another order; rounding can turn single ReLUs, which costs more than the rounding itself.
        assert!(relative < 1e-3, "{}: {relative:e}", model.name());
    }
}

#[test]
fn a_step_repeats_with_equal_gradients_where_nothing_is_learnt() {
    let mut step = TrainStep::new(Engine::default(), Model::ResNet18, 1, 3);
    step.run().unwrap();
    let first = step.gradients().to_vec();
    step.run().unwrap();
    assert_eq!(step.gradients(), first);
}

#[test]
fn models_list_each_kind_of_convolution_once() {
    assert_eq!((Model::ResNet18.convolutions().len(), Model::Vgg11.convolutions().len()), (11, 7));
    // The stem: 2 · 64 · 27 · 32². The last of the ResNet: 2 · 512 · 256 · 4²; of VGG: 2 · 512 · 4608 · 2².
    let ends = |model: Model| {
        let convolutions = model.convolutions();
        [convolutions[0].flop(1), convolutions[convolutions.len() - 1].flop(1)]
    };
    assert_eq!(ends(Model::ResNet18), [3_538_944.0, 4_194_304.0]);
    assert_eq!(ends(Model::Vgg11), [3_538_944.0, 18_874_368.0]);
}

#[test]
fn rates_are_of_work_that_has_been_done() {
    // In 10⁹ operations per second. No CPU comes near the upper end; results that nobody waits for are far beyond it.
    let possible = 0.0..50_000.0;
    let engine = Engine::default();
    assert!(possible.contains(&product_rate(&engine, Duration::ZERO).unwrap()));
    let convolution = Convolution { inputs: 32, outputs: 512, size: 32, kernel: 3, stride: 1, padding: 1 };
    let rates = layer_rates(&engine, &convolution, 4, Duration::ZERO).unwrap();
    assert!(rates.forward.is_some_and(|rate| possible.contains(&rate)), "{rates:?}");
    // Differences of times on a busy machine can be anything.
    assert!([rates.weight_gradient, rates.input_gradient].into_iter().flatten().all(|rate| rate > 0.0), "{rates:?}");
}

#[test]
fn slow_steps_are_timed_three_times_after_one_that_is_not() {
    let mut steps = 0;
    let timing = time_steps(Duration::ZERO, || {
        steps += 1;
        Ok::<(), ()>(())
    });
    assert_eq!((steps, timing.unwrap().steps), (4, 3));
    assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0])), (2.0, 2.5));
}
