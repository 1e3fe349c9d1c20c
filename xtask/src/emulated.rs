//! The CPU operators' tests on other processors than this one, by QEMU: aarch64, and x86-64 with narrower vectors.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::toolchain::{self, DEBIAN_PACKAGES};
use crate::workspace::{Workspace, executables, has_program};

const PACKAGE: &str = "omnilearn-cpu";
const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// Where Debian has the C library for it.
const AARCH64_LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Tests of large sizes, which take minutes where every number is emulated. How work is shared among threads does not depend
/// on the processor, and what small boxes have, NEON, is worth the sizes of real models.
const SKIPPED_ON_ARM: &[&str] = &["results_do_not_depend_on_the_number_of_threads"];
const SKIPPED: &[&str] = &["results_do_not_depend_on_the_number_of_threads", "convolutions_of_the_known_models"];

/// A processor to test on.
struct Processor {
    name: &'static str,
    /// What `omnilearn_cpu::instruction_set` has to find on it.
    instruction_set: &'static str,
    emulator: [&'static str; 3],
    /// Cases of each property test, within about ten seconds.
    cases: u32,
    /// Parts of the names of tests that are left out.
    skipped: &'static [&'static str],
}

const ARM: Processor = Processor {
    name: "aarch64",
    instruction_set: "NeonFmaImpl",
    emulator: ["qemu-aarch64-static", "-L", AARCH64_LIBRARIES],
    cases: 64,
    skipped: SKIPPED_ON_ARM,
};

const NARROW: [Processor; 2] = [
    Processor {
        name: "x86-64 with SSE 4.2",
        instruction_set: "V2",
        emulator: ["qemu-x86_64-static", "-cpu", "Nehalem"],
        cases: 64,
        skipped: SKIPPED,
    },
    // Multiplying and adding at once is what QEMU is slowest at.
    Processor {
        name: "x86-64 with AVX2",
        instruction_set: "V3",
        emulator: ["qemu-x86_64-static", "-cpu", "Haswell"],
        cases: 8,
        skipped: SKIPPED,
    },
];

/// Runs them where the tools are there, and returns the reasons why some could not run, each with what to install.
///
/// # Errors
/// When they do not build or one fails.
pub(crate) fn test(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut skipped = Vec::new();
    let missing = missing_for_arm();
    if missing.is_empty() {
        ARM.run(&build_for_arm(workspace)?)?;
    } else {
        skipped.push(format!("the CPU operators on {}: {}", ARM.name, missing.join(", ")));
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(skipped);
    }
    if has_program(NARROW[0].emulator[0]) {
        // The whole workspace is selected, so that nothing is built twice: see `Workspace::build`.
        let mut command = workspace.cargo();
        command.args(["test", "--no-run", "--workspace", "--lib"]);
        let tests = tests(command)?;
        NARROW.iter().try_for_each(|processor| processor.run(&tests))?;
    } else {
        skipped.push("the CPU operators with narrower vectors: `apt-get install qemu-user-static`".to_owned());
    }
    Ok(skipped)
}

impl Processor {
    fn run(&self, tests: &Path) -> anyhow::Result<()> {
        eprintln!("testing the CPU operators on {}", self.name);
        let [emulator, option, value] = self.emulator;
        let mut command = Command::new(emulator);
        command.args([option, value]).arg(tests).arg("--quiet");
        command.args(self.skipped.iter().flat_map(|name| ["--skip", name]));
        command.env("PROPTEST_CASES", self.cases.to_string()).env("INSTRUCTION_SET", self.instruction_set);
        // What it writes is shown on failure only: QEMU names each feature of the processor that nobody needs here.
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {emulator}"))?;
        if !output.status.success() {
            let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            bail!("the CPU operators' tests failed on {} ({}):\n{out}\n{errors}", self.name, output.status);
        }
        Ok(())
    }
}

/// What has to be done before the tests can be built and run for aarch64.
fn missing_for_arm() -> Vec<String> {
    let needed = [
        (has_program("aarch64-linux-gnu-gcc"), "gcc-aarch64-linux-gnu"),
        (Path::new(AARCH64_LIBRARIES).join("lib/crt1.o").exists(), "libc6-dev-arm64-cross"),
        (has_program(ARM.emulator[0]), "qemu-user-static"),
    ];
    let packages: Vec<_> = needed.iter().filter(|(is_there, _)| !is_there).map(|(_, package)| *package).collect();
    let mut missing = Vec::new();
    if !packages.is_empty() {
        missing.push(format!("`apt-get install {}`", packages.join(" ")));
    }
    if !toolchain::has_target(AARCH64) && !toolchain::has_debian() {
        let packages = DEBIAN_PACKAGES.join(" ");
        missing.push(format!("`rustup target add {AARCH64}` or, on Debian, `apt-get install {packages}`"));
    }
    missing
}

fn build_for_arm(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let mut command =
        if toolchain::has_target(AARCH64) { toolchain::own() } else { toolchain::debian("std,panic_unwind,test") };
    command
        .current_dir(workspace.root())
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .args(["test", "--no-run", "--locked", "--package", PACKAGE, "--lib", "--target", AARCH64, "--target-dir"])
        .arg(workspace.target().join("aarch64-tests"));
    tests(command)
}

/// Builds the package's tests and returns their path.
fn tests(command: Command) -> anyhow::Result<PathBuf> {
    let name = PACKAGE.replace('-', "_");
    let executables = executables(command)?;
    let tests = executables.into_iter().find(|(library, _)| *library == name);
    Ok(tests.with_context(|| format!("cargo built no tests of {PACKAGE}"))?.1)
}
