use super::*;

struct Values(Vec<f32>);

impl GradientSource for Values {
    fn read(&self, start: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.0[start..start + out.len()]);
    }
}

fn model(parameters: &[f32]) -> Snapshot {
    Snapshot::new(parameters, &[])
}

fn run(config: OptimizerConfig, clip: Option<f32>, start: &[f32], gradients: &[&[f32]]) -> Vec<f32> {
    let mut optimizer = Optimizer::new(config, clip, &[(start.len(), true)]);
    let mut model = model(start);
    for gradient in gradients {
        optimizer.step(&mut model, &Values(gradient.to_vec()), 0.1);
    }
    model.parameters[0].to_vec()
}

fn close(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} is not {expected}");
    }
}

fn sgd(momentum: f32, nesterov: bool, weight_decay: f32) -> OptimizerConfig {
    OptimizerConfig::Sgd { momentum, nesterov, weight_decay }
}

#[test]
fn plain_sgd_follows_the_gradient_and_its_coupled_decay() {
    close(&run(sgd(0.0, false, 0.0), None, &[1.0, -2.0], &[&[1.0, 2.0]]), &[0.9, -2.2]);
    // g = 1 + 0.5·1 = 1.5 and 2 + 0.5·(−2) = 1.
    close(&run(sgd(0.0, false, 0.5), None, &[1.0, -2.0], &[&[1.0, 2.0]]), &[0.85, -2.1]);
}

#[test]
fn momentum_starts_with_the_gradient_itself() {
    // m: 1, 0.9·1 + 2 = 2.9, 0.9·2.9 − 1 = 1.61.
    let gradients: [&[f32]; 3] = [&[1.0], &[2.0], &[-1.0]];
    close(&run(sgd(0.9, false, 0.0), None, &[1.0], &gradients), &[1.0 - 0.1 - 0.29 - 0.161]);
}

#[test]
fn nesterov_looks_ahead_along_the_momentum() {
    // g + 0.9·m: 1 + 0.9 = 1.9, 2 + 0.9·2.9 = 4.61.
    close(&run(sgd(0.9, true, 0.0), None, &[1.0], &[&[1.0], &[2.0]]), &[1.0 - 0.19 - 0.461]);
}

#[test]
fn adam_agrees_with_its_scalar_definition() {
    let (beta1, beta2, epsilon, decay) = (0.9f64, 0.999f64, 1e-8f64, 0.01f64);
    let gradients = [0.3, -0.2, 0.05, 1.0];
    for decoupled in [false, true] {
        let (mut theta, mut m, mut v) = (0.7f64, 0.0, 0.0);
        for (index, gradient) in gradients.iter().enumerate() {
            let step = index as i32 + 1;
            let g = if decoupled { *gradient } else { gradient + decay * theta };
            if decoupled {
                theta -= 0.1 * decay * theta;
            }
            m = beta1 * m + (1.0 - beta1) * g;
            v = beta2 * v + (1.0 - beta2) * g * g;
            let (m_hat, v_hat) = (m / (1.0 - beta1.powi(step)), v / (1.0 - beta2.powi(step)));
            theta -= 0.1 * m_hat / (v_hat.sqrt() + epsilon);
        }
        let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.999, 1e-8, 0.01);
        let config = if decoupled {
            OptimizerConfig::AdamW { beta1, beta2, epsilon, weight_decay }
        } else {
            OptimizerConfig::Adam { beta1, beta2, epsilon, weight_decay }
        };
        let gradients: Vec<[f32; 1]> = gradients.iter().map(|&gradient| [gradient as f32]).collect();
        let gradients: Vec<&[f32]> = gradients.iter().map(<[f32; 1]>::as_slice).collect();
        close(&run(config, None, &[0.7], &gradients), &[theta]);
    }
}

#[test]
fn clipping_shortens_the_whole_gradient_to_the_norm() {
    close(&run(sgd(0.0, false, 0.0), Some(1.0), &[0.0, 0.0], &[&[3.0, 4.0]]), &[-0.06, -0.08]);
    close(&run(sgd(0.0, false, 0.0), Some(10.0), &[0.0, 0.0], &[&[3.0, 4.0]]), &[-0.3, -0.4]);
}

#[test]
fn decay_spares_the_tensors_that_the_mask_spares() {
    let mut optimizer = Optimizer::new(sgd(0.0, false, 1.0), None, &[(1, false), (2, true), (1, false)]);
    let mut model = model(&[1.0; 4]);
    optimizer.step(&mut model, &Values(vec![0.0; 4]), 0.5);
    assert_eq!(&*model.parameters[0], [1.0, 0.5, 0.5, 1.0]);
}

#[test]
fn a_step_leaves_a_held_snapshot_alone_and_works_across_blocks() {
    let elements = 2 * BLOCK_ELEMENTS + 3;
    let mut optimizer =
        Optimizer::new(sgd(0.9, false, 0.0), None, &[(BLOCK_ELEMENTS + 1, true), (BLOCK_ELEMENTS + 2, false)]);
    let mut model = Snapshot::new(&vec![1.0; elements], &[]);
    let held = model.clone();
    let norm = optimizer.step(&mut model, &Values(vec![1.0; elements]), 0.5);
    assert!((norm - (elements as f64).sqrt()).abs() < 1e-9);
    assert!(held.parameters.iter().all(|block| block.iter().all(|&value| value == 1.0)));
    assert!(model.parameters.iter().all(|block| block.iter().all(|&value| value == 0.5)));
}

#[test]
fn an_exported_state_continues_to_the_same_bits() {
    let config = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 };
    let mut optimizer = Optimizer::new(config, None, &[(2, true)]);
    let mut model = model(&[0.5, -0.5]);
    optimizer.step(&mut model, &Values(vec![1.0, 2.0]), 0.1);
    let mut restored = Optimizer::new(config, None, &[(2, true)]);
    restored.import(optimizer.export()).unwrap();
    let mut other = model.clone();
    optimizer.step(&mut model, &Values(vec![-1.0, 0.5]), 0.1);
    restored.step(&mut other, &Values(vec![-1.0, 0.5]), 0.1);
    assert_eq!(model, other);
    let mut of_another = Optimizer::new(sgd(0.9, false, 0.0), None, &[(2, true)]);
    assert!(of_another.import(optimizer.export()).is_err());
}
