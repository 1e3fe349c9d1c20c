use std::time::{Duration, Instant};

use super::textual::{FULL, Textual};
use crate::{DescriptionError, Kernel, KernelError, Limit, Limits, NoTensors};

fn describe(textual: &Textual, limits: Limits) -> KernelError {
    let kernel = Kernel::open(&textual.component()).unwrap();
    match kernel.instantiate(NoTensors, limits) {
        Ok(mut instance) => instance.describe(&[]).unwrap_err(),
        Err(error) => error,
    }
}

const BRIEF: Duration = Duration::from_millis(60);

fn brief() -> Limits {
    Limits { kernel_time: BRIEF, ..Limits::default() }
}

#[test]
fn a_description_of_nothing_is_refused() {
    let error = describe(&Textual::default(), Limits::default());
    assert_eq!(error, KernelError::Description(DescriptionError::NoParameters));
}

#[test]
fn an_endless_loop_is_stopped_wherever_it_is() {
    let endless = "(loop (br 0)) unreachable";
    let start =
        Textual { head: "(start $spin)", settings: "i32.const 1024) (func $spin (loop (br 0))", ..Textual::default() };
    for textual in [
        start,
        Textual { settings: endless, ..Textual::default() },
        Textual { describe: endless, ..Textual::default() },
    ] {
        let began = Instant::now();
        let error = describe(&textual, brief());
        assert_eq!(error, KernelError::Limit(Limit::KernelTime { max: BRIEF }));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}

#[test]
fn memory_growth_is_stopped() {
    let textual =
        Textual { describe: "(loop (drop (memory.grow (i32.const 16))) (br 0)) unreachable", ..Textual::default() };
    let limits = Limits { linear_memory_bytes: 3 << 20, ..Limits::default() };
    let error = describe(&textual, limits);
    assert_eq!(error, KernelError::Limit(Limit::LinearMemory { wanted: (3 << 20) + (64 << 10), max: 3 << 20 }));
}

#[test]
fn a_memory_that_starts_too_large_is_stopped() {
    let limits = Limits { linear_memory_bytes: 1 << 10, ..Limits::default() };
    let error = describe(&Textual::default(), limits);
    assert_eq!(error, KernelError::Limit(Limit::LinearMemory { wanted: 64 << 10, max: 1 << 10 }));
}

#[test]
fn endless_recursion_is_stopped() {
    let textual = Textual { describe: "(call $describe (i32.const 0) (i32.const 0))", ..Textual::default() };
    assert_eq!(describe(&textual, Limits::default()), KernelError::Limit(Limit::Stack));
}

#[test]
fn a_shape_whose_product_overflows_is_stopped_before_anything_is_allocated() {
    let textual = Textual {
        head: FULL,
        describe: "(call $full (f32.const 0) (i32.const 2048) (i32.const 4))",
        ..Textual::default()
    };
    let error = describe(&textual, Limits::default());
    assert_eq!(error, KernelError::Limit(Limit::TensorBytes { operation: "full", wanted: u64::MAX, max: 2 << 30 }));
}

#[test]
fn a_misused_operation_is_named_with_its_shape() {
    let textual = Textual {
        head: FULL,
        describe: "(call $full (f32.const 0) (i32.const 2048) (i32.const 7))",
        ..Textual::default()
    };
    let KernelError::Trap { message } = describe(&textual, Limits::default()) else { panic!() };
    assert!(
        message.starts_with("`full` cannot take shape [2147483647, ") && message.ends_with("rank is 7, not in 1..=6"),
        "{message}"
    );
}

#[test]
fn a_panic_and_wild_pointers_are_traps() {
    let panic = Textual { describe: "unreachable", ..Textual::default() };
    assert_eq!(
        describe(&panic, Limits::default()),
        KernelError::Trap { message: "kernel panicked (`unreachable`)".to_owned() }
    );
    for address in ["-4", "65530", "3"] {
        let textual =
            Textual { describe: Box::leak(format!("i32.const {address}").into_boxed_str()), ..Textual::default() };
        assert!(matches!(describe(&textual, Limits::default()), KernelError::Trap { .. }), "{address}");
    }
}

#[test]
fn a_spent_instance_says_so_and_restarts() {
    let kernel = Kernel::open(&Textual { describe: "unreachable", ..Textual::default() }.component()).unwrap();
    let mut instance = kernel.instantiate(NoTensors, Limits::default()).unwrap();
    assert!(matches!(instance.describe(&[]), Err(KernelError::Trap { .. })));
    assert!(instance.is_spent());
    assert_eq!(instance.settings().unwrap_err(), KernelError::Spent);
    let mut instance = instance.restart().unwrap();
    assert_eq!(instance.settings().unwrap(), []);
}
