//! On a small machine: little address space, little memory.

use std::process::Command;
use std::sync::Barrier;

use super::kernel;
use crate::reference::{Array, Reference};
use crate::{Batch, Limits, Mode, initialize};

/// What `ulimit -v` gets, in KiB.
const ADDRESS_SPACE_KIB: u64 = 3_000_000;

/// Resident memory of the whole test process, in KiB: it must fit a container of 512 MiB.
const RESIDENT_KIB_MAX: u64 = 400 << 10;

/// Describes LeNet and computes one sample.
fn compute(barrier: Option<&Barrier>) {
    let mut instance = kernel("lenet").instantiate(Reference, Limits::default()).unwrap();
    let description = instance.describe(&[]).unwrap();
    let mut values = initialize(&description, 1).0.into_iter().map(f64::from);
    let parameters = description.parameters.iter().map(|parameter| {
        let shape: Vec<usize> = parameter.shape.iter().map(|&size| size as usize).collect();
        Array::floats(values.by_ref().take(shape.iter().product()).collect(), &shape)
    });
    let batch = Batch {
        mode: Mode::Train,
        parameters: parameters.collect(),
        buffers: Vec::new(),
        inputs: vec![Array::floats(vec![0.5; 784], &[1, 1, 28, 28])],
        targets: Some(Array::ints(vec![3], &[1])),
        seed: 0,
    };
    barrier.map(Barrier::wait);
    let loss = instance.forward(batch).unwrap().loss.unwrap();
    barrier.map(Barrier::wait); // no instance goes before all have computed
    assert!(loss.values()[0].is_finite());
}

/// Runs in a process of its own, for the test below.
#[test]
#[ignore = "run by another test under a limit of address space"]
fn instances_in_little_address_space() {
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| compute(Some(&barrier)));
        }
    });
    (0..100).for_each(|_| compute(None));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(peak) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < RESIDENT_KIB_MAX, "{kib} KiB resident");
    }
}

#[cfg(unix)]
#[test]
fn four_instances_at_once_and_a_hundred_in_turn_need_little_address_space_and_memory() {
    let script = format!(r#"ulimit -v {ADDRESS_SPACE_KIB} || exit 125; exec "$0" "$@""#);
    let name = "tests::address_space::instances_in_little_address_space";
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
