//! A fleet on one machine: agents as real processes, each with the CPU quota of the device it stands for.

pub(crate) mod process;
pub(crate) mod ratios;
