//! Tests on a GPU: a real one where a driver is installed, or a program that stands for one.

use std::env;
use std::path::Path;

use crate::workspace::{Workspace, run};

/// A Vulkan driver that computes on the CPU; it comes with Chromium.
const SWIFTSHADER: &str = "/usr/lib/chromium/vk_swiftshader_icd.json";

/// Tells the Vulkan loader, and wgpu, which drivers there are.
const DRIVERS: &str = "VK_ICD_FILENAMES";

/// What is run: the whole tensor interface, and jobs whose agents compute on both.
const TESTS: &str = "test(gpu) & (binary(conformance) | binary(end_to_end))";

/// Runs the tests that a GPU takes part in, where a device can be had, and returns the reason if none can. They need a build of their
/// own.
///
/// # Errors
/// When they do not build or one fails.
pub(crate) fn test(workspace: &Workspace) -> anyhow::Result<Option<String>> {
    if env::var_os(DRIVERS).is_none() && !Path::new(SWIFTSHADER).exists() {
        let advice = "install SwiftShader (`apt-get install chromium libvulkan1`), or name a Vulkan driver's file in VK_ICD_FILENAMES";
        return Ok(Some(format!("tests on a GPU: {advice}")));
    }
    let mut command = workspace.cargo();
    command.args(["nextest", "run", "--workspace", "--features", "omnilearn-tests/gpu", "--filterset", TESTS]);
    command.arg("--no-fail-fast");
    if env::var_os(DRIVERS).is_none() {
        command.env(DRIVERS, SWIFTSHADER);
    }
    eprintln!("testing on a GPU (the first build takes several minutes)");
    run(command)?;
    Ok(None)
}
