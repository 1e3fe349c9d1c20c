use omnilearn_wire::message::SettingValue;

use super::{integer, kernel, setting};
use crate::bindings::exports::omnilearn::kernel::model as wit;
use crate::bindings::omnilearn::kernel::tensor::Dtype;
use crate::{Description, DescriptionError, Initializer, KernelError, Merge, SettingError, initialize};

#[test]
fn kernels_have_the_parameters_that_the_literature_counts() {
    for (name, parameters, buffers) in [("mlp", 203_530, 0), ("lenet", 61_706, 0), ("resnet", 11_172_810, 9_600)] {
        let layout = kernel(name).describe(&[]).unwrap().layout().unwrap();
        assert_eq!((layout.parameter_elements(), layout.buffer_elements()), (parameters, buffers), "{name}");
    }
}

#[test]
fn lenet_is_described_in_the_order_of_its_layers() {
    let description = kernel("lenet").describe(&[]).unwrap();
    let tensors: Vec<_> =
        description.parameters.iter().map(|parameter| (parameter.name.as_str(), &parameter.shape[..])).collect();
    let expected: [(&str, &[u32]); 10] = [
        ("conv1.weight", &[6, 1, 5, 5]),
        ("conv1.bias", &[6]),
        ("conv2.weight", &[16, 6, 5, 5]),
        ("conv2.bias", &[16]),
        ("fc1.weight", &[120, 400]),
        ("fc1.bias", &[120]),
        ("fc2.weight", &[84, 120]),
        ("fc2.bias", &[84]),
        ("fc3.weight", &[10, 84]),
        ("fc3.bias", &[10]),
    ];
    assert_eq!(tensors, expected);
    assert_eq!(description.parameters[2].initializer, Initializer::Uniform(1.0 / 150f32.sqrt()));
    assert_eq!(description.parameters[3].initializer, Initializer::Uniform(1.0 / 150f32.sqrt()));
    assert_eq!(description.inputs[0].shape, [1, 28, 28]);
    assert_eq!(description.target.shape, [0u32; 0]);
    assert_eq!(description.metrics, ["correct"]);
    assert!(description.decay_mask().iter().all(|&decay| decay));
}

#[test]
fn resnet_takes_colour_images_more_classes_and_another_width() {
    let settings = [
        integer("channels", 3),
        integer("classes", 100),
        integer("width", 16),
        integer("image_height", 32),
        integer("image_width", 32),
    ];
    let description = kernel("resnet").describe(&settings).unwrap();
    assert_eq!(description.inputs[0].shape, [3, 32, 32]);
    assert_eq!(description.parameters[0].shape, [16, 3, 3, 3]);
    assert_eq!(description.parameters.last().unwrap().shape, [100]);
    assert_eq!(description.parameters.len(), 62);
    assert_eq!(description.buffers.len(), 40);
    assert!(description.buffers.iter().all(|buffer| buffer.merge == Merge::MeanBySamples));
}

#[test]
fn settings_have_help_and_defaults() {
    let settings = kernel("mlp").settings().unwrap();
    let hidden = settings.iter().find(|setting| setting.name == "hidden").unwrap();
    assert_eq!((hidden.help.as_str(), &hidden.default), ("Number of hidden units.", &SettingValue::Integer(256)));
}

#[test]
fn an_unknown_setting_is_refused_with_the_nearest_name() {
    let kernel = kernel("lenet");
    let refused = |name: &str| match kernel.describe(&[integer(name, 10)]) {
        Err(KernelError::Setting(SettingError::Unknown { nearest, .. })) => nearest,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused("clases").as_deref(), Some("classes"));
    assert_eq!(refused("image-width").as_deref(), Some("image_width"));
    assert_eq!(refused("xyzzy"), None);
    let message = kernel.describe(&[integer("chanels", 1)]).unwrap_err().to_string();
    assert_eq!(message, "kernel has no setting `chanels`; did you mean `channels`?");
}

#[test]
fn a_setting_of_the_wrong_kind_or_given_twice_is_refused() {
    let kernel = kernel("mlp");
    let message = |settings: &[_]| kernel.describe(settings).unwrap_err().to_string();
    let text = setting("classes", SettingValue::Text("ten".to_owned()));
    assert_eq!(message(&[text]), "setting `classes` is a text, but the kernel takes an integer");
    let number = setting("classes", SettingValue::Number(10.0));
    assert_eq!(message(&[number]), "setting `classes` is a number, but the kernel takes an integer");
    assert_eq!(message(&[integer("classes", 2), integer("classes", 3)]), "setting `classes` is given twice");
}

#[test]
fn an_integer_stands_for_a_number() {
    kernel("mlp").describe(&[integer("dropout", 0)]).unwrap();
}

#[test]
fn a_value_out_of_range_is_the_kernels_own_error() {
    for value in [0, -1, 1 << 40] {
        let error = kernel("lenet").describe(&[integer("classes", value)]).unwrap_err();
        let expected = format!("setting `classes` is {value}, but must be in 2..=100000");
        assert_eq!(error, KernelError::Kernel { message: expected });
    }
}

fn parameter(name: &str, shape: &[u32]) -> wit::Parameter {
    wit::Parameter {
        name: name.to_owned(),
        shape: shape.to_vec(),
        initializer: wit::Initializer::Constant(0.0),
        decay: true,
    }
}

fn spec(name: &str, shape: &[u32]) -> wit::TensorSpec {
    wit::TensorSpec { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec() }
}

fn description(parameters: Vec<wit::Parameter>) -> wit::Description {
    wit::Description {
        parameters,
        buffers: Vec::new(),
        inputs: vec![spec("x", &[1])],
        target: spec("y", &[]),
        metrics: Vec::new(),
    }
}

fn fault(description: wit::Description) -> DescriptionError {
    Description::try_from(description).unwrap_err()
}

#[test]
fn descriptions_that_cannot_be_trained_are_refused() {
    Description::try_from(description(vec![parameter("w", &[2, 3])])).unwrap();
    assert_eq!(fault(description(Vec::new())), DescriptionError::NoParameters);
    let huge = [u32::MAX, u32::MAX, u32::MAX];
    for shapes in [&huge[..], &[0], &[1 << 31, 1 << 10]] {
        assert!(matches!(fault(description(vec![parameter("w", shapes)])), DescriptionError::Layout(_)), "{shapes:?}");
    }
    let twice = description(vec![parameter("w", &[1]), parameter("w", &[1])]);
    assert!(matches!(fault(twice), DescriptionError::Layout(_)));
    for shape in [&[][..], &[1; 7]] {
        assert!(matches!(fault(description(vec![parameter("w", shape)])), DescriptionError::Rank { .. }), "{shape:?}");
    }
    for initializer in [
        wit::Initializer::Constant(f32::NAN),
        wit::Initializer::Uniform(-1.0),
        wit::Initializer::Normal(f32::INFINITY),
        wit::Initializer::Uniform(f32::NAN),
    ] {
        let parameters = vec![wit::Parameter { initializer, ..parameter("w", &[1]) }];
        assert!(matches!(fault(description(parameters)), DescriptionError::Initial { .. }));
    }
    let with = |change: fn(&mut wit::Description)| {
        let mut description = description(vec![parameter("w", &[1])]);
        change(&mut description);
        fault(description)
    };
    assert!(matches!(with(|it| it.inputs.clear()), DescriptionError::Count { what: "inputs", .. }));
    assert!(matches!(
        with(|it| it.metrics = vec!["m".to_owned(); 33]),
        DescriptionError::Count { what: "metrics", .. }
    ));
    assert!(matches!(with(|it| it.metrics = vec!["m".to_owned(); 2]), DescriptionError::Name { .. }));
    assert!(matches!(with(|it| it.target.name = "x".to_owned()), DescriptionError::Name { .. }));
    assert!(matches!(with(|it| it.inputs[0].shape = vec![0]), DescriptionError::Size { .. }));
    assert!(matches!(with(|it| it.inputs[0].shape = vec![1; 6]), DescriptionError::Rank { .. }));
}

#[test]
fn initial_values_depend_on_seed_and_index_only() {
    let description = kernel("resnet").describe(&[integer("width", 4)]).unwrap();
    let (parameters, buffers) = initialize(&description, 1);
    assert_eq!((&parameters, &buffers), (&initialize(&description, 1).0, &initialize(&description, 1).1));
    assert_ne!(parameters, initialize(&description, 2).0);
    // A longer first parameter does not move the draws of the second.
    let mut other = description.clone();
    other.parameters.truncate(2);
    let second = parameters[36..40].to_vec();
    other.parameters[0].shape = vec![8, 1, 3, 3];
    assert_eq!(initialize(&other, 1).0[72..76], second);
    assert_eq!(&buffers[..8], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn initial_values_have_the_spread_that_is_asked_for() {
    let one = |initializer, count: u32| {
        let parameters = vec![wit::Parameter { initializer, ..parameter("w", &[count]) }];
        initialize(&Description::try_from(description(parameters)).unwrap(), 3).0
    };
    let moments = |values: &[f32]| {
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance)
    };
    let uniform = one(wit::Initializer::Uniform(0.5), 100_000);
    assert!(uniform.iter().all(|x| (-0.5..0.5).contains(x)));
    let (mean, variance) = moments(&uniform);
    assert!(mean.abs() < 3e-3 && (variance - 1.0 / 12.0).abs() < 1e-3, "{mean} {variance}");
    let normal = one(wit::Initializer::Normal(2.0), 99_999);
    assert_eq!(normal.len(), 99_999);
    let (mean, variance) = moments(&normal);
    assert!(mean.abs() < 2e-2 && (variance - 4.0).abs() < 6e-2, "{mean} {variance}");
    assert_eq!(one(wit::Initializer::Constant(0.25), 3), [0.25; 3]);
}

#[test]
fn uniform_draws_are_the_documented_ones() {
    use omnilearn_wire::sampling::{SplitMix64, derive_seed};
    let description = kernel("mlp").describe(&[]).unwrap();
    let drawn = initialize(&description, 42).0;
    let mut generator = SplitMix64::new(derive_seed(42, &[0x696e_6974, 0]));
    for value in &drawn[..5] {
        let unit = (generator.next_u64() >> 40) as f32 / 16_777_216.0;
        assert_eq!(*value, (1.0 / 28.0) * (2.0 * unit - 1.0));
    }
}
