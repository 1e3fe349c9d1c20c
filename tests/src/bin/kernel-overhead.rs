//! What a step costs through a WebAssembly kernel over the same model written natively: LeNet and ResNet-18, alternating in
//! one process, with gradients compared bit by bit.
//!
//! `cargo xtask bench overhead` runs it; `--json` prints one object.

use std::process::ExitCode;

use omnilearn_tests::overhead::{Case, Comparison, compare};

fn main() -> anyhow::Result<ExitCode> {
    omnilearn_agent::allocator::keep_memory(); // as an agent does
    let json = std::env::args().any(|argument| argument == "--json");
    rayon_free_of_handovers()?;
    let cases = [
        Case { model: "lenet", settings: &[], batch: 64, steps: 300 },
        Case { model: "lenet", settings: &[], batch: 8, steps: 600 },
        Case { model: "resnet", settings: &[("width", 64)], batch: 8, steps: 12 },
        Case { model: "resnet", settings: &[("width", 16)], batch: 32, steps: 40 },
    ];
    let mut rows = Vec::new();
    if !json {
        println!(
            "{:<8} {:>6} {:>6} {:>12} {:>12} {:>8}  gradients",
            "model", "width", "batch", "native ms", "kernel ms", "ratio"
        );
    }
    for case in cases {
        let Comparison { native_ms, kernel_ms, gradients_equal, .. } = compare(&case)?;
        let ratio = kernel_ms / native_ms;
        let width = case.settings.first().map_or(0, |(_, width)| *width);
        if !json {
            let equal = if gradients_equal { "equal to the bit" } else { "DIFFER" };
            println!(
                "{:<8} {width:>6} {:>6} {native_ms:>12.3} {kernel_ms:>12.3} {ratio:>8.3}  {equal}",
                case.model, case.batch
            );
        }
        rows.push(serde_json::json!({
            "model": case.model, "width": width, "batch": case.batch, "steps": case.steps,
            "native_ms": native_ms, "kernel_ms": kernel_ms, "ratio": ratio, "gradients_equal": gradients_equal,
        }));
    }
    if json {
        println!("{}", serde_json::json!({ "models": rows }));
    }
    let equal = rows.iter().all(|row| row["gradients_equal"] == true);
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One compute thread, the calling one, as an agent with a quota of one core has it.
fn rayon_free_of_handovers() -> anyhow::Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global()?;
    Ok(())
}
