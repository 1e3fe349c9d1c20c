//! `cargo xtask test`: every test of the workspace by one command, with the reasons of those that could not run.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;

use crate::workspace::{Workspace, run as run_command};
use crate::{datasets, emulated, gpu, kernels};

/// What a test writes to standard error, followed by the reason, when something it needs is missing here.
const SKIPPED: &str = "skipped: ";

/// Where nextest leaves its report, relative to the workspace: see `.config/nextest.toml`.
const REPORT: &str = "target/nextest/default/junit.xml";

/// What to pass on.
#[derive(Args, Debug)]
pub(crate) struct TestArguments {
    /// Arguments for the test runner, such as a part of a test's name, or `-p omnilearn-wire`. Without any, everything
    /// runs, doc tests included.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    runner_arguments: Vec<OsString>,
}

/// Builds what tests need, runs them, and lists why some could not run.
///
/// # Errors
/// When something does not build or a test fails.
pub(crate) fn run(workspace: &Workspace, arguments: &TestArguments) -> anyhow::Result<()> {
    eprintln!("building the kernels");
    kernels::build(workspace.root())?;
    let spec = datasets::find_spec("fashion-mnist")?;
    // The other tests are worth running without it.
    if let Err(error) = datasets::provide(spec, None, &|line| eprintln!("{line}")) {
        eprintln!("tests on real images will skip: {error:#}");
    }
    workspace.build(&["omnilearn-hub", "omnilearn-agent"])?;
    let everything = arguments.runner_arguments.is_empty();
    let selects_package = arguments.runner_arguments.iter().any(|argument| {
        let argument = argument.to_string_lossy();
        argument == "--package"
            || argument.starts_with("--package=")
            || (argument.starts_with("-p") && !argument.starts_with("--"))
    });
    let scope: &[&str] = if selects_package { &[] } else { &["--workspace"] };
    let mut skipped = if everything { emulated::test(workspace)? } else { Vec::new() };
    let has_nextest = has_nextest(workspace);
    if everything && has_nextest {
        skipped.extend(gpu::test(workspace)?);
    }
    for reason in &skipped {
        eprintln!("{SKIPPED}{reason}");
    }
    if !has_nextest {
        let mut command = workspace.cargo();
        command.args(["test", "--no-fail-fast"]).args(scope).args(&arguments.runner_arguments);
        return run_command(command);
    }
    if everything {
        let mut command = workspace.cargo();
        command.args(["test", "--quiet", "--workspace", "--doc"]);
        run_command(command)?;
    }
    let mut command = workspace.cargo();
    let color = if std::io::stderr().is_terminal() { "--color=always" } else { "--color=never" };
    command.args(["nextest", "run", "--no-fail-fast", color]).args(scope).args(&arguments.runner_arguments);
    run_nextest(command, &workspace.root().join(REPORT), skipped)
}

/// Runs nextest with its output shown as it comes; its summary is the last line, after the reasons for skipping, these and
/// the tests' own.
fn run_nextest(mut command: Command, report: &Path, mut reasons: Vec<String>) -> anyhow::Result<()> {
    if report.exists() {
        fs::remove_file(report).with_context(|| format!("removing {}", report.display()))?;
    }
    command.stderr(Stdio::piped());
    let mut child = command.spawn().context("starting cargo nextest")?;
    let errors = child.stderr.take().context("nextest has no standard error")?;
    let mut summary = None;
    for line in BufReader::new(errors).lines() {
        let line = line.context("reading nextest's output")?;
        eprintln!("{line}");
        if line.contains("Summary") {
            summary = Some(line);
        }
    }
    let status = child.wait().context("waiting for nextest")?;
    // Without a report, nothing is known of skips, and the tests' own result still stands.
    reasons.extend(skip_reasons(&fs::read_to_string(report).unwrap_or_default()));
    if !reasons.is_empty() {
        eprintln!("{} not run here:", if reasons.len() == 1 { "one check was" } else { "some checks were" });
        for reason in reasons {
            eprintln!("  {reason}");
        }
        if let Some(summary) = summary {
            eprintln!("{summary}");
        }
    }
    if !status.success() {
        bail!("tests failed ({status})");
    }
    Ok(())
}

/// The reasons in a JUnit report, each once.
fn skip_reasons(report: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    for line in report.lines() {
        let Some((_, reason)) = line.split_once(SKIPPED) else { continue };
        let reason = reason.split("</").next().unwrap_or(reason).trim();
        let reason = ["&lt;<", "&gt;>", "&quot;\"", "&apos;'", "&#x27;'", "&amp;&"].iter().fold(
            reason.to_owned(),
            |text, pair| {
                let (escaped, plain) = pair.split_at(pair.len() - 1);
                text.replace(escaped, plain)
            },
        );
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
}

fn has_nextest(workspace: &Workspace) -> bool {
    let mut command = workspace.cargo();
    command.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_for_skipping_are_read_from_the_report_each_once() {
        let report = "<system-err>skipped: curl isn&apos;t &lt;here&gt; &amp; wget neither</system-err>\n\
                      <system-err>noise\nskipped: no writable cgroup\n</system-err>\nskipped: no writable cgroup\n";
        assert_eq!(skip_reasons(report), ["curl isn't <here> & wget neither", "no writable cgroup"]);
        assert!(skip_reasons("<testsuites/>").is_empty());
    }
}
