//! Unlike devices on one machine: processes under the CPU quotas of the devices that they stand for.

pub mod quota;
