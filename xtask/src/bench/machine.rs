//! What the numbers were measured on.

use std::fs;

/// The processor, as the system calls it.
pub(crate) fn processor() -> String {
    let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = information.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
    name.unwrap_or("unknown processor").to_owned()
}
