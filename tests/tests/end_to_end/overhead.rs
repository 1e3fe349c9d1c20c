//! The body of the benchmark `kernel-overhead`, on little work.

use omnilearn_tests::overhead::{Case, compare};

#[test]
fn gradients_through_a_kernel_equal_native_ones_to_the_bit() {
    for (model, settings, parameters) in [("lenet", &[][..], 61_706), ("resnet", &[("width", 64)], 11_172_810)] {
        let comparison = compare(&Case { model, settings, batch: 2, steps: 1 }).unwrap();
        assert!(comparison.gradients_equal, "{model}");
        assert_eq!(comparison.parameters, parameters, "{model}");
    }
}
