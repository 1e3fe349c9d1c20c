//! The kernels that we ship, held to what the literature and torchvision say of them.

mod tiny;

use omnilearn_wire::message::{Setting, SettingValue};

use super::{component, integer, kernel, setting};
use crate::{Description, Initializer, KernelError};

const KERNELS: [&str; 11] = [
    "linear_regression",
    "logistic_regression",
    "mlp",
    "lenet",
    "alexnet",
    "vgg",
    "resnet",
    "mobilenet",
    "autoencoder",
    "lstm",
    "gpt",
];

fn text(name: &str, value: &str) -> Setting {
    setting(name, SettingValue::Text(value.to_owned()))
}

fn integers(settings: &[(&str, i64)]) -> Vec<Setting> {
    settings.iter().map(|&(name, value)| integer(name, value)).collect()
}

/// A kernel of images set up for ImageNet: `original` is the setting that takes it from its small form to its own.
fn for_imagenet(name: &'static str, original: &str, depth: Option<i64>) -> Description {
    let mut settings = integers(&[("channels", 3), ("image_height", 224), ("image_width", 224), ("classes", 1000)]);
    settings.push(text(original, "imagenet"));
    settings.extend(depth.map(|depth| integer("depth", depth)));
    kernel(name).describe(&settings).unwrap()
}

fn elements(description: &Description) -> usize {
    description.layout().unwrap().parameter_elements()
}

/// Checks that these parameters are there in this order, with the very first and the very last among them.
fn check_parameters(description: &Description, expected: &[(&str, &[u32])]) {
    let ends = [0, description.parameters.len() - 1];
    let named = |name: &str| expected.iter().any(|&(expected, _)| expected == name);
    let found: Vec<(&str, &[u32])> = (description.parameters.iter().enumerate())
        .filter(|(index, parameter)| ends.contains(index) || named(&parameter.name))
        .map(|(_, parameter)| (parameter.name.as_str(), &parameter.shape[..]))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn every_kernel_of_ours_opens_and_is_small() {
    for name in KERNELS {
        let bytes = component(name);
        assert!(bytes.len() <= 200 << 10, "{name} has {} bytes", bytes.len());
        kernel(name);
    }
}

#[test]
fn kernels_for_imagenet_have_the_parameters_that_torchvision_publishes() {
    for (name, original, depth, parameters) in [
        ("resnet", "stem", Some(18), 11_689_512),
        ("resnet", "stem", Some(34), 21_797_672),
        ("resnet", "stem", Some(50), 25_557_032),
        ("resnet", "stem", Some(101), 44_549_160),
        ("vgg", "head", Some(11), 132_863_336),
        ("vgg", "head", Some(16), 138_357_544),
        ("vgg", "head", Some(19), 143_667_240),
        ("alexnet", "variant", None, 61_100_840),
        ("mobilenet", "stem", None, 3_504_872),
    ] {
        assert_eq!(elements(&for_imagenet(name, original, depth)), parameters, "{name} {depth:?}");
    }
}

#[test]
fn kernels_as_they_stand_have_the_parameters_that_their_documentation_says() {
    for (name, parameters) in [
        ("linear_regression", 9),
        ("logistic_regression", 62),
        ("alexnet", 23_272_266),
        ("vgg", 9_225_610),
        ("mobilenet", 2_236_682),
        ("autoencoder", 19_220),
        ("lstm", 148_736),
        ("gpt", 842_496),
    ] {
        assert_eq!(elements(&kernel(name).describe(&[]).unwrap()), parameters, "{name}");
    }
}

#[test]
fn language_models_have_as_many_parameters_as_their_formulas_say() {
    let gpt2 = [("vocabulary", 50_257), ("tokens", 1024), ("width", 768), ("heads", 12), ("layers", 12)];
    assert_eq!(elements(&kernel("gpt").describe(&integers(&gpt2)).unwrap()), 124_439_808);
    let (vocabulary, tokens, width, layers) = (50, 20, 12, 3);
    let settings = [("vocabulary", vocabulary), ("tokens", tokens), ("width", width), ("heads", 3), ("layers", layers)];
    let tied = (vocabulary + tokens) * width + layers * (12 * width * width + 13 * width) + 2 * width;
    assert_eq!(elements(&kernel("gpt").describe(&integers(&settings)).unwrap()), tied as usize);
    let mut settings = integers(&settings);
    settings.push(setting("tied", SettingValue::Flag(false)));
    let untied = kernel("gpt").describe(&settings).unwrap();
    assert_eq!(elements(&untied), (tied + vocabulary * width) as usize);
    assert_eq!(untied.parameters.last().unwrap().name, "lm_head.weight");

    let (embedding, hidden) = (7, 11);
    let settings = [("vocabulary", vocabulary), ("embedding", embedding), ("hidden", hidden), ("layers", layers)];
    let layer = |inputs| 4 * hidden * (inputs + hidden + 2);
    let all_layers = layer(embedding) + (layers - 1) * layer(hidden);
    let expected = vocabulary * embedding + all_layers + (hidden + 1) * vocabulary;
    assert_eq!(elements(&kernel("lstm").describe(&integers(&settings)).unwrap()), expected as usize);
}

#[test]
fn a_resnets_tensors_are_those_of_torchvisions_state_dict() {
    let basic = for_imagenet("resnet", "stem", Some(18));
    check_parameters(
        &basic,
        &[
            ("conv1.weight", &[64, 3, 7, 7]),
            ("bn1.weight", &[64]),
            ("bn1.bias", &[64]),
            ("layer1.0.conv1.weight", &[64, 64, 3, 3]),
            ("layer2.0.downsample.0.weight", &[128, 64, 1, 1]),
            ("layer2.0.downsample.1.weight", &[128]),
            ("fc.weight", &[1000, 512]),
            ("fc.bias", &[1000]),
        ],
    );
    let bottleneck = for_imagenet("resnet", "stem", Some(50));
    check_parameters(
        &bottleneck,
        &[
            ("conv1.weight", &[64, 3, 7, 7]),
            ("layer1.0.conv1.weight", &[64, 64, 1, 1]),
            ("layer1.0.conv2.weight", &[64, 64, 3, 3]),
            ("layer1.0.conv3.weight", &[256, 64, 1, 1]),
            ("layer1.0.downsample.0.weight", &[256, 64, 1, 1]),
            ("layer4.2.bn3.bias", &[2048]),
            ("fc.weight", &[1000, 2048]),
            ("fc.bias", &[1000]),
        ],
    );
    let buffers: Vec<&str> = bottleneck.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
    assert_eq!(buffers[..2], ["bn1.running_mean", "bn1.running_var"]);
    assert_eq!(buffers[8..10], ["layer1.0.downsample.1.running_mean", "layer1.0.downsample.1.running_var"]);
    assert_eq!((basic.buffers.len(), bottleneck.buffers.len()), (40, 106));
}

#[test]
fn a_vggs_tensors_are_those_of_torchvisions_state_dict() {
    check_parameters(
        &for_imagenet("vgg", "head", Some(16)),
        &[
            ("features.0.weight", &[64, 3, 3, 3]),
            ("features.2.bias", &[64]),
            ("features.28.weight", &[512, 512, 3, 3]),
            ("classifier.0.weight", &[4096, 25_088]),
            ("classifier.3.weight", &[4096, 4096]),
            ("classifier.6.bias", &[1000]),
        ],
    );
    check_parameters(
        &kernel("vgg").describe(&[]).unwrap(),
        &[
            ("features.0.weight", &[64, 3, 3, 3]),
            ("features.18.weight", &[512, 512, 3, 3]),
            ("classifier.weight", &[10, 512]),
            ("classifier.bias", &[10]),
        ],
    );
}

#[test]
fn an_alexnets_tensors_are_those_of_torchvisions_state_dict() {
    check_parameters(
        &for_imagenet("alexnet", "variant", None),
        &[
            ("features.0.weight", &[64, 3, 11, 11]),
            ("features.3.weight", &[192, 64, 5, 5]),
            ("features.10.weight", &[256, 256, 3, 3]),
            ("classifier.1.weight", &[4096, 9216]),
            ("classifier.4.weight", &[4096, 4096]),
            ("classifier.6.bias", &[1000]),
        ],
    );
    check_parameters(
        &kernel("alexnet").describe(&[]).unwrap(),
        &[
            ("features.0.weight", &[64, 3, 3, 3]),
            ("features.3.weight", &[192, 64, 3, 3]),
            ("classifier.1.weight", &[4096, 1024]),
            ("classifier.6.bias", &[10]),
        ],
    );
}

#[test]
fn a_mobilenets_tensors_are_those_of_torchvisions_state_dict() {
    let description = for_imagenet("mobilenet", "stem", None);
    check_parameters(
        &description,
        &[
            ("features.0.0.weight", &[32, 3, 3, 3]),
            ("features.0.1.weight", &[32]),
            ("features.1.conv.0.0.weight", &[32, 1, 3, 3]),
            ("features.1.conv.1.weight", &[16, 32, 1, 1]),
            ("features.1.conv.2.bias", &[16]),
            ("features.2.conv.0.0.weight", &[96, 16, 1, 1]),
            ("features.2.conv.1.0.weight", &[96, 1, 3, 3]),
            ("features.2.conv.2.weight", &[24, 96, 1, 1]),
            ("features.2.conv.3.weight", &[24]),
            ("features.18.0.weight", &[1280, 320, 1, 1]),
            ("classifier.1.weight", &[1000, 1280]),
            ("classifier.1.bias", &[1000]),
        ],
    );
    assert_eq!(description.buffers.len(), 104);
    // torchvision's count for a width of 0.35, whose channels are rounded to multiples of 8, up and down.
    let mut settings = integers(&[("classes", 1000)]);
    settings.push(setting("width", SettingValue::Number(0.35)));
    assert_eq!(elements(&kernel("mobilenet").describe(&settings).unwrap()), 1_677_128);
}

#[test]
fn language_models_tensors_are_those_of_pytorch_and_nanogpt() {
    check_parameters(
        &kernel("lstm").describe(&[integer("layers", 2)]).unwrap(),
        &[
            ("embedding.weight", &[256, 64]),
            ("lstm.weight_ih_l0", &[512, 64]),
            ("lstm.weight_hh_l0", &[512, 128]),
            ("lstm.bias_ih_l0", &[512]),
            ("lstm.bias_hh_l0", &[512]),
            ("lstm.weight_ih_l1", &[512, 128]),
            ("fc.weight", &[256, 128]),
            ("fc.bias", &[256]),
        ],
    );
    let gpt = kernel("gpt").describe(&[]).unwrap();
    check_parameters(
        &gpt,
        &[
            ("transformer.wte.weight", &[256, 128]),
            ("transformer.wpe.weight", &[128, 128]),
            ("transformer.h.0.ln_1.weight", &[128]),
            ("transformer.h.0.attn.c_attn.weight", &[384, 128]),
            ("transformer.h.0.attn.c_proj.weight", &[128, 128]),
            ("transformer.h.0.ln_2.weight", &[128]),
            ("transformer.h.0.mlp.c_fc.weight", &[512, 128]),
            ("transformer.h.3.mlp.c_proj.weight", &[128, 512]),
            ("transformer.ln_f.weight", &[128]),
            ("transformer.ln_f.bias", &[128]),
        ],
    );
    assert!(gpt.parameters.iter().all(|parameter| parameter.decay == (parameter.shape.len() == 2)));
}

#[test]
fn layers_start_as_in_the_originals() {
    let initializer = |kernel_name: &'static str, name: &str| {
        let description = kernel(kernel_name).describe(&[]).unwrap();
        description.parameters.iter().find(|parameter| parameter.name == name).unwrap().initializer
    };
    let (normal, uniform) = (Initializer::Normal, Initializer::Uniform);
    for (kernel, name, expected) in [
        ("resnet", "conv1.weight", normal((2f32 / (9.0 * 64.0)).sqrt())),
        ("resnet", "fc.weight", uniform(1.0 / 512f32.sqrt())),
        ("vgg", "features.3.weight", normal((2f32 / (9.0 * 128.0)).sqrt())),
        ("vgg", "features.3.bias", Initializer::Constant(0.0)),
        ("vgg", "classifier.weight", normal(0.01)),
        ("mobilenet", "features.1.conv.0.0.weight", normal((2f32 / (9.0 * 32.0)).sqrt())),
        ("alexnet", "features.0.bias", uniform(1.0 / 27f32.sqrt())),
        ("lstm", "embedding.weight", normal(1.0)),
        ("lstm", "lstm.bias_hh_l0", uniform(1.0 / 128f32.sqrt())),
        ("gpt", "transformer.wte.weight", normal(0.02)),
        ("gpt", "transformer.h.3.mlp.c_proj.weight", normal(0.02 / 8f32.sqrt())),
        ("gpt", "transformer.h.3.mlp.c_proj.bias", Initializer::Constant(0.0)),
    ] {
        assert_eq!(initializer(kernel, name), expected, "{name}");
    }
}

#[test]
fn a_default_is_told_as_it_is_written() {
    let settings = kernel("mobilenet").settings().unwrap();
    let dropout = settings.iter().find(|setting| setting.name == "dropout").unwrap();
    assert_eq!(dropout.default, SettingValue::Number(0.2));
}

#[test]
fn settings_that_do_not_go_together_are_refused_with_a_sentence() {
    for (name, settings, expected) in [
        ("resnet", vec![integer("depth", 20)], "setting `depth` is 20, but must be one of 18, 34, 50, 101"),
        ("resnet", vec![text("stem", "tiny")], r#"setting `stem` is "tiny", but must be one of "small", "imagenet""#),
        (
            "vgg",
            vec![text("head", "imagenet")],
            "head \"imagenet\" takes images whose sides are multiples of 224, but they are 32 by 32; head \"small\" takes them",
        ),
        (
            "alexnet",
            vec![text("variant", "imagenet"), integer("image_height", 20)],
            "variant \"imagenet\" takes images of 224 by 224 pixels, or others of which its convolutions leave a multiple of \
             6 by 6, but they are 20 by 32; variant \"small\" takes them",
        ),
        ("gpt", vec![integer("width", 130)], "setting `width` is 130, but must be a multiple of the 4 heads"),
        (
            "autoencoder",
            vec![integer("length", 8)],
            "setting `code` is 8, but must be less than the 8 values of a sample, or there is nothing to learn",
        ),
    ] {
        let message = expected.to_owned();
        assert_eq!(kernel(name).describe(&settings).unwrap_err(), KernelError::Kernel { message });
    }
}
